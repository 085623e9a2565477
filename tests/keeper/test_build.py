"""The keeper's sources and its build."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from support.go_programs import ROOT, go, keeper_build
from support.storage import close_and_count, make_driver

from skerry.errors import HostUnsupported
from skerry.keeper import binary, build_id


@pytest.fixture(scope="module")
def build() -> ModuleType:
    return keeper_build()


def test_binary_is_built_from_these_sources(build: ModuleType) -> None:
    assert build_id() == build.source_hash()
    said = subprocess.run([binary(), "--version"], capture_output=True, text=True, check=True).stdout
    assert said == f"skerry-keeper {build_id()} protocol 1\n"


def test_unchanged_keeper_is_not_rebuilt(build: ModuleType) -> None:
    before = binary().stat()
    assert build.build_keeper() == build_id()
    assert binary().stat() == before


def test_binary_is_static(build: ModuleType) -> None:
    assert b"/ld-linux" not in binary().read_bytes()
    assert os.access(binary(), os.X_OK)


def test_go_tests_pass() -> None:
    go("test", "-vet=all", "./...", cwd=ROOT / "keeper")


def test_directories_are_listed_with_their_newest_entries_on_btrfs(tmp_path: Path) -> None:
    """A file that is created between the open and the watch of its directory causes no notice."""
    driver = make_driver("btrfs", tmp_path)
    driver.prepare()
    try:
        run = ("-count=1", "-run=TestDirents", "-v", f"-exec=env TMPDIR={driver.home}")
        printed = go("test", *run, "./internal/linux", cwd=ROOT / "keeper")
        assert "PASS: TestDirentsListEntriesCreatedAfterTheOpen" in printed
    finally:
        close_and_count(driver)


def test_sources_are_formatted_and_small(build: ModuleType) -> None:
    gofmt = Path(build.find_go()).with_name("gofmt")
    assert subprocess.run([gofmt, "-l", ROOT / "keeper"], capture_output=True, text=True, check=True).stdout == ""
    lengths = {str(path): len(path.read_text().splitlines()) for path in (ROOT / "keeper").rglob("*.go")}
    assert {path: n for path, n in lengths.items() if n > 800} == {}
    assert len((ROOT / "keeper/cmd/skerry-keeper/main.go").read_text().splitlines()) < 75
    assert long_functions() == []


def long_functions() -> list[str]:
    long = []
    for path in (ROOT / "keeper").rglob("*.go"):
        start, name = 0, ""
        for number, line in enumerate(path.read_text().splitlines()):
            if line.startswith("func "):
                start, name = number, line
            elif line == "}" and name:
                if number - start > 50:
                    long.append(f"{path.name}: {name}")
                name = ""
    return long


def test_only_the_standard_library_is_used() -> None:
    assert "require" not in (ROOT / "keeper/go.mod").read_text()
    packages = go("list", "-deps", "./cmd/skerry-keeper", cwd=ROOT / "keeper").split()
    assert [name for name in packages if "." in name.split("/")[0]] == []
    assert "net/http" not in packages


def test_missing_keeper_error_has_a_build_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKERRY_KEEPER", "/nonexistent")
    with pytest.raises(HostUnsupported, match="make keeper"):
        binary()
