"""The benchmarks: they do not use the state directory of this host's server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from skerry.config import load

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.__main__ import use_own_state


def test_benchmarks_use_a_separate_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKERRY_STATE_DIR", raising=False)
    monkeypatch.delenv("SKERRY_SERVER", raising=False)
    default = load().state_dir
    monkeypatch.setenv("SKERRY_STATE_DIR", "")  # restored at the end of the test
    monkeypatch.delenv("SKERRY_STATE_DIR")
    assert use_own_state()
    assert load().state_dir != default
    assert not use_own_state()  # the environment names one now
    monkeypatch.delenv("SKERRY_STATE_DIR")
