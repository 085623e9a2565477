"""The guide to terminals, walked through in a real one: every command that it prints is typed here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from cli.multiplexer import Window
from cli.test_guides import blocks, commands
from serving import Server

from skerry import Client, Sandbox

GUIDE = "terminals.md"
PROMPT = "user@dev:/workspace$"


def test_the_guides_commands_do_what_it_says(own_server: Server, tmp_path: Path) -> None:
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
        window.shows("left; it goes on. Come back: skerry attach dev p-")
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
        enter("id=$(skerry exec -dt dev -- python3 -i)", "id=")
        window.is_back()
        enter("echo 'print(6*7); exit(5)' | skerry attach dev $id; echo $?", "42")
        window.shows_line("5")
        assert sorted(typed) == sorted(command for command, _ in commands(GUIDE))


def test_the_guides_program_needs_nothing_of_ours(own_server: Server) -> None:
    server = own_server.start("--listen", "127.0.0.1:0")
    (program,) = blocks(GUIDE, "py")
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
