"""Attacks on calls that take more than one look: a user swaps names while files are worked on, with that user's rights
or with root's. Files elsewhere that only root may access stay unchanged and unread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.attack import PLACE, carry_in
from support.server import Server

from skerry import Limits, Sandbox
from skerry.errors import SkerryError

SECRET = "root's alone"
TRY_S = 0.7
PATCH = "--- f\n+++ f\n@@ -1 +1 @@\n-mine\n+evil\n"
SET_UP = f"""
rm -rf /workspace/r /workspace/out* /opt/victim && mkdir -p /opt/victim/sub /workspace/r/d/sub
printf '%s\\n' "{SECRET}" | tee /opt/victim/f /opt/victim/sub/f > /workspace/r/closed
printf 'mine\\n' | tee /workspace/r/d/f /workspace/r/d/sub/f > /workspace/r/open
ln -s /opt/victim /workspace/r/l && ln -s /opt/victim/f /workspace/r/lf && chmod -R go= /opt/victim
chown -R user:user /workspace/r && chown root:root /workspace/r/closed && chmod 600 /workspace/r/closed
"""
LOOK = "cd /opt && find victim -printf '%p %U:%G %m %n\\n' | sort && cat victim/f victim/sub/f"

Verb = Callable[[Sandbox, str, Path], object]


def edit(sandbox: Sandbox, path: str, user: str) -> None:
    for work in (
        lambda: sandbox.files.write(path, "mine\n", user=user),
        lambda: sandbox.files.append(path, "evil\n", user=user),
        lambda: sandbox.files.replace(path, "mine", "evil", user=user),
        lambda: sandbox.files.patch(path, PATCH, user=user),
        lambda: sandbox.files.chmod(path, 0o777, user=user),
    ):
        with suppress(SkerryError):
            work()


BY_THE_USER: dict[str, Verb] = {
    "edit behind a directory": lambda sandbox, user, _: edit(sandbox, "/workspace/r/d/f", user),
    "edit a name": lambda sandbox, user, _: edit(sandbox, "/workspace/r/open", user),
    "move away": lambda sandbox, user, _: sandbox.files.move(
        "/workspace/r/d/f", "/workspace/r/g", overwrite=True, user=user
    ),
    "move there": lambda sandbox, user, _: sandbox.files.move(
        "/workspace/r/g", "/workspace/r/d/f", overwrite=True, user=user
    ),
    "copy out": lambda sandbox, user, _: sandbox.files.copy(
        "/workspace/r/d/f", "/workspace/out", overwrite=True, user=user
    ),
}
BY_ANYONE: dict[str, Verb] = {
    "chmod": lambda sandbox, user, _: sandbox.files.chmod("/workspace/r", 0o777, recursive=True, user=user),
    "chown": lambda sandbox, user, _: sandbox.files.chown("/workspace/r", "user", recursive=True, user=user),
    "copy": lambda sandbox, user, _: sandbox.files.copy(
        "/workspace/r", f"/workspace/out{time.monotonic_ns()}", recursive=True, user=user
    ),
    "remove": lambda sandbox, user, _: sandbox.files.remove("/workspace/r/d", recursive=True, user=user),
    "upload": lambda sandbox, user, tree: sandbox.files.upload(tree, "/workspace/r", user=user),
}
WAYS = [
    *(pytest.param(verb, "user", id=f"{name}-by_user") for name, verb in (BY_THE_USER | BY_ANYONE).items()),
    *(pytest.param(verb, "root", id=f"{name}-by_root") for name, verb in BY_ANYONE.items()),
]


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, limits=Limits(memory="512M", disk="1G", cpus=2)) as sandbox:
        carry_in(sandbox)
        yield sandbox


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("d/f", "d/sub/f", "open", "s/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("evil\n")
    return tmp_path


@pytest.mark.parametrize(("verb", "user"), WAYS)
def test_swapped_paths_lead_nowhere_else(sandbox: Sandbox, tree: Path, verb: Verb, user: str) -> None:
    sandbox.run(SET_UP, user="root", check=True)
    before = sandbox.run(LOOK, user="root", check=True).stdout
    swap = sandbox.spawn(["python3", f"{PLACE}/swap.py", "d", "l", "open", "lf"], cwd="/workspace/r", user="user")
    swap.wait_for_output("begun", timeout=30)
    until = time.monotonic() + TRY_S
    while time.monotonic() < until:
        with suppress(SkerryError):
            verb(sandbox, user, tree)
    swap.signal("KILL")
    swap.wait(30)
    assert sandbox.run(LOOK, user="root", check=True).stdout == before
    found = sandbox.run(f'grep -rl "{SECRET}" /workspace --exclude=closed', user="root")
    assert found.stdout == ""


FORGE = """
cd /workspace/r && rm -rf * && printf 'mine\n' > open && printf 'mine\n' > closed && chown user:user open
chmod 644 open closed
"""
FORGED = """
import os
for name in os.listdir():  # each looked at once, because the names go on changing
    with open(name) as file:
        if os.fstat(file.fileno()).st_uid == 0 and "evil" in file.read():
            print(name)
"""


@pytest.mark.parametrize("verb", ["write", "replace"])
def test_files_of_root_cannot_be_forged(sandbox: Sandbox, verb: str) -> None:
    """A written file keeps its owner; that owner must belong to the file that may be written."""
    sandbox.run("mkdir -p /workspace/r && chown user:user /workspace/r", user="root", check=True)
    argv = ["python3", f"{PLACE}/swap.py", "open", "closed"]
    swap = sandbox.spawn(argv, cwd="/workspace/r", user="user")
    swap.wait_for_output("begun", timeout=30)
    forged = []
    until = time.monotonic() + TRY_S
    while time.monotonic() < until and not forged:
        sandbox.run(FORGE, user="root")
        with suppress(SkerryError):
            if verb == "write":
                sandbox.files.write("/workspace/r/open", "evil\n", user="user")
            else:
                sandbox.files.replace("/workspace/r/open", "mine", "evil", user="user")
        forged = sandbox.run(["python3", "-c", FORGED], cwd="/workspace/r", user="root", check=True).stdout.split()
    swap.signal("KILL")
    swap.wait(30)
    assert forged == []


def test_directories_of_root_cannot_be_opened(sandbox: Sandbox, tree: Path) -> None:
    """A file uploaded by root gets its mode once it is complete; its name may lead to another file by then."""
    sandbox.run("mkdir -p /workspace/r && chown user:user /workspace/r", user="root", check=True)
    swap = sandbox.spawn(["python3", f"{PLACE}/swap.py", "s", "locked"], cwd="/workspace/r", user="user")
    swap.wait_for_output("begun", timeout=30)
    line = "cd /workspace/r && rm -rf * && mkdir -m 700 locked && touch locked/secret"
    look = "cd /workspace/r && find . -name secret -printf '%h\\n' | xargs -r stat -c %a"
    for number in range(100):
        (tree / "s" / str(number)).write_text("x")
    (tree / "s").chmod(0o755)
    modes = set()
    for _ in range(20):
        swap.signal("STOP")
        sandbox.run(line, user="root", check=True)
        swap.signal("CONT")
        with suppress(SkerryError):
            sandbox.files.upload(tree, "/workspace/r", user="root")
        swap.signal("STOP")
        modes |= set(sandbox.run(look, user="root").stdout.split())
    swap.signal("KILL")
    swap.wait(30)
    assert modes == {"700"}
