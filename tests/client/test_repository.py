"""A repository is copied with the same files, status and history, and git works in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.repositories import NOTHING, begun, commit, copied, fill, git, same, told

from skerry.client.repository.archive import RepositoryCopy
from skerry.client.repository.host_files import read_host_files
from skerry.client.repository.locate import find_repository
from skerry.client.repository.source import Repo, repo_of
from skerry.errors import Conflict, InvalidRequest


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.delenv("GIT_DIR", raising=False)
    return home


@pytest.fixture
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home directory of the user inside."""
    return tmp_path_factory.mktemp("inside")


def works(target: Path, empty: Path) -> None:
    """Commit, branch, rebase."""
    git(target, "checkout", "-q", "-b", "agent", home=empty)
    fill(target, agent="1\n")
    git(target, "add", "agent", home=empty)
    git(target, "commit", "-qm", "agent", home=empty)
    git(target, "rebase", "-q", "side", home=empty)
    git(target, "gc", "-q", home=empty)


def test_staged_unstaged_untracked_deleted_and_intended_files_have_the_same_status(tmp_path: Path, empty: Path) -> None:
    source = begun(tmp_path / "source")
    fill(
        source,
        **{"staged": "s", "both": "1", "untracked": "u", "meant": "m", "x.log": "ignored", ".gitignore": "*.log\n"},
    )
    git(source, "add", "staged", "both", ".gitignore")
    fill(source, both="2", a="changed\n")
    git(source, "add", "-N", "meant")
    (source / "two.txt").unlink()
    git(source, "rm", "-q", "--cached", "one.txt")
    (source / "run").write_text("#!/bin/sh\n")
    (source / "run").chmod(0o755)
    (source / "private").write_text("p")
    (source / "private").chmod(0o600)
    git(source, "add", "run")
    (source / "run").chmod(0o644)
    for name, to in (("in", "a"), ("out", "/etc/passwd"), ("up", "../../.."), ("nowhere", "gone")):
        (source / name).symlink_to(to)
    git(source, "add", "in", "out")
    (source / "binary").write_bytes(bytes(range(256)) * 100)
    target = tmp_path / "target"
    review, skipped = copied(source, target)
    same(source, target, home=empty)
    assert skipped == {}
    assert not (target / "x.log").exists()
    assert os.readlink(target / "up") == "../../.."
    assert (target / "private").stat().st_mode & 0o777 == 0o600
    assert review.head == git(source, "rev-parse", "HEAD").strip()
    git(target, "add", "-A", home=empty)
    git(target, "commit", "-qm", "all of it", home=empty)
    works(target, empty)


def test_ignored_files_are_included_on_request(tmp_path: Path, empty: Path) -> None:
    source = begun(tmp_path / "source")
    fill(source, **{".gitignore": "*.log\nbuild/\n", "x.log": "1"})
    (source / "build/deep").mkdir(parents=True)
    fill(source / "build/deep", out="o")
    copied(source, tmp_path / "target", ignored=True)
    assert (tmp_path / "target/build/deep/out").read_text() == "o"
    assert (tmp_path / "target/x.log").read_text() == "1"
    same(source, tmp_path / "target", home=empty)


def test_names_of_every_kind_are_copied(tmp_path: Path, empty: Path) -> None:
    source = begun(tmp_path / "so\nurce")
    for name in (
        b"-n",
        b"a b",
        b'q"',
        b"new\nline",
        b"\xff\xfe",
        "é".encode(),
        "e\u0301".encode(),
        b"x" * 255,
        b"CON. ",
    ):
        Path(os.fsdecode(os.fsencode(source) + b"/" + name)).write_bytes(name)
    git(source, "add", "-A")
    Path(os.fsdecode(os.fsencode(source) + b"/new-\xff")).write_bytes(b"")
    _, skipped = copied(source, tmp_path / "target")
    assert skipped == {}
    same(source, tmp_path / "target", home=empty)


def test_repository_without_commits_and_an_unborn_branch_are_copied(tmp_path: Path, empty: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    git(source, "init", "-q", "-b", "first")
    fill(source, a="1")
    copied(source, tmp_path / "none")
    same(source, tmp_path / "none", home=empty)
    git(source, "add", "a")
    copied(source, tmp_path / "staged")
    same(source, tmp_path / "staged", home=empty)
    git(tmp_path / "staged", "commit", "-qm", "x", home=empty)
    commit(source)
    git(source, "checkout", "-q", "--orphan", "unborn")
    copied(source, tmp_path / "unborn")
    same(source, tmp_path / "unborn", home=empty)


def test_packed_refs_are_those_of_git(tmp_path: Path, empty: Path) -> None:
    """Other readers (GitPython, for example) call a file without git's header corrupt. With the header, the object of
    each tag object must stand there, also of a tag of a tag."""
    source = begun(tmp_path / "source")
    git(source, "tag", "light")
    git(source, "tag", "-a", "-m", "x", "deep")
    git(source, "tag", "-a", "-m", "x", "deeper", "deep")
    git(source, "tag", "-a", "-m", "x", "content", "HEAD:a")
    copied(source, tmp_path / "target")
    written = (tmp_path / "target/.git/packed-refs").read_bytes()
    git(source, "pack-refs", "--all")
    assert written == (source / ".git/packed-refs").read_bytes()
    same(source, tmp_path / "target", home=empty)


def test_detached_head_and_index_flags_are_copied(tmp_path: Path, empty: Path) -> None:
    source = begun(tmp_path / "source")
    git(source, "checkout", "-q", "--detach", "HEAD~1")
    git(source, "update-index", "--assume-unchanged", "a")
    git(source, "update-index", "--skip-worktree", "one.txt")
    fill(source, **{"a": "not seen", "one.txt": "neither"})
    copied(source, tmp_path / "target")
    same(source, tmp_path / "target", home=empty)
    assert "h a" in told(source)["flags"]
    assert "S one.txt" in told(source)["flags"]
    assert (tmp_path / "target/a").read_text() == "not seen"


def test_unfinished_merge_and_rebase_can_be_completed_inside(tmp_path: Path, empty: Path) -> None:
    source = begun(tmp_path / "source")
    git(source, "checkout", "-q", "side")
    fill(source, a="other\n")
    commit(source, "other")
    git(source, "merge", "-q", "main", code=1)
    copied(source, tmp_path / "merge")
    same(source, tmp_path / "merge", home=empty)
    assert "u UU" in told(source)["status"]
    fill(tmp_path / "merge", a="both\n")
    git(tmp_path / "merge", "add", "a", home=empty)
    git(tmp_path / "merge", "commit", "-q", "--no-edit", home=empty)
    assert len(git(tmp_path / "merge", "rev-parse", "HEAD^@", home=empty).split()) == 2

    git(source, "merge", "--abort")
    git(source, "rebase", "-q", "main", code=1)
    copied(source, tmp_path / "rebase")
    same(source, tmp_path / "rebase", home=empty)
    fill(tmp_path / "rebase", a="both\n")
    git(tmp_path / "rebase", "add", "a", home=empty)
    git(tmp_path / "rebase", "-c", "core.editor=true", "rebase", "--continue", home=empty)
    assert git(tmp_path / "rebase", "symbolic-ref", "HEAD", home=empty) == "refs/heads/side\n"


def test_submodules_of_every_kind_are_copied(tmp_path: Path, empty: Path) -> None:
    library = begun(tmp_path / "library")
    source = begun(tmp_path / "source")
    for name in ("absorbed", "gone"):
        git(source, "submodule", "add", "-q", str(library), name)
    git(source, "clone", "-q", str(library), "own")
    git(source, "submodule", "add", "-q", str(library), "own")
    commit(source, "modules")
    git(source, "submodule", "deinit", "-q", "-f", "gone")
    fill(source / "absorbed", a="changed in it\n", new="n")
    fill(source / "own", b="committed in it")
    commit(source / "own", "further")
    _, skipped = copied(source, tmp_path / "target")
    assert skipped == {}
    assert (source / "absorbed/.git").is_file()
    assert (source / "own/.git").is_dir()
    assert "S.MU" in told(source)["status"]
    assert "SC.." in told(source)["status"]
    same(source, tmp_path / "target", home=empty)
    for name in ("absorbed", "own"):
        same(source / name, tmp_path / "target" / name, home=empty)
    assert list((tmp_path / "target/gone").iterdir()) == []


def test_nested_repositories_and_their_ignore_rules_are_copied(tmp_path: Path, empty: Path) -> None:
    source = begun(tmp_path / "source")
    fill(source, **{".gitignore": "*.log\n"})
    nested = begun(source / "deep/nested")
    fill(nested, **{"seen.log": "here it is not ignored", "x.o": "o", ".gitignore": "*.o\n"})
    review, skipped = copied(source, tmp_path / "target")
    assert skipped == {}
    same(source, tmp_path / "target", home=empty)
    same(nested, tmp_path / "target/deep/nested", home=empty)
    assert (tmp_path / "target/deep/nested/seen.log").exists()
    rules = dict(review.ignore)
    assert rules[""][-1] == "*.log"
    assert rules["deep/nested"] == ("!*", "*.o")


def test_shallow_clones_and_alternates_are_complete_inside(tmp_path: Path, empty: Path) -> None:
    library = begun(tmp_path / "library")
    shallow, shared = tmp_path / "shallow", tmp_path / "shared"
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{library}", str(shallow))
    git(tmp_path, "clone", "-q", "--shared", str(library), str(shared))
    for source in (shallow, shared):
        copied(source, tmp_path / f"{source.name}-copy")
    library.rename(tmp_path / "elsewhere")
    for source in (shallow, shared):
        git(tmp_path / f"{source.name}-copy", "fsck", "--strict", home=empty)
    (tmp_path / "elsewhere").rename(library)
    for source in (shallow, shared):
        same(source, tmp_path / f"{source.name}-copy", home=empty)
    assert git(tmp_path / "shallow-copy", "rev-parse", "--is-shallow-repository") == "true\n"


@pytest.mark.parametrize("how", ["tmpfs", "read-only"])
def test_repository_on_another_file_system_or_read_only_is_copied(tmp_path: Path, empty: Path, how: str) -> None:
    """`copied` compares a listing of the repository with all times before and after."""
    source = tmp_path / 'so"ur\\ce'
    source.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "skerry-test", source], check=True)
        begun(source / "lender")
        git(source, "clone", "-q", "--shared", "lender", "borrower")
        (source / "borrower/.git/objects/info/alternates").write_text("../../../lender/.git/objects\n")
        if how == "read-only":
            subprocess.run(["mount", "-o", "remount,ro", source], check=True)
            with pytest.raises(OSError, match="Read-only"):
                (source / "lender/.git/x").touch()
        for name in ("lender", "borrower"):
            copied(source / name, tmp_path / name)
            assert git(tmp_path / name, "log", "--oneline", home=empty) == git(source / name, "log", "--oneline")
            git(tmp_path / name, "fsck", "--strict", home=empty)
    finally:
        subprocess.run(["umount", source], check=True)


def test_partial_clone_stays_partial(tmp_path: Path, empty: Path) -> None:
    library = begun(tmp_path / "library")
    git(library, "config", "uploadpack.allowFilter", "true")
    source = tmp_path / "source"
    git(tmp_path, "clone", "-q", "--filter=blob:none", f"file://{library}", str(source))
    library.rename(tmp_path / "elsewhere")
    fill(source, new="staged")
    git(source, "add", "new")
    copied(source, tmp_path / "target")
    same(source, tmp_path / "target", home=empty)
    assert (tmp_path / "target/a").read_text() == "two\n"


def test_linked_worktree_copies_only_its_head_and_index(tmp_path: Path, empty: Path) -> None:
    library = begun(tmp_path / "library")
    fill(library, canary="STAGED-ELSEWHERE")
    git(library, "add", "canary")
    tree = tmp_path / "tree"
    git(library, "worktree", "add", "-q", "-b", "linked", str(tree), "side")
    fill(tree, mine="m")
    git(tree, "add", "mine")
    assert (tree / ".git").is_file()
    copied(tree, tmp_path / "target")
    same(tree, tmp_path / "target", home=empty)
    assert (tmp_path / "target/.git").is_dir()
    blob = git(library, "rev-parse", ":canary").strip()
    git(tmp_path / "target", "cat-file", "-e", blob, code=1)


def test_sha256_objects_are_copied(tmp_path: Path, empty: Path) -> None:
    source = begun(tmp_path / "source", "--object-format=sha256")
    fill(source, b="b")
    git(source, "add", "b")
    review, _ = copied(source, tmp_path / "target")
    same(source, tmp_path / "target", home=empty)
    assert len(review.head or "") == 64
    git(tmp_path / "target", "commit", "-qm", "x", home=empty)


@pytest.mark.parametrize("how", ["--cone", "--no-cone"])
def test_sparse_checkout_stays_sparse(tmp_path: Path, empty: Path, how: str) -> None:
    source = begun(tmp_path / "source")
    for name in ("in", "out"):
        (source / name).mkdir()
        fill(source / name, f="1")
    commit(source)
    git(source, "sparse-checkout", "set", how, "in")
    copied(source, tmp_path / "target")
    same(source, tmp_path / "target", home=empty)
    assert (tmp_path / "target/in/f").exists()
    assert not (tmp_path / "target/out").exists()


@pytest.mark.parametrize("setting", ["splitIndex", "untrackedCache"])
def test_index_of_every_format_is_read(tmp_path: Path, empty: Path, setting: str) -> None:
    source = begun(tmp_path / "source")
    git(source, "config", f"core.{setting}", "true")
    git(source, "update-index", "--split-index" if setting == "splitIndex" else "--untracked-cache")
    fill(source, new="1")
    git(source, "add", "new")
    git(source, "status")
    copied(source, tmp_path / "target")
    same(source, tmp_path / "target", home=empty)
    assert b"Location" not in (tmp_path / "target/.git/index").read_bytes()
    assert not list((tmp_path / "target/.git").glob("sharedindex*"))


def test_line_endings_are_compared_like_outside(tmp_path: Path, empty: Path) -> None:
    source = begun(tmp_path / "source")
    (source / "dos.txt").write_bytes(b"a\r\nb\r\n")
    git(source, "config", "core.autocrlf", "true")
    commit(source)
    os.utime(source / "dos.txt", (1, 1))
    copied(source, tmp_path / "target")
    same(source, tmp_path / "target", home=empty)
    assert (tmp_path / "target/dos.txt").read_bytes() == b"a\r\nb\r\n"


def test_lfs_pointers_are_copied_unchanged(tmp_path: Path, empty: Path) -> None:
    source = begun(tmp_path / "source")
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 12345\n"
    fill(source, **{"model.bin": pointer, ".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n"})
    commit(source)
    copied(source, tmp_path / "target")
    same(source, tmp_path / "target", home=empty)
    assert (tmp_path / "target/model.bin").read_text() == pointer


def test_filtered_files_are_not_modified_inside(tmp_path: Path, empty: Path) -> None:
    source = begun(tmp_path / "source")
    for name, value in (("clean", "sed s/content/pointer/"), ("smudge", "sed s/pointer/content/")):
        git(source, "config", f"filter.lfs.{name}", value)
    fill(source, **{".gitattributes": "*.bin filter=lfs\n", "one.bin": "content\n", "two.bin": "content 2\n"})
    fill(source, **{"new\nline.bin": "content 3\n"})
    commit(source)
    fill(source, **{"two.bin": "content, changed\n"})
    copied(source, tmp_path / "target")
    assert (tmp_path / "target/one.bin").read_text() == "content\n"
    assert git(source, "cat-file", "-p", ":one.bin") == "pointer\n"
    assert told(tmp_path / "target", empty)["status"] == told(source)["status"]
    assert "two.bin" in told(source)["status"]
    assert "one.bin" not in told(source)["status"]


def test_very_large_file_uses_little_memory(tmp_path: Path) -> None:
    source = begun(tmp_path / "source")
    with (source / "sparse").open("wb") as file:
        file.truncate(100 << 20)
    script = (
        "import sys, resource, os\n"
        "from skerry.client.repository.archive import RepositoryCopy\n"
        "from skerry.client.repository.locate import find_repository\n"
        "copy = RepositoryCopy(find_repository(sys.argv[1]))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "total = sum(map(len, copy))\n"
        "print(total, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, source], capture_output=True, check=True, env={**os.environ})
    total, grown = map(int, done.stdout.split())
    assert total > 100 << 20
    assert grown < 20_000


def test_long_pack_reports_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: Path) -> None:
    source = begun(tmp_path / "source")
    slow = tmp_path / "bin/git"
    slow.parent.mkdir()
    real = shutil.which("git")
    slow.write_text(
        f'#!/bin/sh\ncase "$*" in *pack-objects*) read -r line < {tmp_path}/gate;; esac\nexec {real} "$@"\n'
    )
    slow.chmod(0o755)
    os.mkfifo(tmp_path / "gate")
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("skerry.client.repository.archive._SILENT_S", 0.01)
    archive = iter(RepositoryCopy(find_repository(source)))
    pieces = [next(archive), next(archive), next(archive)]
    (tmp_path / "gate").write_text("\n")
    pieces += archive
    (tmp_path / "target").mkdir()
    subprocess.run(["tar", "-x", "-C", tmp_path / "target"], input=b"".join(pieces), check=True)
    same(source, tmp_path / "target", home=empty)


def test_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    source = begun(tmp_path / "source")
    (source / "zz").write_bytes(b"x" * 3_000_000)
    pieces = iter(RepositoryCopy(find_repository(source)))
    next(pieces)
    os.truncate(source / "zz", 1000)
    with pytest.raises(InvalidRequest, match="zz: it became shorter"):
        list(pieces)


def test_growing_file_keeps_its_first_size_and_removed_file_is_skipped(tmp_path: Path) -> None:
    source = begun(tmp_path / "source")
    (source / "mm").write_bytes(b"x" * 3_000_000)
    fill(source, zz="1")
    copy = RepositoryCopy(find_repository(source))
    pieces = iter(copy)
    out = next(pieces)
    with (source / "mm").open("ab") as file:
        file.write(b"more")
    (source / "zz").unlink()
    (tmp_path / "target").mkdir()
    subprocess.run(["tar", "-x", "-C", tmp_path / "target"], input=out + b"".join(pieces), check=True)
    assert (tmp_path / "target/mm").stat().st_size == 3_000_000
    assert not (tmp_path / "target/zz").exists()


def test_unreadable_files_are_skipped_and_reported() -> None:
    with tempfile.TemporaryDirectory() as made:
        os.chown(made, 65534, 65534)
        os.seteuid(65534)
        try:
            source = begun(Path(made, "source"))
            fill(source, locked="x", swapped="y", z="z")
            git(source, "add", "-A")
            (source / "locked").chmod(0)
            (source / "swapped").unlink()
            os.mkfifo(source / "swapped")
            (source / "closed").mkdir()
            fill(source / "closed", f="f")
            git(source, "add", "-A", "closed")
            (source / "closed").chmod(0)
            place = find_repository(source)
            copy = RepositoryCopy(place)
            packed = b"".join(copy)
            (source / "closed").chmod(0o700)
        finally:
            os.seteuid(0)
    skipped = {one.path: one.reason for one in copy.with_skipped(NOTHING).skipped}
    assert skipped == {
        "locked": "permission denied", "closed/f": "permission denied", "swapped": "it is a FIFO, a socket or a device"
    }  # fmt: skip
    assert b"two.txt" in packed


def test_subdirectory_means_the_whole_repository_unless_ignored(tmp_path: Path) -> None:
    source = begun(tmp_path / "source")
    (source / "sub").mkdir()
    (source / "apart").mkdir()
    fill(source, **{".gitignore": "apart/\n"})
    place = find_repository(source / "sub")
    assert (place.top, place.given) == (str(source), str(source / "sub"))
    assert find_repository(source / "apart").git_dir is None
    assert find_repository(source / "apart").top == str(source / "apart")


def test_plain_directory_is_copied_with_its_ignore_rules(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "node_modules/x").mkdir(parents=True)
    fill(source, **{"a": "1", ".gitignore": "node_modules/\n"})
    fill(source / "node_modules/x", b="2")
    review, _ = copied(source, tmp_path / "target")
    assert sorted(path.name for path in (tmp_path / "target").iterdir()) == [".gitignore", "a"]
    assert review.head is None
    assert dict(review.ignore)[""][-1] == "node_modules/"


def test_invalid_repository_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path / "source")
    git(tmp_path, "clone", "-q", "--bare", "source", "bare.git")
    for bare in ("bare.git", "bare.git/refs", "source/.git"):
        with pytest.raises(InvalidRequest, match="bare repository"):
            find_repository(tmp_path / bare)
    with pytest.raises(InvalidRequest, match="not a directory"):
        find_repository(tmp_path / "missing")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/.git").write_text("gitdir: /nonexistent\n")
    with pytest.raises(InvalidRequest, match="not a git repository"):
        find_repository(tmp_path / "broken")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidRequest, match="git is not installed on this host") as caught:
        find_repository(tmp_path / "source")
    assert caught.value.hint


def test_ignore_rules_of_user_repository_and_directories_apply(tmp_path: Path, home: Path, empty: Path) -> None:
    source = begun(tmp_path / "source")
    (home / ".gitconfig").write_text("[core]\n\texcludesFile = ~/mine\n")
    (home / "mine").write_text("*.swp\n")
    (source / ".git/info/exclude").write_text("# a comment\nsecret.txt\n")
    (source / "sub").mkdir()
    fill(source / "sub", **{".gitignore": "/gen\r\n\n!keep\n"})
    fill(source, **{".gitignore": "*.o\n", "kept.o": "1", "x.swp": "2", "secret.txt": "3"})
    git(source, "add", "-f", "kept.o")
    review, _ = copied(source, tmp_path / "target")
    assert review.ignore[0][1][-3:] == ("*.swp", "secret.txt", "*.o")
    assert review.ignore[1:] == (("sub", ("/gen", "!keep")),)
    assert review.tracked == ("kept.o",)
    assert not (tmp_path / "target/x.swp").exists()
    assert not (tmp_path / "target/secret.txt").exists()
    fill(tmp_path / "target", **{"y.swp": "new"})
    assert "y.swp" not in git(tmp_path / "target", "status", "--porcelain", home=empty)


def test_source_is_a_directory_or_a_url(tmp_path: Path) -> None:
    assert repo_of(None) is None
    assert repo_of(tmp_path) == Repo(tmp_path)
    for url in ("https://example.com/x.git", "ssh://git@example.com/x", "git@example.com:team/x.git"):
        assert Repo(url).url == url
    for path in (".", "a:b", "/x", "team@x/y"):
        assert Repo(path).url is None
    for wrong in ("", "ext::sh -c id", "file:///etc", "ftp://x/y", 5, ["x"]):
        with pytest.raises(InvalidRequest):
            repo_of(wrong)


def test_reading_the_host_leaves_its_directory_for_no_path_of_a_server(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (tmp_path / "secret").write_text("secret")
    (root / "link").symlink_to(tmp_path)
    place = find_repository(root)
    for path in (b"../secret", b"/etc/passwd", b"a/../../secret", b".git/config"):
        with pytest.raises(Conflict):
            read_host_files(place, {path})
    found = read_host_files(place, {b"link/secret"})
    assert (set(found.files), found.kept) == ({b"link"}, frozenset())
