"""The root file system: whose it is, what is refused, and what other users of the host can't reach."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from runtimes.walls import BASE, Box, boxed, make_wall

from skerry.errors import SandboxUnavailable
from skerry.runtimes import Wall
from skerry.runtimes.oci import OciRuntime
from skerry.runtimes.overlay import check_root

pytestmark = pytest.mark.vm
NOBODY = 65534


@pytest.fixture(params=["by fd", "by path"])
def variant(request: pytest.FixtureRequest, runtime: OciRuntime) -> OciRuntime:
    """Both ways to build an overlay, whatever this kernel would choose; by path is what kernels before 6.13 get."""
    if request.param == "by fd" and not runtime.overlays.by_fd:
        pytest.skip("overlay layers by fd need Linux 6.13")
    runtime.overlays.by_fd = request.param == "by fd"
    return runtime


async def test_writes_land_in_the_upper_with_container_ids(variant: OciRuntime, wall: Wall) -> None:
    async with boxed(variant, wall) as box:
        assert await box.run("touch", "/etc/mine") == "ok\n"
        assert await box.run("touch", "/tmp/users", uid=1000) == "ok\n"
        assert await box.run("own") == "chowned, switched and read\n"
    upper = wall.unit / "upper"
    assert (upper / "etc" / "mine").read_text() == "inside\n"
    ids = {
        name: (upper / name).stat().st_uid for name in ("etc/mine", "tmp/users", "tmp/for-apt", "etc", "proc", "run")
    }
    assert ids == {"etc/mine": 0, "tmp/users": 1000, "tmp/for-apt": 100, "etc": 0, "proc": 0, "run": 0}
    assert sorted(os.listdir(wall.layers[0])) == ["bin", "etc", "tmp"]


async def test_layers_stack_top_first_and_files_survive_a_restart_in_another_range(
    variant: OciRuntime, wall: Wall, tmp_path: Path
) -> None:
    top = tmp_path / "top"
    (top / "etc").mkdir(parents=True)
    (top / "etc" / "hello").write_text("from the top\n")
    stacked = replace(wall, layers=(top, *wall.layers))
    async with boxed(variant, stacked) as box:
        assert await box.read("/etc/hello") == "from the top\n"
        await box.run("touch", "/etc/kept")
    async with boxed(variant, replace(stacked, uid_base=BASE + 5 * 65536)) as box:
        assert await box.read("/etc/kept") == "inside\n"
        assert await box.run("touch", "/etc/kept") == "ok\n"


async def test_many_layers_can_be_stacked(variant: OciRuntime, wall: Wall, tmp_path: Path) -> None:
    layers = []
    for number in range(120):
        layer = tmp_path / "many" / str(number)
        (layer / "etc").mkdir(parents=True)
        (layer / "etc" / f"from-{number}").write_text(f"{number}\n")
        layers.append(layer)
    async with boxed(variant, replace(wall, layers=(*layers, *wall.layers))) as box:
        assert await box.read("/etc/from-0") == "0\n"
        assert await box.read("/etc/from-119") == "119\n"


async def test_a_directory_of_a_layer_can_be_renamed(variant: OciRuntime, wall: Wall) -> None:
    (wall.layers[0] / "dir").mkdir()
    (wall.layers[0] / "dir" / "file").write_text("moved\n")
    async with boxed(variant, wall) as box:
        assert await box.run("rename", "/dir", "/other") == "ok\n"
        assert await box.read("/other/file") == "moved\n"


@pytest.mark.parametrize("place", ["/proc", "/sys", "/dev", "/run", "/run/skerry"])
async def test_a_link_put_in_place_of_a_mount_point_stops_the_next_start(
    runtime: OciRuntime, wall: Wall, tmp_path: Path, place: str
) -> None:
    """The inside owned that tree: a link there would send the runtime's next mounts elsewhere."""
    target = tmp_path / "host"
    target.mkdir()
    link = wall.unit / "upper" / place[1:]
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    try:
        with pytest.raises(SandboxUnavailable, match=f"{place} in the sandbox's root is not a real directory"):
            await runtime.start(wall)
    finally:
        await runtime.clear(wall.id)
    assert os.listdir(target) == []


@pytest.mark.parametrize("kind", ["link to a directory inside", "dangling link", "file", "fifo", "magic link"])
def test_whatever_is_not_a_directory_is_refused(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "root"
    (root / "elsewhere").mkdir(parents=True)
    place = root / "dev"
    if kind == "file":
        place.touch()
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        place.symlink_to({"link to a directory inside": "elsewhere", "magic link": "/proc/self/root"}.get(kind, "none"))
    with pytest.raises(SandboxUnavailable, match="/dev in the sandbox's root"):
        check_root(root, 0)


async def test_a_sandbox_that_replaced_run_skerry_while_it_ran_does_not_start_again(
    runtime: OciRuntime, wall: Wall
) -> None:
    (wall.layers[0] / "opt").mkdir()
    async with boxed(runtime, wall) as box:
        assert await box.run("link", "/opt", "/srv") == "ok ok\n"
        assert "busy" in await box.run("link", "/opt", "/run")
    async with boxed(runtime, wall) as box:
        assert "from the layer" in await box.read("/etc/hello")


async def test_an_unprivileged_user_of_the_host_gets_nowhere(box: Box) -> None:
    await box.run("setuid", "/tmp/rootsh")
    run_dir, sandbox = box.wall.run_dir, box.wall.id
    for path in (
        run_dir / "m" / sandbox / "root",
        run_dir / "m" / sandbox / "root" / "tmp" / "rootsh",
        run_dir / "k" / sandbox,
        run_dir / "b" / sandbox / "config.json",
        run_dir / "oci" / box.runtime.name,
    ):
        assert path.exists()
        assert not as_nobody("-e", path)
    for path in (run_dir / "m" / sandbox, run_dir / "k", run_dir / "b", run_dir / "oci"):
        assert not any(as_nobody(right, path) for right in ("-r", "-w", "-x"))


def as_nobody(right: str, path: Path) -> bool:
    who = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    return subprocess.run([*who, "test", right, str(path)]).returncode == 0


async def test_a_setuid_file_made_inside_is_only_that_sandboxs_and_on_a_nosuid_mount(box: Box) -> None:
    assert await box.run("setuid", "/tmp/rootsh") == "ok ok\n"
    path = box.runtime.overlays.path(box.wall.id) / "tmp" / "rootsh"
    status = path.stat()
    assert status.st_mode & 0o4000
    assert status.st_uid == BASE
    assert os.statvfs(path).f_flag & os.ST_NOSUID


async def test_another_sandbox_reaches_nothing_of_it(
    runtime: OciRuntime, wall: Wall, layer: Path, tmp_path: Path, probe: Path
) -> None:
    second = make_wall(runtime, layer, tmp_path / "unit2", probe, "sb-bbbbbbbbbb", BASE + 65536)
    async with boxed(runtime, wall) as one, boxed(runtime, second) as two:
        await one.run("touch", "/etc/secret")
        assert "no such file" in await two.read("/etc/secret")
        for path in (f"/proc/{one.init.pid}/root", str(runtime.overlays.path(wall.id)), str(wall.unit)):
            assert "no such file" in await two.read(path)
