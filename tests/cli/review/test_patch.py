"""Parsing patches of real git; changed words; syntax colours."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.review_values import hunk

from skerry.cli.review import rows
from skerry.cli.review.patch import FilePatch, PatchLine, decoded, file_patches, hunk_parts, split_lines
from skerry.cli.review.rows import changed_words

NAMES = [
    b"plain.txt",
    b"with space",
    b'quo"te',
    b"new\nline",
    b"tab\t",
    b"\x1b[31m",
    "é".encode(),
    b"\xff\xfe",
    b" b/x",
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("repository")
    git(place, "init", "-q")
    return place


def git(place: Path, *words: str) -> bytes:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words]
    return subprocess.run(command, cwd=place, check=True, capture_output=True).stdout


def write(place: Path, name: bytes, data: bytes) -> None:
    (Path(decoded(bytes(place)), decoded(name))).parent.mkdir(parents=True, exist_ok=True)
    Path(decoded(bytes(place)), decoded(name)).write_bytes(data)


@pytest.fixture(scope="module")
def change(repository: Path) -> dict[str, FilePatch]:
    for number, name in enumerate(NAMES):
        write(repository, name, b"".join(b"%d line %d\n" % (number, line) for line in range(30)))
    for name in (b"gone", b"mode", b"moved", b"binary", b"end"):
        write(repository, name, name + b"\n" + b"".join(b"%s %d\n" % (name, line) for line in range(20)))
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "base")
    for name in NAMES:
        path = Path(decoded(bytes(repository)), decoded(name))
        path.write_bytes(
            path.read_bytes().replace(b" line 3\n", b" diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n")
        )
    (repository / "gone").unlink()
    (repository / "mode").chmod(0o755)
    (repository / "moved").rename(repository / "moved there")
    (repository / "binary").write_bytes(bytes(range(256)))
    (repository / "end").write_bytes((repository / "end").read_bytes() + b"no end")
    write(repository, b"new dir/new", b"\xff\r\n")
    git(repository, "add", "-A")
    data = git(repository, "diff", "--cached", "-M", "--binary")
    return {piece.path: piece for piece in file_patches(split_lines([data]))}


def test_names_survive_and_changed_lines_are_not_headers(change: dict[str, FilePatch]) -> None:
    for name in NAMES:
        piece = change[decoded(name)]
        assert (piece.added, piece.removed) == (4, 1)
        (part,) = piece.parts
        assert "--- a/x" in [line.text for line in part.lines if line.kind == "added"]
        assert [line.old for line in part.lines if line.kind == "removed"] == [4]
        assert [line.new for line in part.lines if line.kind == "added"] == [4, 5, 6, 7]


def test_file_headers_are_parsed(change: dict[str, FilePatch]) -> None:
    assert change["gone"].removed == 21
    assert "deleted file mode 100644" in change["gone"].facts
    assert change["mode"].facts == ["old mode 100644", "new mode 100755"]
    assert change["moved there"].old_path == "moved"
    assert change["binary"].binary
    assert change["new dir/new"].parts[0].lines == [PatchLine("added", "\udcff\r", None, 1)]
    assert [line.kind for line in change["end"].parts[0].lines][-2:] == ["added", "note"]


def test_long_file_is_limited_and_the_rest_is_skipped(repository: Path) -> None:
    lines = [b"diff --git a/x b/x", b"--- a/x", b"+++ b/x", b"@@ -0,0 +1,1000 @@", *[b"+x"] * 1000]
    lines += [b"diff --git a/y b/y", b"new file mode 100644"]
    first, second = file_patches(lines, most=10)
    assert first.cut
    assert len(first.parts[0].lines) == 10
    assert (second.path, second.cut) == ("y", False)


def test_incomplete_patch_is_marked() -> None:
    (piece,) = file_patches([b"diff --git a/x b/x", b"--- a/x", b"+++ b/x", b"@@ -1,3 +1,3 @@", b" a"])
    assert piece.cut


def test_stream_is_split_into_lines_at_any_chunk_boundary() -> None:
    def single() -> Iterator[bytes]:
        yield from (bytes([byte]) for byte in b"one\ntwo\r\n\nthree")

    assert list(split_lines(single())) == [b"one", b"two\r", b"", b"three"]
    assert [len(line) for line in split_lines([b"x" * 50] * 10 + [b"\ny"], longest=100)] == [100, 1]


def test_hunk_lines_have_numbers() -> None:
    (part,) = hunk_parts(hunk(" a\n-b\n+c\n+d\n e\n\\ No newline at end of file\n", old_start=7, new_start=9))
    assert [(line.old, line.new) for line in part.lines] == [
        (7, 9),
        (8, None),
        (None, 10),
        (None, 11),
        (9, 12),
        (None, None),
    ]


def marked(old: str, new: str) -> tuple[list[str], list[str]]:
    found = changed_words([PatchLine("removed", old), PatchLine("added", new)])
    return ([old[a:b] for a, b in found.get(0, [])], [new[a:b] for a, b in found.get(1, [])])


def test_changed_words_are_marked() -> None:
    assert marked("return foo(user)", "return bar(user)") == (["foo"], ["bar"])
    assert marked("a = 1; b = 2", "a = 3; b = 4") == (["1", "2"], ["3", "4"])
    assert marked("if ok == True:", "if ok:") == ([" == True"], [])
    assert marked("nothing in common", "x = y(1, 2, 3)") == ([], [])


def test_only_paired_lines_are_compared() -> None:
    lines = [PatchLine("removed", "a b"), PatchLine("removed", "c d"), PatchLine("added", "a x")]
    assert changed_words(lines) == {}
    pair = [
        PatchLine("removed", "a b"),
        PatchLine("removed", "c d"),
        PatchLine("added", "a x"),
        PatchLine("added", "c y"),
    ]
    assert changed_words(pair) == {0: [(2, 3)], 2: [(2, 3)], 1: [(2, 3)], 3: [(2, 3)]}


def test_hostile_line_takes_linear_time() -> None:
    assert marked("x y " * 400, "y x " * 400) == ([], [])
    start = "same " * 300
    assert marked(f"{start}{'x y ' * 90}", f"{start}{'y x ' * 90}") == (["x y " * 89 + "x y"], ["y x " * 89 + "y x"])
    assert marked("z" * 5000, "z" * 5001) == ([], [])


def test_language_follows_the_file_name() -> None:
    first, second = rows.syntax_inks("src/app.py", ["def f():", "    return 'é'  # why"])
    assert first == [(0, 3, "keyword"), (4, 5, "name")]
    assert [kind for _, _, kind in second] == ["keyword", "string", "string", "string", "comment"]
    assert rows.syntax_inks("no.suchlanguage", ["def f():"]) == [[]]
    assert rows.syntax_inks("\x1b.py", ["def f():"]) == [[]]


def test_multi_line_string_is_coloured_on_each_line() -> None:
    inks = rows.syntax_inks("a.py", ['x = """one', "two", 'three"""'])
    assert [kind for line in inks for _, _, kind in line] == ["string"] * len([kind for line in inks for kind in line])


def test_long_text_is_not_coloured() -> None:
    assert rows.syntax_inks("a.py", ["def f(): pass"] * 10_000) == [[]] * 10_000
    assert rows.syntax_inks("a.py", ["x" * 2000]) == [[]]


def test_endless_regular_expression_is_stopped() -> None:
    with pytest.raises(rows._TooLong), rows.time_limit(0.05):
        re.match(r"(a+)+$", "a" * 64 + "b")
