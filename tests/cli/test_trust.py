"""Trust for a project's skerry.toml. The attacker controls the repository: each attack is a test named after it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli.test_command_line import BEGIN, end, running
from support.cli import skerry
from support.lying_server import Lying, lying
from support.recorded_terminal import Wire, raw_controls
from support.server import Server

from skerry import Sandbox

WIDE = '[network]\nallow = ["evil.test"]\n[limits]\nmemory = "64G"\n'


@dataclass
class User:
    """A user with a project, a server that answers every request, and a separate state directory."""

    project: Path
    state: Path
    server: Lying

    @property
    def env(self) -> dict[str, str]:
        return {"XDG_STATE_HOME": str(self.state), "SKERRY_CONFIG": "/nonexistent"}

    def write(self, text: str, place: str = "skerry.toml") -> Path:
        path = self.project / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run(self, *words: str, at: str = ".") -> tuple[int, str]:
        done = skerry(*words, server=self.server.address, cwd=self.project / at, **self.env)
        return done.returncode, done.stderr.decode()

    def refused(self, *words: str, at: str = ".") -> str:
        before = len(self.server.asked)
        code, said = self.run(*words, at=at)
        assert code == 2, said
        assert len(self.server.asked) == before, "nothing was sent to the server"
        return said

    def sent(self, *words: str, at: str = ".") -> dict[str, object]:
        """Return the body of the first request of a call that succeeds."""
        before = len(self.server.asked)
        code, said = self.run(*words, at=at)
        assert code == 0, said
        found: dict[str, object] = json.loads(self.server.asked[before].body)
        return found


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    project = tmp_path / "project"
    project.mkdir()
    with lying(tmp_path, running(BEGIN + end())) as server:
        yield User(project, tmp_path / "state", server)


@pytest.mark.parametrize("words", [("create",), ("run", "--", "true"), ("mcp",), ("network", "set", "dev")])
def test_widening_file_is_used_only_after_trust(user: User, words: tuple[str, ...]) -> None:
    user.write(WIDE)
    said = user.refused(*words)
    assert "skerry.toml is not trusted" in said
    assert "network.allow  evil.test\n" in said
    assert "limits.memory  64G (default: 2G)\n" in said
    assert "hint: read the file, then run `skerry trust` there" in said
    assert "--trust" in said
    assert "--no-project" in said


def test_trusted_file_is_used_until_it_changes(user: User) -> None:
    user.write(WIDE)
    assert user.run("trust", "--yes")[0] == 0
    wanted = {"network": {"allow": ["evil.test"]}, "limits": {"memory": "64G"}}
    assert wanted.items() <= user.sent("create").items()
    records = list((user.state / "skerry/trusted").iterdir())
    assert [path.stat().st_mode & 0o777 for path in records] == [0o600]
    assert (user.state / "skerry/trusted").stat().st_mode & 0o777 == 0o700
    user.write(WIDE + "# one more byte\n")
    user.refused("create")
    user.write(WIDE)
    user.sent("create")
    assert user.run("trust", "--revoke")[0] == 0
    user.refused("create")


def test_volumes_of_a_trusted_file_and_of_flags_are_mounted(user: User) -> None:
    user.write('[volumes]\n"/data" = "data"\n"/cache" = "cache:ro"\n')
    words = ("create", "--trust", "--volume", "own:/data:ro", "--volume", "@sets:/sets")
    assert user.sent(*words)["volumes"] == {"/cache": "cache:ro", "/data": "own:ro", "/sets": "@sets"}
    for wrong in ("data", "data:", ":/data", "data:ro"):
        assert "is not NAME:PATH" in user.refused("create", "--no-project", "--volume", wrong)
    user.refused("create", "--no-project", "--volume", "../etc:/data")
    user.write('[mounts.root]\npath = "/"\n')
    assert "cannot be set here" in user.refused("create")
    user.write('[volumes]\nsize = "1T"\n')
    assert "is not an absolute path" in user.refused("create", "--trust")


def test_trust_flag_lasts_for_one_call(user: User) -> None:
    user.write(WIDE)
    assert user.sent("create", "--trust")["network"] == {"allow": ["evil.test"]}
    user.refused("create")
    assert "network" not in user.sent("create", "--no-project")
    assert user.run("create", "--trust", "--no-project")[0] == 2


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('[network]\nallow = ["a.test"]', "network.allow"),
        ('[network]\npresets = ["pip"]', "network.presets"),
        ('[secrets.TOKEN]\nhosts = ["evil.test"]', "secrets.TOKEN"),
        ('[volumes]\n"/data" = "data"', "volumes./data"),
        ("[limits]\ncpus = 8", "limits.cpus"),
        ('[limits]\ndisk = "6G"', "limits.disk"),
        ("[limits]\npids = 513", "limits.pids"),
        ("[limits]\nopen_files = 65537", "limits.open_files"),
        ('[lifecycle]\nidle_timeout = "16m"', "lifecycle.idle_timeout"),
        ('[lifecycle]\nmax_lifetime = "25h"', "lifecycle.max_lifetime"),
    ],
)
def test_every_widening_setting_needs_trust(user: User, text: str, name: str) -> None:
    user.write(text)
    assert f"\n  {name}  " in user.refused("create")


def test_file_that_widens_nothing_needs_no_trust(user: User) -> None:
    user.write('image = "mine:1"\nenv = {A = "b"}\n[limits]\nmemory = "1G"\n[network]\ndeny = ["a.test"]\nallow = []\n')
    sent = user.sent("create")
    assert (sent["image"], sent["env"], sent["limits"]) == ("mine:1", {"A": "b"}, {"memory": "1G"})
    assert "no trust is needed" in user.run("trust")[1]


def test_question_at_a_terminal_is_asked_once(user: User) -> None:
    user.write(WIDE)
    with Wire(user.server.address, "create", cwd=user.project, **user.env) as wire:
        wire.shows("network.allow  evil.test")
        wire.shows("Trust this file until it changes? [y/N]")
        wire.press(b"n\n")
        assert wire.ends() == 2
        wire.shows("is not trusted")
    user.refused("create")
    with Wire(user.server.address, "create", cwd=user.project, **user.env) as wire:
        wire.shows("Trust this file")
        wire.press(b"y\n")
        assert wire.ends() == 0
    user.sent("create")


# -- attacks ----------------------------------------------------------------------------------------------------------


def test_file_changed_between_display_and_use_has_no_effect(user: User) -> None:
    user.write(WIDE)
    with Wire(user.server.address, "create", cwd=user.project, **user.env) as wire:
        wire.shows("Trust this file")
        user.write(WIDE.replace("evil.test", "worse.test"))
        wire.press(b"y\n")
        assert wire.ends() == 0
    assert json.loads(user.server.asked[0].body)["network"] == {"allow": ["evil.test"]}
    assert "worse.test" in user.refused("create"), "the shown content was trusted, not the new one"


def test_control_characters_cannot_hide_a_rule(user: User) -> None:
    user.write('[network]\nallow = ["evil.test", "\\u001b[1A\\u001b[2K\\u202Ea.test\\r", "\\u0430pi.test", "b\\nc"]\n')
    said = user.refused("create")
    assert "  evil.test\n" in said
    assert "\\x1b[1A\\x1b[2K\\u202ea.test\\r" in said
    assert "\\u0430pi.test" in said, "a letter of another alphabet does not imitate a host"
    assert "b\\nc" in said
    assert raw_controls(said.encode()) == b""
    with Wire(user.server.address, "create", cwd=user.project, **user.env) as wire:
        wire.press(b"n\n")
        assert wire.ends() == 2
        assert raw_controls(bytes(wire.sent)) == b""


def test_every_rule_of_a_long_file_is_shown(user: User) -> None:
    user.write(f"[network]\nallow = {json.dumps([f'h{n}.test' for n in range(3000)])}\n")
    said = user.refused("create")
    assert [line.split()[-1] for line in said.splitlines() if "network.allow" in line] == [
        f"h{n}.test" for n in range(3000)
    ]


def test_symlink_to_a_trusted_file_is_rejected(user: User) -> None:
    trusted = user.write(WIDE, "mine/skerry.toml")
    assert user.run("trust", "--yes", at="mine")[0] == 0
    link = user.project / "theirs/skerry.toml"
    link.parent.mkdir()
    link.symlink_to(trusted)
    for words in (("create",), ("trust", "--yes"), ("config", "show"), ("create", "--trust")):
        assert "is a symbolic link" in user.refused(*words, at="theirs")


def test_special_file_neither_blocks_nor_fills_memory(user: User) -> None:
    os.mkfifo(user.project / "skerry.toml")
    assert "not a regular file" in user.refused("create")
    (user.project / "skerry.toml").unlink()
    with open(user.write(""), "wb") as file:
        file.truncate(1 << 40)
    assert "larger than 256K" in user.refused("create")


def test_nested_file_needs_its_own_trust(user: User) -> None:
    user.write(WIDE)
    assert user.run("trust", "--yes")[0] == 0
    nested = user.write(WIDE.replace("evil.test", "nested.test"), "vendor/lib/skerry.toml")
    assert "nested.test" in user.refused("create", at="vendor/lib")
    nested.write_text(WIDE)
    user.refused("create", at="vendor/lib")  # the same content at another path
    user.sent("create", at="vendor")


def test_file_added_or_changed_by_a_pull_needs_trust(user: User, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    subprocess.run(["git", "init", "-q", "-b", "main", theirs], check=True)

    def git(*words: str, at: Path) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.test")
        subprocess.run(["git", "-C", at, *who, *words], check=True, capture_output=True)

    def publish(text: str | None) -> None:
        if text is not None:
            (theirs / "skerry.toml").write_text(text)
        git("add", ".", at=theirs)
        git("commit", "-q", "--allow-empty", "-m", "change", at=theirs)

    publish(None)
    clone = user.project / "clone"
    git("clone", "-q", str(theirs), str(clone), at=tmp_path)
    assert "network" not in user.sent("create", at="clone")
    publish(WIDE)
    git("pull", "-q", at=clone)
    user.refused("create", at="clone")
    assert user.run("trust", "--yes", at="clone")[0] == 0
    user.sent("create", at="clone")
    publish(WIDE.replace("evil.test", "*"))
    git("pull", "-q", at=clone)
    assert "network.allow  *" in user.refused("create", at="clone")


def test_records_that_others_can_write_do_not_count(user: User) -> None:
    user.write(WIDE)
    assert user.run("trust", "--yes")[0] == 0
    store = user.state / "skerry/trusted"
    store.chmod(0o777)
    user.refused("create")
    assert "not a directory of this user alone" in user.run("trust", "--yes")[1]
    store.chmod(0o700)
    (record,) = store.iterdir()
    record.chmod(0o666)
    user.refused("create")
    record.chmod(0o600)
    os.chown(record, 12345, -1)
    user.refused("create")


@pytest.fixture
def private(server: Server, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A snapshot with a secret file, and the environment of its user."""
    with Sandbox(server=server.address) as sandbox:
        sandbox.files.write("/workspace/secret", "private data")
        snapshot = sandbox.snapshot("private")
    yield {"XDG_STATE_HOME": str(tmp_path / "state"), "SKERRY_SERVER": server.address}
    snapshot.delete()


def test_project_file_cannot_start_on_a_private_snapshot(private: dict[str, str], tmp_path: Path) -> None:
    """Its commands would read the snapshot, and send it where the network policy allows."""
    (tmp_path / "skerry.toml").write_text('image = "private"\n')
    words = ("run", "--", "cat", "/workspace/secret")

    def run(*words: str) -> tuple[int, bytes, str]:
        done = skerry(*words, cwd=tmp_path, **private)
        return done.returncode, done.stdout, done.stderr.decode()

    code, out, said = run(*words)
    assert (code, out, "\n  image  private: one of your snapshots\n" in said) == (2, b"", True), said
    assert run("create")[0] == run("run", "--", "true")[0] == 2
    assert run("run", "--trust", *words[1:])[:2] == (0, b"private data")
    assert run("run", "--image", "private", "--no-project", *words[1:])[:2] == (0, b"private data")
    code, _, said = run("trust", "--yes")
    assert (code, "image  private: an image, or one of your snapshots" in said) == (0, True)
    assert run(*words)[:2] == (0, b"private data")
    (tmp_path / "skerry.toml").write_text('image = "base"\n')
    assert run("run", "--", "echo", "no trust")[:2] == (0, b"no trust\n")


def test_dockerfile_of_a_project_cannot_start_from_a_private_snapshot(private: dict[str, str], tmp_path: Path) -> None:
    """Also after trust: the file may change without the skerry.toml."""
    (tmp_path / "skerry.toml").write_text('image = "./Dockerfile"\n')
    (tmp_path / "Dockerfile").write_text("FROM private\nRUN cat /workspace/secret\n")
    done = skerry("run", "--", "true", cwd=tmp_path, **private)
    assert done.returncode == 2
    assert b"the project's Dockerfile starts from private, one of your snapshots" in done.stderr
    assert b"private data" not in done.stderr + done.stdout


# -- finding the file -------------------------------------------------------------------------------------------------


def test_file_is_found_from_subdirectories_of_its_repository(user: User) -> None:
    user.write('image = "outer:1"\n')
    (user.project / "repo/.git").mkdir(parents=True)
    (user.project / "repo/src").mkdir()
    (user.project / "plain/src").mkdir(parents=True)
    assert user.sent("create", at="plain/src")["image"] == "outer:1"
    assert user.sent("create", at="repo/src").get("image") is None, "the search ends at the top of the repository"
    user.write('image = "inner:1"\n', "repo/skerry.toml")
    assert user.sent("create", at="repo/src")["image"] == "inner:1"


def test_file_of_another_user_above_is_ignored(user: User) -> None:
    """As /tmp/skerry.toml, for a user that works in /tmp/mine."""
    file = user.write('image = "planted:1"\n')
    os.chown(file, 12345, -1)
    (user.project / "mine").mkdir()
    assert user.sent("create", at="mine").get("image") is None
    file.unlink()
    file.symlink_to("/etc/passwd")
    os.chown(file, 12345, -1, follow_symlinks=False)
    assert user.sent("create", at="mine").get("image") is None


def test_sdk_reads_no_project_file(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    from skerry import Sandbox

    user.write(WIDE)
    monkeypatch.chdir(user.project)
    with Sandbox(server=user.server.address):
        pass
    sent = json.loads(user.server.asked[0].body)
    assert sent.get("network", {}) == {}
    assert sent.get("limits", {}) == {}


def test_config_show_marks_untrusted_settings(user: User) -> None:
    user.write(WIDE)
    shown = json.loads(skerry("config", "show", "--json", cwd=user.project, **user.env).stdout)
    assert shown["network.allow"]["source"].endswith("skerry.toml); not trusted: see `skerry trust`")
    assert shown["image"]["source"] == "built-in"
