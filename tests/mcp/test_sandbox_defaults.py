"""Sandboxes of `skerry mcp` follow the options and the project of the person, not the model."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.mcp_clients import MODES, on_stdio, skerry
from support.patch_sets import repository
from support.server import Server

from skerry import AsyncSandbox

PROJECT = """
setup = ["echo prepared > ~/prepared"]
[env]
FROM = "project"
"""


async def test_options_and_project_apply_to_all_sandboxes(server: Server, tmp_path: Path) -> None:
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
            told = await talk.call("network_denied", **({} if sandbox is None else {"sandbox": sandbox}))
            assert told["allowed"] == ["db.internal:5432"]


def test_invalid_option_is_reported_at_the_start(server: Server) -> None:
    for wrong in (["--memory", "lots"], ["--name", "No Name"], ["--size", "vast"]):
        words = [skerry(), "--server", server.address, "mcp", *wrong]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"error:" in done.stderr


async def test_named_sandbox_is_refreshed_when_nothing_conflicts(server: Server, tmp_path: Path) -> None:
    project = repository(tmp_path / "project", {"a.txt": b"1\n2\n3\n4\n5\n"})
    options = ("--name", "refreshed", "--repo", str(project))
    async with on_stdio(server, MODES[0], *options) as talk:
        await talk.call("run", command="sed -i s/1/one/ a.txt")
    (project / "a.txt").write_text("1\n2\n3\n4\nfive\n")
    async with on_stdio(server, MODES[0], *options) as talk:
        assert (await talk.call("run", command="cat a.txt"))["stdout"] == "one\n2\n3\n4\nfive\n"
        (project / "a.txt").write_text("ONE\n2\n3\n4\nfive\n")
    with (tmp_path / "stderr").open("w+") as errors:
        async with on_stdio(server, MODES[0], *options, errors=errors) as talk:
            assert (await talk.call("run", command="head -n1 a.txt"))["stdout"] == "one\n", "conflicts change nothing"
        errors.seek(0)
        assert "a.txt: line 1: changed here and in the sandbox" in errors.read()
    async with talk.sdk() as client:
        await (await AsyncSandbox.get("refreshed", server=client)).delete()
