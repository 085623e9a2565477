"""Attacks by what root inside leaves for the next start in place of the journals, and on those who start commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from attacks.test_exhaustion import peak_memory
from serving import Server

from skerry import Limits, Sandbox
from skerry.errors import SkerryError

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
def haunted(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, limits=Limits(memory="256M", pids=128, disk="1G")) as box:
        box.files.write("/tmp/lies", "".join(LIE % (number, "\\u0001" * 300) + "\n" for number in range(6000)))
        yield box


@pytest.mark.parametrize("left", LEFT)
def test_what_root_left_is_not_believed(server: Server, haunted: Sandbox, left: str) -> None:
    before = peak_memory(server)
    haunted.spawn("seq 1000").wait()
    attack = f"rm -rf /var/lib/skerry && mkdir -p {HOME} && {LEFT[left]}"
    # again: the keeper, noting the end of the process above, may put its directory back between two of these
    assert haunted.run(f"until {attack}; do :; done", user="root", timeout=60).exit_code == 0
    haunted.stop()
    haunted.processes.list()
    assert haunted.run("ls -d /etc/processes", user="root").exit_code != 0
    process = haunted.spawn("seq 100")
    assert process.wait().stdout.endswith("\n100\n")
    assert haunted.info().state == "running"
    assert peak_memory(server) - before < 64 << 20


def test_launchers_that_are_killed_are_made_again(haunted: Sandbox) -> None:
    for _ in range(5):
        left = haunted.spawn("sleep 1000")
        assert haunted.run("kill -9 -1; kill -9 $$", user="root", timeout=10).signal == "KILL"
        assert left.wait(30).signal == "KILL"
        assert haunted.run(["echo", "alive"]).stdout == "alive\n"


@pytest.mark.soak
def test_launchers_that_are_stopped_are_not_waited_for_without_end(haunted: Sandbox) -> None:
    """By root inside, who may. The command that meets one fails; the next one does not."""
    haunted.run("kill -STOP -1", user="root", timeout=1)
    for _ in range(10):  # as many as there are launchers
        try:
            haunted.run(["true"], timeout=10)
            break
        except SkerryError:
            assert haunted.info().state == "running"
    assert haunted.run(["echo", "alive"]).stdout == "alive\n"
