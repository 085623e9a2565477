"""Apply is atomic despite kills, full disks, locks, swaps and concurrent writes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from support.kills import killed_at, killed_at_call, steps_of
from support.patch_sets import (
    Files,
    Link,
    Program,
    apply,
    directories_of,
    git,
    in_memory,
    lay,
    put,
    recover,
    repository,
    tree_of,
    undo,
)

from skerry.client.apply.journal import Journal
from skerry.client.apply.session import ApplyTarget
from skerry.client.apply.target_dir import find_target
from skerry.errors import Conflict

LINES = b"".join(b"line %d\n" % number for number in range(1, 21))
BASE: Files = {"f": LINES, "dir/gone": b"gone\n", "bit": b"#!\n", "link": Link(b"f"), "was/file": b"1", "d": b"file"}
NEW: Files = {"f": b"new\n" + LINES, "bit": Program(b"#!\n"), "link": Link(b"bit"), "made/new": b"2", "d/below": b"3"}
OWN: Files = {"own": b"mine\n"}


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with in_memory() as path:
        yield path


@pytest.fixture(autouse=True)
def state_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    return tmp_path / "tree"


def leftovers(root: Path) -> list[str]:
    return [path for path in tree_of(root) if ".skerry-" in path]


@pytest.mark.parametrize("exchange", [True, False], ids=["swapping", "without swapping"])
def test_apply_killed_at_any_step_is_reverted_or_completed(exchange: bool, tmp_path: Path) -> None:
    def work(root: Path) -> Callable[[Callable[[str], None]], object]:
        return lambda step: apply(root, BASE, NEW, step=step, exchange=exchange)

    steps = steps_of(work(lay(tmp_path / "count", {**OWN, **BASE})))
    assert len(steps) > 30
    before, after = {**OWN, **BASE}, {**OWN, **NEW}
    for number, name in enumerate(steps):
        root = lay(tmp_path / str(number), before)
        killed_at(number, work(root))
        done = steps.index("done") < number
        recover(root)
        assert tree_of(root) == (after if done else before), name
        assert directories_of(root) == ({"made", "d"} if done else {"dir", "was"}), name
        journal = Journal(find_target(root).journal)
        assert [record.state for record in journal.records()] == (["closed"] if done else []), name
        journal.close()
        if not done and number % 5 == 0:
            apply(root, BASE, NEW)
            assert tree_of(root) == after


def test_apply_interrupted_at_any_step_is_atomic(tmp_path: Path) -> None:
    steps = steps_of(lambda step: apply(lay(tmp_path / "count", BASE), BASE, NEW, step=step))
    for number, name in enumerate(steps):
        root = lay(tmp_path / str(number), BASE)
        numbers = iter(range(len(steps)))

        def step(_: str, numbers: Iterator[int] = numbers, number: int = number) -> None:
            if next(numbers) == number:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            apply(root, BASE, NEW, step=step)
        if steps.index("done") >= number:
            assert tree_of(root) == BASE, name
        assert recover(root) == []
        assert tree_of(root) == (BASE if steps.index("done") >= number else NEW), name


def test_undo_killed_at_any_step_is_reverted_or_completed(tmp_path: Path) -> None:
    first = lay(tmp_path / "count", {**OWN, **BASE})
    apply(first, BASE, NEW)
    steps = steps_of(lambda step: undo(first, step))
    for number, name in enumerate(steps):
        root = lay(tmp_path / str(number), {**OWN, **BASE})
        apply(root, BASE, NEW)
        killed_at(number, lambda step, root=root: undo(root, step))  # type: ignore[misc]
        done = steps.index("done") < number
        recover(root)
        assert tree_of(root) == {**OWN, **(BASE if done else NEW)}, name
        if not done and number % 5 == 0:
            undo(root)
            assert tree_of(root) == {**OWN, **BASE}


@pytest.mark.parametrize("what", ["apply", "undo", "recovery"])
def test_work_killed_between_system_calls_is_reverted_or_completed(what: str, tmp_path: Path) -> None:
    """Also within a step, in the journal, and in the recovery from a kill: every seventh call of the kernel."""

    def work(root: Path) -> object:
        return {"apply": lambda: apply(root, BASE, NEW), "undo": lambda: undo(root)}.get(what, lambda: recover(root))()

    middle = steps_of(lambda step: apply(lay(tmp_path / "count", BASE), BASE, NEW, step=step)).index("sync")
    for number in count(7, 7):
        root = lay(tmp_path / str(number), BASE)
        if what == "undo":
            apply(root, BASE, NEW)
        elif what == "recovery":
            killed_at(middle, lambda step, root=root: apply(root, BASE, NEW, step=step))  # type: ignore[misc]
        killed = killed_at_call(number, lambda root=root: work(root))  # type: ignore[misc]
        recover(root)
        assert tree_of(root) in ((BASE,) if what == "recovery" else (BASE, NEW)), number
        assert not list(root.rglob(".skerry-*")), number
        if not killed:
            assert number > 100
            return


def test_killed_apply_with_a_commit_is_atomic(tmp_path: Path) -> None:
    base, new = {"f": LINES, "g": b"1\n"}, {"f": b"new\n" + LINES, "g": b"2\n"}
    model = repository(tmp_path / "model", base)

    def work(root: Path) -> Callable[[Callable[[str], None]], object]:
        return lambda step: apply(root, base, new, step=step, target=ApplyTarget(commit=True))

    shutil.copytree(model, tmp_path / "count", symlinks=True)
    steps = steps_of(work(tmp_path / "count"))
    for number in range(steps.index("staged"), len(steps)):
        root = tmp_path / str(number)
        shutil.copytree(model, root, symlinks=True)
        killed_at(number, work(root))
        recover(root)
        done = number > steps.index("land")
        assert tree_of(root) == (new if done else base), steps[number]
        assert git(root, "rev-list", "--count", "HEAD") == ("2\n" if done else "1\n")
        assert git(root, "status", "--short") == "", steps[number]


def test_recovery_leaves_later_changes_and_keeps_previous_contents(root: Path) -> None:
    lay(root, BASE)
    steps: list[str] = []
    other = lay(root.parent / "count", BASE)
    apply(other, BASE, NEW, step=steps.append)
    killed_at(steps.index("sync"), lambda step: apply(root, BASE, NEW, step=step))
    (root / "f").write_bytes(b"edited after the crash\n")
    told = " ".join(recover(root))
    assert "changed since: f;" in told
    assert tree_of(root) == {**BASE, "f": b"edited after the crash\n"}
    kept = Path(told.rpartition("are in ")[2])
    assert LINES in [path.read_bytes() for path in kept.iterdir()]
    assert recover(root) == []


WRITERS: dict[str, Callable[[Path], object]] = {
    "written to": lambda path: path.write_bytes(b"written in between\n"),
    "replaced": lambda path: (put(path.with_name("save"), b"saved\n"), os.rename(path.with_name("save"), path)),
    "removed": lambda path: path.unlink(),
    "made a link": lambda path: (path.unlink(), path.symlink_to("own")),
}


@pytest.mark.parametrize("how", WRITERS)
@pytest.mark.parametrize("change", ["put b'f'", "remove b'dir/gone'"])
def test_concurrently_written_file_is_not_lost(how: str, change: str, root: Path) -> None:
    lay(root, {**OWN, **BASE})
    path = root / change.split("'")[1]
    wanted: dict[str, object] = {}

    def step(name: str) -> None:
        if name == change:
            WRITERS[how](path)
            wanted.update(tree_of(root.joinpath(*path.relative_to(root).parts[:-1])))

    with pytest.raises(Conflict, match="nothing was changed"):
        apply(root, BASE, NEW, step=step)
    expected: dict[str, object] = {**OWN, **BASE}
    if how == "removed":
        expected.pop(str(path.relative_to(root)))
    else:
        expected[str(path.relative_to(root))] = wanted[path.name]
    assert tree_of(root) == expected


@pytest.mark.parametrize("how", ["file", "directory", "link"])
def test_name_taken_concurrently_keeps_its_file(how: str, root: Path) -> None:
    lay(root, BASE)

    def step(name: str) -> None:
        if name == "put b'made/new'":
            path = root / "made/new"
            {"file": path.touch, "directory": path.mkdir, "link": lambda: path.symlink_to("/etc")}[how]()

    with pytest.raises(Conflict, match="nothing was changed"):
        apply(root, BASE, NEW, step=step)
    found = tree_of(root)
    found.pop("made/new", None)
    assert found == BASE
    assert os.path.lexists(root / "made/new")


def test_file_written_continuously_is_merged_or_reported(root: Path) -> None:
    base = b"0000000\n" + LINES
    lay(root, {"f": base})
    stop = threading.Event()

    def write() -> None:
        for number in count(1):
            if stop.is_set():
                return
            with (root / "f").open("r+b") as file:
                file.write(b"%07d" % number)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(40):
            with suppress(Conflict):
                apply(root, {"f": base}, {"f": base + b"new\n"})
    finally:
        stop.set()
        thread.join()
    assert (root / "f").read_bytes()[7:] in (base[7:], base[7:] + b"new\n")
    assert leftovers(root) == []


def test_directory_replaced_by_a_link_is_never_written_through(tmp_path: Path, root: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    lay(root, {"d/f": b"1\n", "d/sub/g": b"2\n"})
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(root / "d", root / "d-moved")
            with contextlib.suppress(FileExistsError):  # it was made in that moment
                os.symlink(outside, root / "d")
                os.unlink(root / "d")
            while True:
                try:
                    os.rename(root / "d-moved", root / "d")
                    break
                except OSError:  # it was made in that moment
                    shutil.rmtree(root / "d", ignore_errors=True)

    thread = threading.Thread(target=swap)
    thread.start()
    outcomes = set()
    try:
        for _ in range(60):
            try:
                apply(root, {"d/f": b"1\n", "d/sub/g": b"2\n"}, {"d/f": b"x\n", "d/sub/g": b"y\n", "d/sub/new": b"z\n"})
                undo(root)
                outcomes.add("done")
            except Conflict:
                outcomes.add("refused")
    finally:
        stop.set()
        thread.join()
    assert list(outside.iterdir()) == []
    assert "refused" in outcomes
    recover(root)
    assert leftovers(root) == []


def test_link_in_place_of_a_directory_at_any_step_is_never_written_through(tmp_path: Path) -> None:
    base, new = {"d/f": b"1\n", "d/gone": b"2\n"}, {"d/f": b"x\n", "d/made/new": b"z\n"}
    steps = steps_of(lambda step: apply(lay(tmp_path / "count", base), base, new, step=step))
    outside = lay(tmp_path / "outside", {"f": b"1\n", "gone": b"2\n"})
    for number in range(steps.index("sync")):
        root = lay(tmp_path / str(number), base)
        numbers = iter(range(len(steps) + 1))

        def step(_: str, root: Path = root, numbers: Iterator[int] = numbers, number: int = number) -> None:
            if next(numbers) == number:
                os.rename(root / "d", root / "moved")
                os.symlink(outside, root / "d")

        with pytest.raises((Conflict, OSError)):
            apply(root, base, new, step=step)
        assert tree_of(outside) == {"f": b"1\n", "gone": b"2\n"}, steps[number]
        (root / "d").unlink()
        os.rename(root / "moved", root / "d")
        recover(root)
        assert tree_of(root) == base, steps[number]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it mounts a small tmpfs")
def test_full_disk_changes_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    try:
        root = lay(disk / "tree", {"f": LINES, "g": b"1\n"})
        for sizes in ((1_200_000, 1), (700_000, 700_000), (1, 1_200_000)):
            with pytest.raises(Conflict, match="No space left on device; nothing was changed"):
                apply(root, {"g": b"1\n"}, {"g": b"2\n", "a": b"x" * sizes[0], "z": b"y" * sizes[1]})
            assert tree_of(root) == {"f": LINES, "g": b"1\n"}
        apply(root, {"g": b"1\n"}, {"g": b"2\n"})
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it makes a file immutable")
def test_failed_step_reverts_earlier_ones(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = lay(tmp_path_factory.mktemp("tree"), BASE)
    if subprocess.run(["chattr", "+i", str(root / "f")], check=False, capture_output=True).returncode:
        pytest.skip("this file system has no immutable files")
    before = {name: (root / name).lstat().st_ino for name in BASE}
    try:
        with pytest.raises(Conflict, match="nothing was changed"):
            apply(root, BASE, NEW)
        assert tree_of(root) == BASE
        assert {name: (root / name).lstat().st_ino for name in BASE} == before
    finally:
        subprocess.run(["chattr", "-i", str(root / "f")], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes another user")
def test_read_only_directory_is_reported_before_writing() -> None:
    with tempfile.TemporaryDirectory(prefix="skerry-test-") as name:
        root = lay(Path(name) / "tree", {"open/f": b"1\n", "closed/g": b"1\n"})
        for path in (Path(name), root, root / "open"):
            os.chown(path, 65534, 65534)
        os.chmod(root / "closed", 0o555)
        os.chmod(name, 0o755)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                os.environ["XDG_STATE_HOME"] = f"{name}/state"
                os.environ["HOME"] = name
                try:
                    apply(root, {"open/f": b"1\n", "closed/g": b"1\n"}, {"open/f": b"2\n", "closed/g": b"2\n"})
                except Conflict as error:
                    code = 0 if "closed/g: its directory is not writable" in error.message else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert tree_of(root) == {"open/f": b"1\n", "closed/g": b"1\n"}


def test_concurrent_applies_are_serialised(root: Path) -> None:
    place = find_target(root).journal
    first, second = Journal(place), Journal(place)
    assert first.try_lock()
    assert not second.try_lock()
    first.close()
    assert second.try_lock()
    second.close()


@pytest.fixture
def careless_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a case-insensitive directory."""
    disk = tmp_path / "careless"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "casefold", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs root, and a kernel with CONFIG_UNICODE: a tmpfs that folds cases")
    try:
        (disk / "tree").mkdir()
        subprocess.run(["chattr", "+F", str(disk / "tree")], check=True)
        yield disk / "tree"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_names_equal_on_a_case_insensitive_disk_are_atomic(careless_disk: Path) -> None:
    lay(careless_disk, {"Readme": b"mine\n", "f": b"1\n"})
    with pytest.raises(Conflict, match="a different file of that name"):
        apply(careless_disk, {}, {"README": b"theirs\n"})
    with pytest.raises(Conflict, match="nothing was changed"):
        apply(careless_disk, {"f": b"1\n"}, {"f": b"2\n", "Twin": b"1\n", "tWIN": b"2\n"})
    assert tree_of(careless_disk) == {"Readme": b"mine\n", "f": b"1\n"}


def test_no_descriptor_is_left_open(root: Path) -> None:
    lay(root, BASE)
    before = len(os.listdir("/proc/self/fd"))
    apply(root, BASE, NEW)
    undo(root)
    with pytest.raises(Conflict):
        apply(root, {}, {"f": b"another"})
    assert len(os.listdir("/proc/self/fd")) == before
