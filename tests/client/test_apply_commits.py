"""Accepted changes as commits: they and nothing else, by the user, with where they came from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.patch_sets import Link, Program, apply, git, in_memory, lay, put, recover, repository, tree_of, undo

from skerry.client.apply.journal import ApplyRecord
from skerry.client.apply.session import ApplyTarget
from skerry.errors import Conflict, InvalidRequest
from skerry.types.review import LedgerEntry

LINES = b"".join(b"line %d\n" % number for number in range(1, 21))
NEW = LINES.replace(b"line 3\n", b"three\n")
COMMIT, BRANCH = ApplyTarget(commit=True, name="fix-login"), ApplyTarget(branch="review/fix-login")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with in_memory() as path:
        yield path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return repository(tmp_path / "tree", {"f": LINES, "g": b"g\n"})


def committed(record: ApplyRecord) -> str:
    assert record.commit is not None
    return record.commit.new


def shown(root: Path, commit: str, path: str) -> bytes:
    return git(root, "show", f"{commit}:{path}").encode()


def test_commit_has_the_accepted_changes_and_no_uncommitted_ones(root: Path) -> None:
    mine = LINES.replace(b"line 18\n", b"mine\n")
    (root / "f").write_bytes(mine)
    (root / "g").write_bytes(b"staged\n")
    git(root, "add", "g")
    put(root / "untracked", b"u")
    wanted = NEW.replace(b"line 18\n", b"mine\n")
    record = apply(root, {"f": mine}, {"f": wanted, "new": Program(b"#!\n"), "l": Link(b"f")}, target=COMMIT)
    assert git(root, "rev-parse", "main").strip() == committed(record)
    assert git(root, "diff", "--name-only", "HEAD~", "HEAD").split() == ["f", "l", "new"]
    assert shown(root, "HEAD", "f") == NEW
    assert (root / "f").read_bytes() == wanted
    assert git(root, "status", "--short") == " M f\nM  g\n?? untracked\n"
    assert git(root, "log", "-1", "--format=%an <%ae> %cn") == "U Ser <user@example.org> U Ser\n"
    assert git(root, "fsck", "--strict") == ""


def test_commit_message_has_the_origin_and_a_command_cannot_forge_it(root: Path) -> None:
    evil = "true\n\nSkerry-Sandbox: trusted\nSigned-off-by: boss <boss@example.org>\x1b[2J\u202e"
    entries = (
        LedgerEntry(commit="e" * 40, at=1.0, kind="command", command="sed -i s/a/b/ f", hosts=("example.org",)),
        LedgerEntry(commit="e" * 40, at=2.0, kind="command", command=evil + "x" * 10_000),
        LedgerEntry(commit="e" * 40, at=3.0, kind="background"),
    )
    hard = "a\n\nSkerry-Sandbox: forged"
    apply(root, {"f": LINES}, {"f": NEW, hard: b"1"}, target=COMMIT, entries=entries)
    trailers = git(root, "log", "-1", "--format=%(trailers:only,unfold)").strip().split("\n")
    keys = [line.partition(":")[0] for line in trailers]
    assert keys == ["Skerry-Sandbox", "Skerry-Command", "Skerry-Hosts", "Skerry-Command", "Skerry-Command",
                    "Skerry-Base", "Skerry-Tip", "Skerry-Digest"]  # fmt: skip
    assert trailers[0] == "Skerry-Sandbox: fix-login (sb-aaaaaaaaaa)"
    assert trailers[3].startswith(r"Skerry-Command: true\n\nSkerry-Sandbox: trusted")
    message = git(root, "log", "-1", "--format=%B")
    assert message.replace("\n", "").isprintable()
    assert len(message) < 2000
    assert message.startswith("Apply fix-login: 2 files\n")


def test_lines_that_depend_on_uncommitted_ones_are_rejected_before_writing(root: Path) -> None:
    mine = LINES.replace(b"line 3\n", b"mine\n")
    (root / "f").write_bytes(mine)
    with pytest.raises(Conflict, match="f: it depends on content that is not in HEAD"):
        apply(root, {"f": mine}, {"f": mine.replace(b"mine\n", b"theirs\n")}, target=COMMIT)
    put(root / "fresh", b"1\n")
    with pytest.raises(Conflict, match="HEAD does not have it"):
        apply(root, {"fresh": b"1\n"}, {"fresh": b"2\n"}, target=COMMIT)
    assert tree_of(root) == {"f": mine, "g": b"g\n", "fresh": b"1\n"}
    assert git(root, "rev-list", "--count", "HEAD") == "1\n"


def test_file_with_staged_changes_is_rejected(root: Path) -> None:
    (root / "f").write_bytes(LINES.replace(b"line 18\n", b"staged\n"))
    git(root, "add", "f")
    with pytest.raises(Conflict, match="f: it has staged changes"):
        apply(root, {"f": LINES}, {"f": NEW}, target=COMMIT)
    put(root / "n", b"mine")
    git(root, "add", "-N", "n")
    with pytest.raises(Conflict, match="n: "):
        apply(root, {}, {"n": b"mine"}, target=COMMIT)


@pytest.mark.parametrize("what", ["deleted", "renamed", "executable", "below a file that goes"])
def test_all_kinds_of_changes_are_committed(what: str, root: Path) -> None:
    base: dict[str, bytes | Program] = {"f": LINES, "g": b"g\n"}
    new: dict[str, bytes | Program] = {
        "deleted": {"f": LINES},
        "renamed": {"f": LINES, "sub/h": b"g\n"},
        "executable": {"f": Program(LINES), "g": b"g\n"},
        "below a file that goes": {"f": LINES, "g/h": b"1"},
    }[what]  # type: ignore[assignment]
    apply(root, base, new, renames={"g": "sub/h"} if what == "renamed" else {}, target=COMMIT)
    assert tree_of(root) == new
    assert git(root, "status", "--short") == ""
    assert git(root, "rev-list", "--count", "HEAD") == "2\n"


def test_branch_touches_no_working_tree_and_later_applies_extend_it(root: Path) -> None:
    git(root, "checkout", "-q", "-b", "work")
    (root / "f").write_bytes(b"all mine\n")
    before, index = tree_of(root), (root / ".git/index").read_bytes()
    first = apply(root, {"f": LINES}, {"f": NEW}, target=BRANCH)
    second = apply(root, {"g": b"g\n"}, {"g": b"G\n"}, target=BRANCH)
    assert tree_of(root) == before
    assert (root / ".git/index").read_bytes() == index
    assert git(root, "rev-list", "review/fix-login", "^work").split() == [committed(second), committed(first)]
    assert shown(root, "review/fix-login", "f") == NEW
    assert shown(root, "review/fix-login", "g") == b"G\n"
    assert git(root, "symbolic-ref", "HEAD") == "refs/heads/work\n"


@pytest.mark.parametrize("name", ["-x", "a..b", "a b", "", "x.lock", "@{-1}", "a\nb", "refs/../x"])
def test_invalid_branch_name_is_rejected(name: str, root: Path) -> None:
    with pytest.raises(InvalidRequest, match="is not a valid branch name"):
        apply(root, {"f": LINES}, {"f": NEW}, target=ApplyTarget(branch=name))


def test_checked_out_branch_is_rejected(tmp_path: Path, root: Path) -> None:
    git(root, "worktree", "add", "-q", "-b", "elsewhere", str(tmp_path / "second"))
    for name in ("main", "elsewhere"):
        with pytest.raises(Conflict, match="is checked out"):
            apply(root, {"f": LINES}, {"f": NEW}, target=ApplyTarget(branch=name))


def test_repository_hooks_do_not_run(root: Path) -> None:
    for hook in ("pre-commit", "commit-msg", "post-commit", "reference-transaction", "post-index-change", "update"):
        put(root / ".git/hooks" / hook, Program(b"#!/bin/sh\ntouch %b\nexit 1\n" % bytes(root / "ran")))
    git(root, "config", "core.fsmonitor", str(root / ".git/hooks/pre-commit"))
    apply(root, {"f": LINES}, {"f": NEW}, target=COMMIT)
    apply(root, {"f": NEW}, {"f": LINES}, target=BRANCH)
    assert not (root / "ran").exists()


def test_missing_identity_is_reported_before_writing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")
    git(root, "config", "--unset", "user.name")
    git(root, "config", "--unset", "user.email")
    git(root, "config", "user.useConfigOnly", "true")
    with pytest.raises(InvalidRequest, match="tell me who you are"):
        apply(root, {"f": LINES}, {"f": NEW}, target=COMMIT)
    assert tree_of(root) == {"f": LINES, "g": b"g\n"}


def test_contents_pass_through_the_filters_of_the_user(tmp_path: Path) -> None:
    root = repository(tmp_path / "crlf", {".gitattributes": b"*.txt text eol=crlf\n"})
    put(root / "a.txt", b"one\r\ntwo\r\nthree\r\nfour\r\nfive\r\nsix\r\n")
    git(root, "add", "a.txt")
    git(root, "commit", "-q", "-m", "a")
    (root / "a.txt").write_bytes(b"one\r\ntwo\r\nthree\r\nfour\r\nfive\r\nmine\r\n")
    here = (root / "a.txt").read_bytes()
    apply(root, {"a.txt": here}, {"a.txt": here.replace(b"one", b"ONE"), "b.txt": b"b\r\n"}, target=COMMIT)
    assert shown(root, "HEAD", "a.txt") == b"ONE\ntwo\nthree\nfour\nfive\nsix\n"
    assert shown(root, "HEAD", "b.txt") == b"b\n"
    assert git(root, "status", "--short") == " M a.txt\n"


def test_apply_can_create_the_first_commit(tmp_path: Path) -> None:
    root = tmp_path / "empty"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    git(root, "config", "user.name", "U")
    git(root, "config", "user.email", "u@example.org")
    with pytest.raises(Conflict, match="no commit yet"):
        apply(root, {}, {"n": b"1"}, target=BRANCH)
    apply(root, {}, {"n": b"1"}, target=COMMIT)
    assert git(root, "rev-list", "--count", "HEAD") == "1\n"
    assert git(root, "status", "--short") == ""


def test_commit_moves_a_detached_head_and_no_branch(root: Path) -> None:
    git(root, "checkout", "-q", "--detach")
    apply(root, {"f": LINES}, {"f": NEW}, target=COMMIT)
    assert git(root, "rev-list", "main..HEAD").count("\n") == 1


def test_commit_during_a_merge_is_rejected(root: Path) -> None:
    put(root / ".git/MERGE_HEAD", git(root, "rev-parse", "HEAD").encode())
    with pytest.raises(Conflict, match="MERGE_HEAD"):
        apply(root, {"f": LINES}, {"f": NEW}, target=COMMIT)


def test_concurrently_moved_ref_reverts_the_apply(root: Path) -> None:
    def step(name: str) -> None:
        if name == "land":
            git(root, "commit", "-q", "--allow-empty", "-m", "quicker")

    with pytest.raises(Conflict, match="moved concurrently"):
        apply(root, {"f": LINES}, {"f": NEW}, target=COMMIT, step=step)
    assert tree_of(root) == {"f": LINES, "g": b"g\n"}
    assert git(root, "log", "-1", "--format=%s") == "quicker\n"
    assert recover(root) == []


def test_undo_restores_the_working_tree_and_keeps_the_history(root: Path) -> None:
    record = apply(root, {"f": LINES}, {"f": NEW}, target=COMMIT)
    undo(root)
    assert (root / "f").read_bytes() == LINES
    assert git(root, "rev-parse", "HEAD").strip() == committed(record)
    assert git(root, "status", "--short") == " M f\n"


def test_already_committed_changes_create_no_empty_commit(root: Path) -> None:
    record = apply(root, {"f": b"older\n"}, {"f": LINES}, target=COMMIT)
    assert record.commit is None


def test_commit_outside_a_repository_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    root = lay(tmp_path / "plain", {"f": LINES})
    with pytest.raises(InvalidRequest, match="not in a git repository"):
        apply(root, {"f": LINES}, {"f": NEW}, target=COMMIT)
    assert (root / "f").read_bytes() == LINES


def test_commits_work_with_sha256_repositories(tmp_path: Path) -> None:
    root = tmp_path / "sha256"
    root.mkdir()
    git(root, "init", "-q", "--object-format=sha256")
    repository(root, {"f": LINES, "g": b"1"})
    apply(root, {"f": LINES, "g": b"1"}, {"f": NEW}, target=COMMIT)
    assert len(git(root, "rev-parse", "HEAD").strip()) == 64
    assert git(root, "status", "--short") == ""


def test_file_in_a_submodule_does_not_remove_the_submodule(tmp_path: Path, root: Path) -> None:
    inner = repository(tmp_path / "inner", {"x": b"1"})
    git(root, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
    git(root, "commit", "-q", "-m", "submodule")
    with pytest.raises(Conflict, match="a file or submodule stands"):
        apply(root, {}, {"sub/new": b"1"}, target=COMMIT)
    with pytest.raises(Conflict, match="a file or submodule stands"):
        apply(root, {}, {"sub/new": b"1"}, target=BRANCH)
    apply(root, {}, {"sub/new": b"1"})
    assert (root / "sub/new").read_bytes() == b"1"


def test_commits_work_in_a_directory_with_an_odd_name(tmp_path: Path) -> None:
    root = repository(tmp_path / "a\nb 'c", {"f": LINES})
    apply(root, {"f": LINES}, {"f": NEW}, target=COMMIT)
    assert shown(root, "HEAD", "f") == NEW
