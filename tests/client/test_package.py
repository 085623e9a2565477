"""The package: quick to import, its sync client generated from the async one, its public names present."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import skerry

ROOT = Path(__file__).parent.parent.parent


def test_sync_client_is_generated_from_the_async_one() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "generate_sync.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_sync_client_contains_no_async_code() -> None:
    for path in (ROOT / "src" / "skerry" / "client" / "_sync").glob("*.py"):
        first, rest = path.read_text().split("\n", 1)
        assert first.startswith("# Generated")
        assert "async" not in rest.lower(), path
        assert "await" not in rest, path


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_the_package_loads_no_framework() -> None:
    frameworks = {"starlette", "uvicorn", "httpx2", "rich", "click", "msgspec", "asyncio", "mcp", "pydantic"}
    assert not loaded_by("import skerry") & frameworks


def test_values_and_errors_load_no_framework() -> None:
    loaded = loaded_by("from skerry import Limits, SkerryError, Result")
    assert not loaded & {"starlette", "uvicorn", "httpx2", "rich", "click"}


def test_command_line_help_loads_no_framework() -> None:
    loaded = loaded_by("import skerry.cli.app")
    assert not loaded & {"starlette", "uvicorn", "httpx2", "rich"}


@pytest.mark.parametrize("name", skerry.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(skerry, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        skerry.nonsense  # noqa: B018


def test_sync_and_async_have_the_same_surface() -> None:
    def surface(cls: type) -> dict[str, list[str]]:
        methods = inspect.getmembers(cls, callable)
        return {
            name.replace("aclose", "close"): list(inspect.signature(method).parameters)
            for name, method in methods
            if not name.startswith("_")
        }

    assert surface(skerry.AsyncSandbox) == surface(skerry.Sandbox)
