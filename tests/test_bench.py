"""The benchmarks: they do not use the state directory of this host's server, and report missed bounds."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from skerry.config import load

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.__main__ import show, use_own_state
from bench.measure import Figure

BENCH = Path(__file__).parent.parent / "bench"
# All others are demanded by an issue. The values are the calls' first arguments.
WITHOUT_BOUND = {
    ("code.py", "spent"),  # 10 MiB printed by a context, beside a command
    ("crowd.py", "f'commands per second of {THREADS} threads in one sandbox'"),  # bounded relative to bare programs
    ("network.py", "'a Python handler that changes one header, ms above none'"),
    ("records.py", "'disk per effect, bytes'"),
    ("records.py", '\'a command with audit.sync = "all", % slower than with "boundary"\''),
    ("review.py", "'200,000 changed lines: all hunks, ms'"),
    ("review.py", "'200,000 changed lines: the diff, ms'"),
    ("states.py", "rows[0]"),  # a snapshot with much unwritten data, beside syncfs
    ("states.py", "rows[2]"),  # a wake, beside a create
}


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


@pytest.mark.parametrize("missed", [False, True])
def test_missed_bound_is_an_error(capsys: pytest.CaptureFixture[str], missed: bool) -> None:
    figures = [Figure("bytes", 3), Figure("ms", 2, most=1 if missed else 2), Figure("rate", 2, least=2)]
    assert show([], figures) is not missed
    assert ("MISSED: ms" in capsys.readouterr().out) is missed


def test_figures_have_bounds() -> None:
    found = {(path.name, first) for path in BENCH.glob("*.py") for first in _without_bound(path)}
    assert found == WITHOUT_BOUND, (
        "give a new figure its bound (most=, least=), or list it here if no issue demands one"
    )


def _without_bound(path: Path) -> list[str]:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return [
        ast.unparse(call.args[0])
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id in ("Figure", "times", "ratio")
        and path.name != "measure.py"
        if not {"most", "least"} & {keyword.arg for keyword in call.keywords}
    ]
