"""Type every command of the terminal guide in a real terminal."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.pages import ROOT, commands, texts
from support.server import Server
from support.tmux import Window

from skerry import Client, Sandbox

GUIDE = ROOT / "docs/guides/terminals.md"
PROMPT = "user@dev:/workspace$"


def test_terminal_guide_commands_have_documented_effects(own_server: Server, tmp_path: Path) -> None:
    own_server.start()
    with Window(tmp_path, own_server.address) as window:
        typed: list[str] = []

        def enter(command: str, shown: str, process: str = "") -> None:
            typed.append(command)
            window.clear()
            window.enter(command.replace("p-4hq6t2wz7n", process))
            window.shows(shown)

        enter("skerry create --name dev", "sb-")
        enter("skerry shell dev", PROMPT)
        window.press("Enter")
        window.type("~.")
        window.shows("detached; the process keeps running. To return: skerry attach dev p-")
        enter("skerry ps dev", "/bin/bash -l")
        process = re.findall(r"^p-[a-z2-7]{10}", window.screen(), re.MULTILINE)[-1]
        enter("skerry attach dev p-4hq6t2wz7n", PROMPT, process)
        window.enter("exit")
        enter("skerry shell dev -- python3", ">>>")
        window.enter("exit()")
        enter("skerry shell --user root --cwd /etc dev", "root@dev:/etc#")
        window.enter("exit")
        enter("skerry exec -it dev bash", PROMPT)
        window.enter("exit")
        for command, shown, leave in (
            ("skerry shell", "/workspace$", "exit"),
            ("skerry shell --memory 512M -- python3", ">>>", "exit()"),
            ("skerry run -it -- bash", "/workspace$", "exit"),
            ("skerry run -it base", "/workspace$", "exit"),
        ):
            enter(command, shown)
            window.enter(leave)
        enter("id=$(skerry exec -dt dev -- python3 -i)", "id=")
        window.is_back()
        enter("echo 'print(6*7); exit(5)' | skerry attach dev $id; echo $?", "42")
        window.shows_line("5")
        enter("skerry rm dev", "dev: deleted")
        assert sorted(typed) == sorted(commands(GUIDE))


def test_terminal_guide_ticket_opens_a_terminal_of_a_page(own_server: Server) -> None:
    server = own_server.start("--listen", "127.0.0.1:0", SKERRY_SERVER_ALLOWED_ORIGINS="https://app.example.com")
    *_, program, _ = texts(GUIDE, "python")
    with Client(server.address) as client:
        url = client.info()["addresses"][1].removeprefix("http://")
        secret = client.tokens.create(scope="use").secret
    done = subprocess.run(
        [sys.executable, "-c", program.replace("127.0.0.1:7070", url)], capture_output=True, text=True, timeout=60,
        env={"SKERRY_TOKEN": secret or ""}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert program.count("127.0.0.1:7070") == 2
    assert done.stdout.startswith('\'{"type":"started"')
    assert "hello" in done.stdout
    assert '"exit_code":5' in done.stdout


def test_terminal_guide_program_needs_no_skerry_package(own_server: Server) -> None:
    server = own_server.start("--listen", "127.0.0.1:0")
    *_, program = texts(GUIDE, "python")
    with Client(server.address) as client, Sandbox(server=client) as sandbox:
        process = sandbox.spawn('read -r l; eval "$l"; until stty size | grep "40 120"; do sleep 0.05; done', pty=True)
        url = client.info()["addresses"][1].removeprefix("http://")
        secret = client.tokens.create(scope="admin").secret
        for old, new in (("127.0.0.1:7070", url), ("/dev/", f"/{sandbox.id}/"), ("p-4hq6t2wz7n", process.id)):
            assert old in program
            program = program.replace(old, new)
        done = subprocess.run(
            [sys.executable, "-c", program], env={"SKERRY_TOKEN": secret}, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "hello" in done.stdout
    assert "40 120" in done.stdout
    assert '"type":"exit"' in done.stdout
