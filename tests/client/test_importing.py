"""A repository in a real sandbox: git reports the same inside and outside, and the agent's git works."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from support.repositories import begun, commit, fill, fingerprint, git
from support.server import Server

from skerry import AsyncSandbox, Client, Network, Repo, Sandbox
from skerry.errors import InvalidRequest, NotFound, SkerryError
from skerry.types import Progress

STATUS = ("status", "--porcelain=v2", "--branch", "--untracked-files=all")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = begun(tmp_path_factory.mktemp("host") / "source")
    library = begun(source.parent / "library")
    git(source, "submodule", "add", "-q", str(library), "module")
    commit(source, "module")
    fill(source, a="changed\n", new="n", staged="s", **{"x.log": "not seen", ".gitignore": "*.log\n"})
    (source / "kept.log").write_text("tracked in spite of the rules\n")
    git(source, "add", "-f", "staged", "kept.log")
    (source / "run").write_text("#!/bin/sh\n")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("/etc/hostname")
    (source / os.fsdecode(b"odd\xff\n")).write_bytes(b"\0\xff")
    fill(source / "module", a="in it\n")
    with (source / "large").open("wb") as file:
        file.truncate(40 << 20)
    return source


def test_copy_equals_the_original_and_git_works(client: Client, source: Path) -> None:
    before, seen = dict(fingerprint(source)), list[Progress]()
    with Sandbox(repo=Repo(source, progress=seen.append), server=client) as sandbox:
        assert dict(fingerprint(source)) == before
        assert sandbox.imported is not None
        assert sandbox.imported.moved is not None
        assert (sandbox.imported.moved.skipped, sandbox.imported.repositories) == ((), 2)
        assert {one.stage for one in seen} == {"pack", "upload"}
        assert seen[-1].done == seen[-1].total > 40 << 20
        for words in (STATUS, ("log", "--all", "--oneline", "--decorate=full"), ("ls-files", "--stage")):
            inside = sandbox.run(["git", *words], check=True).stdout_bytes
            assert inside == os.fsencode(git(source, *words)), words
        sandbox.run("git fsck --strict && git -C module fsck --strict", check=True)
        owned = sandbox.run("find . ! -user user | head", check=True)
        assert owned.stdout == ""
        assert sandbox.review.diff() == ""
        assert [entry.kind for entry in sandbox.review.history() if entry.commit] == ["base"]
        sandbox.run("sed -i s/changed/CHANGED/ a; echo m >> module/a; touch y.log; echo t >> kept.log", check=True)
        assert {file.path for file in sandbox.review.diff(stat=True)} == {"a", "module/a", "kept.log"}
        sandbox.run("git config --global user.name a && git config --global user.email a@a && git stash -q", check=True)
        sandbox.run("git checkout -q -b agent side && touch w && git add w && git commit -qm w", check=True)
        sandbox.run("git rebase -q main && git gc -q", check=True)
        assert sandbox.run("stat -c %a run; stat -c %s large; readlink link").stdout == "755\n41943040\n/etc/hostname\n"
    assert dict(fingerprint(source)) == before


def test_async_client_imports_and_can_skip_the_review(server: Server, source: Path) -> None:
    async def drive() -> str:
        repo = Repo(source / "module", review=False)
        async with AsyncSandbox(repo=repo, server=server.address) as sandbox:
            with pytest.raises(NotFound, match="no review"):
                await sandbox.review.diff()
            return (await sandbox.run("git log --oneline | wc -l; cat a", check=True)).stdout

    assert asyncio.run(drive()) == "2\nin it\n"


def test_import_replaces_an_images_repository_and_creates_a_missing_workspace(client: Client, source: Path) -> None:
    with Sandbox(server=client) as maker:
        maker.run("git init -q . && touch left && git add -A && mkdir /tmp/x", check=True)
        with_one = maker.snapshot()
        maker.run("rm -r /workspace", user="root", cwd="/", check=True)
        without = maker.snapshot()
    for snapshot in (with_one, without):
        with Sandbox(snapshot, repo=source / "module", server=client) as sandbox:
            said = sandbox.run("git log --oneline | wc -l; git ls-files | wc -l; stat -c %U .", cwd="/workspace").stdout
            assert said == "2\n3\nuser\n"
        snapshot.delete()


def test_url_is_cloned_inside_with_the_network_of_the_sandbox(world_server: Server) -> None:
    open_to = Network(allow=["git.example.test"])
    with Sandbox(
        repo="https://git.example.test/tiny.git", network=open_to, env={"GIT_SSL_NO_VERIFY": "1"},
        server=world_server.address,
    ) as sandbox:  # fmt: skip
        assert sandbox.run("git log --format=%s; cat README", check=True).stdout.startswith("Begin\na repository")
        sandbox.run("echo more >> README", check=True)
        assert "\n+more\n" in sandbox.review.diff()


def test_import_that_fails_creates_no_sandbox(client: Client, source: Path, tmp_path: Path) -> None:
    there = {sandbox.id for sandbox in Sandbox.list(server=client)}
    with pytest.raises(InvalidRequest, match="not a directory"):
        Sandbox.create(repo=tmp_path / "missing", server=client)
    broken = begun(tmp_path / "broken")
    for path in (broken / ".git/objects").rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(SkerryError, match="repo: "):
        Sandbox.create(name="half", repo=broken, server=client)
    with pytest.raises(SkerryError, match="cannot be reached"):
        Sandbox.create(name="half", repo="https://git.example.com/x.git", server=client)
    assert {sandbox.id for sandbox in Sandbox.list(server=client)} == there
