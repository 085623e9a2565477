"""StepComparison of two runs of a step: same, same after normalising, or different with a bounded diff."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from skerry.client.replay import compare
from skerry.client.replay.compare import ChangedFiles, RunSide, compare_ends, compare_files
from skerry.client.replay.normalise import Window
from skerry.errors import InvalidRequest
from skerry.types.traces import TraceChange, TraceChanges, TraceContent, TraceEnd, TraceError

NOW = 1_794_848_580.0  # 2026-11-16T17:03:00Z


class Contents:
    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}

    def pieces(self, sha256: str) -> Iterator[bytes]:
        yield self.found[sha256]


BLOBS = Contents()
FIRST = RunSide(BLOBS, Window(start=NOW, end=NOW + 60))
SECOND = RunSide(BLOBS, Window(start=NOW + 100_000, end=NOW + 100_060))


def content(text: str | bytes) -> TraceContent:
    data = text.encode() if isinstance(text, str) else text
    name = hashlib.sha256(data).hexdigest()
    if len(data) < 100 and isinstance(text, str):
        return TraceContent(size=len(data), sha256=name, text=text)
    BLOBS.found[name] = data
    return TraceContent(size=len(data), sha256=name, blob=name)


def end(stdout: str | bytes = "", **more: Any) -> TraceEnd:
    return TraceEnd(of=1, at=NOW, stdout=content(stdout) if stdout else None, **{"exit_code": 0, **more})


def compared(before: TraceEnd, after: TraceEnd) -> compare.StepComparison:
    return compare_ends(before, FIRST, after, SECOND)


def test_equal_steps_are_the_same() -> None:
    for text in ("", "hello\n", "x" * 5000, b"\xff\x00\n"):
        found = compared(end(text), end(text))
        assert (found.verdict, found.rules, found.differences) == ("same", (), ())


def test_steps_that_differ_in_time_are_normalised() -> None:
    found = compared(end("3 passed in 0.01s\n"), end("3 passed in 1.51s\n", duration_s=9.0))
    assert (found.verdict, found.rules) == ("normalised", ("duration",))
    assert compared(end("at 2026-11-16 17:03:05"), end("at 2026-11-17 20:50:05")).rules == ("date-time",)


def test_different_ends_name_the_part_and_both_values() -> None:
    for part, before, after in (
        ("exit_code", {"exit_code": 0}, {"exit_code": 1}),
        ("signal", {"exit_code": None, "signal": "KILL"}, {"exit_code": None, "signal": "TERM"}),
        ("timed_out", {}, {"timed_out": True}),
        ("oom_killed", {}, {"oom_killed": True}),
        ("error", {}, {"error": TraceError(code="file_not_found")}),
        ("cwd", {"cwd": "/srv"}, {"cwd": "/opt"}),
    ):
        found = compared(end(**before), end(**after))
        assert (found.verdict, [one.part for one in found.differences]) == ("different", [part])


def test_different_output_has_a_diff_of_normalised_lines() -> None:
    before = "".join(f"line {n}\n" for n in range(50)) + "3 passed in 0.01s\n"
    after = before.replace("line 40", "row 40").replace("0.01s", "0.99s")
    (found,) = compared(end(before), end(after)).differences
    assert found.part == "stdout"
    assert found.diff is not None
    assert "-line 40\n+row 40" in found.diff
    assert "0.01s" not in found.diff
    assert "0.99s" not in found.diff


def test_diff_of_hostile_output_is_bounded() -> None:
    """Nearly equal lines in another order are the worst case of the alignment."""
    lines = [f"{'a' * 20}{n % 7}" for n in range(4000)]
    (found,) = compared(end("\n".join(lines)), end("\n".join(reversed(lines)))).differences
    assert found.diff is not None
    assert len(found.diff.splitlines()) <= compare.MAX_DIFF_LINES + 1
    assert max(map(len, found.diff.splitlines())) <= compare.MAX_DIFF_LINE + 1


def test_output_that_imitates_a_placeholder_is_different() -> None:
    found = compared(end("took <duration>"), end("took 0.03s"))
    assert found.verdict == "different"
    assert found.differences[0].diff


def test_output_that_is_not_kept_as_a_whole_is_compared_by_its_hash() -> None:
    cut = TraceContent(size=1000, sha256="a" * 64, text="begin end", head=6)
    assert compared(end(stderr=cut), end(stderr=cut)).verdict == "same"
    other = TraceContent(size=1000, sha256="b" * 64, text="begin end", head=6)
    (found,) = compared(end(stderr=cut), end(stderr=other)).differences
    assert (found.part, found.before) == ("stderr", "1000 bytes, not kept as a whole")
    unknown = TraceContent(size=1000, left_out="the disk is full")
    assert compared(end(stderr=unknown), end(stderr=unknown)).verdict == "different"  # not known to be equal


def test_output_above_the_maximum_is_rejected() -> None:
    """Only a forged trace has it."""
    with pytest.raises(InvalidRequest, match="more than"):
        compared(end("a" * (compare.MAX_KEPT + 1)), end("b"))


# -- files -------------------------------------------------------------------------------------------------------------


def changes(**files: str | None) -> TraceChanges:
    found = []
    for name, text in files.items():
        path = "/workspace/" + name.replace("__", "/").replace("_", ".")
        if text is None:
            found.append(TraceChange(path=path))
        else:
            digest = hashlib.sha256(text.encode()).hexdigest()
            found.append(TraceChange(path=path, mode="100644", sha256=digest, size=len(text)))
    return TraceChanges(root="/workspace", files=tuple(found), sha256="x")


def trees(before: list[TraceChanges], after: list[TraceChanges]) -> tuple[ChangedFiles, ChangedFiles]:
    found = ChangedFiles(), ChangedFiles()
    for tree, parts in zip(found, (before, after), strict=True):
        for part in parts:
            tree.add(part)
    return found


def test_equal_trees_are_the_same_however_they_were_collected() -> None:
    one, two = trees([changes(a_txt="1", b_txt="2")], [changes(b_txt="1"), changes(a_txt="1"), changes(b_txt="2")])
    assert compare_files(one.differences(two), {}).verdict == "same"


def test_different_files_are_named_once() -> None:
    one, two = trees([changes(a_txt="1", b_txt="2", c_txt="3")], [changes(a_txt="1", b_txt="X", d_txt="4")])
    known = one.differences(two)
    (found,) = compare_files(known, {}).differences
    assert found.before == "3 files differ"
    assert found.diff is not None
    assert [line.split(":")[0] for line in found.diff.splitlines()] == [f"/workspace/{name}.txt" for name in "bcd"]
    assert compare_files(one.differences(two), known).verdict == "same"  # reported with an earlier step
    two.add(changes(b_txt="Y"))
    assert compare_files(one.differences(two), known).verdict == "different"


def test_removed_and_untouched_files_differ_from_present_ones() -> None:
    for before, after in ((changes(a_txt=None), changes(a_txt="1")), (changes(), changes(a_txt=None))):
        one, two = trees([before], [after])
        assert compare_files(one.differences(two), {}).verdict == "different"


def test_temporary_file_that_one_review_saw_is_no_difference() -> None:
    """It was created and removed within a command. The removal of a file of the start is a difference."""
    one, two = trees([changes(a_tmp="1"), changes(a_tmp=None)], [])
    assert compare_files(one.differences(two, set()), {}).verdict == "same"
    assert compare_files(two.differences(one, set()), {}).verdict == "same"
    assert compare_files(one.differences(two, {"/workspace/a.tmp"}), {}).verdict == "different"
    assert compare_files(one.differences(two), {}).verdict == "different"
    one, two = trees([changes(a_tmp="1")], [])
    assert compare_files(one.differences(two, set()), {}).verdict == "different"


def test_compiled_python_may_differ_in_content_only() -> None:
    path = "/workspace/__pycache__/a.cpython-312.pyc"

    def compiled(digit: str, mode: str = "100644") -> TraceChanges:
        return TraceChanges(root="/workspace", files=(TraceChange(path=path, mode=mode, sha256=digit * 64),))

    one, two = trees([compiled("a")], [compiled("b")])
    assert compare_files(one.differences(two), {}).rules == ("compiled-python",)
    for other in (compiled("b", "100755"), TraceChanges(root="/workspace", files=(TraceChange(path=path),)), changes()):
        one, two = trees([compiled("a")], [other])
        assert compare_files(one.differences(two), {}).verdict == "different"


def test_many_different_files_are_bounded() -> None:
    one, two = trees([changes(**{f"f{n}": "1" for n in range(5000)})], [])
    (found,) = compare_files(one.differences(two), {}).differences
    assert found.diff is not None
    assert found.diff.endswith("… 4960 more files")


def test_changes_that_are_not_listed_are_compared_by_their_hash() -> None:
    cut = TraceChanges(root="/workspace", sha256="a", omitted=9)
    one, two = trees([cut], [TraceChanges(root="/workspace", sha256="b", omitted=9)])
    assert compare_files(one.differences(two), {}).verdict == "different"
    one, two = trees([cut], [cut])
    assert compare_files(one.differences(two), {}).verdict == "same"
