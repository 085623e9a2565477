"""The tables of docs/compare.md: calls of Skerry are run; names of other systems are those of their published packages.

`scripts/public_names.py` writes `public_names.json` from the packages."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.pages import ROOT
from support.server import Server

import skerry

HEAD = ("Task", "E2B", "Cloudflare Sandbox", "Daytona", "Codomyrmex", "Skerry")
SYSTEMS = HEAD[1:-1]
OTHERS_HEAD = ("System", "Names", "Reason")
CELL = re.compile(r"–|`[A-Za-z_.*]+`(, `[A-Za-z_.*]+`)*")
PAGE = (ROOT / "docs/compare.md").read_text()
PUBLIC: dict[str, Any] = json.loads((Path(__file__).parent / "public_names.json").read_text())


def table(head: tuple[str, ...]) -> list[dict[str, str]]:
    lines = PAGE[PAGE.index("| " + " | ".join(head)) :].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in cells[2:]]


def names_in(cell: str) -> list[str]:
    assert CELL.fullmatch(cell), cell
    return re.findall(r"`([^`]+)`", cell)


def public_names(system: str) -> set[str]:
    groups: dict[str, list[str]] = PUBLIC[system]["names"]
    return {f"{group}.{name}" if group else name for group, names in groups.items() for name in names}


def spread(names: list[str], known: set[str]) -> set[str]:
    """Return the names with `Git.*` replaced by all names of that class."""
    found = set(names)
    for name in names:
        if name.endswith(".*"):
            found.remove(name)
            found |= {one for one in known if one.startswith(name[:-1])}
    return found


def test_every_call_of_skerry_in_the_table_runs(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKERRY_SERVER", server.address)
    names = {name: getattr(skerry, name) for name in skerry.__all__}
    rows = table(HEAD)
    assert len(rows) > 80
    for row in rows:
        code = row["Skerry"]
        assert re.fullmatch(r"`[^`]+`", code), row["Task"]
        call, _, raised = code.strip("`").partition("  # ")
        with pytest.raises(names[raised]) if raised else contextlib.nullcontext():
            try:
                value = run(call, names)
            except Exception as error:
                if raised:
                    raise
                pytest.fail(f"{row['Task']}: {code}: {error!r}")
            assert not isinstance(value, Iterator | type), f"{row['Task']}: nothing was called"


def run(code: str, names: dict[str, Any]) -> object:
    """Run statements; return the value of the last one if it is an expression."""
    body = ast.parse(code).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_every_row_names_a_call_of_another_system() -> None:
    assert [row["Task"] for row in table(HEAD) if not any(names_in(row[system]) for system in SYSTEMS)] == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_names_of_another_system_are_those_of_its_packages(system: str) -> None:
    known = public_names(system)
    assert len(known) > 20
    listed = [name for row in table(HEAD) for name in names_in(row[system])]
    without = [name for row in table(OTHERS_HEAD) if row["System"] == system for name in names_in(row["Names"])]
    assert spread(listed, known) - known == set(), "names that do not exist"
    assert set(without) - known == set(), "names without a row that do not exist"
    assert known - spread(listed, known) - set(without) == set(), "names with neither a row nor a reason"
    assert spread(listed, known) & set(without) == set(), "names with a row and a reason for none"


def test_page_names_the_versions_of_the_packages() -> None:
    for system in SYSTEMS:
        for package, version in re.findall(r"(@?[\w./-]+)[=@ ]+([0-9][0-9.]*)", PUBLIC[system]["from"]):
            assert re.search(rf"`{re.escape(package)}` {re.escape(version)}\b", PAGE), (package, version)
