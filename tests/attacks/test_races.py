"""Attacks on calls that take more than one look: a user swaps names while files are worked on, with that user's rights
or with root's. What lies elsewhere, and is root's alone, stays as it is and is told to nobody."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from attacks.raid import PLACE, carry_in
from serving import Server

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


def edit(box: Sandbox, path: str, user: str) -> None:
    for work in (
        lambda: box.files.write(path, "mine\n", user=user),
        lambda: box.files.append(path, "evil\n", user=user),
        lambda: box.files.replace(path, "mine", "evil", user=user),
        lambda: box.files.patch(path, PATCH, user=user),
        lambda: box.files.chmod(path, 0o777, user=user),
    ):
        with suppress(SkerryError):
            work()


BY_THE_USER: dict[str, Verb] = {
    "edit behind a directory": lambda box, user, _: edit(box, "/workspace/r/d/f", user),
    "edit a name": lambda box, user, _: edit(box, "/workspace/r/open", user),
    "move away": lambda box, user, _: box.files.move("/workspace/r/d/f", "/workspace/r/g", overwrite=True, user=user),
    "move there": lambda box, user, _: box.files.move("/workspace/r/g", "/workspace/r/d/f", overwrite=True, user=user),
    "copy out": lambda box, user, _: box.files.copy("/workspace/r/d/f", "/workspace/out", overwrite=True, user=user),
}
BY_ANYONE: dict[str, Verb] = {
    "chmod": lambda box, user, _: box.files.chmod("/workspace/r", 0o777, recursive=True, user=user),
    "chown": lambda box, user, _: box.files.chown("/workspace/r", "user", recursive=True, user=user),
    "copy": lambda box, user, _: box.files.copy(
        "/workspace/r", f"/workspace/out{time.monotonic_ns()}", recursive=True, user=user
    ),
    "remove": lambda box, user, _: box.files.remove("/workspace/r/d", recursive=True, user=user),
    "upload": lambda box, user, tree: box.files.upload(tree, "/workspace/r", user=user),
}
WAYS = [
    *(pytest.param(verb, "user", id=f"{name}-by_user") for name, verb in (BY_THE_USER | BY_ANYONE).items()),
    *(pytest.param(verb, "root", id=f"{name}-by_root") for name, verb in BY_ANYONE.items()),
]


@pytest.fixture(scope="module")
def track(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, limits=Limits(memory="512M", disk="1G", cpus=2)) as box:
        carry_in(box)
        yield box


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("d/f", "d/sub/f", "open", "s/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("evil\n")
    return tmp_path


@pytest.mark.parametrize(("verb", "user"), WAYS)
def test_swapped_names_lead_nowhere_else(track: Sandbox, tree: Path, verb: Verb, user: str) -> None:
    track.run(SET_UP, user="root", check=True)
    before = track.run(LOOK, user="root", check=True).stdout
    swap = track.spawn(["python3", f"{PLACE}/swap.py", "d", "l", "open", "lf"], cwd="/workspace/r", user="user")
    swap.wait_for_output("begun", timeout=30)
    until = time.monotonic() + TRY_S
    while time.monotonic() < until:
        with suppress(SkerryError):
            verb(track, user, tree)
    swap.signal("KILL")
    swap.wait(30)
    assert track.run(LOOK, user="root", check=True).stdout == before
    found = track.run(f'grep -rl "{SECRET}" /workspace --exclude=closed', user="root")
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
def test_no_file_of_roots_is_forged(track: Sandbox, verb: str) -> None:
    """A file that is written keeps its owner; the one whose owner that is has to be the one that may be written to."""
    track.run("mkdir -p /workspace/r && chown user:user /workspace/r", user="root", check=True)
    argv = ["python3", f"{PLACE}/swap.py", "open", "closed"]
    swap = track.spawn(argv, cwd="/workspace/r", user="user")
    swap.wait_for_output("begun", timeout=30)
    forged = []
    until = time.monotonic() + TRY_S
    while time.monotonic() < until and not forged:
        track.run(FORGE, user="root")
        with suppress(SkerryError):
            if verb == "write":
                track.files.write("/workspace/r/open", "evil\n", user="user")
            else:
                track.files.replace("/workspace/r/open", "mine", "evil", user="user")
        forged = track.run(["python3", "-c", FORGED], cwd="/workspace/r", user="root", check=True).stdout.split()
    swap.signal("KILL")
    swap.wait(30)
    assert forged == []


def test_no_directory_of_roots_is_opened(track: Sandbox, tree: Path) -> None:
    """One that root's upload made gets its mode once all is in it; what has its name by then may be another one."""
    track.run("mkdir -p /workspace/r && chown user:user /workspace/r", user="root", check=True)
    swap = track.spawn(["python3", f"{PLACE}/swap.py", "s", "locked"], cwd="/workspace/r", user="user")
    swap.wait_for_output("begun", timeout=30)
    line = "cd /workspace/r && rm -rf * && mkdir -m 700 locked && touch locked/secret"
    look = "cd /workspace/r && find . -name secret -printf '%h\\n' | xargs -r stat -c %a"
    for number in range(100):
        (tree / "s" / str(number)).write_text("x")
    (tree / "s").chmod(0o755)
    modes = set()
    for _ in range(20):
        swap.signal("STOP")
        track.run(line, user="root", check=True)
        swap.signal("CONT")
        with suppress(SkerryError):
            track.files.upload(tree, "/workspace/r", user="root")
        swap.signal("STOP")
        modes |= set(track.run(look, user="root").stdout.split())
    swap.signal("KILL")
    swap.wait(30)
    assert modes == {"700"}
