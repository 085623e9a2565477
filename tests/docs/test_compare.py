"""The table of docs/compare.md: calls of Skerry are run; others exist where their packages are installed."""

from __future__ import annotations

import importlib
import re

import pytest
from support.pages import ROOT
from support.server import Server

import skerry

HEAD = ("Task", "E2B", "Cloudflare Sandbox", "Daytona", "Codomyrmex", "Skerry")
CALL = re.compile(r"`[A-Za-z_]+(\.[a-z_]+)?`")
CLASSES = {
    "E2B": {
        "Sandbox": ("e2b", "Sandbox"),
        "Commands": ("e2b.sandbox_sync.commands.command", "Commands"),
        "Filesystem": ("e2b.sandbox_sync.filesystem.filesystem", "Filesystem"),
        "CodeInterpreter": ("e2b_code_interpreter", "Sandbox"),
    },
    "Daytona": {
        "Daytona": ("daytona", "Daytona"),
        "Sandbox": ("daytona", "Sandbox"),
        "Process": ("daytona._sync.process", "Process"),
        "FileSystem": ("daytona._sync.filesystem", "FileSystem"),
    },
}


def rows() -> list[dict[str, str]]:
    lines = [line for line in (ROOT / "docs/compare.md").read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert tuple(cells[0]) == HEAD
    return [dict(zip(HEAD, row, strict=True)) for row in cells[2:]]


def test_every_call_of_skerry_in_the_table_runs(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKERRY_SERVER", server.address)
    names = {name: getattr(skerry, name) for name in skerry.__all__}
    table = rows()
    assert len(table) > 50
    for row in table:
        code = row["Skerry"]
        assert re.fullmatch(r"`[^`]+`", code), row["Task"]
        try:
            exec(compile(code.strip("`"), row["Task"], "exec"), names)
        except Exception as error:
            pytest.fail(f"{row['Task']}: {code}: {error!r}")


def test_cells_of_other_systems_name_one_call() -> None:
    wrong = [
        (row["Task"], row[system])
        for row in rows()
        for system in HEAD[1:-1]
        if row[system] != "–" and not CALL.fullmatch(row[system])
    ]
    assert wrong == []
    assert [row["Task"] for row in rows() if all(row[system] == "–" for system in HEAD[1:-1])] == []


@pytest.mark.parametrize(("system", "package"), [("E2B", "e2b_code_interpreter"), ("Daytona", "daytona")])
def test_calls_of_installed_packages_exist(system: str, package: str) -> None:
    pytest.importorskip(package, reason=f"the package {package} is not installed")
    missing = []
    for row in rows():
        if row[system] != "–":
            owner, _, name = row[system].strip("`").partition(".")
            module, kind = CLASSES[system][owner]
            if not hasattr(getattr(importlib.import_module(module), kind), name):
                missing.append(row[system])
    assert missing == []
