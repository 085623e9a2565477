"""How the sandboxes of `skerry mcp` are made: as a person's options and project say, whatever a model asks for."""

from __future__ import annotations

import subprocess
from pathlib import Path

from serving import Server
from talking import MODES, on_stdio, skerry

PROJECT = """
setup = ["echo prepared > ~/prepared"]
[env]
FROM = "project"
"""


async def test_options_and_project_hold_for_all_sandboxes_of_a_connection(server: Server, tmp_path: Path) -> None:
    (tmp_path / "skerry.toml").write_text(PROJECT)
    options = ("--memory", "300M", "-e", "GIVEN=yes", "--allow", "db.internal:5432")
    async with on_stdio(server, MODES[0], *options, cwd=tmp_path) as talk:
        ran = await talk.call("run", command="echo $FROM $GIVEN; cat ~/prepared")
        assert ran["stdout"] == "project yes\nprepared\n"
        more = await talk.call("create_sandbox", cpus=0.5, env={"ASKED": "too"})
        assert (more["memory"], more["cpus"]) == ("300M", 0.5)
        ran = await talk.call("run", command="echo $FROM $ASKED; cat ~/prepared", sandbox=more["sandbox"])
        assert ran["stdout"] == "project too\nprepared\n"
        for sandbox in (None, more["sandbox"]):
            told = await talk.call("network_refused", **({} if sandbox is None else {"sandbox": sandbox}))
            assert told["allowed"] == ["db.internal:5432"]


def test_a_wrong_option_is_said_at_the_start(server: Server) -> None:
    for wrong in (["--memory", "lots"], ["--name", "No Name"], ["--size", "vast"]):
        words = [skerry(), "--server", server.address, "mcp", *wrong]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"error:" in done.stderr
