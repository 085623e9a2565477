"""The adapters with the real frameworks, in the newest versions of the package registry: `make test-integrations`.

Each framework has a virtual environment below .venv-integrations, made by uv, with the wheel of this tree and its
extra. Its official suite, if there is one, and the example of its page in docs/integrations run there against a real
server.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.model_server import model_server
from support.pages import matcher, plain, texts
from support.server import Server

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".venv-integrations"
SUITES = Path(__file__).parent / "frameworks"
GLOB = "deepagents 0.7 returns absolute paths from glob; the suite expects relative ones"


@dataclass(frozen=True)
class Framework:
    """`more`: requirements beside the extra. `suite`: a file in `frameworks`; `passed` of its tests must pass, and
    exactly those of `failing` fail, for the given reasons. `python`: the lowest version that it needs."""

    name: str
    extra: str | None
    page: str | None = None
    more: tuple[str, ...] = ()
    suite: str | None = None
    passed: int = 0
    failing: dict[str, str] = field(default_factory=dict)
    python: tuple[int, int] = (3, 11)


FRAMEWORKS = [
    Framework("apis", None, "tools.md", ("openai", "anthropic")),
    Framework("inspect", "inspect", "inspect.md", ("pytest-asyncio", "openai"), "inspect_ai_suite.py", 44),
    Framework(
        "deepagents-0.6",
        "deepagents",
        None,
        ("deepagents==0.6.12", "langchain-tests", "pytest-asyncio"),
        "deepagents_suite.py",
        86,
    ),
    Framework(
        "deepagents",
        "deepagents",
        "deepagents.md",
        ("langchain-tests", "langchain-openai", "pytest-asyncio"),
        "deepagents_suite.py",
        79,
        {
            "test_glob": GLOB,
            "test_glob_basic_pattern": GLOB,
            "test_glob_with_directories": GLOB,
            "test_glob_hidden_files_explicitly": GLOB,
            "test_glob_with_character_class": GLOB,
            "test_glob_with_question_mark": GLOB,
            "test_write_existing_file_fails": "deepagents 0.7 overwrites a file; the suite expects an error",
        },
    ),
    Framework("pydantic-ai", "pydantic-ai", "pydantic-ai.md", ("pytest", "openai"), "pydantic_ai_suite.py", 38),
    Framework("openai-agents", "openai-agents", "openai-agents.md", ("pytest-asyncio",), "openai_agents_suite.py", 10),
    Framework("google-adk", "google-adk", "google-adk.md"),
    Framework("smolagents", "smolagents", "smolagents.md", ("openai",)),
    Framework("ag2", "ag2", "ag2.md"),
    Framework("autogen", "autogen", "autogen.md"),
    Framework("agno", "agno", "agno.md"),
    Framework("strands", "strands", "strands.md", ("openai",)),
    Framework("verifiers", "verifiers", "verifiers.md"),
    Framework("swe-rex", "swe-rex", "swe-rex.md"),
    Framework("mini-swe-agent", "mini-swe-agent", "mini-swe-agent.md"),
    Framework("harbor", "harbor", None, ("pytest",), "harbor_suite.py", 4, python=(3, 12)),
    Framework("jupyter", "jupyter", "jupyter.md", ("pytest", "nbclient"), "jupyter_suite.py", 3),
]
WITH_SUITE = [one for one in FRAMEWORKS if one.suite is not None]
WITH_PAGE = [one for one in FRAMEWORKS if one.page is not None]


def run(*command: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the variables of this process, without those that would change its Python."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(
        [str(word) for word in command], env=kept | env, capture_output=True, text=True, check=False, cwd=PLACE
    )


def must(done: subprocess.CompletedProcess[str], goal: str) -> None:
    if done.returncode != 0:
        pytest.fail(f"failed to {goal}; these tests need a package registry\n{done.stdout}{done.stderr}"[-4000:])


@pytest.fixture(scope="session")
def uv() -> Path:
    """Install uv into .venv-integrations, which keeps its cache, too."""
    tools = PLACE / ".tools"
    if not (tools / "bin" / "uv").exists():
        shutil.rmtree(tools, ignore_errors=True)
        PLACE.mkdir(exist_ok=True)
        must(run(sys.executable, "-m", "venv", tools), "make a virtual environment")
        must(run(tools / "bin" / "pip", "install", "-q", "uv"), "install uv")
    return tools / "bin" / "uv"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this tree."""
    place = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "SKERRY_PURE_WHEEL": "1"}, check=True, capture_output=True)
    [made] = place.glob("*.whl")
    return made


@functools.cache
def find_python(lowest: tuple[int, int]) -> str | None:
    """Return this Python, or another one on the machine that is new enough."""
    if sys.version_info >= lowest:
        return sys.executable
    others = [f"python3.{minor}" for minor in (14, 13, 12)]
    others += map(str, sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python3"), reverse=True))
    check = f"import sys; sys.exit(sys.version_info < {lowest})"
    found = filter(shutil.which, others)
    return next((one for one in found if run(one, "-c", check).returncode == 0), None)


@pytest.fixture
def python(request: pytest.FixtureRequest, uv: Path, wheel: Path) -> Path:
    """Prepare the environment of a framework; return its interpreter."""
    framework: Framework = request.getfixturevalue("framework")
    base = find_python(framework.python)
    if base is None:
        pytest.skip(f"{framework.name} needs Python {framework.python[0]}.{framework.python[1]}, which is missing here")
    place = PLACE / framework.name
    env = {"UV_CACHE_DIR": str(PLACE / ".cache"), "UV_FIND_LINKS": "", "VIRTUAL_ENV": str(place)}
    if not (place / "bin" / "python").exists():
        must(run(uv, "venv", "-q", "--clear", "--python", base, place, **env), "make a virtual environment")
    extra = f"[{framework.extra}]" if framework.extra else ""
    wanted = [f"skerry{extra} @ {wheel.as_uri()}", *framework.more]
    install = [uv, "pip", "install", "-q", "--upgrade", "--reinstall-package", "skerry", *wanted]
    must(run(*install, **env), f"install {framework.name}")
    return place / "bin" / "python"


@pytest.fixture(scope="module")
def models() -> Iterator[str]:
    with model_server() as url:
        yield url


def test_plain_package_leaves_crewai_at_its_newest_version(uv: Path, wheel: Path, tmp_path: Path) -> None:
    """It bounds packages that the extras of Skerry need in newer versions, such as mcp. openhands-ai 1.11.0 requires
    exactly anyio 4.9.0, and httpx2 a newer one: no version of Skerry fits, with or without extras."""

    def resolve(*more: str) -> str:
        wanted = tmp_path / "requirements.in"
        wanted.write_text("\n".join(["crewai", *more]))
        command = [uv, "pip", "compile", "-q", "--no-header", "--python-version", "3.12", wanted]
        done = run(*command, UV_CACHE_DIR=str(PLACE / ".cache"))
        must(done, "resolve crewai")
        found = re.search(r"^crewai==(\S+)", done.stdout, re.MULTILINE)
        assert found is not None, done.stdout
        return found[1]

    assert resolve(f"skerry @ {wheel.as_uri()}") == resolve()


@pytest.mark.parametrize("framework", WITH_SUITE, ids=[one.name for one in WITH_SUITE])
def test_official_suite_passes(framework: Framework, python: Path, server: Server, tmp_path: Path) -> None:
    assert framework.suite is not None
    file = SUITES / framework.suite
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", SUITES, "--confcutdir", SUITES, "-c", os.devnull, "-rf"]
    more = ["-o", "asyncio_mode=auto"] if "pytest-asyncio" in framework.more else []
    done = run(python, "-m", "pytest", *options, *more, file, SKERRY_SERVER=server.address)
    failed = set(re.findall(r"^FAILED \S+::(\w+)", done.stdout, re.MULTILINE))
    passed = re.search(r"(\d+) passed", done.stdout)
    assert failed == set(framework.failing), done.stdout[-6000:] + done.stderr[-2000:]
    assert passed is not None, done.stdout + done.stderr
    assert int(passed[1]) >= framework.passed


@pytest.mark.parametrize("framework", WITH_PAGE, ids=[one.name for one in WITH_PAGE])
def test_example_of_page_runs(framework: Framework, python: Path, server: Server, models: str, tmp_path: Path) -> None:
    """Each Python block is a program; the comments behind its `print` calls are its output."""
    assert framework.page is not None
    programs = texts(ROOT / "docs" / "integrations" / framework.page, "python")
    assert programs
    env = {"OPENAI_BASE_URL": f"{models}/v1", "OPENAI_API_KEY": "none", "MODEL": "scripted", "HOME": str(tmp_path)}
    env |= {"ANTHROPIC_BASE_URL": models, "ANTHROPIC_API_KEY": "none", "SKERRY_SERVER": server.address}
    for number, program in enumerate(programs):
        file = tmp_path / f"example_{number}.py"
        file.write_text(program)
        done = run(python, file, **env)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = iter([plain(line) for line in done.stdout.splitlines()])
        for expected in re.findall(r"^ *print\(.*\)  # (.*)$", program, re.MULTILINE):
            assert any(map(matcher(expected), lines)), f"{expected} does not follow in:\n{done.stdout}{done.stderr}"
    assert server.http().get("/v1/sandboxes").json()["sandboxes"] == []
