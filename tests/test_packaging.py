"""The package: declared dependencies, constraints, and wheels and sdist as they are published."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.server import Server

from skerry import extras
from skerry.engine.records.audit.keys import KeyStore
from skerry.engine.records.audit.segments import AuditLog

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "skerry"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PROVIDERS = packages_distributions()
GUEST = {"IPython", "matplotlib", "pandas", "traitlets"}  # of the sandbox's Python
SERVER_PARTS = {"engine", "images", "keeper", "network", "review", "runtimes", "server", "storage"}
# The frameworks of the adapters, which are not installed here: the module, its extra and the packages that it imports.
ADAPTERS = {
    "ag2": ("ag2", {"ag2"}),
    "agno": ("agno", {"agno"}),
    "autogen": ("autogen", {"autogen_core"}),
    "deepagents": ("deepagents", {"deepagents"}),
    "google_adk": ("google-adk", {"google"}),
    "harbor": ("harbor", {"harbor"}),
    "inspect_ai": ("inspect", {"inspect_ai", "pydantic"}),
    "jupyter": ("jupyter", {"ipykernel", "jupyter_client"}),
    "mini_swe_agent": ("mini-swe-agent", {"minisweagent", "pydantic"}),
    "openai_agents": ("openai-agents", {"agents"}),
    "pydantic_ai": ("pydantic-ai", {"pydantic_ai"}),
    "pytest_plugin": (None, {"pytest"}),
    "smolagents": ("smolagents", {"smolagents", "PIL"}),
    "strands": ("strands", {"strands"}),
    "swe_rex": ("swe-rex", {"swerex"}),
    "verifiers": ("verifiers", {"verifiers", "pydantic"}),
}
# Modules that no source imports by name: uvicorn and the review screen load them.
INDIRECT = {"httptools", "pygments"}


def requirements(*kinds: str) -> dict[str, Requirement]:
    lists = {"base": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    return {canonicalize_name(r.name): r for kind in kinds for r in map(Requirement, lists[kind])}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module


def packages_of(module: str) -> set[str]:
    if module.startswith("backports."):
        return {module.replace(".", "-")}
    if module.startswith("opentelemetry"):  # several packages share this name
        dashed = module.replace(".", "-")
        found = {canonicalize_name(name) for name in PROVIDERS["opentelemetry"]}
        return {name for name in found if f"{dashed}-".startswith(f"{name}-")} or {"opentelemetry-api"}
    return {canonicalize_name(name) for name in PROVIDERS.get(module.partition(".")[0], ())}


def imported(part: str) -> dict[str, set[str]]:
    """Return the packages that may provide each third-party module that a part of the source imports."""
    files = [SOURCES / part] if part.endswith(".py") else (SOURCES / part).rglob("*.py")
    names = {name for file in files for name in imports(file)}
    own = {*sys.stdlib_module_names, *GUEST, "skerry", "compression", "backports", "outside"}
    found = {name: packages_of(name) for name in names if name.partition(".")[0] not in own}
    return found | ({"backports.zstd": {"backports-zstd"}} if "backports" in names else {})


@pytest.mark.parametrize(
    "part", sorted(path.name for path in SOURCES.iterdir() if not path.name.startswith(("_", ".")))
)
def test_every_import_is_declared(part: str) -> None:
    if part in ("py.typed", "integrations"):
        return
    kinds = ["base", "server"] if part in SERVER_PARTS else ["base", part] if part == "mcp" else ["base"]
    kinds += {"telemetry.py": ["otel"], "client": ["keyring", "ssh", "worker"]}.get(part, [])
    declared = set(requirements(*kinds))
    assert {name: packages for name, packages in imported(part).items() if not packages & declared} == {}


@pytest.mark.parametrize("file", sorted((SOURCES / "integrations").glob("*.py")), ids=lambda file: file.stem)
def test_adapter_imports_only_its_framework_and_has_an_extra(file: Path) -> None:
    extra, packages = ADAPTERS.get(file.stem, (None, set()))
    names = {name.partition(".")[0] for name in imports(file)}
    assert names - {*sys.stdlib_module_names, "skerry"} == packages
    assert extra is None or requirements(extra)


def test_every_declared_dependency_is_imported() -> None:
    used = {
        package
        for path in SOURCES.iterdir()
        if path.is_dir() or path.suffix == ".py"
        for names in imported(path.name).values()
        for package in names
    }
    assert set(requirements("base", "server", "mcp", "otel", "ssh")) - used - INDIRECT - {"idna"} == set()


@pytest.mark.parametrize("extra", ["server", "mcp", "otel", "audit", "ssh"])
def test_modules_of_an_extra_are_those_it_declares(extra: extras.Extra) -> None:
    declared = set(requirements(extra))
    assert {min(packages_of(module) & declared, default=module) for module in extras.MODULES[extra]} == declared


def test_private_behaviour_has_an_upper_bound() -> None:
    found = requirements("base", "server", "mcp", "ssh")
    for name in ("uvicorn", "h11", "mcp", "asyncssh"):
        assert any(bound.operator in ("<", "==") for bound in found[name].specifier), name


def test_constraints_are_hashed_and_within_the_bounds() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text
    assert "index" not in text.lower()
    blocks = re.findall(
        r"^([\w.-]+)==(\S+)(?: ;[^\\\n]*)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE
    )
    versions = {name: version for name, version, _ in blocks}
    assert len(versions) == sum(not line.startswith(("#", " ")) and line != "" for line in text.splitlines())
    wanted = requirements("base", "server", "mcp", "otel", "ssh")
    assert set(wanted) <= set(versions)
    assert {name for name, one in wanted.items() if not one.specifier.contains(versions[name])} == set()


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an sdist and, from it alone and without a compiler, the wheel without the keeper."""
    place = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(place)]
    environment = {**os.environ, "SKERRY_PROJECT_URL": "git@git.example.org:tools/skerry.git"}
    subprocess.run([*command, "-t", "sdist"], cwd=ROOT, env=environment, check=True, capture_output=True)
    [archive] = place.glob("*.tar.gz")
    subprocess.run(["tar", "-xf", str(archive), "-C", str(place)], check=True)  # Python 3.11.2 has no filters
    [tree] = (path for path in place.iterdir() if path.is_dir())
    pure = {**os.environ, "SKERRY_PURE_WHEEL": "1", "PATH": "/nonexistent"}
    subprocess.run([*command, "-t", "wheel"], cwd=tree, env=pure, check=True, capture_output=True)
    return place


def test_sdist_holds_the_sources_and_nothing_else(dist: Path) -> None:
    [archive] = dist.glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
    assert {"keeper/go.mod", "keeper/LICENSE-Go", "src/skerry/py.typed", "hatch_build.py"} <= set(names)
    own = (
        "src/",
        "bin/",
        "keeper/",
        "hatch_build.py",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "pyproject.toml",
        "PKG-INFO",
        ".gitignore",
    )
    assert [name for name in names if not name.startswith(own)] == []
    assert [name for name in names if name.endswith("_test.go") or "keeper/bin/" in name or "__pycache__" in name] == []


def test_wheel_has_the_licence_of_go_and_the_addresses(dist: Path) -> None:
    [wheel] = dist.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        [metadata] = (files.read(name).decode() for name in names if name.endswith("/METADATA"))
        notices = [files.read(name).decode() for name in names if name.endswith("LICENSE-Go")]
        [commands] = (files.read(name).decode() for name in names if name.endswith("/entry_points.txt"))
    assert not [name for name in names if "keeper/bin/" in name]
    # Programs, which Windows needs. The wheel for Linux has launchers beside them (tests/cli/test_launcher.py).
    assert "\nskerry = skerry.cli:main\n" in commands
    assert "The Go Authors" in notices[0]
    assert "\nProject-URL: Homepage, https://git.example.org/tools/skerry\n" in metadata


def test_release_without_the_address_of_the_project_is_not_built(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    env = {**os.environ, "SKERRY_RELEASE": "1", "SKERRY_PROJECT_URL": "/srv/git/skerry"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, list(tmp_path.iterdir())) == (1, [])
    assert (
        "a release names the project's address, and /srv/git/skerry is none\nhint: SKERRY_PROJECT_URL=" in done.stderr
    )
    recipe = re.search(r"^dist:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    builds = [line for line in recipe[1].splitlines() if "hatchling" in line]
    assert [line.split()[0] for line in builds] == ["SKERRY_RELEASE=1", "SKERRY_RELEASE=1"]


def closure(found: dict[str, Requirement]) -> dict[str, Distribution]:
    """Return the installed distributions that requirements lead to."""
    known: dict[str, Distribution] = {}
    waiting = [(one, "") for one in found.values()]
    while waiting:
        one, extra = waiting.pop()
        name = canonicalize_name(one.name)
        if name in known or (one.marker and not one.marker.evaluate({"extra": extra})):
            continue
        known[name] = distribution(name)
        waiting += [(Requirement(line), "") for line in known[name].requires or []]
    return known


@pytest.fixture(scope="module")
def client_only(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel without extras into a fresh environment: with links, because a registry may be out of reach."""
    place = tmp_path_factory.mktemp("client")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    [wheel] = dist.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(place), "--disable-pip-version-check", "install", "-q"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(place)}))
    for found in closure(requirements("base")).values():
        for top in {Path(file.parts[0]) for file in found.files or [] if ".." not in file.parts}:
            link = site / top
            if top.name != "__pycache__" and not link.exists():
                link.symlink_to(Path(str(found.locate_file(top))).resolve())
    return place / "bin"


def in_client(client_only: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [client_only / command[0], *command[1:]],
        env={**kept, **env},
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )


def test_client_works_without_the_extras(client_only: Path, server: Server) -> None:
    code = """if True:
        import skerry
        with skerry.Sandbox() as sandbox:
            sandbox.files.write("/tmp/a", "42")
            print(sandbox.run(["cat", "/tmp/a"]).stdout)
        import importlib.util
        assert not importlib.util.find_spec("uvicorn") and not importlib.util.find_spec("mcp")
    """
    done = in_client(client_only, "python", "-c", code, SKERRY_SERVER=server.address)
    assert (done.stdout, done.stderr) == ("42\n", "")
    done = in_client(client_only, "skerry", "run", "--", "echo", "on", SKERRY_SERVER=server.address)
    assert (done.returncode, done.stdout) == (0, "on\n")


def test_client_loads_without_names_of_linux(client_only: Path) -> None:
    """As on macOS. Libraries that look at the platform are loaded first."""
    code = """if True:
        import asyncio, importlib, os, pkgutil, select, socket, subprocess
        import click, httpcore2, httpx2, rich.console
        missing = {
            os: "O_PATH O_TMPFILE memfd_create pidfd_open posix_fallocate getxattr setxattr listxattr splice eventfd",
            socket: "TCP_KEEPIDLE SO_PEERCRED AF_NETLINK AF_VSOCK SOCK_CLOEXEC SOCK_NONBLOCK",
            select: "epoll EPOLLIN",
        }
        for module, names in missing.items():
            for name in names.split():
                delattr(module, name)
        for name in ("skerry.client", "skerry.cli"):
            for found in pkgutil.walk_packages(importlib.import_module(name).__path__, name + ".", onerror=str):
                if not found.name.startswith("skerry.client.ssh"):  # of the extra ssh
                    importlib.import_module(found.name)
        print("loaded")
    """
    done = in_client(client_only, "python", "-c", code)
    assert (done.stdout, done.stderr) == ("loaded\n", "")


def test_audit_log_is_verified_with_the_extra_audit_alone(client_only: Path, tmp_path: Path) -> None:
    """On another machine, with an export and the public key. Without the extra, the error has the pip line."""
    (tmp_path / "state").mkdir()
    keys = KeyStore(tmp_path / "keys", tmp_path / "state")
    log = AuditLog(tmp_path / "state" / "audit", keys, keep_s=None)
    log.append(type="token.create", owner="ann", actor="tk-a")
    log.close()
    (public,) = (tmp_path / "keys" / "keys").iterdir()
    command = ("skerry", "audit", "verify", str(log.segments[0].path), "--key", str(public))
    plain = in_client(client_only, *command)
    assert (plain.returncode, plain.stdout, "Traceback" in plain.stderr) == (125, "", False)
    assert "hint: pip install 'skerry[audit]'" in plain.stderr
    site = tmp_path / "site"
    site.mkdir()
    for found in closure(requirements("audit")).values():
        for top in {Path(file.parts[0]) for file in found.files or [] if ".." not in file.parts}:
            (site / top).symlink_to(Path(str(found.locate_file(top))).resolve())
    done = in_client(client_only, *command, PYTHONPATH=str(site))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok: ")
    edited = tmp_path / "edited.jsonl"
    edited.write_bytes(log.segments[0].path.read_bytes().replace(b"ann", b"eve"))
    done = in_client(client_only, "skerry", "audit", "verify", str(edited), *command[4:], PYTHONPATH=str(site))
    assert (done.returncode, "was edited" in done.stdout) == (1, True)


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("serve", "server"),
        ("server start", "server"),
        ("setup --yes", "server"),
        ("mcp", "mcp"),
        ("run true", "server"),
    ],
)
def test_missing_extra_is_named_with_its_command(client_only: Path, tmp_path: Path, command: str, extra: str) -> None:
    done = in_client(client_only, "skerry", *command.split(), SKERRY_STATE_DIR=str(tmp_path))
    assert done.returncode == 125
    assert f"hint: pip install 'skerry[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
