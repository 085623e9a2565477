"""The published SDKs of E2B, and E2B's own tests, against a real server: `make test-e2b`.

Not a part of `make test`: it installs packages from the machine's package index into `~/.cache/skerry/e2b`. The caller
names the directories of E2B's tests; nothing of them is in this repository:

    make test-e2b E2B_SOURCES=…/E2B E2B_INTERPRETER=…/code-interpreter
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.server import Server

VERSIONS = ("2.20.0", "2.31.0", "2.45.1", "e2b")  # the last: the newest
pytestmark = pytest.mark.timeout(3600)  # packages are installed, and whole suites run
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skerry" / "e2b"
PYTEST = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-dotenv", "pytest-xdist", "python-dotenv")
SMOKE = Path(__file__).parent / "support" / "e2b_smoke.py"
# The tests need other hosts, HTTPS with a wildcard name, or mocks of E2B's own addresses.
OUTSIDE = (
    "internet or host or mask or transform or public_traffic or specific_ip or precedence or update_network or "
    "auto_resume_wakes or stable_host or mcp"
)


def report_line(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def python_of(name: str, *requirements: str) -> Path:
    """Return the interpreter of a cached virtual environment."""
    directory = CACHE / name
    done = directory / "installed"
    if not done.exists():
        shutil.rmtree(directory, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        subprocess.run([directory / "bin" / "pip", "install", "-q", *requirements], check=True)
        done.write_text("\n".join(requirements))
    return directory / "bin" / "python"


@pytest.fixture(scope="module")
def environment(make_server: Callable[[], Server]) -> Iterator[dict[str, str]]:
    """Start a server that answers E2B's protocols, and return the variables of the SDKs."""
    server = make_server().start("--listen", "127.0.0.1:0", SKERRY_SERVER_WIRE="e2b")
    with server.http() as http:
        token = http.post("/v1/tokens", json={"scope": "use", "owner": "e2b"}).raise_for_status().json()["secret"]
        addresses = http.get("/v1/server").raise_for_status().json()["addresses"]
    url = next(address for address in addresses if address.startswith("http://"))
    yield {
        **os.environ, "E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": token, "E2B_VALIDATE_API_KEY": "false",
        "SKERRY_SERVER": server.address, "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    server.retire()


@pytest.mark.parametrize("version", VERSIONS)
def test_smoke_passes_with_a_published_release(environment: dict[str, str], version: str) -> None:
    requirement = version if version == "e2b" else f"e2b=={version}"
    python = python_of(f"smoke-{version}", requirement)
    done = subprocess.run([python, SMOKE], env=environment, capture_output=True, text=True, timeout=600)
    report_line(version, done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]


def run_suite(python: Path, tests: Path, work: Path, environment: dict[str, str], *arguments: str) -> tuple[int, int]:
    """Run a copy of a suite; return the numbers of passed tests and of all that were run."""
    shutil.copytree(tests, work / "tests")  # without the sources beside it, which would hide the published package
    if (settings := tests.parent / "pytest.ini").exists():
        shutil.copy(settings, work)
    report = work / "report.xml"
    command = [
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "120", "-n", "2", "--junit-xml", report,
        *arguments,
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    suite = next(ElementTree.parse(report).getroot().iter("testsuite")).attrib
    total = int(suite["tests"]) - int(suite["skipped"])
    passed = total - int(suite["failures"]) - int(suite["errors"])
    report_line("\n".join(line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))))
    report_line(f"{passed} of {total} passed, {suite['skipped']} skipped")
    return passed, total


def sources(variable: str, below: str) -> Path:
    """Return the directory of a suite."""
    if variable not in os.environ:
        pytest.skip(f"{variable} names no directory with the sources of E2B")
    return Path(os.environ[variable]) / below


LANGCHAIN = """
import pytest
from e2b import Sandbox
from langchain_e2b import E2BSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests


class TestE2B(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self):
        made = Sandbox.create(timeout=600)
        yield E2BSandbox(sandbox=made)
        made.kill()
"""
OPENAI = """
import asyncio, io, pathlib
from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions

async def main():
    client = E2BSandboxClient()
    session = await client.create(options=E2BSandboxClientOptions(sandbox_type="e2b"))
    try:
        async with session:
            done = await session.exec("echo hello $((6*7))")
            assert (done.exit_code, done.stdout) == (0, b"hello 42\\n"), done
            await session.write(pathlib.Path("a.txt"), io.BytesIO(b"data"))
            assert (await session.read(pathlib.Path("a.txt"))).read() == b"data"
    finally:
        await client.delete(session)

asyncio.run(main())
"""
SMOLAGENTS = """
from smolagents import E2BExecutor
from smolagents.monitoring import AgentLogger

executor = E2BExecutor([], AgentLogger())
try:
    assert str(executor("x = 6\\nx * 7").output) == "42"
finally:
    executor.cleanup()
"""


def test_standard_tests_of_langchain_pass(environment: dict[str, str], tmp_path: Path) -> None:
    python = python_of("langchain", "langchain-e2b", "langchain-tests", "deepagents<0.7", *PYTEST)
    tests = tmp_path / "source" / "tests"
    tests.mkdir(parents=True)
    (tests / "test_langchain.py").write_text(LANGCHAIN)
    passed, total = run_suite(python, tests, tmp_path / "langchain", environment, "tests", "-o", "asyncio_mode=auto")
    assert passed == total >= 86


@pytest.mark.parametrize(
    ("name", "program", "requirements"),
    [("openai", OPENAI, ("openai-agents[e2b]",)), ("smolagents", SMOLAGENTS, ("smolagents", "e2b-code-interpreter"))],
)
def test_example_of_a_framework_runs(
    environment: dict[str, str], name: str, program: str, requirements: tuple[str, ...]
) -> None:
    python = python_of(name, *requirements)
    done = subprocess.run([python, "-c", program], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]


def test_suite_of_the_python_sdk(environment: dict[str, str], tmp_path: Path) -> None:
    tests = sources("E2B_SOURCES", "packages/python-sdk/tests")
    python = python_of("suite", "e2b==2.45.1", *PYTEST)
    parts = [f"tests/{kind}/{part}_{kind}" for kind in ("sync", "async") for part in ("sandbox", "api")]
    passed, _ = run_suite(
        python, tests, tmp_path / "sdk", environment, *parts, "tests/shared", "-k", f"not ({OUTSIDE})"
    )
    assert passed >= 465


def test_suite_of_templates(environment: dict[str, str], tmp_path: Path) -> None:
    """Some of them need images of a public registry, or tags of templates."""
    tests = sources("E2B_SOURCES", "packages/python-sdk/tests")
    python = python_of("suite", "e2b==2.45.1", *PYTEST)
    parts = ("tests/sync/template_sync", "tests/async/template_async")
    passed, _ = run_suite(python, tests, tmp_path / "templates", environment, *parts)
    assert passed >= 120


def test_suite_of_the_interpreter(environment: dict[str, str], tmp_path: Path) -> None:
    """With the base image: without R and Java, and without packages for charts."""
    tests = sources("E2B_INTERPRETER", "python/tests")
    python = python_of("interpreter", "e2b-code-interpreter", *PYTEST)
    arguments = ("tests/sync", "tests/async", "-k", "not java and not systemd and not test_r")
    passed, _ = run_suite(python, tests, tmp_path / "interpreter", environment, *arguments)
    assert passed >= 66
