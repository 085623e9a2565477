"""Which driver a host gets, and what the doctor says about it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from storage.storing import KINDS, UNIT, MiB, make_driver

from skerry.errors import HostUnsupported, InvalidRequest
from skerry.storage import checks, pick_driver


def test_the_first_driver_that_works_is_picked(state_dir: Path) -> None:
    works = [name for name, kind in KINDS.items() if kind.lack() is None]
    assert pick_driver(state_dir).name == works[0]
    assert pick_driver(state_dir, "plain").name == "plain"


def test_a_driver_that_does_not_exist_is_refused(state_dir: Path) -> None:
    with pytest.raises(InvalidRequest, match="zfs"):
        pick_driver(state_dir, "zfs")


def test_a_state_directory_stays_with_the_driver_that_holds_its_sandboxes(state_dir: Path) -> None:
    plain = make_driver("plain", state_dir)
    plain.prepare()
    plain.create(UNIT, MiB)
    assert pick_driver(state_dir).name == "plain"
    plain.keep(plain.capture(UNIT), "0" * 32)
    plain.delete(UNIT)
    assert pick_driver(state_dir).name == "plain", "a snapshot is left"
    plain.drop_snapshot("0" * 32)
    assert pick_driver(state_dir).name != "plain" or KINDS["loop"].lack() is not None


def test_without_the_tools_the_next_driver_is_taken_and_the_doctor_names_what_is_missing(
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


def test_the_doctor_changes_nothing_and_sees_a_full_disk(state_dir: Path) -> None:
    rows = {row.name: row for row in checks(state_dir, reserve=1 << 60)}
    assert rows["disk space"].ok is False
    assert rows["disk space"].fix is not None
    assert not state_dir.exists()
