"""Every image of Skerry's own is really built, and works: code of each language with one call, packages, a web page.

Soak tests, which download gigabytes. `pytest -n 0 -m soak -s tests/images/test_variants.py` prints sizes and times."""

from __future__ import annotations

import os
import shlex
import socket
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

from skerry import Client, Limits, Network, Sandbox, execute_code

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
ORIGIN = "http://localhost:8000"
PAGE = """
<title>waiting</title>
<script>
const headers = {"Authorization": "Bearer TOKEN", "Content-Type": "application/json", "Idempotency-Key": "page"};
async function call(method, path, body, accept) {
  return await fetch("API/v1/sandboxes" + path, {method, body, headers: {...headers, "Accept": accept ?? "*/*"}});
}
(async () => {
  const made = await call("POST", "", "{}");
  const id = (await made.json()).id;
  const ran = await call("POST", `/${id}/processes?wait=true`, '{"cmd": "echo hello"}', "text/event-stream");
  const text = await ran.text();
  const gone = await call("DELETE", "/" + id);
  const shown = text.includes('data: {"stdout":"hello\\\\n"}');
  document.title = [made.status, shown, gone.status, made.headers.has("X-Request-ID")];
})().catch(error => { document.title = error; });
</script>
"""
VISIT = """
import sys
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    page = playwright.chromium.launch().new_page()
    for url in sys.argv[1:]:
        page.goto(url)
        page.wait_for_function("document.title != 'waiting'", timeout=60_000)
        print(page.title())
"""
GUIDE = ROOT / "docs/guides/images.md"


@pytest.fixture(scope="module")
def server(make_server: Callable[[], Server], base_store: Path) -> Iterator[Server]:
    if not reaches("apt"):
        pytest.skip("this machine's own apt reaches no mirror")
    made = make_server()
    subprocess.run(["cp", "-al", str(base_store / "cache"), str(made.state_dir / "cache")], check=True)
    place = f"{own_address()}:{free_port()}"
    yield made.start("--listen", place, SKERRY_MAX_NETWORK=f"*,{place}", SKERRY_SERVER_ALLOWED_ORIGINS=ORIGIN)
    made.retire()


def own_address() -> str:
    """Return an address of this machine that a sandbox may reach, or else that of its loopback."""
    shown = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout.split()
    return next((address for address in shown if ":" not in address), "127.0.0.1")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


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


def test_page_of_an_allowed_origin_uses_the_api_in_a_browser(server: Server) -> None:
    with Client(server.address) as client:
        api = client.info()["addresses"][1]
        secret = client.tokens.create(scope="use").secret
    if "127.0.0.1" in api:
        pytest.skip("this machine has no address except its loopback's")
    network = Network(allow=[api.removeprefix("http://")])
    with Sandbox("browser", limits=Limits(cpus=2), network=network, server=server.address) as sandbox:
        sandbox.files.write("page.html", PAGE.replace("API", api).replace("TOKEN", secret or ""))
        sandbox.files.write("visit.py", VISIT)
        sandbox.spawn("python3 -m http.server 8000")
        sandbox.wait_for_port(8000)
        places = [f"{origin}/page.html" for origin in (ORIGIN, "http://127.0.0.1:8000")]
        shown = sandbox.run(["python3", "visit.py", *places], timeout=200)
        assert shown.stdout == "201,true,204,true\nTypeError: Failed to fetch\n", shown.stderr
