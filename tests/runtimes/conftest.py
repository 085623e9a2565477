"""Real walls, built by every runtime that this host has, around a probe that stands in for the keeper."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import pytest
from support import go_programs
from support.containers import BASE, Container, make_config, started_container

from skerry.runtimes import ContainerConfig, pick, pick_runtime
from skerry.runtimes.oci import OciRuntime


@pytest.fixture(scope="session")
def probe() -> Iterator[Path]:
    """In a directory that only root can enter: a server may be installed under /root."""
    with tempfile.TemporaryDirectory(prefix="skerry-probe-") as name:
        yield go_programs.build(Path(__file__).parent / "probe", Path(name) / "probe")


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """Where others may pass through: the sandbox's root has to reach its own mount."""
    above = Path(tempfile.mkdtemp(prefix="skerry-test-", dir="/run"))
    above.chmod(0o711)
    yield above / f"t{os.urandom(4).hex()}"
    shutil.rmtree(above)


@pytest.fixture(params=["crun", "runc"])
def runtime(request: pytest.FixtureRequest, run_dir: Path) -> Iterator[OciRuntime]:
    found = pick.find(request.param)
    if found is None or found.unsuited:
        pytest.skip(f"{request.param}: {found.unsuited if found else 'not installed'}")
    made = cast(OciRuntime, pick_runtime(run_dir, request.param))
    mounts = _mounts()
    yield made
    left = made.ids()
    for sandbox in left:
        asyncio.run(made.clear(sandbox))
    made.close()
    assert not left, "the test left sandboxes behind"
    assert [line for line in _mounts() if line not in mounts and str(run_dir) in line] == []
    assert not any(path.exists() for path in made.cgroups.paths("."))


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """An image with nothing in it: no shell, no /proc, no /dev."""
    root = tmp_path / "layer"
    for name in ("etc", "tmp", "bin"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    (root / "etc" / "hello").write_text("from the layer\n")
    return root


@pytest.fixture
def config(runtime: OciRuntime, run_dir: Path, layer: Path, tmp_path: Path, probe: Path) -> ContainerConfig:
    return make_config(runtime, layer, tmp_path / "unit", probe, "sb-aaaaaaaaaa", BASE)


@pytest.fixture
async def container(runtime: OciRuntime, config: ContainerConfig) -> AsyncIterator[Container]:
    async with started_container(runtime, config) as made:
        yield made


def _mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()
