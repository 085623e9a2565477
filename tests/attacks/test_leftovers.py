"""Attacks by files that root inside leaves for the next start in place of the journals, and on launchers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from attacks.test_exhaustion import peak_memory
from support.server import Server

from skerry import Limits, Sandbox
from skerry.errors import Conflict, SkerryError

HOME = "/var/lib/skerry/processes"
LIE = (
    '{"id":"p-%010d","argv":["%s"],"pid":4194304,"user":"u","detach":false,"began":4611686018427387904,'
    '"ended":4611686018427387904,"status":{"exit_code":255,"signal":null,"timed_out":false,"duration_s":1e10,"cpu_s":1e10,'
    '"max_rss":9007199254740991,"left":[]},"offset":9007199254740992,"spans":[[0,9007199254740992,4611686018427387904]]}'
)
SEGMENTS = f"for n in range(5000): open('{HOME}/p-%d.%016x' % (n % 50, n), 'w').close()"
LEFT = {
    "an endless list": f"truncate -s 1G {HOME}/list",
    "a line without end": f"head -c 100M /dev/zero | tr '\\0' a > {HOME}/list",
    "a deep line": f"head -c 10M /dev/zero | tr '\\0' '[' > {HOME}/list",
    "a list that is a FIFO": f"rm -f {HOME}/list && mkfifo {HOME}/list",
    "a list that is a directory": f"rm -f {HOME}/list && mkdir -p {HOME}/list/a",
    "a list that is a device": f"ln -sfT /dev/zero {HOME}/list",
    "the keeper's own files": f"rm -rf {HOME} && ln -sT /proc/1/fd {HOME}",
    "a FIFO in its place": f"rm -rf {HOME} && mkfifo {HOME}",
    "another directory": "rm -rf /var/lib/skerry && ln -sT /etc /var/lib/skerry",
    "lies without number": f"cp /tmp/lies {HOME}/list",
    "thousands of segments": f'python3 -c "{SEGMENTS}"',
}


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, limits=Limits(memory="256M", pids=128, disk="1G")) as sandbox:
        sandbox.files.write("/tmp/lies", "".join(LIE % (number, "\\u0001" * 300) + "\n" for number in range(6000)))
        yield sandbox


@pytest.mark.parametrize("left", LEFT)
def test_state_files_written_by_root_are_not_trusted(server: Server, sandbox: Sandbox, left: str) -> None:
    before = peak_memory(server)
    sandbox.spawn("seq 1000").wait()
    attack = f"rm -rf /var/lib/skerry && mkdir -p {HOME} && {LEFT[left]}"
    # again: the keeper, noting the end of the process above, may put its directory back between two of these
    assert sandbox.run(f"until {attack}; do :; done", user="root", timeout=60).exit_code == 0
    sandbox.stop()
    sandbox.processes.list()
    assert sandbox.run("ls -d /etc/processes", user="root").exit_code != 0
    process = sandbox.spawn("seq 100")
    assert process.wait().stdout.endswith("\n100\n")
    assert sandbox.info().state == "running"
    assert peak_memory(server) - before < 64 << 20


def test_killed_launchers_are_replaced(sandbox: Sandbox) -> None:
    for _ in range(5):
        left = sandbox.spawn("sleep 1000")
        assert sandbox.run("kill -9 -1; kill -9 $$", user="root", timeout=10).signal == "KILL"
        assert left.wait(30).signal == "KILL"
        for _ in range(10):  # as many as there are launchers: a command may meet one that is about to die
            with contextlib.suppress(Conflict):
                assert sandbox.run(["echo", "alive"]).stdout == "alive\n"
                break
        else:
            pytest.fail("launchers were not replaced")


@pytest.mark.soak
def test_stopped_launchers_time_out(sandbox: Sandbox) -> None:
    """By root inside, as permitted. The command that meets a stopped launcher fails; the next one does not."""
    sandbox.run("kill -STOP -1", user="root", timeout=1)
    for _ in range(10):  # as many as there are launchers
        try:
            sandbox.run(["true"], timeout=10)
            break
        except SkerryError:
            assert sandbox.info().state == "running"
    assert sandbox.run(["echo", "alive"]).stdout == "alive\n"
