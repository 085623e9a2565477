"""`skerry mcp install`: the file of each client gets one entry, and everything else is kept."""

from __future__ import annotations

import os
import socket
import tomllib
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from support.cli import skerry
from support.mcp_clients import new_token
from support.server import Server

from skerry.errors import Conflict
from skerry.mcp.install import config_files, jsonc
from skerry.mcp.install.clients import CLIENTS
from skerry.mcp.install.clients import McpClient as Described
from skerry.mcp.install.installer import InstallRequest, change_of, entry_of, file_of

TOKEN = "skt_" + "a" * 40
REMOTE = "https://skerry.example.com"
ALL = sorted(CLIENTS)
IN_PROJECTS = [name for name in ALL if CLIENTS[name].project]
REFERRING = [name for name in ALL if CLIENTS[name].http and CLIENTS[name].reference]


class Person:
    """A home and a project."""

    def __init__(self, root: Path) -> None:
        self.home, self.project = root / "home", root / "project"
        self.home.mkdir()
        self.project.mkdir()

    def install(self, client: str, *words: str, **env: str) -> CompletedProcess[bytes]:
        return skerry("mcp", "install", client, *words, cwd=self.project, HOME=str(self.home), **env)

    def file(self, client: str, scope: Any = "user") -> Path:
        places = {"home": self.home, "here": self.project, "platform": "linux", "env": {}}
        return file_of(CLIENTS[client], scope, **places)  # type: ignore[arg-type]

    def begin(self, client: str, text: str, scope: Any = "user") -> Path:
        path = self.file(client, scope)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def servers(client: str, path: Path) -> Any:
    return read(client, path.read_text())


def read(client: str, text: str) -> Any:
    value = tomllib.loads(text) if CLIENTS[client].format == "toml" else jsonc.read(text)
    for key in CLIENTS[client].keys:
        value = value[key]
    return value


def with_another(client: Described) -> str:
    """Return a file with comments and another server."""
    if client.format == "toml":
        return f'# mine\nmodel = "x"\n\n[{".".join(client.keys)}.other] # theirs\ncommand = "y"\n'
    others = '{\n    "other": {"command": "y"} // theirs\n  }'
    return f'{{\n  // mine\n  "theme": "dark",\n  "{client.keys[0]}": {others}\n}}\n'


@pytest.mark.parametrize("client", ALL)
def test_client_is_installed_and_removed(person: Person, client: str) -> None:
    text = with_another(CLIENTS[client])
    path = person.begin(client, text)
    printed = person.install(client, "--print")
    assert (path.read_text(), str(path).encode() in printed.stderr) == (text, True)
    done = person.install(client, "--yes")
    assert done.returncode == 0, done.stderr
    assert b"+" in done.stdout
    found = servers(client, path)
    assert found["other"] == {"command": "y"}
    assert found["skerry"]["args"] == ["mcp"]
    assert os.access(found["skerry"]["command"], os.X_OK)
    assert read(client, printed.stdout.decode())["skerry"] == found["skerry"]
    assert path.with_name(path.name + config_files.BACKUP).read_text() == text
    removed = person.install(client, "--remove", "--yes")
    assert (removed.returncode, b"done. Restart" in removed.stderr) == (0, True)
    assert path.read_text() == text


@pytest.mark.parametrize("client", ["claude-code", "codex", "zed"])
def test_new_file_is_readable_only_by_its_user(person: Person, client: str) -> None:
    assert person.install(client, "--yes").returncode == 0
    path = person.file(client)
    assert list(servers(client, path)) == ["skerry"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in path.parent.iterdir() if one.is_file()] == [path.name]
    assert b"up to date" in person.install(client, "--yes").stderr


async def test_installed_entry_starts_and_lists_tools(person: Person, server: Server) -> None:
    assert person.install("claude-code", "--server", server.address, "--yes").returncode == 0
    entry = servers("claude-code", person.file("claude-code"))["skerry"]
    assert entry.pop("type") == "stdio"
    async with Client(stdio_client(StdioServerParameters(**entry))) as client:
        assert "run" in {tool.name for tool in (await client.list_tools()).tools}


async def test_installed_remote_server_answers(person: Person, own_server: Server) -> None:
    port = free_port()
    own_server.start("--listen", f"127.0.0.1:{port}")
    assert person.install("claude-code", "--server", f"http://127.0.0.1:{port}", "--yes").returncode == 0
    entry = servers("claude-code", person.file("claude-code"))["skerry"]
    assert entry["headers"] == {"Authorization": "Bearer ${SKERRY_TOKEN}"}
    headers = {"Authorization": f"Bearer {new_token(own_server)}"}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(entry["url"], http_client=http)) as client,
    ):
        assert "run" in {tool.name for tool in (await client.list_tools()).tools}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--nome", "x"], b"No such option '--nome'"),
        (["--size", "huge"], b"'huge' is not one of"),
        (["--name", "x", "foo"], b"'foo' is not an option"),
    ],
)
def test_invalid_options_of_skerry_mcp_are_rejected(person: Person, words: list[str], says: bytes) -> None:
    done = person.install("claude-code", "--yes", "--", *words)
    assert (done.returncode, says in done.stderr, person.file("claude-code").exists()) == (2, True, False)


def test_help_names_every_client() -> None:
    told = skerry("mcp", "install", "--help").stdout.decode().split()
    assert CLIENTS.keys() <= {word.strip(",.") for word in told}


def test_project_install_notes_a_missing_skerry_in_path(person: Person) -> None:
    done = person.install("cursor", "--scope", "project", "--yes", PATH="/nowhere")
    assert (done.returncode, b"not in your PATH" in done.stderr) == (0, True)


@pytest.mark.parametrize("client", IN_PROJECTS)
def test_project_file_contains_no_local_path(person: Person, client: str) -> None:
    assert person.install(client, "--scope", "project", "--yes").returncode == 0
    path = person.file(client, "project")
    assert path.is_relative_to(person.project)
    assert servers(client, path)["skerry"]["command"] == "skerry"
    assert list(person.home.iterdir()) == []


@pytest.mark.parametrize("client", REFERRING)
def test_remote_server_entry_refers_to_the_token_variable(person: Person, client: str) -> None:
    done = person.install(client, "--server", REMOTE, "--token-env", "MY_TOKEN", "--yes", MY_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    text = person.file(client).read_text()
    assert f"{REMOTE}/mcp" in text
    assert "MY_TOKEN" in text
    assert TOKEN not in text


@pytest.mark.parametrize("client", [*(name for name in ALL if name not in REFERRING), "codex", "cursor"])
def test_token_is_written_only_with_write_token(person: Person, client: str) -> None:
    if client not in REFERRING:
        refused = person.install(client, "--server", REMOTE, "--yes", SKERRY_TOKEN=TOKEN)
        assert (refused.returncode, b"--write-token" in refused.stderr) == (2, True)
        assert not person.file(client).exists()
    done = person.install(client, "--server", REMOTE, "--write-token", "--yes", SKERRY_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert TOKEN in person.file(client).read_text()
    assert TOKEN.encode() not in done.stdout + done.stderr


def test_project_file_never_contains_a_token(person: Person) -> None:
    words = ("--scope", "project", "--server", REMOTE, "--write-token", "--yes")
    assert person.install("cursor", *words, SKERRY_TOKEN=TOKEN).returncode == 2
    assert list(person.project.iterdir()) == []


def test_unix_socket_uses_the_program(person: Person) -> None:
    assert person.install("cursor", "--server", "unix:///run/x.sock", "--yes").returncode == 0
    assert servers("cursor", person.file("cursor"))["skerry"]["args"] == ["--server", "unix:///run/x.sock", "mcp"]


def test_options_after_dashes_go_to_the_program(person: Person) -> None:
    said = ("--", "--name", "x", "--repo", ".")
    assert person.install("claude-code", "--scope", "project", "--yes", *said).returncode == 0
    args = servers("claude-code", person.file("claude-code", "project"))["skerry"]["args"]
    assert args == ["mcp", "--name", "x", "--repo", "."]
    assert person.install("cursor", "--server", REMOTE, "--yes", *said).returncode == 2


def test_install_without_a_terminal_needs_yes(person: Person) -> None:
    done = person.install("cursor")
    assert (done.returncode, b"--yes" in done.stderr) == (2, True)
    assert b'+    "skerry"' in done.stdout
    assert list(person.home.iterdir()) == []


@pytest.mark.parametrize(
    ("client", "text"),
    [("cursor", "[1, 2]"), ("cursor", '{"mcpServers": 1}'), ("zed", "{ nonsense"), ("cursor", "{" * 100_000),
     ("codex", "mcp_servers = { other = {} }\n"), ("codex", "a = [\n"), ("codex", 'mcp_servers.skerry.url = "x"\n')],
)  # fmt: skip
def test_file_that_cannot_be_changed_safely_is_not_changed(person: Person, client: str, text: str) -> None:
    path = person.begin(client, text)
    done = person.install(client, "--yes")
    assert (done.returncode, b"--print" in done.stderr) == (2, True), done.stderr[-300:]
    assert path.read_text() == text


def test_project_file_that_is_a_link_is_rejected(person: Person) -> None:
    victim = person.home / "victim.json"
    victim.write_text("{}")
    (person.project / ".mcp.json").symlink_to(victim)
    (person.project / ".cursor").symlink_to(person.home)
    for client in ("claude-code", "cursor"):
        done = person.install(client, "--scope", "project", "--yes")
        assert (done.returncode, b"outside the project" in done.stderr) == (2, True)
    assert victim.read_text() == "{}"
    assert [one.name for one in person.home.iterdir()] == ["victim.json"]


def test_link_of_the_user_is_kept(person: Person) -> None:
    kept = person.project / "dotfiles.json"
    kept.write_text("{}")
    (person.home / ".claude.json").symlink_to(kept)
    assert person.install("claude-code", "--yes").returncode == 0
    assert (person.home / ".claude.json").is_symlink()
    assert "skerry" in kept.read_text()


def test_file_of_another_user_is_rejected(person: Person) -> None:
    path = person.begin("claude-code", "{}")
    os.chown(path, 12345, 12345)
    assert b"belongs to another user" in person.install("claude-code", "--yes").stderr
    assert path.read_text() == "{}"


def test_sudo_creates_no_root_file_in_another_home(person: Person) -> None:
    os.chown(person.home, 12345, 12345)
    for client in ("claude-code", "cursor"):
        assert b"belongs to another user" in person.install(client, "--yes").stderr
    assert list(person.home.iterdir()) == []


def test_unwritable_directory_is_reported_in_one_line(person: Person) -> None:
    (person.home / ".cursor").write_text("no directory")
    told = person.install("cursor", "--yes")
    assert told.returncode != 0
    assert b"Traceback" not in told.stderr


def test_pipe_instead_of_the_file_is_rejected(person: Person) -> None:
    os.mkfifo(person.home / ".claude.json")
    assert b"not a settings file" in person.install("claude-code", "--yes").stderr


def test_file_mode_is_kept(person: Person) -> None:
    path = person.begin("claude-code", "{}")
    path.chmod(0o640)
    assert person.install("claude-code", "--yes").returncode == 0
    assert path.stat().st_mode & 0o777 == 0o640


def test_file_with_a_token_is_private(person: Person) -> None:
    path = person.begin("claude-code", "{}")
    path.chmod(0o644)
    words = ("--server", REMOTE, "--write-token", "--yes")
    assert person.install("claude-code", *words, SKERRY_TOKEN=TOKEN).returncode == 0
    assert TOKEN in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    removed = person.install("claude-code", "--remove", "--yes")
    assert b"Authorization" in removed.stdout
    assert TOKEN.encode() not in removed.stdout


@pytest.mark.parametrize("client", ALL)
def test_only_server_can_be_removed(person: Person, client: str) -> None:
    assert person.install(client, "--yes").returncode == 0
    done = person.install(client, "--remove", "--yes")
    assert done.returncode == 0, done.stderr
    assert "skerry" not in person.file(client).read_text()


def test_concurrent_change_of_the_file_is_not_lost(person: Person) -> None:
    path = person.begin("claude-code", "{}")
    client = CLIENTS["claude-code"]
    change = change_of(client, path, config_files.read(path), "skerry", entry_of(InstallRequest(client)))
    path.write_text('{"new": 1}')
    with pytest.raises(Conflict):
        config_files.write(change, private=True)
    assert path.read_text() == '{"new": 1}'


def test_client_variable_moves_its_file(person: Person) -> None:
    elsewhere = person.home / "elsewhere"
    assert person.install("codex", "--yes", CODEX_HOME=str(elsewhere)).returncode == 0
    assert (elsewhere / "config.toml").exists()
    assert person.install("claude-code", "--yes", CLAUDE_CONFIG_DIR=str(elsewhere)).returncode == 0
    assert (elsewhere / ".claude.json").exists()


def test_invalid_entry_name_is_rejected(person: Person) -> None:
    for name in ("a.b", 'a"]', "a b", "", "../x"):
        assert person.install("codex", "--name", name, "--yes").returncode == 2
    assert list(person.home.iterdir()) == []


@pytest.mark.parametrize("client", ["claude-desktop", "vscode", "zed"])
def test_file_is_below_the_configuration_directory_of_the_user(person: Person, client: str) -> None:
    moved = person.home / "settings"
    assert person.install(client, "--yes", XDG_CONFIG_HOME=str(moved)).returncode == 0
    assert (moved / person.file(client).relative_to(person.home / ".config")).exists()
    assert not (person.home / ".config").exists()
    person.install(client, "--remove", "--yes", XDG_CONFIG_HOME=str(moved))
    # Its specification says to ignore a relative path.
    assert person.install(client, "--yes", XDG_CONFIG_HOME="relative").returncode == 0
    assert person.file(client).exists()
