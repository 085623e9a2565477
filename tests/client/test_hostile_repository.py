"""A repository of this host may be hostile, and the sandbox surely is: nothing of the one runs, nothing of the host's
passwords, hooks and other repositories reaches the other."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from support.repositories import begun, commit, copied, fill, git

from skerry.client.repository.locate import find_repository
from skerry.client.repository.settings import clean_url
from skerry.errors import InvalidRequest

CANARY = "CANARY-7f3a"


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    return home


def everything(target: Path) -> bytes:
    """All bytes of a copy, its objects unpacked."""
    found = b"".join(path.read_bytes() for path in target.rglob("*") if path.is_file() and not path.is_symlink())
    for place in [path.parent for path in target.rglob(".git")]:
        found += os.fsencode(git(place, "cat-file", "--batch-all-objects", "--batch", "--unordered"))
        found += os.fsencode(git(place, "config", "--local", "--list"))
    return found


def test_programs_in_its_settings_are_not_run(tmp_path: Path, home: Path) -> None:
    source = begun(tmp_path / "source")
    nested = begun(source / "nested")
    library = begun(tmp_path / "library")
    git(source, "submodule", "add", "-q", str(library), "module")
    (source / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
    fill(source, future="f")
    os.utime(source / "future", (1 << 31, 1 << 31))
    commit(source)
    mark = tmp_path / "it-ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $0 $@ >> {mark}\nexit 1\n")
    program.chmod(0o755)
    (tmp_path / "included").write_text(f"[core]\n\tfsmonitor = {program}\n\tpager = {program}\n")
    for place in (source / ".git", nested / ".git", source / ".git/modules/module"):
        (place / "hooks").mkdir(exist_ok=True)
        for hook in (
            "post-index-change",
            "fsmonitor-watchman",
            "pre-auto-gc",
            "reference-transaction",
            "post-checkout",
        ):
            (place / "hooks" / hook).write_text(program.read_text())
            (place / "hooks" / hook).chmod(0o755)
        with (place / "config").open("a") as config:
            config.write(
                f"[core]\n\tfsmonitor = {program}\n\tsshCommand = {program}\n\tpager = {program}\n"
                f"\teditor = {program}\n\talternateRefsCommand = {program}\n\taskPass = {program}\n"
                f'[filter "x"]\n\tclean = {program}\n\tsmudge = {program}\n\tprocess = {program}\n\trequired = true\n'
                f'[diff "x"]\n\ttextconv = {program}\n\tcommand = {program}\n[diff]\n\texternal = {program}\n'
                f'[merge "x"]\n\tdriver = {program}\n[uploadpack]\n\tpackObjectsHook = {program}\n'
                f'[alias]\n\tls-files = "!{program}"\n\tpack-objects = "!{program}"\n[gpg]\n\tprogram = {program}\n'
                f"[credential]\n\thelper = {program}\n[pager]\n\tconfig = {program}\n\tls-files = {program}\n"
                f'[remote "o"]\n\turl = "ext::{program}"\n\tpromisor = true\n\tuploadpack = {program}\n'
                f'[includeIf "gitdir:**"]\n\tpath = {tmp_path}/included\n[gc]\n\tauto = 1\n'
                f'[submodule "module"]\n\tupdate = !{program}\n'
            )
    fill(source, a="changed")
    fill(source / "module", a="changed")
    (source / ".gitmodules").write_text(
        '[submodule "module"]\n\tpath = module\n\turl = ../../../out\n'
        f'[submodule "-u{program}"]\n\tpath = -u\n\turl = "-u{program}"\n'
        f'[submodule "../../x"]\n\tpath = y\n\turl = ext::{program}\n'
    )
    git(source, "ls-files", "-o")
    assert mark.exists(), "called plainly, git would have run it"
    mark.unlink()
    copied(source, tmp_path / "target")
    assert not mark.exists()
    git(tmp_path / "target", "status")
    git(tmp_path / "target/module", "log", "--all", "-p")
    assert not mark.exists()


def test_passwords_hooks_stash_reflog_and_settings_are_not_copied(tmp_path: Path, home: Path) -> None:
    library = begun(tmp_path / "library")
    source = tmp_path / "source"
    git(tmp_path, "clone", "-q", str(library), str(source))
    (home / ".gitconfig").write_text(
        f'[url "https://u:{CANARY}@example.com/"]\n\tinsteadOf = https://example.com/\n'
        f"[user]\n\tsigningKey = {CANARY}\n[http]\n\textraHeader = {CANARY}\n"
    )
    git(source, "remote", "set-url", "origin", f"https://me:{CANARY}@example.com/team/x.git?token={CANARY}#{CANARY}")
    git(source, "remote", "set-url", "--push", "origin", f"https://{CANARY}@example.com/x.git")
    git(source, "remote", "add", "second", f"ssh://git:{CANARY}@example.com/x.git")
    git(source, "remote", "add", "third", f"{CANARY}::x")
    git(source, "remote", "add", "skerry", f"skerry://{CANARY}")
    for key in (
        "http.extraheader", "http.https://example.com/.extraheader", "credential.helper", "user.email", "core.askPass",
        "http.proxy", "branch.main.remote", "remote.origin.proxy", "submodule.x.url", f"branch.side.{CANARY}",
    ):  # fmt: skip
        git(source, "config", key, f"https://x:{CANARY}@example.com/")
    fill(source, a=f"{CANARY} in the stash")
    git(source, "stash", "-q")
    fill(source, lost=CANARY)
    commit(source, CANARY)
    git(source, "reset", "-q", "--hard", "HEAD~1")
    (source / ".git/hooks").mkdir(exist_ok=True)
    (source / ".git/hooks/pre-commit").write_text(CANARY)
    (source / ".git/FETCH_HEAD").write_text(CANARY)
    (source / ".git/description").write_text(CANARY)
    copied(source, tmp_path / "target")
    assert CANARY.encode() not in everything(tmp_path / "target")
    inside = {path.name for path in (tmp_path / "target/.git").iterdir()}
    assert inside == {"HEAD", "config", "index", "info", "objects", "packed-refs", "refs"}
    remotes = git(tmp_path / "target", "config", "--get-regexp", r"^remote\..*\.url$").split()
    assert remotes == ["remote.origin.url", "https://example.com/team/x.git", "remote.second.url",
                       "ssh://git@example.com/x.git"]  # fmt: skip


def test_working_tree_elsewhere_is_rejected(tmp_path: Path) -> None:
    source = begun(tmp_path / "source")
    (tmp_path / "private").mkdir()
    fill(tmp_path / "private", key=CANARY)
    git(source, "config", "core.worktree", str(tmp_path / "private"))
    with pytest.raises(InvalidRequest, match=r"working tree .* elsewhere"):
        find_repository(source)


def test_nested_git_file_reaches_no_other_repository(tmp_path: Path) -> None:
    private = begun(tmp_path / "private")
    fill(private, key=CANARY)
    commit(private)
    source = begun(tmp_path / "source")
    for name in ("file", "link", "part"):
        (source / name).mkdir()
        fill(source / name, own="mine")
    (source / "file/.git").write_text(f"gitdir: {private}/.git\n")
    (source / "link/.git").symlink_to(private / ".git")
    (source / "part/.git").mkdir()
    fill(source / "part/.git", HEAD="ref: refs/heads/main\n", commondir=f"{private}/.git\n")
    _, skipped = copied(source, tmp_path / "target")
    assert CANARY.encode() not in everything(tmp_path / "target")
    assert set(skipped) == {f"{name}/.git" for name in ("file", "link", "part")}
    for name in ("file", "link", "part"):
        assert (tmp_path / "target" / name / "own").read_text() == "mine"
        assert not (tmp_path / "target" / name / ".git").exists()


def test_top_level_git_file_must_be_known_to_its_repository(tmp_path: Path) -> None:
    private = begun(tmp_path / "private")
    source = tmp_path / "source"
    source.mkdir()
    (source / ".git").write_text(f"gitdir: {private}/.git\n")
    with pytest.raises(InvalidRequest, match="does not refer back to it"):
        find_repository(source)
    git(tmp_path, "init", "-q", "--separate-git-dir", str(tmp_path / "apart"), str(tmp_path / "mine"))
    with pytest.raises(InvalidRequest, match="does not refer back to it") as caught:
        find_repository(tmp_path / "mine")
    hint = (caught.value.hint or "").partition("git ")[2].split()
    git(tmp_path, *hint)
    assert find_repository(tmp_path / "mine").git_dir == str(tmp_path / "apart")


@pytest.mark.parametrize("name", ["refs", "refs/heads", "packed-refs", "objects", "index", "config"])
def test_git_directory_made_of_links_is_rejected(tmp_path: Path, name: str) -> None:
    private = begun(tmp_path / "private")
    git(private, "pack-refs", "--all")
    source = begun(tmp_path / "source")
    git(source, "pack-refs", "--all")
    (source / ".git" / name).rename(tmp_path / "away")
    (source / ".git" / name).symlink_to(private / ".git" / name)
    with pytest.raises(InvalidRequest, match="is a link"):
        find_repository(source)


def test_files_in_its_settings_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"{CANARY}\n")
    source = begun(tmp_path / "source")
    git(source, "config", "core.excludesFile", str(secret))
    git(source, "config", "core.attributesFile", str(secret))
    git(source, "config", "include.path", str(secret))
    (source / ".git/config").write_text((source / ".git/config").read_text().replace(f"path = {secret}", "path = x"))
    for name in ("info/exclude", "info/attributes", "info/sparse-checkout", "MERGE_MSG", "shallow.x", "MERGE_HEAD"):
        (source / ".git" / name).parent.mkdir(exist_ok=True)
        (source / ".git" / name).unlink(missing_ok=True)
        (source / ".git" / name).symlink_to(secret)
    (source / ".git/rebase-merge").symlink_to(tmp_path)
    (source / ".gitignore").symlink_to(secret)
    review, _ = copied(source, tmp_path / "target")
    assert CANARY not in repr(review)
    assert CANARY.encode() not in everything(tmp_path / "target")


def test_forged_index_reaches_neither_outside_nor_the_git_directory(tmp_path: Path) -> None:
    source = begun(tmp_path / "source")
    names = {
        "aa/secret": "../secret",
        "bbbb/secret": "link/secret",
        "cccc/config": ".git/config",
        "dddd/config": ".GIT/config",
    }
    for name in names:
        (source / name).parent.mkdir()
        (source / name).write_text("x")
    git(source, "add", "-A")
    index = source / ".git/index"
    body = index.read_bytes()[:-20]
    for old, new in names.items():
        body = body.replace(old.encode(), new.encode())
    index.write_bytes(body + hashlib.sha1(body).digest())
    (source / "link").symlink_to(tmp_path)
    (tmp_path / "secret").write_text(CANARY)
    with (source / ".git/config").open("a") as config:
        config.write(f"[http]\n\textraheader = {CANARY}\n")
    try:
        _, skipped = copied(source, tmp_path / "target")
    except InvalidRequest:
        return  # a newer git does not read it at all
    assert set(names.values()) <= set(skipped)
    assert CANARY.encode() not in everything(tmp_path / "target")


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("https://example.com/x.git", "https://example.com/x.git"),
        ("https://user:pass@example.com:8443/x.git", "https://example.com:8443/x.git"),
        ("https://token@example.com/x.git?private_token=t#f", "https://example.com/x.git"),
        ("https://u:p@ss@example.com/x", "https://example.com/x"),
        ("https://u:p/ss@example.com/x", None),
        ("https://u:12/ss@example.com/x", None),
        ("HTTPS://T@example.com/x", "https://example.com/x"),
        ("ssh://git:pw@example.com:22/x", "ssh://git@example.com:22/x"),
        ("git@example.com:team/x.git", "git@example.com:team/x.git"),
        ("user:pw@example.com:x", None),
        ("example.com:x", "example.com:x"),
        ("git://u:p@example.com/x", "git://example.com/x"),
        ("ext::sh -c id", None),
        ("persistent-https://u:p@example.com/x", None),
        ("-oProxyCommand=id", None),
        ("https://example.com/x\n[core]", None),
        ("/srv/x.git", "/srv/x.git"),
        ("../x.git", "../x.git"),
        ("file:///srv/x.git", "file:///srv/x.git"),
        ("https://[::1]:80/x", "https://[::1]:80/x"),
        ("https:///x", None),
    ],
)
def test_urls_lose_their_credentials(url: str, clean: str | None) -> None:
    assert clean_url(url) == clean


def test_hostile_names_in_settings_stay_names(tmp_path: Path) -> None:
    source = begun(tmp_path / "source")
    odd = 'we"ird\\]'
    git(source, "remote", "add", "origin", 'https://example.com/a"b')
    git(source, "branch", 'o"dd')
    git(source, "config", 'branch.o"dd.remote', "origin")
    git(source, "config", 'branch.o"dd.merge', 'refs/heads/x"]y')
    git(source, "config", f"submodule.{odd}.active", "true")
    git(source, "config", "submodule.../../x.url", "../y")
    copied(source, tmp_path / "target")
    assert git(tmp_path / "target", "config", 'branch.o"dd.merge') == 'refs/heads/x"]y\n'
    assert git(tmp_path / "target", "config", f"submodule.{odd}.active") == "true\n"
    assert git(tmp_path / "target", "config", "remote.origin.url") == 'https://example.com/a"b\n'
    git(tmp_path / "target", "config", "submodule.../../x.url", code=1)
