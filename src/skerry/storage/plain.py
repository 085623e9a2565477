"""The driver `plain`: a directory for each unit. Works everywhere and enforces no limit, which it says."""

from __future__ import annotations

from pathlib import Path

from skerry.storage import tree
from skerry.storage.driver import DEFAULT_RESERVE, Lack, UnitDriver, add_upper_and_work, holds_anything


class PlainDriver(UnitDriver):
    name = "plain"
    enforces_limit = False

    def __init__(self, state_dir: Path, reserve: int = DEFAULT_RESERVE) -> None:
        super().__init__(state_dir / "plain", state_dir, reserve)

    @staticmethod
    def lack() -> Lack | None:
        return None

    @staticmethod
    def used(state_dir: Path) -> bool:
        return holds_anything(state_dir / "plain")

    def make(self, directory: Path, limit: int, origin: Path | None = None) -> None:
        directory.mkdir(mode=0o700)
        add_upper_and_work(directory, origin)

    def unmake(self, directory: Path) -> None:
        tree.remove(directory)

    def resize(self, unit: str, limit: int) -> None:
        self.path(unit)

    def usage(self, unit: str) -> int:
        return tree.disk_use(self.path(unit))

    def close(self) -> None:
        return
