"""Git in real sandboxes: clones of repositories that were made inside, identities, refusals that help."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import skerry
from support.server import Server

from skerry import AsyncSandbox, Options, Sandbox
from skerry.errors import CommandFailed, CommandTimeout, InvalidRequest

MAKE = """
git init -q /tmp/origin && cd /tmp/origin
for n in 1 2 3; do echo $n > file; git add file; git commit -qm "commit $n"; done
git switch -qc side && git commit -q --allow-empty -m side && git switch -q main && git tag v1 HEAD~1
mkdir -p '/tmp/a b' && git clone -q --bare /tmp/origin '/tmp/a b/it'"'"'s.git'
"""


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address) as sandbox:
        sandbox.run(MAKE, check=True)
        yield sandbox


def log(sandbox: Sandbox, path: str) -> list[str]:
    return sandbox.run(["git", "-C", path, "log", "--format=%s"], check=True).stdout.splitlines()


def test_commit_works_without_configuration(sandbox: Sandbox) -> None:
    assert (
        sandbox.run("git -C /tmp/origin log -1 --format='%an <%ae>'").stdout == "Skerry Agent <agent@skerry.invalid>\n"
    )
    assert sandbox.run("git -C /tmp/origin branch --show-current").stdout == "main\n"
    assert sandbox.run("git status", cwd="/tmp/origin", user="root").ok, "another's directory is no obstacle"


@pytest.mark.parametrize("url", ["/tmp/origin", "file:///tmp/origin", "/tmp/origin/.git", "../tmp/origin"])
def test_path_and_url_are_cloned(sandbox: Sandbox, url: str) -> None:
    path = sandbox.git.clone(url)
    assert path == "/workspace/origin"
    assert log(sandbox, path) == ["commit 3", "commit 2", "commit 1"]
    sandbox.files.remove(path, recursive=True)


def test_clone_path_can_be_chosen(sandbox: Sandbox) -> None:
    for path in ("here", "/tmp/there/deep", "-dash", "a 'b' $c"):
        assert sandbox.git.clone("/tmp/a b/it's.git", path) == (path if path.startswith("/") else f"/workspace/{path}")
        assert sandbox.files.read_text(f"{path}/file") == "3\n"
    assert sandbox.git.clone("/tmp/a b/it's.git") == "/workspace/it's"


@pytest.mark.parametrize("url", ["/tmp/origin", "file:///tmp/origin"])
def test_clone_respects_depth_and_branch(sandbox: Sandbox, url: str) -> None:
    name = "shallow-" + url[:4].strip("/")
    assert log(sandbox, sandbox.git.clone(url, f"{name}-1", depth=1)) == ["commit 3"]
    assert log(sandbox, sandbox.git.clone(url, f"{name}-2", depth=2, branch="side")) == ["side", "commit 3"]
    tagged = sandbox.git.clone(url, f"{name}-3", branch="v1")
    assert log(sandbox, tagged) == ["commit 2", "commit 1"]
    assert sandbox.run(["git", "-C", tagged, "branch", "--show-current"]).stdout == ""


async def test_async_client_does_the_same(server: Server) -> None:
    async with AsyncSandbox(server=server.address) as sandbox:
        await sandbox.run(MAKE, check=True)
        assert await sandbox.git.clone("/tmp/origin", depth=1) == "/workspace/origin"


def test_clone_errors_have_hints(sandbox: Sandbox) -> None:
    with pytest.raises(CommandFailed, match="branch or tag 'nope' not found in /tmp/origin"):
        sandbox.git.clone("/tmp/origin", "refused", branch="nope")
    sandbox.run("mkdir -p full && touch full/x")
    with pytest.raises(CommandFailed, match="full already exists") as there:
        sandbox.git.clone("/tmp/origin", "full")
    assert there.value.hint == "choose another path="
    with pytest.raises(CommandFailed, match="no git repository found at /nowhere"):
        sandbox.git.clone("/nowhere")
    with pytest.raises(CommandFailed, match="no git repository found at /etc"):
        sandbox.git.clone("/etc")
    assert not sandbox.files.exists("refused")


@pytest.mark.parametrize(
    "url", ["https://example.org/x.git", "git://example.org/x", "ssh://git@example.org/x", "http://192.0.2.1/x"]
)
def test_denied_host_is_named(sandbox: Sandbox, url: str) -> None:
    host = "192.0.2.1" if "192" in url else "example.org"
    with pytest.raises(CommandFailed, match=f"{host} cannot be reached") as refused:
        sandbox.git.clone(url, timeout=60)
    assert refused.value.hint is not None
    assert f'Network(allow=["{host}"])' in refused.value.hint


@pytest.mark.parametrize("url", ["ext::sh -c touch% /tmp/pwned", "-u./x", "--upload-pack=/tmp/x", "fd::3"])
def test_no_url_runs_a_program(sandbox: Sandbox, url: str) -> None:
    with pytest.raises(InvalidRequest, match="url"):
        sandbox.git.clone(url)
    assert not sandbox.files.exists("/tmp/pwned")


def test_url_rewriting_in_the_configuration_runs_no_program(sandbox: Sandbox) -> None:
    """`insteadOf` rewrites the URL after we have looked at it; git itself then refuses the transport."""
    sandbox.run(["git", "config", "--global", "url.ext::sh -c touch% /tmp/pwned #.insteadOf", "https://trap.example/"])
    with pytest.raises(CommandFailed, match="not allowed"):
        sandbox.git.clone("https://trap.example/x", "trap")
    sandbox.run("rm ~/.gitconfig")
    assert not sandbox.files.exists("/tmp/pwned")


def test_slow_clone_times_out(sandbox: Sandbox) -> None:
    sandbox.run("printf '#!/bin/sh\\nsleep 600\\n' > /tmp/slow && chmod +x /tmp/slow")
    sandbox.run(["git", "config", "--global", "core.sshCommand", "/tmp/slow"])
    with pytest.raises(CommandTimeout):
        sandbox.git.clone("ssh://git@example.org/x", timeout=1)
    sandbox.run("rm ~/.gitconfig")


def test_missing_git_is_reported(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        sandbox.run("rm /usr/bin/git", user="root", check=True)
        with pytest.raises(CommandFailed, match="git is not installed in the sandbox"):
            sandbox.git.clone("/tmp/x")


IDENTITY = "git init -q /tmp/r && cd /tmp/r && git commit -q --allow-empty -m x && git log -1 --format='%an <%ae>'"


def test_requested_identity_is_used_unless_the_user_configures_another(server: Server) -> None:
    options = Options(git_name='Ann "A." O\\Neil #1; x', git_email="ann@example.org")
    with Sandbox(server=server.address, options=options) as sandbox:
        told = 'Ann "A." O\\Neil #1; x <ann@example.org>\n'
        assert sandbox.run(IDENTITY).stdout == told
        assert sandbox.run(f"rm -rf /tmp/r; {IDENTITY}", user="root").stdout == told
        sandbox.stop()
        assert sandbox.run(f"sudo rm -rf /tmp/r; {IDENTITY}").stdout == told, "also after a start"
        sandbox.run("git config --global user.name Own")
        assert sandbox.run(f"rm -rf /tmp/r; {IDENTITY}").stdout == "Own <ann@example.org>\n"


def test_image_without_a_git_configuration_gets_the_identity(server: Server) -> None:
    with Sandbox(server=server.address, options=Options(git_name="Ann")) as sandbox:
        sandbox.run("rm /etc/gitconfig", user="root", check=True)
        sandbox.stop()
        assert sandbox.run("git config user.name").stdout == "Ann\n"
        sandbox.run("printf '[user]\\n\\tname = Image\\n' > /etc/gitconfig", user="root", check=True)
        sandbox.stop()
        assert sandbox.run("git config user.name").stdout == "Image\n", "one of the image's own is not touched"


def test_identity_of_the_operator_applies_to_every_new_sandbox(own_server: Server) -> None:
    server = own_server.start(SKERRY_GIT_NAME="Operator", SKERRY_GIT_EMAIL="op@example.org")
    with Sandbox(server=server.address) as one, Sandbox(server=server.address, options=Options(git_name="Ann")) as two:
        assert one.run(IDENTITY).stdout == "Operator <op@example.org>\n"
        assert two.run(IDENTITY).stdout == "Ann <op@example.org>\n"


def test_identity_of_a_project_applies_to_its_sandboxes(server: Server, tmp_path: Path) -> None:
    (tmp_path / "skerry.toml").write_text('[git]\nname = "Project"\nemail = "project@example.org"\n')
    made = skerry("create", "--name", "git-project", server=server.address, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    with Sandbox.get("git-project", server=server.address) as sandbox:
        assert sandbox.run(IDENTITY).stdout == "Project <project@example.org>\n"
        sandbox.delete()


@pytest.mark.parametrize("name", ["", " ", "two\nlines", "x" * 300, "\x1b[31m"])
def test_invalid_identity_is_rejected(name: str) -> None:
    with pytest.raises(InvalidRequest, match="git_name"):
        Options(git_name=name)
