"""The fixture that runs a page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.pages import ROOT, PageRun
from support.server import Server
from world.world import World


@pytest.fixture
def run_page(world: World, own_world_server: Server, tmp_path: Path) -> Callable[[str], None]:
    """Run a page on a new server in the tests' internet, with a new home directory."""

    def run(page: str) -> None:
        world.reset()
        server = own_world_server.start("--log-file", f"{own_world_server.state_dir}/server.log")
        PageRun(ROOT / page, server, tmp_path, world.inside).check()
        assert world.strays() == []

    return run
