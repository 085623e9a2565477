"""The root file system: owners, rejected content, and no access for other users of the host."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support.containers import BASE, Container, make_config, started_container

from skerry.errors import SandboxUnavailable
from skerry.runtimes import ContainerConfig
from skerry.runtimes.oci import OciRuntime
from skerry.runtimes.overlay import check_root

pytestmark = pytest.mark.vm
NOBODY = 65534


@pytest.fixture(params=["by fd", "by path"])
def variant(request: pytest.FixtureRequest, runtime: OciRuntime) -> OciRuntime:
    """Both ways to build an overlay, regardless of this kernel's choice; kernels before 6.13 use paths."""
    if request.param == "by fd" and not runtime.overlays.by_fd:
        pytest.skip("overlay layers by fd need Linux 6.13")
    runtime.overlays.by_fd = request.param == "by fd"
    return runtime


async def test_writes_go_to_the_upper_with_container_ids(variant: OciRuntime, config: ContainerConfig) -> None:
    async with started_container(variant, config) as container:
        assert await container.run("touch", "/etc/mine") == "ok\n"
        assert await container.run("touch", "/tmp/users", uid=1000) == "ok\n"
        assert await container.run("own") == "chowned, switched and read\n"
    upper = config.upper_dir / "upper"
    assert (upper / "etc" / "mine").read_text() == "inside\n"
    ids = {
        name: (upper / name).stat().st_uid for name in ("etc/mine", "tmp/users", "tmp/for-apt", "etc", "proc", "run")
    }
    assert ids == {"etc/mine": 0, "tmp/users": 1000, "tmp/for-apt": 100, "etc": 0, "proc": 0, "run": 0}
    assert sorted(os.listdir(config.layers[0])) == ["bin", "etc", "tmp"]


async def test_layers_stack_top_first_and_files_survive_a_restart_in_another_range(
    variant: OciRuntime, config: ContainerConfig, tmp_path: Path
) -> None:
    top = tmp_path / "top"
    (top / "etc").mkdir(parents=True)
    (top / "etc" / "hello").write_text("from the top\n")
    stacked = replace(config, layers=(top, *config.layers))
    async with started_container(variant, stacked) as container:
        assert await container.read("/etc/hello") == "from the top\n"
        await container.run("touch", "/etc/kept")
    async with started_container(variant, replace(stacked, uid_base=BASE + 5 * 65536)) as container:
        assert await container.read("/etc/kept") == "inside\n"
        assert await container.run("touch", "/etc/kept") == "ok\n"


async def test_many_layers_can_be_stacked(variant: OciRuntime, config: ContainerConfig, tmp_path: Path) -> None:
    layers = []
    for number in range(120):
        layer = tmp_path / "many" / str(number)
        (layer / "etc").mkdir(parents=True)
        (layer / "etc" / f"from-{number}").write_text(f"{number}\n")
        layers.append(layer)
    async with started_container(variant, replace(config, layers=(*layers, *config.layers))) as container:
        assert await container.read("/etc/from-0") == "0\n"
        assert await container.read("/etc/from-119") == "119\n"


async def test_a_directory_of_a_layer_can_be_renamed(variant: OciRuntime, config: ContainerConfig) -> None:
    (config.layers[0] / "dir").mkdir()
    (config.layers[0] / "dir" / "file").write_text("moved\n")
    async with started_container(variant, config) as container:
        assert await container.run("rename", "/dir", "/other") == "ok\n"
        assert await container.read("/other/file") == "moved\n"


@pytest.mark.parametrize("place", ["/proc", "/sys", "/dev", "/run", "/run/skerry"])
async def test_a_link_at_a_mount_point_blocks_the_next_start(
    runtime: OciRuntime, config: ContainerConfig, tmp_path: Path, place: str
) -> None:
    """The inside owned that tree: a link there would send the runtime's next mounts elsewhere."""
    target = tmp_path / "host"
    target.mkdir()
    link = config.upper_dir / "upper" / place[1:]
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    try:
        with pytest.raises(SandboxUnavailable, match=f"{place} in the sandbox's root is not a real directory"):
            await runtime.start(config)
    finally:
        await runtime.clear(config.id)
    assert os.listdir(target) == []


@pytest.mark.parametrize("kind", ["link to a directory inside", "dangling link", "file", "fifo", "magic link"])
def test_a_mount_point_that_is_not_a_directory_is_rejected(tmp_path: Path, kind: str) -> None:
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
    runtime: OciRuntime, config: ContainerConfig
) -> None:
    (config.layers[0] / "opt").mkdir()
    async with started_container(runtime, config) as container:
        assert await container.run("link", "/opt", "/srv") == "ok ok\n"
        assert "busy" in await container.run("link", "/opt", "/run")
    async with started_container(runtime, config) as container:
        assert "from the layer" in await container.read("/etc/hello")


async def test_an_unprivileged_host_user_cannot_enter(container: Container) -> None:
    await container.run("setuid", "/tmp/rootsh")
    root, sockets = Path(f"/proc/{container.init.pid}/root"), container.config.run_dir / "k"
    for path in (root / "tmp", root / "tmp" / "rootsh", sockets / container.config.id):
        assert path.exists()
        assert not as_nobody("-e", path)
    for path in (root, sockets):
        assert not any(as_nobody(right, path) for right in ("-r", "-w", "-x"))
    mounts = Path("/proc/self/mountinfo").read_text()
    assert not [line for line in mounts.splitlines() if container.config.id in line]


def as_nobody(right: str, path: Path) -> bool:
    who = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    return subprocess.run([*who, "test", right, str(path)]).returncode == 0


async def test_a_setuid_file_made_inside_is_only_that_sandboxs_and_on_a_nosuid_mount(container: Container) -> None:
    assert await container.run("setuid", "/tmp/rootsh") == "ok ok\n"
    path = Path(f"/proc/{container.init.pid}/root/tmp/rootsh")
    status = path.stat()
    assert status.st_mode & 0o4000
    assert status.st_uid == BASE
    assert os.statvfs(path).f_flag & os.ST_NOSUID


async def test_another_sandbox_cannot_reach_its_files(
    runtime: OciRuntime, config: ContainerConfig, layer: Path, tmp_path: Path, probe: Path
) -> None:
    second = make_config(runtime, layer, tmp_path / "unit2", probe, "sb-bbbbbbbbbb", BASE + 65536)
    async with started_container(runtime, config) as one, started_container(runtime, second) as two:
        await one.run("touch", "/etc/secret")
        assert "no such file" in await two.read("/etc/secret")
        for path in (f"/proc/{one.init.pid}/root", str(config.upper_dir)):
            assert "no such file" in await two.read(path)
