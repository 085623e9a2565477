"""The TypeScript SDK: its own tests and the examples of docs/guides/typescript.md against a real server, its coverage
of the API, and its package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.node import node, nodes
from support.server import Server

from skerry import AsyncSandbox, AsyncVolume, errors
from skerry.client._async.code import AsyncCode, AsyncContext
from skerry.client._async.files import AsyncFiles
from skerry.client._async.network import AsyncSandboxNetwork
from skerry.client._async.previews import AsyncPreview, AsyncPreviews
from skerry.client._async.processes import AsyncProcess, AsyncProcesses
from skerry.client._async.records.trace import AsyncRecords
from skerry.client._async.review import AsyncSandboxReview
from skerry.client._async.sandbox import AsyncGit
from skerry.client._async.sessions import AsyncSession, AsyncSessions
from skerry.client._async.snapshots import AsyncSnapshot
from skerry.server.app import ROUTES, document

ROOT = Path(__file__).resolve().parents[2]
SDK = ROOT / "sdk" / "typescript"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def npm(*words: str, timeout: float = 600, **env: str) -> subprocess.CompletedProcess[str]:
    """Run npm with the newest Node of this machine."""
    binary = Path(node())
    program = binary.parent / "npm"
    command = [str(program if program.exists() else shutil.which("npm") or "npm"), *words]
    path = f"{binary.parent}:{os.environ['PATH']}"
    if CERTIFICATES.exists():  # Node has a separate list, without those that an operator added
        env = {"NODE_EXTRA_CA_CERTS": str(CERTIFICATES), **env}
    return subprocess.run(
        command, cwd=SDK, env={**os.environ, "PATH": path, **env}, capture_output=True, text=True, timeout=timeout,
        check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def installed() -> None:
    """The development tools of the SDK, as package-lock.json names them."""
    if not (SDK / "node_modules" / ".package-lock.json").exists():
        done = npm("ci", "--no-audit", "--no-fund", "--ignore-scripts")
        if done.returncode != 0:
            pytest.skip(f"npm cannot install the tools of the SDK: {done.stderr.strip()[-300:]}")


@pytest.fixture(scope="module")
def openapi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("openapi") / "openapi.json"
    path.write_text(json.dumps(document(ROUTES)))
    return path


@pytest.mark.timeout(700)
def test_types_are_those_of_the_server(installed: None, openapi: Path) -> None:
    done = npm("run", "generate", "--", "--check", str(openapi))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_sources_have_no_type_errors(installed: None) -> None:
    done = npm("run", "check")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def connected(make_server: Callable[[], Server]) -> Iterator[dict[str, str]]:
    """The addresses of a server, on a unix socket and on TCP with a token."""
    server = make_server().start("--listen", "127.0.0.1:0")
    with server.http() as http:
        secret = http.post("/v1/tokens", json={"scope": "admin", "owner": "local"}).json()["secret"]
        url = next(address for address in http.get("/v1/server").json()["addresses"] if address.startswith("http"))
    yield {"SKERRY_TEST_SOCKET": server.address, "SKERRY_TEST_URL": url, "SKERRY_TEST_TOKEN": secret}
    server.retire()


@pytest.fixture(scope="module")
def built(installed: None) -> None:
    done = npm("run", "build")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(400)
def test_sdk_works_against_a_real_server(built: None, connected: dict[str, str]) -> None:
    done = npm("test", "--", "--reporter=verbose", **connected)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


# -- coverage ---------------------------------------------------------------------------------------------------------

NOT_IN_TYPESCRIPT = {  # "METHOD path": the reason
    "POST /mcp": "the MCP SDK of each language speaks it",
    "GET /mcp": "the MCP SDK of each language speaks it",
    "DELETE /mcp": "the MCP SDK of each language speaks it",
}
CALL = re.compile(
    r'\.(?:json|jsonOrNull|act|bytes|send|lines)\(\s*"(get|put|post|delete|patch)",\s*("[^"]*"|`[^`]*`|[A-Z]+)',
    re.DOTALL,
)
SOCKET = re.compile(r'\.socket\(\s*("[^"]*"|`[^`]*`|[A-Z]+)')


def sources() -> dict[str, str]:
    return {path.stem: path.read_text() for path in (SDK / "src").glob("*.ts") if path.stem not in ("schema", "maps")}


def called_routes() -> set[str]:
    """The routes that the SDK calls, as "METHOD path"."""
    found = set()
    for text in sources().values():
        constants = dict(re.findall(r'^const ([A-Z]+) = "([^"]+)";', text, re.MULTILINE))

        def path(literal: str, constants: dict[str, str] = constants) -> str:
            if literal[0] not in '"`':
                return constants[literal]
            return re.sub(r"\$\{([A-Z]+)\}", lambda name: constants[name[1]], literal[1:-1])

        found |= {f"{method.upper()} {path(literal)}" for method, literal in CALL.findall(text)}
        found |= {f"GET {path(literal)}" for literal in SOCKET.findall(text) if literal[1] == "/" or literal[1] == "$"}
    return found


def test_every_route_is_called_or_has_a_reason() -> None:
    routes = {f"{method.upper()} {path}" for path, calls in document(ROUTES)["paths"].items() for method in calls}
    called = called_routes()
    assert called - routes == set()
    assert routes - called == NOT_IN_TYPESCRIPT.keys()


CLASSES: dict[type, str] = {
    AsyncSandbox: "Sandbox", AsyncProcesses: "Processes", AsyncProcess: "Process", AsyncSessions: "Sessions",
    AsyncSession: "Session", AsyncFiles: "Files", AsyncCode: "Code", AsyncContext: "Context",
    AsyncSandboxNetwork: "SandboxNetwork", AsyncPreviews: "Previews", AsyncPreview: "Preview",
    AsyncSandboxReview: "SandboxReview", AsyncSnapshot: "Snapshot", AsyncRecords: "Records", AsyncGit: "Git",
    AsyncVolume: "Volume",
}  # fmt: skip
ON_THE_HOST = "it works on files of the user's machine: use the CLI or the Python SDK"
REASONS = {  # Python's method: TypeScript's name, or a reason
    "Sandbox.start": "Sandbox.create", "Sandbox.aclose": "connections are the platform's",
    "Sandbox.repo": ON_THE_HOST, "Sandbox.approval_handlers": "network.approvals() iterates",
    "Process.notify": "spawn takes the callbacks",
    "Files.read": "readText, readBytes and stat", "Files.upload": ON_THE_HOST + "; uploadTar takes an archive",
    "Files.download": ON_THE_HOST + "; downloadTar yields an archive",
    "SandboxNetwork.ask": "approvals() iterates, answer() answers",
    "SandboxNetwork.handle": "handlerCalls() iterates, decide() answers",
    "Previews.check_token": "Previews.get", "Snapshot.as_image": "CreateOptions.image takes it",
    "Snapshot.get": "client.snapshots", "Snapshot.list": "client.snapshots", "Snapshot.import_": "client.snapshots",
    "Snapshot.aclose": "connections are the platform's", "Volume.aclose": "connections are the platform's",
    "Volume.create": "client.volumes", "Volume.get": "client.volumes", "Volume.list": "client.volumes",
    "Volume.as_volume": "its name or ID is one", "Records.follow": "trace({ follow: true })",
    "Records.content": "the fields text and data, and blob()",
    "SandboxReview.apply": ON_THE_HOST, "SandboxReview.undo": ON_THE_HOST, "SandboxReview.patch": ON_THE_HOST,
    "SandboxReview.compare": "diffStat, history and usage of each sandbox",
    "Records.replay": "createReplay makes the sandbox; the steps are run by the CLI or the Python SDK",
}  # fmt: skip


def typescript_members() -> dict[str, set[str]]:
    """The public members of each class, by the class's name."""
    found: dict[str, set[str]] = {}
    for text in sources().values():
        for name, body in re.findall(r"^export class (\w+)[^\n]*\{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE):
            members = r"^  (?:readonly |static |async |get |\*)*(\w+)(?:\(|<| ?=|!?:)"
            private = set(re.findall(r"^  private (?:readonly |async |\*|get )*(\w+)", body, re.MULTILINE))
            found[name] = set(re.findall(members, body, re.MULTILINE)) - private
    return found


def camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda letter: letter[1].upper(), name)


def test_every_method_of_the_python_sdk_is_there_or_has_a_reason() -> None:
    members, missing, stale = typescript_members(), [], []
    python_names = {f"{name}.{method}" for python, name in CLASSES.items() for method in vars(python)}
    python_names |= {"Sandbox.approval_handlers"}  # set by the constructor
    for python, name in CLASSES.items():
        for method in (one for one in vars(python) if not one.startswith("_")):
            there, known = camel(method) in members[name], f"{name}.{method}" in REASONS
            if not there and not known:
                missing.append(f"{name}.{method}")
            if there and known:
                stale.append(f"{name}.{method}")
    assert (missing, stale, REASONS.keys() - python_names) == ([], [], set())


def test_every_error_class_is_there() -> None:
    codes = dict(
        re.findall(
            r'class (\w+) extends \w+ \{\n  static override readonly code: string = "(\w+)"', sources()["errors"]
        )
    )
    assert codes == {
        name: getattr(errors, name).code
        for name in errors.__all__
        if isinstance(getattr(errors, name), type) and name != "SkerryError"
    }


@pytest.mark.timeout(300)
def test_package_has_the_built_files_only(built: None) -> None:
    done = npm("pack", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    packed = listed[0] if isinstance(listed, list) else next(iter(listed.values()))
    files = {file["path"] for file in packed["files"]}
    assert {
        "package.json",
        "README.md",
        "dist/index.js",
        "dist/index.d.ts",
        "dist/index.js.map",
        "src/index.ts",
    } <= files
    assert not [
        path
        for path in files
        if path.startswith(("test/", "node_modules/", "scripts/"))
        or (path.endswith(".json") and path != "package.json")
    ]


# -- platforms --------------------------------------------------------------------------------------------------------

SMOKE = SDK / "test" / "smoke.mjs"


def passes(command: list[str], **env: str) -> None:
    done = subprocess.run(
        command, env={**os.environ, "NO_COLOR": "1", **env}, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "passed"), done.stdout + done.stderr


def test_sdk_works_in_the_oldest_node_of_this_machine(built: None, connected: dict[str, str]) -> None:
    oldest = nodes()[min(nodes())]
    passes([oldest, str(SMOKE), connected["SKERRY_TEST_SOCKET"]])
    passes([oldest, str(SMOKE), connected["SKERRY_TEST_URL"], connected["SKERRY_TEST_TOKEN"]])


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bun and Deno, from the package registry."""
    place = tmp_path_factory.mktemp("runtimes")
    done = npm("install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(place), "bun", "deno")
    if done.returncode != 0:
        pytest.skip(f"npm cannot install bun and deno: {done.stderr.strip()[-300:]}")
    return place / "node_modules"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_sdk_works_in_bun(built: None, connected: dict[str, str], others: Path) -> None:
    bun = next(
        path for path in others.glob("@oven/bun-*/bin/bun") if "baseline" not in str(path) and "musl" not in str(path)
    )
    passes([str(bun), str(SMOKE), connected["SKERRY_TEST_SOCKET"]])
    passes([str(bun), str(SMOKE), connected["SKERRY_TEST_URL"], connected["SKERRY_TEST_TOKEN"]])


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_sdk_works_in_deno(built: None, connected: dict[str, str], others: Path) -> None:
    deno = next(others.glob("@deno/linux-*/deno"))
    env = {"DENO_DIR": str(others / ".deno")}
    passes([str(deno), "run", "-A", str(SMOKE), connected["SKERRY_TEST_URL"], connected["SKERRY_TEST_TOKEN"]], **env)
