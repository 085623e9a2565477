"""The keeper's sources and its build."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from golang import ROOT, go, keeper_build

from skerry.errors import HostUnsupported
from skerry.keeper import binary, build_id


@pytest.fixture(scope="module")
def build() -> ModuleType:
    return keeper_build()


def test_the_binary_is_of_these_sources(build: ModuleType) -> None:
    assert build_id() == build.source_hash()
    said = subprocess.run([binary(), "--version"], capture_output=True, text=True, check=True).stdout
    assert said == f"skerry-keeper {build_id()} protocol 1\n"


def test_an_unchanged_keeper_is_not_built_again(build: ModuleType) -> None:
    before = binary().stat()
    assert build.build_keeper() == build_id()
    assert binary().stat() == before


def test_the_binary_is_static(build: ModuleType) -> None:
    assert b"/ld-linux" not in binary().read_bytes()
    assert os.access(binary(), os.X_OK)


def test_the_go_tests_pass() -> None:
    go("test", "-vet=all", "./...", cwd=ROOT / "keeper")


def test_the_sources_are_formatted_and_small(build: ModuleType) -> None:
    gofmt = Path(build.find_go()).with_name("gofmt")
    assert subprocess.run([gofmt, "-l", ROOT / "keeper"], capture_output=True, text=True, check=True).stdout == ""
    lengths = {str(path): len(path.read_text().splitlines()) for path in (ROOT / "keeper").rglob("*.go")}
    assert {path: n for path, n in lengths.items() if n > 300} == {}
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


def test_a_missing_keeper_says_how_to_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKERRY_KEEPER", "/nonexistent")
    with pytest.raises(HostUnsupported, match="make keeper"):
        binary()
