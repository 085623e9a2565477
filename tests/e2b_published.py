"""The published SDKs of E2B, and E2B's own tests, against a real server: `make test-e2b`.

Not a part of `make test`: it installs packages from the machine's package index into `~/.cache/skerry/e2b`. The caller
names the directories of E2B's tests; nothing of them is in this repository:

    make test-e2b E2B_SOURCES=…/E2B E2B_INTERPRETER=…/code-interpreter

docs/guides/e2b.md names their repositories and commits, and the numbers that the tests require.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.server import Server
from support.tls_proxy import TlsProxy
from world import certificates

from bench.e2b import in_turns, pace
from skerry.codecs.api_keys import key_of

VERSIONS = ("2.20.0", "2.31.0", "2.45.1", "e2b")  # the last: the newest
pytestmark = pytest.mark.timeout(3600)  # packages are installed, and whole suites run
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skerry" / "e2b"
PYTEST = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-dotenv", "pytest-xdist", "python-dotenv")
SMOKE = Path(__file__).parent / "support" / "e2b_smoke.py"
# The fixtures of E2B's tests of volumes use a server in memory; these use the real one.
VOLUMES = """

@pytest.fixture
def volume(request):
    made = Volume.create(f"test-vol-{_generate_random_string()}")
    request.addfinalizer(lambda: Volume.destroy(made.volume_id))
    return made


@pytest_asyncio.fixture
async def async_volume():
    made = await AsyncVolume.create(f"test-vol-{_generate_random_string()}")
    yield made
    await AsyncVolume.destroy(made.volume_id)
"""
# These tests dial addresses of the internet from inside, or a server that the internet reaches.
OUTSIDE = (
    "test_internet_access or specific_ip or test_deny_all_traffic or test_allow_takes_precedence or firewall_transform "
    "or update_network_applies or update_network_clears"
)
ROUNDS = 20
DOMAIN = "boxes.test"
# HTTPS for names below the domain, on the port that the SDK assumes; another run has another address
ADDRESS = f"127.77.{os.getpid() >> 8 & 255}.{os.getpid() % 253 + 1}"
RESOLVER = f"""
import socket
known = socket.getaddrinfo
def getaddrinfo(host, *words, **more):
    name = host.decode() if isinstance(host, bytes) else host
    return known("{ADDRESS}" if name and name.endswith(".{DOMAIN}") else host, *words, **more)
socket.getaddrinfo = getaddrinfo
"""


def report_line(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def python_of(name: str, *requirements: str) -> Path:
    """Return the interpreter of a cached virtual environment. One with the newest releases is made again each day."""
    directory = CACHE / name
    done = directory / "installed"
    if not is_current(done, *requirements):
        shutil.rmtree(directory, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        subprocess.run([directory / "bin" / "pip", "install", "-q", *requirements], check=True)
        done.write_text(mark_of(*requirements))
    return directory / "bin" / "python"


def mark_of(*requirements: str) -> str:
    pinned = all("==" in one for one in requirements if one not in PYTEST)
    return "\n".join((*requirements, "" if pinned else date.today().isoformat()))


def is_current(done: Path, *requirements: str) -> bool:
    return done.exists() and done.read_text() == mark_of(*requirements)


@pytest.fixture(scope="module")
def environment(
    make_server: Callable[[], Server], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Start a server that answers E2B's protocols, with an HTTPS proxy for the host names of its sandboxes, and return
    the variables of the SDKs."""
    place = tmp_path_factory.mktemp("tls")
    certificates.make(place, [f"*.{DOMAIN}"], [ADDRESS])
    (place / "sitecustomize.py").write_text(RESOLVER)
    server = make_server().start("--listen", "127.0.0.1:0", SKERRY_SERVER_WIRE="e2b", SKERRY_SERVER_WIRE_DOMAIN=DOMAIN)
    with server.http() as http:
        token = http.post("/v1/tokens", json={"scope": "use", "owner": "e2b"}).raise_for_status().json()["secret"]
        addresses = http.get("/v1/server").raise_for_status().json()["addresses"]
    url = next(address for address in addresses if address.startswith("http://"))
    bundle = place / "bundle.pem"
    system = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
    bundle.write_bytes((place / "ca.pem").read_bytes() + system.read_bytes())
    with ExitStack() as stack:
        stack.callback(server.retire)
        stack.enter_context(TlsProxy(place, (ADDRESS, 443), int(url.rpartition(":")[2])))
        yield {
            **os.environ, "E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": key_of(token),
            "E2B_DOMAIN": DOMAIN, "SKERRY_SERVER": server.address, "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(place), "SSL_CERT_FILE": str(bundle),
        }  # fmt: skip


def build_image(environment: dict[str, str], *words: str) -> None:
    command = [sys.executable, "-m", "skerry", "image", "build", *words]
    done = subprocess.run(command, env={**environment, "PYTHONPATH": ""}, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def interpreter_image(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Build the image `data`, and from it the image `code-interpreter-v1` with R, and with a release of matplotlib that
    has an argument which the tests use."""
    file = tmp_path_factory.mktemp("image") / "image.toml"
    file.write_text('from = "data"\n\n[[steps]]\napt = ["r-base-core"]\n\n[[steps]]\npip = ["matplotlib<3.11"]\n')
    build_image(environment, "data")
    build_image(environment, "-f", str(file), "-t", "code-interpreter-v1", str(file.parent))


@pytest.mark.parametrize("version", VERSIONS)
def test_smoke_passes_with_a_published_release(environment: dict[str, str], version: str) -> None:
    requirement = version if version == "e2b" else f"e2b=={version}"
    python = python_of(f"smoke-{version}", requirement)
    done = subprocess.run([python, "-P", SMOKE], env=environment, capture_output=True, text=True, timeout=600)
    report_line(version, done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]


OLD = """
import httpx, time
from e2b import Sandbox

sandbox = Sandbox(template="base", timeout=120)
try:
    assert sandbox.commands.run("echo $((6*7))").stdout == "42\\n"
    sandbox.files.write("/home/user/a.txt", "data")
    assert sandbox.files.read("/home/user/a.txt") == "data"
    server = sandbox.commands.run("python3 -m http.server 8000", background=True)
    for _ in range(60):
        if httpx.get(f"https://{sandbox.get_host(8000)}").status_code == 200:
            break
        time.sleep(1)
    else:
        raise AssertionError("the port")
    server.kill()
finally:
    sandbox.kill()
"""


@pytest.mark.parametrize("version", ["1.11.1"])
def test_old_release_works_with_host_names_only(environment: dict[str, str], version: str) -> None:
    """Releases before 2.20 know no other way than HTTPS to names below a domain."""
    python = python_of(f"old-{version}", f"e2b=={version}")
    own = {name: value for name, value in environment.items() if name not in ("E2B_API_URL", "E2B_SANDBOX_URL")}
    done = subprocess.run([python, "-c", OLD], env=own, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]


def test_smoke_passes_with_the_newest_releases_for_javascript(environment: dict[str, str], tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("this machine has no npm")
    packages = CACHE / "javascript"
    packages.mkdir(parents=True, exist_ok=True)
    names, done = ("e2b@latest", "@e2b/code-interpreter@latest"), packages / "installed"
    if not is_current(done, *names):
        (packages / "package.json").write_text('{"type": "module"}')
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", *names], cwd=packages, check=True)
        done.write_text(mark_of(*names))
    shutil.copy(SMOKE.with_suffix(".mjs"), packages)
    done = subprocess.run(
        ["node", packages / "e2b_smoke.mjs"], env={**environment, "NODE_EXTRA_CA_CERTS": environment["SSL_CERT_FILE"]},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def test_first_command_takes_at_most_twice_as_long_as_with_skerrys_sdk(environment: dict[str, str]) -> None:
    rows = in_turns(python_of("smoke-e2b", "e2b"), {**environment, "PYTHONPATH": ""}, ROUNDS)
    report_line("create and first command: e2b {:.1f} ms, skerry {:.1f} ms".format(*(one.p50 for one in rows)))
    assert pace(rows).holds


def run_suite(
    python: Path, tests: Path, work: Path, environment: dict[str, str], *arguments: str, fixtures: str = ""
) -> tuple[int, int]:
    """Run a copy of a suite; return the numbers of passed tests and of all that were run. `fixtures` replace others."""
    shutil.copytree(tests, work / "tests")  # without the sources beside it, which would hide the published package
    if fixtures:
        with (work / "tests" / "conftest.py").open("a") as file:
            file.write(fixtures)
    if (settings := tests.parent / "pytest.ini").exists():
        shutil.copy(settings, work)
    report = work / "report.xml"
    command = [
        "nice", python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "180", "-n", "0", "--junit-xml",
        report, *arguments,
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    suite = next(ElementTree.parse(report).getroot().iter("testsuite")).attrib
    total = int(suite["tests"]) - int(suite["skipped"])
    passed = total - int(suite["failures"]) - int(suite["errors"])
    report_line("\n".join(line[:300] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))))
    report_line(f"{passed} of {total} passed, {suite['skipped']} skipped")
    return passed, total


def sources(variable: str, below: str) -> Path:
    """Return the directory of a suite."""
    if variable not in os.environ:
        pytest.skip(f"{variable} names no directory with E2B's tests; docs/guides/e2b.md names the repository")
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


CREWAI = """
from crewai_tools import E2BExecTool, E2BFileTool, E2BPythonTool

done = E2BExecTool()._run(command="echo hello $((6*7))")
assert (done["exit_code"], done["stdout"]) == (0, "hello 42\\n"), done
files = E2BFileTool(persistent=True)
files._run(action="write", path="/home/user/a.txt", content="data")
assert "data" in str(files._run(action="read", path="/home/user/a.txt"))
assert "42" in str(E2BPythonTool()._run(code="6 * 7"))
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
    [
        ("openai", OPENAI, ("openai-agents[e2b]",)), ("smolagents", SMOLAGENTS, ("smolagents", "e2b-code-interpreter")),
        ("crewai", CREWAI, ("crewai-tools", "e2b-code-interpreter")),
    ],
)  # fmt: skip
def test_example_of_a_framework_runs(
    environment: dict[str, str], interpreter_image: None, name: str, program: str, requirements: tuple[str, ...]
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
    assert passed >= 499  # docs/guides/e2b.md has the same numbers


@pytest.fixture(scope="module")
def ubuntu_image(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Build an image named `ubuntu:22.04`, because no public registry may be reachable: Debian, without a user."""
    directory = tmp_path_factory.mktemp("ubuntu")
    (directory / "Dockerfile").write_text("FROM base-slim\nUSER root\nRUN userdel -r user || true\nWORKDIR /\n")
    build_image(environment, "-f", str(directory / "Dockerfile"), "-t", "ubuntu:22.04", str(directory))


def test_suite_of_templates(environment: dict[str, str], ubuntu_image: None, tmp_path: Path) -> None:
    tests = sources("E2B_SOURCES", "packages/python-sdk/tests")
    python = python_of("suite", "e2b==2.45.1", *PYTEST)
    parts = ("tests/sync/template_sync", "tests/async/template_async")
    passed, _ = run_suite(python, tests, tmp_path / "templates", environment, *parts)
    assert passed >= 151


def test_suite_of_volumes(environment: dict[str, str], tmp_path: Path) -> None:
    tests = sources("E2B_SOURCES", "packages/python-sdk/tests")
    python = python_of("suite", "e2b==2.45.1", *PYTEST)
    real = {**environment, "E2B_VOLUME_API_URL": environment["E2B_API_URL"]}
    parts = ("tests/sync/volume_sync/test_file.py", "tests/async/volume_async/test_file.py")
    passed, total = run_suite(python, tests, tmp_path / "volumes", real, *parts, fixtures=VOLUMES)
    assert passed == total >= 54


def test_suite_of_the_interpreter(environment: dict[str, str], interpreter_image: None, tmp_path: Path) -> None:
    tests = sources("E2B_INTERPRETER", "python/tests")
    python = python_of("interpreter", "e2b-code-interpreter", *PYTEST)
    passed, _ = run_suite(python, tests, tmp_path / "interpreter", environment, "tests")
    assert passed >= 131
