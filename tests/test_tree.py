"""The tree keeps its shape: imports point one way, no module outgrows its room, programs load what they need."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "skerry"
BELOW = {"types", "errors", "_version"}
KERNEL = {"syscalls"}  # for those that touch this host
PARTS = {"keeper", "storage", "images", "network", "review", "runtimes", "code"}
MAY_IMPORT = {
    "errors": {"types"},  # for the type checker only: a result travels on CommandFailed
    "types": {"errors"},
    "config": BELOW,
    "syscalls": set(),
    **{part: BELOW | KERNEL | {"config"} for part in PARTS},
    "images": BELOW | KERNEL | {"config", "storage"},
    "engine": BELOW | KERNEL | {"config"} | PARTS,
    "server": BELOW | {"config", "engine", "mcp"} | PARTS,  # mcp: one module, when the first client of /mcp comes
    "client": BELOW | {"config"},
    "cli": BELOW | {"config", "client", "server", "engine", "network", "mcp"},  # of network: a policy as a patch
    "mcp": BELOW | {"client"},
}


def imported_parts(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "skerry":
                names = [f"skerry.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("skerry.")}
    return found


def test_imports_point_one_way() -> None:
    wrong = []
    for path in SOURCE.rglob("*.py"):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if part not in ("__init__", "__main__", "_version"):
            wrong += [
                f"{path.relative_to(SOURCE)} imports skerry.{other}"
                for other in sorted(imported_parts(path) - {part} - MAY_IMPORT.get(part, set()))
            ]
    assert wrong == []


def test_no_module_outgrows_its_room() -> None:
    long = {str(p.relative_to(SOURCE)): n for p in SOURCE.rglob("*.py") if (n := p.read_text().count("\n")) > 500}
    assert long == {}


@pytest.mark.parametrize(
    ("program", "later"),
    [
        ("skerry.server.serve", {"httpx", "rich", "mcp", "pydantic"}),
        ("skerry.cli.app", {"httpx", "rich", "asyncio", "mcp", "pydantic"}),
    ],
)
def test_a_program_does_not_wait_at_its_start_for_what_few_need(program: str, later: set[str]) -> None:
    script = f"import sys, {program}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert later.isdisjoint(loaded)
