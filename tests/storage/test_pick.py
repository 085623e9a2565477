"""The choice of a driver, and the doctor's report about it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.storage import KINDS, UPPER, MiB, make_driver

from skerry.errors import HostUnsupported, InvalidRequest
from skerry.storage import checks, pick_driver


def test_the_first_working_driver_is_chosen(state_dir: Path) -> None:
    works = [name for name, kind in KINDS.items() if kind.missing_feature() is None]
    assert pick_driver(state_dir).name == works[0]
    assert pick_driver(state_dir, "plain").name == "plain"


def test_an_unknown_driver_is_rejected(state_dir: Path) -> None:
    with pytest.raises(InvalidRequest, match="zfs"):
        pick_driver(state_dir, "zfs")


def test_a_state_directory_keeps_its_driver(state_dir: Path) -> None:
    plain = make_driver("plain", state_dir)
    plain.prepare()
    plain.create(UPPER, MiB)
    assert pick_driver(state_dir).name == "plain"
    plain.keep(plain.capture(UPPER), "0" * 32)
    plain.delete(UPPER)
    assert pick_driver(state_dir).name == "plain", "a snapshot is left"
    plain.drop_snapshot("0" * 32)
    assert pick_driver(state_dir).name != "plain" or KINDS["loop"].missing_feature() is not None


def test_without_tools_the_next_driver_is_chosen_and_doctor_names_them(
    state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host without mkfs.btrfs is a PATH without it; without mkfs.ext4 too, only plain directories are left."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("mkfs.ext4", "resize2fs"):
        os.symlink(f"/usr/sbin/{name}", tools / name)
    monkeypatch.setenv("PATH", str(tools))
    assert pick_driver(state_dir).name == "loop"
    rows = {row.name: row for row in checks(state_dir)}
    assert rows["storage"].ok
    assert rows["storage: btrfs"].fix == "apt-get install btrfs-progs"

    monkeypatch.setenv("PATH", str(tmp_path))
    picked = pick_driver(state_dir)
    assert (picked.name, picked.enforces_limit) == ("plain", False)
    rows = {row.name: row for row in checks(state_dir)}
    assert rows["storage"].ok is False
    assert rows["storage: loop"].fix == "apt-get install e2fsprogs"
    with pytest.raises(HostUnsupported, match="btrfs") as caught:
        pick_driver(state_dir, "btrfs")
    assert caught.value.hint == "apt-get install btrfs-progs"


def test_doctor_changes_nothing_and_detects_a_full_disk(state_dir: Path) -> None:
    rows = {row.name: row for row in checks(state_dir, min_free=1 << 60)}
    assert rows["disk space"].ok is False
    assert rows["disk space"].fix is not None
    assert not state_dir.exists()
