"""Attacks on the files of a session, which its user owns, and by its stored state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from support.server import Server

from skerry import Limits, Sandbox
from skerry.errors import SkerryError

PLACE = "/var/lib/skerry/sessions/evil"
TARGET = "/opt/target"
RUINS = {
    "links to root's": f"for f in shell last command 0 1 scratch; do ln -sf {TARGET} $f; done",
    "FIFOs": "for f in shell last command 0 1 scratch; do rm -f $f; mkfifo $f; done",
    "directories": "for f in shell last command 0 1 scratch; do rm -rf $f; mkdir -p $f/x; done",
    "endless files": "for f in last 0 1; do rm -rf $f; truncate -s 1T $f || truncate -s 1G $f; done",
    "a link in its place": "cd .. && rm -rf state/* && mv state gone; ln -s /etc state",
    "a script of their own": "printf '# skerry-session 1 999 kept\\nexec sleep 1000\\n__skerry_whole=999\\n' > 0",
    "traps and functions": (
        "printf '# skerry-session 1 9 kept\\nbuiltin() { :; }; cd() { kill -9 $$; }; PATH=/nowhere; set -n\\n"
        'trap "kill -9 $$" DEBUG EXIT ERR; PROMPT_COMMAND=false\\n__skerry_whole=9\\n\' > 0'
    ),
}


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, limits=Limits(memory="512M", pids=128)) as sandbox:
        sandbox.run(f"echo whole > {TARGET} && chmod 600 {TARGET}", user="root", check=True)
        yield sandbox


@pytest.mark.parametrize("by", ["user", "root"])
@pytest.mark.parametrize("ruin", RUINS)
def test_damaged_session_affects_only_itself(sandbox: Sandbox, ruin: str, by: str) -> None:
    with suppress(SkerryError):
        sandbox.session("evil").close()
    sandbox.session("evil").run("a=1", timeout=10)
    sandbox.session("good", user="root").run("b=2", timeout=10)
    sandbox.run(f"cd {PLACE}/state && {RUINS[ruin]}", user=by)
    with suppress(SkerryError):
        sandbox.session("evil").run("echo still there", timeout=1)
    assert sandbox.session("good", user="root").run("echo $b; id -u", timeout=10).stdout == "2\n0\n"
    kept = sandbox.run(f"cat {TARGET}; stat -c '%U %a' {TARGET} /etc /etc/passwd", user="root", check=True).stdout
    assert kept == "whole\nroot 600\nroot 755\nroot 644\n"
    assert "good" in {session.name for session in sandbox.sessions.list()}
    assert sandbox.info().state == "running"


def test_session_with_oversized_state_stays_unchanged(sandbox: Sandbox) -> None:
    session = sandbox.session("greedy")
    session.run("small=1", timeout=10)
    told = session.run("big=$(head -c 8000000 /dev/zero | tr '\\0' a); small=2", timeout=30)
    assert "4 MiB" in (told.hint or "")
    assert session.run("echo $small ${#big}", timeout=10).stdout == "1 0\n"
