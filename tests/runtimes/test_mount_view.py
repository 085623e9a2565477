"""The mounts that a runtime sees."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from support.containers import started_container

from skerry.runtimes import ContainerConfig
from skerry.runtimes.oci import OciRuntime

pytestmark = pytest.mark.vm

# In a separate process, because a thread cannot leave its mount namespace
SEE = """
import errno, os, pickle, sys
from pathlib import Path
from skerry.runtimes.mount_view import ROOTS, Bundle, MountView
from skerry.runtimes.overlay import Overlays

config, runtime, hidden = pickle.loads(sys.stdin.buffer.read())
bundle = Bundle(b"{}")
view = MountView(config, runtime, Overlays(ROOTS), bundle, Path("/dev/place"), hidden)
view.enter()
assert (ROOTS / config.id / "root" / "etc" / "hello").exists()
same = os.stat(view.program), os.stat(runtime)
assert (same[0].st_dev, same[0].st_ino) == (same[1].st_dev, same[1].st_ino)
assert os.statvfs(view.program).f_flag & os.ST_RDONLY
try:
    os.open(view.program, os.O_WRONLY)
except OSError as error:
    assert error.errno in (errno.EROFS, errno.ETXTBSY), error
else:
    raise AssertionError("the runtime's program can be written")
assert Path("/dev/place/config.json").read_bytes() == b"{}"
Path("/dev/place/pid").write_text("17")
assert bundle.read("pid") == b"17"
assert os.listdir(hidden) == []
(hidden / "left").mkdir()
bundle.close()
"""


def test_the_program_is_read_only_and_nothing_is_left_on_the_host(
    runtime: OciRuntime, config: ContainerConfig, tmp_path: Path
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(hidden)], check=True)
    try:
        order = pickle.dumps((config, runtime._binary, hidden))
        seen = subprocess.run([sys.executable, "-c", SEE], input=order, capture_output=True, timeout=60)
        assert seen.returncode == 0, seen.stderr.decode()
    finally:
        subprocess.run(["umount", str(hidden)], check=True)
    assert list(hidden.iterdir()) == []
    assert not Path("/dev/place").exists()


async def test_a_start_leaves_only_the_socket_on_the_host(runtime: OciRuntime, config: ContainerConfig) -> None:
    async with started_container(runtime, config):
        assert [path.name for path in runtime.run_dir.iterdir()] == ["k"]
        assert not runtime._place(config.id).exists()
