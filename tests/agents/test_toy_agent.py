"""`skerry agent` with a small agent without a model, from a directory: nothing is downloaded."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli import skerry
from support.editor import Editor
from support.recorded_terminal import Wire
from support.server import Server, wait_until
from support.tmux import Window

from skerry import Client, InvalidRequest, Sandbox
from skerry.client.agents.kits import BUILT_IN

KIT = ("--kit", str(Path(__file__).parent / "toy"))
NUMBERS = itertools.count()
Call = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """Return a repository whose name no other test has, so that each test has its own sandbox."""
    top = tmp_path / f"repo{next(NUMBERS)}"
    top.mkdir()
    (top / "app.py").write_text("one\ntwo\nthree\n")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "-qm", "1"]):
        subprocess.run(["git", *words], cwd=top, check=True)
    return top


@pytest.fixture
def call(server: Server, top: Path, tmp_path: Path) -> Call:
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / ".config")}

    def call(*words: str, **more: str | Path | bytes) -> subprocess.CompletedProcess[bytes]:
        return skerry(*words, server=server.address, **{"cwd": top, **home, **more})  # type: ignore[arg-type]

    return call


@pytest.fixture
def box(server: Server, top: Path) -> Iterator[Callable[[], Sandbox]]:
    with Client(server.address) as client:
        yield lambda: Sandbox.get(f"toy-{top.name}", server=client)
        for sandbox in Sandbox.list(server=client):
            sandbox.delete(force=True, purge=True)


def run(call: Call, prompt: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    return call("agent", *KIT, "-p", prompt, *words)


def test_prompt_changes_the_copy_and_the_next_one_continues(call: Call, box: Callable[[], Sandbox], top: Path) -> None:
    first = run(call, "edit app.py changed")
    assert (first.returncode, first.stdout) == (0, b"edited app.py\n"), first.stderr
    assert b"  Edit /workspace/app.py" in first.stderr
    assert b"app.py" in first.stderr
    assert (top / "app.py").read_text() == "one\ntwo\nthree\n"

    second = run(call, "hello")
    assert (second.returncode, second.stdout) == (0, b"prompt 2: hello\n"), second.stderr
    assert b"building" not in second.stderr
    assert run(call, "hello", "--new").stdout == b"prompt 1: hello\n"

    assert [hunk.path for hunk in box().review.changes().hunks] == ["app.py"]
    context = box().files.read_text("/home/user/.toy/TOY.md")
    assert "Skerry sandbox" in context
    assert box().files.read_text("/home/user/.toy/installed") == "installed\n"
    assert box().files.read_text("/home/user/.toy/started") == "started\n"
    box().stop()
    assert run(call, "hello").stdout == b"prompt 2: hello\n"
    assert box().files.read_text("/home/user/.toy/installed") == "installed\n"
    assert box().files.read_text("/home/user/.toy/started") == "started\nstarted\n"
    assert str(box().cached_info.limits.memory) in ("4G", str(4 << 30))
    listed = call("agent", "ls").stdout.decode().splitlines()
    assert [line.split()[0] for line in listed[1:]] == list(BUILT_IN)


def test_change_is_attributed_to_the_agents_tool_call(server: Server, top: Path, box: Callable[[], Sandbox]) -> None:
    with Wire(server.address, "agent", *KIT, "-p", "slowly app.py changed", cwd=top) as wire:
        wire.shows("  Edit /workspace/app.py")
        box().files.write("/tmp/one", "")
        wire.shows("reported")  # the agent's next output is handled after the report
        box().files.write("/tmp/two", "")
        assert wire.ends() == 0
    (hunk,) = box().review.changes().hunks
    (origin,) = box().review.origin(hunk).entries
    assert (origin.command, origin.within is not None) == ("Edit /workspace/app.py", True)


def test_exit_code_is_the_agents(call: Call, box: Callable[[], Sandbox]) -> None:
    assert run(call, "fail 7").returncode == 7


def test_later_edits_are_brought_in_and_conflicts_are_not(call: Call, box: Callable[[], Sandbox], top: Path) -> None:
    run(call, "hello")
    (top / "app.py").write_text("one\ntwo\nthree\nfour\n")
    done = run(call, "run tail -n 1 app.py")
    assert done.stdout == b"four\n"
    assert b"1 of your files were changed" in done.stderr
    run(call, "edit app.py mine")
    (top / "app.py").write_text("ours\n")
    done = run(call, "run cat app.py")
    assert done.stdout == b"mine\n"
    assert b"your later edits are not in the sandbox" in done.stderr
    assert f"skerry pull toy-{top.name} --prefer host".encode() in done.stderr


def test_settings_are_copied_by_name_and_links_are_not(call: Call, box: Callable[[], Sandbox], tmp_path: Path) -> None:
    own = tmp_path / ".toy"
    (own / "skills" / "one").mkdir(parents=True)
    (own / "rules.md").write_text("be calm")
    (own / "skills" / "one" / "SKILL.md").write_text("a skill")
    (own / "auth.json").write_text("a-login")
    (own / "link").symlink_to("auth.json")
    (own / "skills" / "stolen").symlink_to(own / "auth.json")
    plain, secret = {"command": "npx", "args": ["server"]}, {"command": "npx", "env": {"API_KEY": "a-login"}}
    (own / "settings.json").write_text(json.dumps({"mcpServers": {"plain": plain, "secret": secret}, "key": "a-login"}))
    done = run(call, "hello", "--with-config")
    assert b"copied your settings: ~/.toy/rules.md, ~/.toy/skills\n" in done.stderr
    assert b"copied MCP servers: plain." in done.stderr
    assert b"or paths of this machine: secret\n" in done.stderr
    files = box().files
    assert files.read_text("/home/user/.toy/rules.md") == "be calm"
    assert files.read_text("/home/user/.toy/skills/one/SKILL.md") == "a skill"
    assert json.loads(files.read_text("/home/user/.toy/settings.json")) == {"mcpServers": {"plain": plain}}
    assert box().run(["grep", "-rs", "a-login", "/home/user"]).exit_code == 1
    assert not files.exists("/home/user/.toy/auth.json")


def test_sandbox_of_another_repository_or_agent_is_not_used(
    call: Call, box: Callable[[], Sandbox], top: Path, tmp_path: Path
) -> None:
    run(call, "hello")
    other = tmp_path / "other" / top.name
    other.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", other], check=True)
    assert call("agent", *KIT, "-p", "hello", cwd=other).stdout == b"prompt 1: hello\n"
    names = [one.name for one in Sandbox.list(server=box().client) if one.name]
    assert len(names) == 2
    assert all(name.startswith(f"toy-{top.name}") for name in names)
    done = call("agent", *KIT, "-p", "hello", "--name", f"toy-{top.name}", cwd=other)
    assert done.returncode == 2
    assert b"has another repository" in done.stderr
    Sandbox.create(name="plain", server=box().client)
    assert b"plain is not one of toy" in run(call, "hello", "--name", "plain").stderr


def test_sandbox_of_a_killed_set_up_is_not_used(call: Call, box: Callable[[], Sandbox], top: Path) -> None:
    run(call, "hello")
    box().update(labels={name: text for name, text in box().labels.items() if name != "skerry.agent.ready"})
    done = run(call, "hello")
    assert done.returncode == 2
    assert f"skerry rm toy-{top.name}".encode() in done.stderr
    box().delete(force=True, purge=True)
    assert run(call, "hello").stdout == b"prompt 1: hello\n"


def test_error_event_is_a_failure(call: Call, box: Callable[[], Sandbox]) -> None:
    """Some agents end with 0 after an error if they print events."""
    done = run(call, "error too busy")
    assert done.returncode == 1
    assert b"the agent reported an error: too busy" in done.stderr


def test_later_options_change_the_sandbox_or_are_named(call: Call, box: Callable[[], Sandbox], top: Path) -> None:
    run(call, "hello")
    words = ["-e", "COLOUR=blue", "--memory", "3G", "--allow", "files.example.com", "--kit-arg", "mood=wild"]
    done = run(call, "run echo $COLOUR $MOOD", *words, "--network", "open")
    assert done.stdout == b"blue calm\n"
    assert f"toy-{top.name} exists already: --kit-arg, --network without effect".encode() in done.stderr
    assert "files.example.com" in box().network.show().network.allow
    assert box().info().limits.memory == "3G"
    assert b"without effect" not in run(call, "hello", "--memory", "4G").stderr


def test_key_of_the_store_is_outside_and_is_renewed(
    call: Call, box: Callable[[], Sandbox], server: Server, top: Path
) -> None:
    def set_key(value: bytes) -> None:
        done = call("secret", "set", "toy", "--host", "api.example.com", stdin=value)
        assert done.returncode == 0, done.stderr

    def stored() -> bytes:
        return (server.state_dir / "secrets" / box().id).read_bytes()

    set_key(b"the-first-key-0123456789")
    assert run(call, "run echo $TOY_KEY", "--secret", "TOY_KEY=@toy").stdout.startswith(b"skerry-secret-TOY_KEY-")
    assert b"the-first-key-0123456789" in stored()
    set_key(b"the-second-key-0123456789")
    box().stop()  # the next call starts it
    again = run(call, "run echo $TOY_KEY", "--secret", "TOY_KEY=@toy")
    assert again.stdout.startswith(b"skerry-secret-TOY_KEY-")
    assert b"the-second-key-0123456789" in stored()
    assert b"the-first-key" not in stored()
    assert run(call, "hello").stdout == b"prompt 3: hello\n"  # without the option, the sandbox keeps its key
    assert b"the-second-key-0123456789" in stored()


def test_ctrl_c_interrupts_the_agent(server: Server, top: Path, box: Callable[[], Sandbox]) -> None:
    with Wire(server.address, "agent", *KIT, "-p", "wait", cwd=top) as wire:
        wire.shows("waiting")
        wire.interrupt()
        assert wire.ends() == 130
    assert [one for one in box().processes.list() if one.state == "running"] == []


def test_attempts_run_in_forks_and_are_compared(call: Call, box: Callable[[], Sandbox], top: Path) -> None:
    run(call, "hello")
    done = run(call, "run echo fixed > $(hostname).txt; hostname", "--attempts", "2", "--check", "ls *-2.txt")
    assert done.returncode == 0, done.stderr
    names = [f"toy-{top.name}-{number}" for number in (1, 2)]
    lines = done.stdout.decode().splitlines()
    assert sorted(lines[:2]) == [f"[1] {names[0]}", f"[2] {names[1]}"]
    rows = {line.split()[0]: line for line in lines[2:] if line.strip()}
    assert "exit 2" in rows[names[0]]
    assert rows[names[1]].rstrip().endswith("ok")
    assert f"hint: skerry review {names[1]}".encode() in done.stderr
    assert box().review.changes().hunks == ()  # the prompt ran in the forks only
    assert run(call, "hello", "--name", names[1]).stdout == b"prompt 3: hello\n"
    again = run(call, "fail 3", "--attempts", "2")
    assert again.returncode == 3
    assert f"toy-{top.name}-3, toy-{top.name}-4".encode() in again.stderr
    assert run(call, "hello", "--attempts", "2", "--no-repo").returncode == 2


def test_editor_runs_an_agent_and_its_files_stay_untouched(
    server: Server, box: Callable[[], Sandbox], top: Path
) -> None:
    (top / "notes.txt").write_text("later\n")
    with Editor(server.address, top, *KIT) as editor:
        abilities = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}
        begun = editor.call(1, "initialize", protocolVersion=1, clientCapabilities=abilities)
        assert begun["result"]["authMethods"] == []  # a login could name a command of the editor's machine
        offered = begun["result"]["agentCapabilities"]["offered"]
        assert offered == {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}

        wrong = editor.call(2, "session/new", cwd="/etc", mcpServers=[])
        assert "'/etc'" in wrong["error"]["message"]
        server_of_editor = {"name": "files", "command": "/bin/mcp", "args": [], "env": [{"name": "KEY", "value": "k"}]}
        session = editor.call(3, "session/new", cwd=str(top), mcpServers=[server_of_editor])
        assert session["result"] == {"sessionId": "s1", "servers": []}

        (top / "notes.txt").write_text("latest\n")
        link = {"type": "resource_link", "name": "app.py", "uri": f"file://{top}/app.py#L1"}
        prompt = [{"type": "text", "text": "from the editor"}, link]

        def go_on(message: Any) -> None:
            if message["params"].get("update", {}).get("sessionUpdate") == "tool_call":
                box().files.write("/tmp/reported", "")

        done = editor.call(4, "session/prompt", go_on, sessionId="s1", prompt=prompt)
        assert done["result"] == {"stopReason": "end_turn"}
        updates = [one["params"]["update"] for one in editor.heard]
        texts = [one["content"]["text"] for one in updates if one["sessionUpdate"] == "agent_message_chunk"]
        assert texts[0] == "/workspace ['file:///workspace/app.py#L1']"
        assert "not available in a sandbox" in texts[1]
        (call,) = (one for one in updates if one["sessionUpdate"] == "tool_call")
        assert call["locations"] == [{"path": f"{top}/app.py"}]
        code, messages = editor.end()
    assert code == 0
    assert b"MCP servers of the editor are not passed on: files" in messages
    assert b"fs/write_text_file is not passed to the editor" in messages
    assert b"starting" in messages

    assert (top / "app.py").read_text() == "one\ntwo\nthree\n"
    assert box().files.read_text("/workspace/notes.txt") == "latest\n"  # each prompt brings later edits in
    (hunk,) = box().review.changes("app.py").hunks
    (origin,) = box().review.origin(hunk).entries
    assert (origin.command, origin.within is not None) == ("Edit app.py", True)
    assert [one for one in box().processes.list() if one.state == "running"] == []


def test_messages_of_the_agent_and_of_skerry_do_not_mix(server: Server, box: Callable[[], Sandbox], top: Path) -> None:
    """Two threads write to the editor, and the pipe to it is shorter than a long message."""
    with Editor(server.address, top, *KIT) as editor:
        editor.call(1, "initialize", protocolVersion=1, clientCapabilities={})
        stdin, stdout = editor.process.stdin, editor.process.stdout
        assert stdin is not None
        assert stdout is not None

        def send(id_: str, method: str, **params: object) -> None:
            stdin.write(json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params}).encode() + b"\n")
            stdin.flush()

        send("agent", "session/new", cwd=str(top), mcpServers=[], size=8 << 20)
        data = bytearray(os.read(stdout.fileno(), 100))  # the rest of the message waits for the editor
        for number in range(20):
            send(f"error{number}", "_unknown")
        while data.count(b"\n") < 21:
            data += os.read(stdout.fileno(), 64 << 10) or pytest.fail("the end of the output")
        assert [json.loads(line)["id"] for line in data.splitlines()] == ["agent", *(f"error{n}" for n in range(20))]


def test_attack_home_directory_is_not_copied_to_an_agent(call: Call, server: Server, tmp_path: Path, top: Path) -> None:
    """In a directory without git, all of it is copied: `.ssh`, `.aws` and the store of Skerry's secrets."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519").write_text("a-private-key")
    (tmp_path / "link").symlink_to(tmp_path)
    for place in (tmp_path, tmp_path / ".ssh" / "..", tmp_path / "link", tmp_path.parent, Path("/")):
        for words in (("agent", *KIT, "-p", "hello"), ("create",), ("run", "--", "true")):
            given = (words[0], "--repo", str(place), *words[1:])
            done = call(*given)
            assert done.returncode == 2, given
            assert b"contains your home directory" in done.stderr, done.stderr
            assert b"--include-home" in done.stderr
    with pytest.raises(InvalidRequest, match="home directory"):
        Sandbox(repo=Path.home(), server=server.address).start()
    assert Sandbox.list(server=server.address) == []
    copied = call("run", "--repo", str(tmp_path), "--include-home", "--", "cat", ".ssh/id_ed25519")
    assert copied.stdout == b"a-private-key", copied.stderr


def test_hosts_of_another_kit_are_shown_when_its_sandbox_is_created(call: Call, box: Callable[[], Sandbox]) -> None:
    assert b"the kit toy allows api.example.com:443\n" in run(call, "hello").stderr
    assert b"the kit toy allows" not in run(call, "hello").stderr


def test_changed_file_of_a_kit_makes_another_image(call: Call, box: Callable[[], Sandbox], tmp_path: Path) -> None:
    kit = tmp_path / "changed"
    shutil.copytree(KIT[1], kit)
    first = call("agent", "--kit", str(kit), "-p", "hello")
    assert first.stdout == b"prompt 1: hello\n", first.stderr
    text = (kit / "toy.py").read_text()
    (kit / "toy.py").write_text(text.replace('say(f"prompt', 'say(f"changed prompt'))
    box().delete(force=True, purge=True)
    assert call("agent", "--kit", str(kit), "-p", "hello").stdout == b"changed prompt 1: hello\n"


def test_agent_ends_with_a_killed_editor(server: Server, box: Callable[[], Sandbox], top: Path) -> None:
    with Editor(server.address, top, *KIT) as editor:
        editor.call(1, "initialize", protocolVersion=1, clientCapabilities={})
        editor.process.kill()
        wait_until(lambda: not [one for one in box().processes.list() if one.state == "running"], "the agent's end")


@pytest.fixture
def window(tmp_path: Path, server: Server, top: Path) -> Iterator[Window]:
    with Window(tmp_path, server.address) as made:
        made.enter(f"cd {top.name}; PS1='host> '")
        made.clear()
        yield made


def test_agent_in_a_terminal_is_detached_attached_and_reviewed(
    window: Window, box: Callable[[], Sandbox], top: Path
) -> None:
    start = " ".join(["skerry agent", *KIT])
    window.enter(start)
    window.shows("toy 100x30 truecolor")
    window.enter("hello")
    window.shows("prompt 1: hello")
    window.type("~.")
    window.shows("detached; the agent keeps running")
    window.is_back()
    assert [one.state for one in box().processes.list()] == ["running"]

    window.clear()
    window.enter("skerry agent attach toy")
    window.shows("prompt 1: hello")
    window.enter("edit app.py changed")
    window.shows("edited app.py")
    window.type("~.")
    window.is_back()
    window.clear()
    window.enter(start)
    window.shows("back to it")
    window.enter("quit 5")
    window.shows("1/1 app.py")  # the review
    window.type("q")
    window.is_back()
    window.enter("echo code $?")
    window.shows_line("code 5")

    window.clear()
    window.enter(f"{start} --no-review")
    window.shows("toy 100x30")
    window.enter("hello")
    window.shows("prompt 3: hello")
    window.enter("quit 0")
    window.shows(f"hint: skerry review toy-{top.name}")
    window.is_back()
    window.clear()
    window.enter("skerry agent attach")
    window.shows("not running in a terminal")


def test_terminal_without_a_conversation_starts_a_new_one(window: Window, box: Callable[[], Sandbox]) -> None:
    start = " ".join(["skerry agent", *KIT, "--no-review"])
    window.enter(start)
    window.shows("toy 100x30")
    window.enter("hello")
    window.shows("prompt 1: hello")
    window.enter("quit 0")
    window.is_back()
    box().run("rm .toy/conversation", cwd="/home/user", check=True)
    window.clear()
    window.enter(start)
    window.shows("no conversation to continue")
    window.shows("toy 100x30")
    window.enter("quit 0")
    window.is_back()


def test_agent_without_a_prompt_needs_a_terminal(call: Call) -> None:
    done = call("agent", *KIT)
    assert done.returncode == 2
    assert b"skerry agent AGENT -p PROMPT" in done.stderr
