"""Real packages by real clients, inside, from where this machine's own clients get theirs, and from nowhere else.

No host is named here: presets are read from this machine. Where its own clients reach nothing, neither can these."""

from __future__ import annotations

import base64
import functools
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import skerry
from support.server import Server, wait_until
from world import places
from world.goods import YARN_VERSION
from world.world import World

from skerry import Network, Sandbox
from skerry.types import NetworkAttempt

FETCH = {
    "pip": "pip download --quiet --no-deps --no-binary :none: --timeout 10 --retries 0 --dest {} six",
    "npm": "npm pack --silent --fetch-retries=0 --pack-destination {} ms",
    "apt": "/usr/lib/apt/apt-helper download-file"
    " $(apt-get indextargets --no-release-info --format '$(REPO_URI)dists/$(RELEASE)/InRelease' | head -n 1)"
    " {}/InRelease",
}


@functools.cache
def reaches(client: str) -> bool:
    """Does this machine's own client get something with no help?"""
    if shutil.which(client) is None:
        return False
    with tempfile.TemporaryDirectory() as at:
        command = ["sh", "-c", FETCH[client].format(at)]
        return subprocess.run(command, cwd=at, capture_output=True, timeout=90).returncode == 0


@pytest.fixture
def preset(request: pytest.FixtureRequest) -> str:
    client = str(request.param)
    if not reaches(client):
        pytest.skip(f"this machine's own {client} reaches no registry")
    return client


def hosts(attempts: list[NetworkAttempt], decision: str) -> set[str]:
    return {attempt.host for attempt in attempts if attempt.decision == decision}


needs_pip = pytest.mark.skipif(shutil.which("pip") is None, reason="pip is not installed on this machine")
needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed on this machine")
INSTALL = {
    "pip": "pip install --quiet six && python -c 'import six; print(six.__name__)'",
    "npm": "npm install --silent ms && node -e 'console.log(require(\"ms\")(1000))'",
    "apt": "sudo apt-get -qq update && sudo apt-get -qq install hello >/dev/null && hello",
}
SAYS = {"pip": "six\n", "npm": "1s\n", "apt": "Hello, world!\n"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("preset", INSTALL, indirect=True)
def test_package_is_installed_from_the_index_of_the_host_and_nothing_else_is_open(server: Server, preset: str) -> None:
    with Sandbox(server=server.address, network=Network(presets=(preset,))) as sandbox:
        result = sandbox.run(INSTALL[preset], timeout=200)
        assert result.ok, result.stdout + result.stderr
        assert result.stdout.endswith(SAYS[preset])
        refused = sandbox.run("curl --silent --show-error --max-time 20 https://elsewhere.example/")
        assert not refused.ok
        assert not refused.timed_out
        attempts = list(sandbox.network.log())
        named = {rule.partition(":")[0] for p in sandbox.network.show().network.presets for rule in p.allow}
        assert hosts(attempts, "allowed") <= named
        assert "elsewhere.example" in hosts(attempts, "denied")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("preset", ["pip"], indirect=True)
def test_preset_can_be_added_while_a_sandbox_runs(server: Server, preset: str) -> None:
    with Sandbox(server=server.address, network=Network(allow=["api.example.test"])) as sandbox:
        assert not sandbox.run(INSTALL[preset], env={"PIP_RETRIES": "0"}, timeout=200).ok
        done = skerry("network", "allow", sandbox.id, "--preset", preset, "--json", server=server.address)
        assert done.returncode == 0, done.stderr
        assert sandbox.run(INSTALL[preset], timeout=200).stdout.endswith(SAYS[preset])
        network = sandbox.network.allow(presets=[preset]).network
        assert ([p.name for p in network.presets], network.allow) == ([preset], ("api.example.test",))
        nothing = skerry("network", "allow", sandbox.id, server=server.address)
        assert (nothing.returncode, b"--preset NAME" in nothing.stderr) == (2, True)


@pytest.mark.parametrize("preset", ["pip"], indirect=True)
def test_readme_command_works(server: Server, preset: str) -> None:
    done = skerry("run", "--preset", preset, "--", "pip", "install", "--quiet", "six", server=server.address)
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("preset", ["pip"], indirect=True)
def test_command_without_the_preset_fails_at_once_with_a_hint(server: Server, preset: str) -> None:
    with Sandbox(server=server.address) as sandbox:
        result = sandbox.run("pip install --retries 0 six", timeout=100)
        assert not result.ok
        assert not result.timed_out
        assert result.denied
        assert all((attempt.hint or "").startswith("--allow ") for attempt in result.denied)


def program(*argv: str) -> Path | None:
    """Return the path of a program that another program of this machine prints."""
    if shutil.which(argv[0]) is None:
        return None
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return Path(done.stdout.strip()) if done.returncode == 0 else None


GO_FETCH = "GOROOT=/tmp/go GOTOOLCHAIN=local /tmp/go/bin/go mod download -json rsc.io/quote@v1.5.2"
# cargo asks the compiler for its version, and does not compile
RUSTC = "#!/bin/sh\nprintf '%s\\n' 'rustc 1.90.0 (a 2025-01-01)' 'release: 1.90.0' 'host: x86_64-unknown-linux-gnu'\n"


@pytest.mark.timeout(300)
def test_go_of_this_machine_fetches_a_module_inside(server: Server, tmp_path: Path) -> None:
    root = program("go", "env", "GOROOT")
    variables = {**os.environ, "GOPATH": str(tmp_path), "GOFLAGS": "-modcacherw"}
    argv = ["go", "mod", "download", "rsc.io/quote@v1.5.2"]
    if root is None or subprocess.run(argv, env=variables, cwd=tmp_path, capture_output=True, timeout=90).returncode:
        pytest.skip("this machine's own go reaches no module proxy")
    with Sandbox(server=server.address, network=Network(presets=("go",))) as sandbox:
        with (root / "bin/go").open("rb") as binary:
            sandbox.files.write("/tmp/go/bin/go", binary, mode=0o755)
        sandbox.files.write("/tmp/go/go.env", "")
        result = sandbox.run(GO_FETCH, timeout=200)
        assert result.ok, result.stdout + result.stderr
        assert '"Sum": "h1:' in result.stdout
        assert hosts(list(sandbox.network.log()), "denied") == set()


@pytest.mark.timeout(300)
def test_cargo_of_this_machine_fetches_a_crate_inside(server: Server) -> None:
    cargo = program("rustup", "which", "cargo")
    if (
        cargo is None
        or subprocess.run(["cargo", "info", "cfg-if"], cwd="/", capture_output=True, timeout=90).returncode
    ):
        pytest.skip("this machine's own cargo reaches no registry")
    with Sandbox(server=server.address, network=Network(presets=("cargo",))) as sandbox:
        with cargo.open("rb") as binary:
            sandbox.files.write("/tmp/cargo", binary, mode=0o755)
        sandbox.files.write("/tmp/rustc", RUSTC, mode=0o755)
        result = sandbox.run("RUSTC=/tmp/rustc /tmp/cargo info cfg-if", timeout=200)
        assert result.ok, result.stdout + result.stderr
        assert "cfg-if" in result.stdout
        assert hosts(list(sandbox.network.log()), "denied") == set()


# -- a company's own mirrors, in the tests' world ----------------------------------------------------------------------


def run_there(world: World, server: Server, home: Path, preset: str, script: str, *options: str, **env: str) -> str:
    """Run `skerry run --preset` as a user of that internet with these client settings."""
    home.mkdir(exist_ok=True)
    kept = {"PATH": os.environ["PATH"], "HOME": str(home), "PIP_CONFIG_FILE": "/dev/null"}
    done = subprocess.run(
        [*world.inside, sys.executable, "-m", "skerry", "run", "--preset", preset, *options, "--", "sh", "-c", script],
        env={**kept, "SKERRY_SERVER": server.address, "SSL_CERT_FILE": str(world.home / "ca.pem"), **env},
        cwd=home, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_pip
def test_pip_password_is_used_and_never_inside(world: World, world_server: Server, tmp_path: Path) -> None:
    world.reset()
    said = run_there(
        world, world_server, tmp_path / "home", "pip",
        "pip install -q --no-cache-dir tinylib && python -c 'import tinylib; print(tinylib.ANSWER)' && env"
        " && cat /proc/self/environ && { grep -r hidden-word /run /etc ~ 2>/dev/null || true; }"
        " && uv venv -q v && uv pip install -q --python v/bin/python tinylib >&2"
        " && v/bin/python -c 'import tinylib; print(tinylib.ANSWER)'",
        PIP_INDEX_URL="https://me:hidden-word@index.example.test/simple",
    )  # fmt: skip
    assert said.startswith("42\n")
    assert said.endswith("42\n")
    assert "PIP_INDEX_URL=https://index.example.test/simple\n" in said
    assert "hidden-word" not in said
    login = base64.b64encode(b"me:hidden-word").decode()
    asked = [call for call in world.calls(places.INDEX) if any("tinylib" in request for request in call["requests"])]
    assert asked
    assert all(f"Basic {login}" in call["raw"] for call in asked)
    assert world.strays() == []


BUILD = """\
[[steps]]
run = "nohup sleep 600 > /dev/null 2>&1 &"

[[steps]]
pip = ["tinylib"]

[[steps]]
run = "python -c 'import tinylib; print(tinylib.ANSWER)'; pgrep -c sleep; env"

[[steps]]
run = "curl -sSm 9 https://index.example.test/ || echo refused; grep -r hidden-word /etc ~ /root || echo never inside"
"""


@needs_pip
def test_only_pip_steps_of_a_build_reach_the_index_with_its_password(
    world: World, world_server: Server, tmp_path: Path
) -> None:
    world.reset()
    (tmp_path / "image.toml").write_text(BUILD)
    done = subprocess.run(
        [*world.inside, sys.executable, "-m", "skerry", "image", "build", "-f", str(tmp_path / "image.toml")],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null",
             "SKERRY_SERVER": world_server.address, "SSL_CERT_FILE": str(world.home / "ca.pem"),
             "PIP_INDEX_URL": "https://me:hidden-word@index.example.test/simple"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert said[said.index("  42") + 1] == "  0", "what an earlier step left running was ended before"
    assert ("  refused" in said, "  never inside" in said) == (True, True)
    assert "hidden-word" not in done.stderr.replace("grep -r hidden-word", "")
    assert not any("PIP_INDEX_URL" in line for line in said), "the preset is the pip step's alone"
    assert any("tinylib" in request for call in world.calls(places.INDEX) for request in call["requests"])
    assert world.strays() == []


@needs_npm
def test_npm_token_is_used_and_never_inside(world: World, world_server: Server, tmp_path: Path) -> None:
    world.reset()
    home = tmp_path / "home"
    home.mkdir()
    (home / ".npmrc").write_text("registry=https://npm.example.test/\n//npm.example.test/:_authToken=hidden-token\n")
    said = run_there(
        world, world_server, home, "npm",
        "npm install --silent tiny-lib >&2 && node -p 'require(\"tiny-lib\")' && env && npm config ls -l"
        " && mkdir y p && echo {} >y/package.json && echo {} >p/package.json"
        " && (cd y && yarn add --silent tiny-lib) >&2 && node -p 'require(\"./y/node_modules/tiny-lib\")'"
        " && (cd p && pnpm add --silent tiny-lib) >&2 && node -p 'require(\"./p/node_modules/tiny-lib\")'",
    )  # fmt: skip
    assert said.startswith("42\n")
    assert said.endswith("42\n42\n")
    assert "hidden-token" not in said
    asked = [call for call in world.calls(places.NPM) if any("tiny-lib" in request for request in call["requests"])]
    assert asked
    assert all("Bearer hidden-token" in call["raw"] for call in asked)
    assert world.strays() == []


YARN_BERRY = "@yarnpkg/cli-dist@4.9.2"  # yarn 2 and later in one file


@needs_npm
def test_yarn_berry_installs_with_the_login_of_npm(world: World, world_server: Server, tmp_path: Path) -> None:
    fetched = subprocess.run(
        ["npm", "pack", "--silent", "--fetch-retries=0", YARN_BERRY], cwd=tmp_path, capture_output=True, timeout=90
    )
    if fetched.returncode != 0:
        pytest.skip("this machine's own npm reaches no registry")
    with tarfile.open(next(tmp_path.glob("*.tgz"))) as archive:
        archive.extract("package/bin/yarn.js", tmp_path, filter="data")
    world.reset()
    home = tmp_path / "home"
    home.mkdir()
    (home / ".npmrc").write_text("registry=https://npm.example.test/\n//npm.example.test/:_authToken=hidden-token\n")
    said = run_there(
        world, world_server, home, "npm",
        "mkdir app && cd app && echo '{\"name\": \"app\"}' >package.json && node ../yarn.js --version"
        " && node ../yarn.js add tiny-lib >&2 && node -p 'require(\"tiny-lib\")' && env",
        "--file", f"{tmp_path}/package/bin/yarn.js:yarn.js", "-e", "YARN_NODE_LINKER=node-modules",
        "-e", "YARN_ENABLE_TELEMETRY=0",
    )  # fmt: skip
    assert said.startswith("4.9.2\n42\n")
    assert "hidden-token" not in said
    asked = [call for call in world.calls(places.NPM) if any("tiny-lib" in request for request in call["requests"])]
    assert asked
    assert all("Bearer hidden-token" in call["raw"] for call in asked)
    assert world.strays() == []


@needs_npm
def test_corepack_gets_the_yarn_of_a_project_from_the_registry_of_the_host(
    world: World, world_server: Server, tmp_path: Path
) -> None:
    world.reset()
    home = tmp_path / "home"
    home.mkdir()
    (home / ".npmrc").write_text("registry=https://npm.example.test/\n//npm.example.test/:_authToken=hidden-token\n")
    project = json.dumps({"name": "app", "packageManager": f"yarn@{YARN_VERSION}"})
    said = run_there(
        world, world_server, home, "npm", f"echo '{project}' >package.json && corepack yarn install && env"
    )
    assert said.startswith("yarn install of the test world\n")
    assert "hidden-token" not in said
    asked = [call for call in world.calls(places.NPM) if any("cli-dist" in request for request in call["requests"])]
    assert asked
    assert all("Bearer hidden-token" in call["raw"] for call in asked)
    assert world.strays() == []


def test_git_url_rewriting_and_login_work_inside(world: World, world_server: Server, tmp_path: Path) -> None:
    world.reset()
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text('[url "https://me:hidden-word@git.example.test/"]\n\tinsteadOf = "ours:"\n')
    said = run_there(
        world, world_server, home, "git", "git clone -q ours:tiny.git && cat tiny/README && env && git config --list",
        GIT_CONFIG_NOSYSTEM="1",
    )  # fmt: skip
    assert said.startswith("a repository of the test world\n")
    assert "hidden-word" not in said
    asked = world.calls(places.GIT)
    assert asked
    assert all("Basic " + base64.b64encode(b"me:hidden-word").decode() in call["raw"] for call in asked)
    assert world.strays() == []


PROXY = """
import socket, socketserver, threading

def pour(source, sink):
    while data := source.recv(65536):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        first = self.rfile.readline().decode()
        while self.rfile.readline().strip():
            pass
        print(first.strip(), flush=True)
        host, _, port = first.split()[1].rpartition(":")
        with socket.create_connection((host, int(port)), 10) as far:
            self.wfile.write(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
            threading.Thread(target=pour, args=(far, self.connection), daemon=True).start()
            pour(self.connection, far)

server = socketserver.ThreadingTCPServer(("192.0.2.1", 0), Handler)
server.daemon_threads = True
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@pytest.fixture
def proxy(world: World, tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A company's proxy on the host's side of the world, and its request log."""
    asked = tmp_path / "asked"
    with asked.open("wb") as log:
        process = subprocess.Popen([*world.inside, sys.executable, "-c", PROXY], stdout=log, stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: asked.read_text().endswith("\n"), "the proxy's port")
        yield int(asked.read_text()), asked
    finally:
        process.kill()
        process.wait()


@needs_pip
def test_pip_proxy_is_used_and_never_reached_from_inside(
    world: World, own_world_server: Server, proxy: tuple[int, Path], tmp_path: Path
) -> None:
    """The proxy is on the server's machine, which only the operator opens."""
    world.reset()
    port, asked = proxy
    server = own_world_server.start(SKERRY_MAX_NETWORK=f"*,192.0.2.1:{port}")
    straight = f"curl --silent --max-time 20 http://192.0.2.1:{port}/"
    said = run_there(
        world, server, tmp_path / "home", "pip",
        "pip install -q --no-cache-dir tinylib && python -c 'import tinylib; print(tinylib.ANSWER)'"
        f" && {straight}; {straight} --noproxy '*' || echo reset",
        PIP_INDEX_URL="https://index.example.test/simple", https_proxy=f"http://192.0.2.1:{port}",
    )  # fmt: skip
    assert said.startswith("42\n")
    assert "is an upstream proxy" in said
    assert said.endswith("reset\n")
    lines = asked.read_text().splitlines()[1:]
    assert "CONNECT index.example.test:443 HTTP/1.1" in lines
    assert all(line.startswith("CONNECT index.example.test:443 ") for line in lines)
