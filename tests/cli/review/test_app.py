"""Review commands on a recorded terminal, with a real server and a hostile tree."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import SKERRY, environment, skerry
from support.recorded_terminal import Wire, raw_controls
from support.review_values import HOSTILE
from support.server import Server

from skerry import Conflict, Sandbox
from skerry.types import Decisions

NAME = "hostile"
LEAVES = b"\x1b[?2004l\x1b[?7h\x1b[?25h\x1b[0m\x1b[?1049l"
NAMES = [b"new\nline", b"\x1b]0;title\x07\x1b[31m", "\u202egnp.exe".encode(), b"\xff\xfe", b" space ", b"tab\tname"]
BAD = [text.replace("\ud800", "").encode("utf-8", "surrogateescape") for text in HOSTILE]
PREPARE = f"""
import os
for number, name in enumerate({NAMES!r}):
    open(name, "wb").write(b"".join(b"line %d\\n" % line for line in range(40)))
start = "import os\\n\\n\\ndef login(user):\\n    return foo(user)\\n"
open("app.py", "w").write(start + "".join(f"# {{n}}\\n" for n in range(30)))
open("data", "wb").write(bytes(range(256)))
"""
HARM = f"""
import os
bad = {BAD!r}
for name in {NAMES!r}:
    text = open(name, "rb").read()
    open(name, "wb").write(text.replace(b"line 3\\n", b"\\n".join(bad) + b"\\n"))
open("app.py", "a").write("x = 1   \\n\\ty = '" + "z" * 5000 + "'\\r\\n")
open("wide", "wb").write(b"\\n".join(bad))
os.symlink("\\x1b[31mpasswd", "link")
os.chmod("data", 0o755)
open("data", "ab").write(b"\\x1b]0;x\\x07")
open("Makefile", "w").write("all:\\n\\techo hello\\n")
print("\\x1b]0;printed\\x07\\x1b[2J")
"""


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(name=NAME, server=server.address) as sandbox:
        sandbox.run(["python3", "-c", PREPARE], check=True)
        sandbox.review.start()
        sandbox.run(["python3", "-c", HARM + f"\n# {''.join(HOSTILE[1:4])}"], check=True)
        yield sandbox
        sandbox.delete()


def test_no_command_sends_raw_control_bytes_to_the_terminal(sandbox: Sandbox, server: Server) -> None:
    hunks = sandbox.review.changes().hunks
    odd = next(hunk for hunk in hunks if hunk.path.startswith("new"))
    commands = (
        ["diff", "--no-pager", NAME], ["diff", "--stat", "--no-pager", NAME], ["diff", "--json", NAME],
        ["history", "--no-pager", NAME], ["history", "-p", "--no-pager", NAME], ["history", "--json", NAME],
        ["review", "--list", NAME], ["review", "--json", NAME], ["why", "--no-pager", NAME, odd.id],
        ["accept", NAME, odd.id], ["reject", NAME, odd.id, "--reason", "no"], ["accept", NAME, "no such file"],
        ["why", NAME, "h-\x1b[31m"],
    )  # fmt: skip
    for words in commands:
        with Wire(server.address, *words) as wire:
            wire.ends()
            assert wire.sent, words
            assert raw_controls(bytes(wire.sent)) == b"", words


def test_review_screens_are_escaped_and_the_terminal_is_restored(sandbox: Sandbox, server: Server) -> None:
    with Wire(server.address, "review", NAME) as wire:
        wire.shows("1/")
        for _ in range(len(sandbox.review.changes().hunks) + 1):
            at = len(wire.sent)
            wire.press(b"J")
            wire.shows("/", since=at)
        wire.press(b"g")
        wire.shows("file: ")
        wire.press(b"\r?")
        wire.shows("any key: back")
        wire.resize(50, 12)
        wire.process.send_signal(28)
        wire.press(b"x")
        wire.press(b"q")
        assert wire.ends() == 0
        assert raw_controls(bytes(wire.sent)) == b""
        assert LEAVES in wire.sent
        assert wire.modes == wire.before


@pytest.mark.parametrize("how", ["key", "signal", "close"])
def test_ctrl_c_signal_and_closed_window_restore_the_terminal(sandbox: Sandbox, server: Server, how: str) -> None:
    with Wire(server.address, "review", NAME) as wire:
        wire.shows("1/")
        if how == "close":
            wire.process.send_signal(1)
        elif how == "key":
            wire.press(b"\x03")
        else:
            wire.interrupt()
        assert wire.ends() == {"key": 130, "signal": 130, "close": 129}[how]
        assert wire.modes == wire.before
        assert LEAVES in wire.sent


def test_without_colours_states_are_words(sandbox: Sandbox, server: Server) -> None:
    with Wire(server.address, "diff", "--no-pager", NAME, "app.py", NO_COLOR="1") as wire:
        wire.ends()
        assert b"\x1b" not in wire.sent
        assert b"misleading text: line +36: trailing spaces" in wire.sent
        assert "x = 1···".encode() in wire.sent
        assert b"more characters" in wire.sent
        assert b"\\r" not in wire.sent.split(b"more characters")[0]
    with Wire(
        server.address, "diff", "--no-pager", NAME, "app.py", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"
    ) as wire:
        wire.ends()
        assert bytes(wire.sent).isascii()


def test_diff_to_a_pipe_is_a_patch_that_git_applies_exactly(sandbox: Sandbox, server: Server, tmp_path: Path) -> None:
    sandbox.files.download("/workspace", tmp_path / "now")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path / "now", check=True)
    patch = skerry("diff", NAME, server=server.address).stdout
    done = subprocess.run(
        ["git", "apply", "-R", "-"], cwd=tmp_path / "now", input=patch, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "now" / "app.py").read_text().count("\n") == 35
    assert stat.S_IMODE((tmp_path / "now" / "data").stat().st_mode) & 0o111 == 0
    for name in NAMES:
        assert Path(os.fsdecode(os.fsencode(tmp_path / "now") + b"/" + name)).read_bytes().count(b"\n") == 40


def test_review_without_a_terminal_names_the_alternatives(sandbox: Sandbox, server: Server) -> None:
    done = skerry("review", NAME, server=server.address)
    assert done.returncode == 2
    assert b"`skerry review` needs a terminal" in done.stderr
    assert b"hint: without a terminal: skerry review hostile --list, skerry accept, skerry reject" in done.stderr
    with Wire(server.address, "review", NAME, TERM="dumb") as wire:
        assert wire.ends() == 2


def test_accept_all_holds_back_flagged_hunks(sandbox: Sandbox, server: Server) -> None:
    done = skerry("accept", "--all", NAME, server=server.address)
    assert done.returncode == 3, done.stderr
    assert b"held back: Makefile: " in done.stderr
    listed = skerry("review", "--list", NAME, server=server.address).stdout.decode()
    held = [line.split()[0] for line in listed.splitlines() if " Makefile " in line]
    assert skerry("accept", NAME, *held, server=server.address).returncode == 0
    assert skerry("dismiss", NAME, "app.py", "--reason", "no\u202e", server=server.address).returncode == 0
    found = json.loads(skerry("review", "--json", NAME, "app.py", server=server.address).stdout)
    assert {hunk["state"] for file in found["files"] for hunk in file["hunks"]} <= {"rejected", "accepted"}
    assert skerry("accept", NAME, server=server.address).returncode == 2
    cut = skerry("accept", NAME, "h-12ab", server=server.address)
    assert (cut.returncode, b"'h-12ab' is not a hunk ID" in cut.stderr) == (2, True)
    sandbox.review.decide(Decisions(do="reopen", all=True))


def test_decision_of_another_user_of_the_socket_is_replaced_only_with_force(
    sandbox: Sandbox, server: Server, tmp_path: Path
) -> None:
    def other(*words: str) -> subprocess.CompletedProcess[bytes]:
        """Run `skerry` as another user with access to the socket, like a member of its group."""
        return subprocess.run(
            ["setpriv", "--reuid", "65534", "--inh-caps", "+dac_override", "--ambient-caps", "+dac_override",
             *SKERRY, *words],
            env=environment(SKERRY_SERVER=server.address, HOME=str(tmp_path)), stdin=subprocess.DEVNULL,
            capture_output=True, timeout=100, check=False,
        )  # fmt: skip

    def now() -> tuple[str, str | None]:
        found = sandbox.review.hunk(hunk)
        return found.state, found.decided_by

    hunk = sandbox.review.changes("link").hunks[0].id
    assert skerry("accept", NAME, hunk, server=server.address).returncode == 0
    conflict = other("reject", NAME, hunk)
    assert (conflict.returncode, now()) == (2, ("accepted", "uid:0")), conflict.stderr
    assert f"error: {hunk} was accepted meanwhile by uid:0\n".encode() in conflict.stderr
    assert b"--force replaces the decision" in conflict.stderr
    replaced = other("reject", NAME, hunk, "--force")
    assert replaced.stderr.decode().splitlines()[:1] == [f"{hunk}  was accepted by uid:0"]
    assert now() == ("rejected", "uid:65534")
    for number, words in enumerate((["accept"], ["accept", "--json"])):  # the SDK's rule would let uid 65534 do that
        own = other(*words, NAME, hunk)
        assert (own.returncode, now()) == (2, ("rejected", "uid:65534")), number
        assert b"was rejected before by uid:65534" in own.stderr
    with pytest.raises(Conflict, match="was rejected meanwhile by uid:65534"):
        sandbox.review.accept(hunk)
    sandbox.review.decide(Decisions(do="reopen", all=True))


def test_edit_uses_the_editor_and_is_shown_before_accepting(sandbox: Sandbox, server: Server, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/hello/goodbye/' \"$1\"\n")
    editor.chmod(0o755)
    with Wire(server.address, "review", NAME, "Makefile", EDITOR=str(editor)) as wire:
        wire.shows("FLAGGED: ")
        wire.press(b"e")
        wire.shows("this would be applied instead")
        wire.shows("goodbye")
        wire.press(b"Y")
        wire.shows("All hunks are decided")
        wire.press(b"u")
        wire.shows("undone: Makefile")
        wire.press(b"R")  # the filter by path still holds
        wire.shows("no new changes")
        wire.press(b"q")
        assert wire.ends() == 0
    (hunk,) = sandbox.review.changes(paths=("Makefile",)).hunks
    assert hunk.state == "open"


def test_watch_shows_a_change_and_keys_decide_about_it(sandbox: Sandbox, server: Server) -> None:
    with Wire(server.address, "watch", NAME) as wire:
        wire.shows("? help  q quit")
        sandbox.run(["sed", "-i", "s/foo(user)/bar(user)/", "app.py"])
        wire.shows("$ sed -i 's/foo(user)/bar(user)/' app.py")
        wire.shows("app.py: a accept")
        wire.press(b"a")
        wire.shows("1 accepted in app.py")
        wire.press(b"u")
        wire.shows("undone")
        wire.press(b"rnot so\r")
        wire.shows("1 rejected in app.py")
        (rejected,) = [hunk for hunk in sandbox.review.changes(paths=("app.py",)).hunks if "bar(user)" in hunk.text]
        assert (rejected.state, rejected.reason) == ("rejected", "not so")
        wire.press(b"q")
        assert wire.ends() == 0
        assert wire.modes == wire.before
        assert raw_controls(bytes(wire.sent)) == b""


def test_shell_completes_hunks_and_plain_paths(sandbox: Sandbox, server: Server) -> None:
    words = {"_SKERRY_COMPLETE": "bash_complete", "COMP_CWORD": "3"}
    found = skerry(server=server.address, COMP_WORDS=f"skerry accept {NAME} ", **words).stdout.decode().splitlines()
    assert "plain,app.py" in found
    assert {f"plain,{hunk.id}" for hunk in sandbox.review.changes().hunks} <= set(found)
    assert all(line.isascii() and line.isprintable() for line in found)
    only = skerry(server=server.address, COMP_WORDS=f"skerry why {NAME} a", **words).stdout
    assert only.split() == []
    paths = skerry(server=server.address, COMP_WORDS=f"skerry apply {NAME} ", **words).stdout.decode().splitlines()
    assert {"plain,app.py", "plain,Makefile"} <= set(paths)
    assert not any(line.startswith("plain,h-") for line in paths)


def test_watch_json_is_one_object_per_line(sandbox: Sandbox, server: Server) -> None:
    (fork,) = sandbox.fork()
    with Wire(server.address, "watch", "--json", NAME, fork.id) as wire:
        deadline = time.monotonic() + 60
        while b"change" not in wire.sent and time.monotonic() < deadline:
            sandbox.run("date +%N > stamp")
        line = next(line for line in bytes(wire.sent).splitlines() if b'"change"' in line)
        found = json.loads(line)
        assert found["entry"]["command"] == "date +%N > stamp"
        assert found["files"][0]["path"] == "stamp"
        while fork.id.encode() not in wire.sent and time.monotonic() < deadline:
            fork.run("date +%N > stamp")
        assert fork.id.encode() in wire.sent
        wire.interrupt()
        assert wire.ends() == 130
    fork.delete()


def test_200000_lines_stay_responsive_and_are_marked_as_cut(sandbox: Sandbox, server: Server) -> None:
    sandbox.run("seq 200000 > long")
    with Wire(server.address, "review", NAME, "long", PAGER="head -n 2") as wire:
        wire.shows("1/1 long")
        wire.press(b"\x1b[F")
        wire.shows("CUT: about ")
        assert len(wire.sent) < 200_000
        at = len(wire.sent)
        wire.press(b"v")
        wire.shows("new: a file", since=at)
        assert len(wire.sent) < 200_000
        wire.press(b"q")
        assert wire.ends() == 0


@pytest.mark.parametrize(("line", "ending"), [("exit 3", "exit 3"), ("kill -9 $$", "signal KILL")])
def test_command_that_failed_is_named_in_review_history_and_why(
    sandbox: Sandbox, server: Server, line: str, ending: str
) -> None:
    def shown(*words: str) -> tuple[str, str]:
        done = skerry(*words, server=server.address)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode(), done.stderr.decode()

    command = f"echo half > half.txt; {line}"
    sandbox.run(command)
    with_time = re.compile(rf"{re.escape(f'$ {command}')}  {ending} · \d+(\.\d)? m?s\b")
    for words in ((NAME, "half.txt"), (NAME,)):  # also when the paths leave its changes out
        failed = [one for one in shown("review", "--list", *words)[1].splitlines() if one.startswith("failed: ")]
        assert with_time.search(failed[-1].removeprefix("failed: ")), failed
    assert with_time.search(shown("history", "--no-pager", NAME, "half.txt")[0].splitlines()[-1])
    [hunk] = sandbox.review.changes("half.txt").hunks
    made = [one for one in shown("why", "--no-pager", NAME, hunk.id)[0].splitlines() if one.startswith("made by  ")]
    assert with_time.search(made[-1]), made
    sandbox.run("rm half.txt; echo done", check=True)
