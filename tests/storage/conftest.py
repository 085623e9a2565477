from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.storage import close_and_count, make_driver

from skerry.storage.btrfs import BtrfsDriver
from skerry.storage.driver import PlainDriver
from skerry.storage.loop import LoopDriver


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture(params=["btrfs", "loop", "plain"])
def driver(request: pytest.FixtureRequest, state_dir: Path) -> Iterator[BtrfsDriver | LoopDriver | PlainDriver]:
    made = make_driver(request.param, state_dir)
    made.prepare()
    yield made
    for upper in made.uppers():
        made.delete(upper)
    for name in made.snapshots():
        made.drop_snapshot(name)
    close_and_count(made)
