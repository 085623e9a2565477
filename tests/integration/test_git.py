"""Git in real sandboxes: clones of repositories that were made inside, identities, refusals that help."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.calling import skerry
from serving import Server

from skerry import AsyncSandbox, Options, Sandbox
from skerry.errors import CommandFailed, CommandTimeout, InvalidRequest

MAKE = """
git init -q /tmp/origin && cd /tmp/origin
for n in 1 2 3; do echo $n > file; git add file; git commit -qm "commit $n"; done
git switch -qc side && git commit -q --allow-empty -m side && git switch -q main && git tag v1 HEAD~1
mkdir -p '/tmp/a b' && git clone -q --bare /tmp/origin '/tmp/a b/it'"'"'s.git'
"""


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address) as sandbox:
        sandbox.run(MAKE, check=True)
        yield sandbox


def log(box: Sandbox, path: str) -> list[str]:
    return box.run(["git", "-C", path, "log", "--format=%s"], check=True).stdout.splitlines()


def test_a_commit_works_out_of_the_box(box: Sandbox) -> None:
    assert box.run("git -C /tmp/origin log -1 --format='%an <%ae>'").stdout == "Skerry Agent <agent@skerry.invalid>\n"
    assert box.run("git -C /tmp/origin branch --show-current").stdout == "main\n"
    assert box.run("git status", cwd="/tmp/origin", user="root").ok, "another's directory is no obstacle"


@pytest.mark.parametrize("url", ["/tmp/origin", "file:///tmp/origin", "/tmp/origin/.git", "../tmp/origin"])
def test_a_clone_of_a_path_or_url(box: Sandbox, url: str) -> None:
    path = box.git.clone(url)
    assert path == "/workspace/origin"
    assert log(box, path) == ["commit 3", "commit 2", "commit 1"]
    box.files.remove(path, recursive=True)


def test_the_path_may_be_chosen_and_odd(box: Sandbox) -> None:
    for path in ("here", "/tmp/there/deep", "-dash", "a 'b' $c"):
        assert box.git.clone("/tmp/a b/it's.git", path) == (path if path.startswith("/") else f"/workspace/{path}")
        assert box.files.read_text(f"{path}/file") == "3\n"
    assert box.git.clone("/tmp/a b/it's.git") == "/workspace/it's"


@pytest.mark.parametrize("url", ["/tmp/origin", "file:///tmp/origin"])
def test_depth_and_branch(box: Sandbox, url: str) -> None:
    name = "shallow-" + url[:4].strip("/")
    assert log(box, box.git.clone(url, f"{name}-1", depth=1)) == ["commit 3"]
    assert log(box, box.git.clone(url, f"{name}-2", depth=2, branch="side")) == ["side", "commit 3"]
    tagged = box.git.clone(url, f"{name}-3", branch="v1")
    assert log(box, tagged) == ["commit 2", "commit 1"]
    assert box.run(["git", "-C", tagged, "branch", "--show-current"]).stdout == ""


async def test_the_async_twin_does_the_same(server: Server) -> None:
    async with AsyncSandbox(server=server.address) as sandbox:
        await sandbox.run(MAKE, check=True)
        assert await sandbox.git.clone("/tmp/origin", depth=1) == "/workspace/origin"


def test_refusals_say_what_helps(box: Sandbox) -> None:
    with pytest.raises(CommandFailed, match="no branch or tag 'nope' in /tmp/origin"):
        box.git.clone("/tmp/origin", "refused", branch="nope")
    box.run("mkdir -p full && touch full/x")
    with pytest.raises(CommandFailed, match="full exists already") as there:
        box.git.clone("/tmp/origin", "full")
    assert there.value.hint == "give another path="
    with pytest.raises(CommandFailed, match="no git repository at /nowhere"):
        box.git.clone("/nowhere")
    with pytest.raises(CommandFailed, match="no git repository at /etc"):
        box.git.clone("/etc")
    assert not box.files.exists("refused")


@pytest.mark.parametrize(
    "url", ["https://example.org/x.git", "git://example.org/x", "ssh://git@example.org/x", "http://192.0.2.1/x"]
)
def test_a_host_that_is_not_allowed_is_named(box: Sandbox, url: str) -> None:
    host = "192.0.2.1" if "192" in url else "example.org"
    with pytest.raises(CommandFailed, match=f"{host} can't be reached") as refused:
        box.git.clone(url, timeout=60)
    assert refused.value.hint is not None
    assert f'Network(allow=["{host}"])' in refused.value.hint


@pytest.mark.parametrize("url", ["ext::sh -c touch% /tmp/pwned", "-u./x", "--upload-pack=/tmp/x", "fd::3"])
def test_no_url_runs_a_program(box: Sandbox, url: str) -> None:
    with pytest.raises(InvalidRequest, match="url"):
        box.git.clone(url)
    assert not box.files.exists("/tmp/pwned")


def test_a_redirection_in_the_configuration_inside_runs_no_program_either(box: Sandbox) -> None:
    """`insteadOf` rewrites the URL after we have looked at it; git itself then refuses the transport."""
    box.run(["git", "config", "--global", "url.ext::sh -c touch% /tmp/pwned #.insteadOf", "https://trap.example/"])
    with pytest.raises(CommandFailed, match="not allowed"):
        box.git.clone("https://trap.example/x", "trap")
    box.run("rm ~/.gitconfig")
    assert not box.files.exists("/tmp/pwned")


def test_a_clone_that_takes_too_long_is_ended(box: Sandbox) -> None:
    box.run("printf '#!/bin/sh\\nsleep 600\\n' > /tmp/slow && chmod +x /tmp/slow")
    box.run(["git", "config", "--global", "core.sshCommand", "/tmp/slow"])
    with pytest.raises(CommandTimeout):
        box.git.clone("ssh://git@example.org/x", timeout=1)
    box.run("rm ~/.gitconfig")


def test_a_missing_git_is_told(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        sandbox.run("rm /usr/bin/git", user="root", check=True)
        with pytest.raises(CommandFailed, match="no git in the sandbox"):
            sandbox.git.clone("/tmp/x")


IDENTITY = "git init -q /tmp/r && cd /tmp/r && git commit -q --allow-empty -m x && git log -1 --format='%an <%ae>'"


def test_an_identity_that_was_asked_for_is_on_commits_and_the_users_own_stands_above_it(server: Server) -> None:
    options = Options(git_name='Ann "A." O\\Neil #1; x', git_email="ann@example.org")
    with Sandbox(server=server.address, options=options) as sandbox:
        told = 'Ann "A." O\\Neil #1; x <ann@example.org>\n'
        assert sandbox.run(IDENTITY).stdout == told
        assert sandbox.run(f"rm -rf /tmp/r; {IDENTITY}", user="root").stdout == told
        sandbox.stop()
        assert sandbox.run(f"sudo rm -rf /tmp/r; {IDENTITY}").stdout == told, "also after a start"
        sandbox.run("git config --global user.name Own")
        assert sandbox.run(f"rm -rf /tmp/r; {IDENTITY}").stdout == "Own <ann@example.org>\n"


def test_an_image_without_a_configuration_for_git_gets_the_identity_too(server: Server) -> None:
    with Sandbox(server=server.address, options=Options(git_name="Ann")) as sandbox:
        sandbox.run("rm /etc/gitconfig", user="root", check=True)
        sandbox.stop()
        assert sandbox.run("git config user.name").stdout == "Ann\n"
        sandbox.run("printf '[user]\\n\\tname = Image\\n' > /etc/gitconfig", user="root", check=True)
        sandbox.stop()
        assert sandbox.run("git config user.name").stdout == "Image\n", "one of the image's own is not touched"


def test_the_operator_gives_an_identity_to_every_new_sandbox(own_server: Server) -> None:
    server = own_server.start(SKERRY_GIT_NAME="Operator", SKERRY_GIT_EMAIL="op@example.org")
    with Sandbox(server=server.address) as one, Sandbox(server=server.address, options=Options(git_name="Ann")) as two:
        assert one.run(IDENTITY).stdout == "Operator <op@example.org>\n"
        assert two.run(IDENTITY).stdout == "Ann <op@example.org>\n"


def test_a_project_gives_one_to_its_own(server: Server, tmp_path: Path) -> None:
    (tmp_path / "skerry.toml").write_text('[git]\nname = "Project"\nemail = "project@example.org"\n')
    made = skerry("create", "--name", "git-project", server=server.address, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    with Sandbox.get("git-project", server=server.address) as sandbox:
        assert sandbox.run(IDENTITY).stdout == "Project <project@example.org>\n"
        sandbox.delete()


@pytest.mark.parametrize("name", ["", " ", "two\nlines", "x" * 300, "\x1b[31m"])
def test_what_can_t_be_a_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="git_name"):
        Options(git_name=name)
