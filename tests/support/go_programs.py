"""Go programs of the tests, built as the keeper is: by its compiler, with its settings and its cache."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def keeper_build() -> ModuleType:
    """`hatch_build.py`."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def go(*words: str, cwd: Path) -> str:
    build = keeper_build()
    flags = {"GOFLAGS": "-mod=mod -trimpath"}  # without the latter it would compile the whole library again
    done = subprocess.run(
        [build.find_go(), *words], cwd=cwd, env=build.environment() | flags, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, target: Path) -> Path:
    go("build", "-buildvcs=false", "-ldflags=-s -w", "-o", str(target), ".", cwd=source)
    return target
