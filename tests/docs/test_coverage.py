"""Every page with examples is run by a test of this directory, and the blocks that are not run are few and say why."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from support.pages import ROOT, Block, blocks, is_example

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAX_NOT_RUN = 25  # of all pages together


def marked(mark: str) -> list[tuple[Path, Block]]:
    return [(page, block) for page in PAGES for block in blocks(page) if block.mark == mark]


def _is_run_here(block: Block) -> bool:
    return is_example(block) and block.mark != "run by"


def test_every_page_with_examples_is_run_once() -> None:
    listed: list[str] = []
    for file in Path(__file__).parent.glob("test_*_pages.py"):
        if found := re.search(r"^PAGES = \[(.*?)\]", file.read_text(), re.MULTILINE | re.DOTALL):
            listed += re.findall(r'"([^"]+\.md)"', found[1])
    names = {page: str(page.relative_to(ROOT)) for page in PAGES}
    needed = {name for page, name in names.items() if any(map(_is_run_here, blocks(page)))}
    assert needed - set(listed) == set()
    assert sorted(listed) == sorted(
        {name for page, name in names.items() if any(map(is_example, blocks(page)))} & set(listed)
    )


def test_blocks_that_are_not_run_are_few_and_have_a_reason() -> None:
    skipped = marked("not run")
    assert len(skipped) <= MAX_NOT_RUN, [f"{page.name}:{block.line}" for page, block in skipped]
    assert [(page.name, block.why) for page, block in skipped if len(block.why.split()) < 2] == []


def test_programs_that_blocks_need_are_installed_by_the_setup() -> None:
    """Otherwise a block is silently not run in CI. `make test-e2b` installs `e2b`."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    installed = {re.split(r"[^\w.-]", one)[0] for one in packages}
    found = re.search(r'^test_needs="(.*?)"', (ROOT / "scripts/setup").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    installed |= {pair.partition("=")[0] for pair in found[1].split()}
    needed = {block.why for _, block in marked("needs")}
    assert needed - installed - {"e2b"} == set()


def test_blocks_of_other_tests_name_a_test_that_reads_the_page() -> None:
    for page, block in marked("run by"):
        assert page.name in (ROOT / block.why).read_text(), f"{page.name}:{block.line}"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_commands_are_in_blocks_that_are_run(page: Path) -> None:
    """A block without a kind is for drawings."""
    example = re.compile(r"(\$ |sudo )?skerry [a-z]|from skerry import")
    shown = [block for block in blocks(page) if not is_example(block)]
    assert [block.line for block in shown if example.match(block.text)] == []
