"""`git fetch skerry`: ledgers of sandboxes and commits of agents as a git remote."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.cli import skerry
from support.server import Server, wait_until

from skerry import Sandbox
from skerry.client._sync.client import Client
from skerry.errors import InvalidRequest, NotFound

NAME = "remote-told"


def git(*words: str, cwd: Path, server: Server | None = None, check: bool = True) -> str:
    beside = Path(sys.executable).parent
    env = os.environ | {"PATH": f"{beside}:{os.environ['PATH']}", "GIT_CONFIG_GLOBAL": "/dev/null"}
    if server is not None:
        env["SKERRY_SERVER"] = server.address
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    done = subprocess.run(
        ["git", *who, *words], cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout if done.returncode == 0 else done.stderr


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("project")
    git("init", "-q", "-b", "main", cwd=top)
    (top / "app.py").write_text("print('foo')\n")
    git("add", ".", cwd=top)
    git("commit", "-qm", "first", cwd=top)
    git("branch", "old", cwd=top)
    (top / "app.py").write_text("print('foo')\nprint('more')\n")
    git("commit", "-qam", "second", cwd=top)
    return top


@pytest.fixture(scope="module")
def sandbox(server: Server, project: Path) -> Iterator[Sandbox]:
    done = skerry("create", "--repo", str(project), "--name", NAME, server=server.address)
    assert done.returncode == 0, done.stderr
    assert b"added the git remote skerry" in done.stderr
    made = Sandbox.get(NAME, server=server.address)
    yield made
    made.delete()


def test_history_of_a_sandbox_can_be_fetched(server: Server, project: Path, sandbox: Sandbox) -> None:
    sandbox.run("sed -i s/foo/bar/ app.py", check=True)
    git("fetch", "-q", "skerry", cwd=project, server=server)
    assert git("log", "--format=%s", f"skerry/{NAME}", cwd=project).splitlines()[0] == "sed -i s/foo/bar/ app.py"
    assert git("show", f"skerry/{NAME}:app.py", cwd=project) == "print('bar')\nprint('more')\n"
    assert git("for-each-ref", "refs/skerry", cwd=project) == ""  # the agent made no commits
    assert git("show", "HEAD:app.py", cwd=project) == "print('foo')\nprint('more')\n"
    sandbox.run("echo more > more.txt", check=True)
    git("fetch", "-q", "skerry", cwd=project, server=server)
    assert git("show", f"skerry/{NAME}:more.txt", cwd=project) == "more\n"
    git("fsck", "--strict", cwd=project)


def test_commits_of_the_agent_are_fetched_too(server: Server, project: Path, sandbox: Sandbox) -> None:
    commit = "git -c user.name=agent -c user.email=agent@example.com commit -qam"
    sandbox.run(f"git checkout -qb mine && echo 1 >> app.py && {commit} one && git tag v1", check=True)
    sandbox.run(f"git checkout -q old && git checkout -qb fork && echo 2 >> app.py && {commit} two", check=True)
    sandbox.run("git -c user.name=a -c user.email=a@b merge -q -X ours -m both mine", check=True)
    git("fetch", "-q", "skerry", cwd=project, server=server)
    refs = git("for-each-ref", "--format=%(refname)", "refs/skerry", cwd=project).split()
    assert refs == [f"refs/skerry/{NAME}/{ref}" for ref in ("heads/fork", "heads/mine", "tags/v1")]
    assert git("log", "--format=%s", f"skerry/{NAME}/heads/mine", cwd=project).split() == ["one", "second", "first"]
    told = git("log", "--format=%s", "--first-parent", f"skerry/{NAME}/heads/fork", cwd=project).split()
    assert told == ["both", "two", "first"]
    git("fsck", "--strict", cwd=project)
    sandbox.run("git checkout -q main && git branch -D mine && git tag -d v1", check=True)
    git("fetch", "-q", "--prune", "skerry", cwd=project, server=server)
    assert git("for-each-ref", "--format=%(refname)", "refs/skerry", cwd=project).split() == [refs[0]]
    assert [
        one.id for one in sandbox.processes.list() if "skerry" in str(one.info().cmd)
    ] == []  # temporary refs are removed
    assert list(sandbox.review.history().agent) == ["heads/fork"]


def test_hostile_repository_is_reported_and_harmless(server: Server, project: Path, sandbox: Sandbox) -> None:
    """Its git settings take effect only in the sandbox; a tree with `.git` in it is not fetched."""
    script = r"""
    set -e
    git config core.fsmonitor 'touch /tmp/ran-inside'
    blob=$(echo 'evil' | git hash-object -w --stdin)
    tree=$(printf '100644 blob %s\tconfig\n' $blob | git mktree)
    bad=$(printf '040000 tree %s\t.git\n' $tree | git mktree --missing)
    commit=$(git -c user.name=a -c user.email=a@b commit-tree -m bad $bad -p HEAD)
    git update-ref refs/heads/bad $commit
    """
    sandbox.run(script, check=True)
    with Client(server.address) as client:
        (told,) = [one for one in client.reviews() if one.sandbox == sandbox.id]
    assert "heads/bad" not in told.agent
    assert ".git" in told.refused[""]
    git("fetch", "-q", "skerry", cwd=project, server=server)  # the ledger can be fetched anyway
    sandbox.run("git update-ref -d refs/heads/bad", check=True)
    with Client(server.address) as client:
        (told,) = [one for one in client.reviews() if one.sandbox == sandbox.id]
    assert told.refused == {}


def test_only_listed_objects_can_be_fetched(server: Server, project: Path, sandbox: Sandbox) -> None:
    blob = git("rev-parse", f"skerry/{NAME}:app.py", cwd=project).strip()
    with Client(server.address) as client:
        for wants in (["0" * 40], [blob]):
            with pytest.raises(InvalidRequest, match="no ref of"), client.review_pack(sandbox.id, wants):
                pass
        with pytest.raises(NotFound), client.review_pack("nobody", ["0" * 40]):
            pass
        assert client.reviews("elsewhere") == []


def test_other_projects_and_pushes_are_excluded(
    server: Server, project: Path, sandbox: Sandbox, tmp_path: Path
) -> None:
    git("init", "-q", "-b", "main", cwd=tmp_path)
    git("remote", "add", "skerry", "skerry::local", cwd=tmp_path)
    git("fetch", "-q", "skerry", cwd=tmp_path, server=server)
    assert git("for-each-ref", cwd=tmp_path) == ""
    said = git("push", "skerry", "HEAD:refs/heads/x", cwd=project, server=server, check=False)
    assert "remote rejected" in said
    assert "pushing to a sandbox is not supported" in said


def test_manual_start_explains_the_program() -> None:
    helper = Path(sys.executable).parent / "git-remote-skerry"
    done = subprocess.run([helper], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "git fetch skerry" in done.stderr) == (2, True)


def test_unresponsive_git_of_sandboxes_does_not_block_others(server: Server, sandbox: Sandbox) -> None:
    script = "#!/bin/sh\ntouch /tmp/asked; while [ ! -e /tmp/go ]; do sleep 0.1; done; exit 1\n"
    with Client(server.address) as client, Client(server.address) as beside, ExitStack() as stack:
        slow = [stack.enter_context(Sandbox(server=client)) for _ in range(4)]
        for one in slow:
            one.files.write("/usr/local/bin/git", script, mode=0o755, user="root")
            one.review.start(origin="slow")
        asked = stack.enter_context(ThreadPoolExecutor(1)).submit(beside.reviews, "slow")
        for one in slow:
            wait_until(lambda one=one: one.files.exists("/tmp/asked"), "git inside was asked")
        origin = sandbox.review.changes().origin
        assert [one.sandbox for one in client.reviews(origin)] == [sandbox.id]
        assert not asked.done()
        for one in slow:
            one.files.write("/tmp/go", "")
        assert sorted(one.sandbox for one in asked.result(60)) == sorted(one.id for one in slow)
