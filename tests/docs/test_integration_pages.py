"""Run the examples of integrations without a framework; tests/integrations/test_frameworks.py runs the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.pages import ROOT, blocks, is_example

PAGES = [
    "docs/integrations/ag2.md",
    "docs/integrations/agno.md",
    "docs/integrations/autogen.md",
    "docs/integrations/deepagents.md",
    "docs/integrations/google-adk.md",
    "docs/integrations/harbor.md",
    "docs/integrations/inspect.md",
    "docs/integrations/jupyter.md",
    "docs/integrations/mini-swe-agent.md",
    "docs/integrations/openai-agents.md",
    "docs/integrations/pydantic-ai.md",
    "docs/integrations/pytest.md",
    "docs/integrations/smolagents.md",
    "docs/integrations/strands.md",
    "docs/integrations/swe-rex.md",
    "docs/integrations/tools.md",
    "docs/integrations/verifiers.md",
]
OTHERS = ["test_frameworks.py", "frameworks/harbor_suite.py", "frameworks/jupyter_suite.py"]


def runs_here(page: str) -> bool:
    return any(is_example(block) and not block.mark for block in blocks(ROOT / page))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", [page for page in PAGES if runs_here(page)])
def test_page_runs_as_printed(run_page: Callable[[str], None], page: str) -> None:
    run_page(page)


@pytest.mark.parametrize("page", [page for page in PAGES if not runs_here(page)])
def test_example_of_a_framework_is_run_with_it(page: str) -> None:
    others = [f"tests/integrations/{name}" for name in OTHERS]
    assert [block.line for block in blocks(ROOT / page) if is_example(block) and block.why not in others] == []
