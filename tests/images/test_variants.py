"""Every image of Skerry's own is really built, and works: code of each language with one call, packages, a web page.

Soak tests, which download gigabytes. `pytest -n 0 -m soak -s tests/images/test_variants.py` prints sizes and times."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration.test_presets import reaches
from support.cli import skerry
from support.pages import ROOT, blocks
from support.server import Server

from skerry import Client, Limits, Sandbox, execute_code

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

PROGRAMS = {
    "go": 'package main\n\nimport "fmt"\n\nfunc main() { fmt.Println(6 * 7) }',
    "rust": 'fn main() { println!("{}", 6 * 7); }',
    "java": "class Main { public static void main(String[] words) { System.out.println(6 * 7); } }",
    "ruby": "puts 6 * 7",
    "php": "<?php echo 6 * 7, PHP_EOL;",
    "r": "cat(6 * 7, '\\n', sep = '')",
}
DATA = """
import IPython, matplotlib, numpy, pandas, polars, scipy.stats, sklearn.linear_model
frame = pandas.DataFrame({"x": [1, 2, 3], "y": [2, 4, 6]})
model = sklearn.linear_model.LinearRegression().fit(frame[["x"]], frame["y"])
import matplotlib.pyplot as plt
plt.plot(frame["x"], frame["y"], label="line")
print(round(model.predict(pandas.DataFrame({"x": [21]}))[0]), polars.Series([6, 7]).product(), numpy.arange(4).sum())
"""
GUIDE = ROOT / "docs/guides/images.md"


@pytest.fixture(scope="module")
def server(make_server: Callable[[], Server], base_store: Path) -> Iterator[Server]:
    if not reaches("apt"):
        pytest.skip("this machine's own apt reaches no mirror")
    made = make_server()
    subprocess.run(["cp", "-al", str(base_store / "cache"), str(made.state_dir / "cache")], check=True)
    yield made.start()
    made.retire()


def example(word: str) -> str:
    """Return the example of the guide that this file runs."""
    return next(block.text for block in blocks(GUIDE) if block.why.endswith("test_variants.py") and word in block.text)


def report(server: Server, name: str, began: float) -> None:
    with Client(server.address) as client:
        images = {image.name: image for image in client.images.list()}
    image = images[name]
    assert image.layers[:-1] == images["base"].layers, "it stands on base"
    own = image.size - images["base"].size
    sys.stdout.write(
        f"\n{name}: {own / 1e6:.0f} MB above base, installed and run in {time.monotonic() - began:.0f} s\n"
    )


@pytest.mark.parametrize("language", PROGRAMS)
def test_language_is_installed_and_run_with_one_call(server: Server, language: str) -> None:
    began = time.monotonic()
    result = execute_code(language, PROGRAMS[language], timeout=120, server=server.address)
    assert (result.status, result.stdout, result.error_message) == ("success", "42\n", None), result.stderr
    report(server, f"base-{language}", began)
    again = execute_code(language, PROGRAMS[language], timeout=120, server=server.address)
    assert (again.status, again.stdout) == ("success", "42\n")


def test_data_has_its_packages_and_draws(server: Server) -> None:
    began = time.monotonic()
    printed = ""
    for line in example("image build data").splitlines():
        done = skerry(*shlex.split(line.removeprefix("$ skerry ")), server=server.address, timeout=1800)
        assert done.returncode == 0, done.stderr
        printed += done.stdout.decode()
    assert printed.endswith("3\n")
    result = execute_code("python", DATA, timeout=120, image="data", server=server.address)
    assert (result.status, result.stdout) == ("success", "42 42 6\n"), result.stderr
    assert any(value.png for value in result.results)
    report(server, "data", began)


def test_browser_opens_a_page_without_flags(server: Server, tmp_path: Path) -> None:
    began = time.monotonic()
    (tmp_path / "page.py").write_text(example("playwright"))
    shown = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, env={**os.environ, "SKERRY_SERVER": server.address},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert (shown.returncode, shown.stdout) == (0, "Hello\n\n")
    with Sandbox("browser", limits=Limits(cpus=2), server=server.address) as sandbox:
        dumped = sandbox.run(["chromium", "--headless", "--dump-dom", "data:text/html,<p>plain"], timeout=120)
        assert "<p>plain" in dumped.stdout, dumped.stderr
    report(server, "browser", began)
