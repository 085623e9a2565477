"""The tools run, spawn, wait, read_output and kill."""

from __future__ import annotations

import pytest
from support.mcp_clients import Talk

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_command_without_an_id_runs_in_the_default_sandbox(talk: Talk) -> None:
    first = await talk.call("run", command="echo out; echo err >&2; exit 3")
    assert (first["stdout"], first["stderr"], first["exit_code"], first["ok"]) == ("out\n", "err\n", 3, False)
    again = await talk.call("run", command=["printf", "%s", "a b"], sandbox=first["sandbox"])
    assert (again["stdout"], again["ok"]) == ("a b", True)
    assert (await talk.call("run", command="true"))["sandbox"] == first["sandbox"]


async def test_stdin_that_looks_like_json_is_unchanged(talk: Talk) -> None:
    assert (await talk.call("run", command="cat", stdin='{"a": [1]}'))["stdout"] == '{"a": [1]}'
    assert (await talk.call("run", command="cat", stdin="null"))["stdout"] == "null"


async def test_directory_variables_and_user_apply_to_the_command(talk: Talk) -> None:
    ran = await talk.call("run", command='pwd; echo "$A"; id -un', cwd="/tmp", env={"A": "ä"}, user="root")
    assert ran["stdout"] == "/tmp\nä\nroot\n"


async def test_session_keeps_its_directory_and_variables(talk: Talk) -> None:
    assert (await talk.call("run", command="cd /usr && X=7", session="s"))["cwd"] == "/usr"
    assert (await talk.call("run", command="echo $PWD $X", session="s"))["stdout"] == "/usr 7\n"


async def test_run_times_out_and_suggests_spawn(talk: Talk) -> None:
    ran = await talk.call("run", command="echo begun; sleep 60", timeout=0.3)
    assert (ran["timed_out"], ran["ok"], ran["stdout"]) == (True, False, "begun\n")
    assert "spawn" in ran["hint"]
    assert "less than or equal to 600" in await talk.fails("run", command="true", timeout=601)


async def test_run_with_keep_continues_after_the_timeout(talk: Talk) -> None:
    ran = await talk.call("run", command="sleep 60", timeout=0.2, keep=True)
    assert (ran["running"], ran["ok"]) == (True, False)
    assert (await talk.call("kill", process=ran["process"]))["state"] == "exited"
    assert (await talk.call("run", command="echo done", keep=True))["stdout"] == "done\n"


async def test_long_output_is_shortened_and_readable_in_parts(talk: Talk) -> None:
    ran = await talk.call("run", command="seq 1 30000", max_output=1000)
    assert len(ran["stdout"]) < 1100
    assert ran["stdout"].startswith("1\n2\n")
    assert ran["stdout"].endswith("29999\n30000\n")
    assert ran["truncated"]
    assert f'read_output(process="{ran["process"]}")' in ran["hint"]
    text, offset, more = "", 0, True
    while more:
        page = await talk.call("read_output", process=ran["process"], offset=offset, max_output=40_000)
        text, offset, more = text + page["output"], page["offset"], page["more"]
    assert text == "".join(f"{number}\n" for number in range(1, 30001))


async def test_run_reports_progress(talk: Talk) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    arguments = {"command": "echo first; printf 'now\\033[31m here\\n'; sleep 0.7", "timeout": 20}
    await talk.raw("run", arguments, progress_callback=hear)
    assert heard
    assert heard[0][1:] == (20, "now\\x1b[31m here")


async def test_spawned_process_is_waited_for_with_an_offset(talk: Talk) -> None:
    process = (await talk.call("spawn", command="echo one; read line; echo $line; read line; exit 4"))["process"]
    seen = await talk.call("wait", process=process, until="one")
    assert (seen["output"], seen["state"], seen["found"]) == ("one\n", "running", True)
    assert (await talk.call("write_input", process=process, text="two\n"))["state"] == "running"
    then = await talk.call("wait", process=process, until="two", offset=seen["offset"])
    assert then["output"] == "two\n"
    still = await talk.call("wait", process=process, seconds=0, offset=then["offset"])
    assert (still["state"], still["output"]) == ("running", "")
    assert f"offset={still['offset']}" in still["hint"]
    await talk.call("write_input", process=process, close=True)
    end = await talk.call("wait", process=process, offset=then["offset"])
    assert (end["state"], end["exit_code"], end["more"]) == ("exited", 4, False)
    listed = (await talk.call("list_processes"))["processes"]
    assert [one["exit_code"] for one in listed if one["process"] == process] == [4]


async def test_wait_reports_a_text_that_was_not_printed(talk: Talk) -> None:
    process = (await talk.call("spawn", command="echo aaaaaaaaaaaa"))["process"]
    await talk.call("wait", process=process)
    assert (await talk.call("wait", process=process, until="never", seconds=5))["found"] is False


async def test_kill_ends_a_process_and_its_children(talk: Talk) -> None:
    process = (await talk.call("spawn", command="sleep 600 & sleep 600"))["process"]
    ended = await talk.call("kill", process=process)
    assert (ended["state"], ended["signal"], ended["children"]) == ("exited", "KILL", [])
    assert (await talk.call("kill", process=process, signal="TERM"))["state"] == "exited"
    assert "list_processes" in await talk.fails("kill", process="p-aaaaaaaaaa")


async def test_output_is_split_between_characters(talk: Talk) -> None:
    process = (await talk.call("run", command="printf 'a'; printf 'ä%.0s' $(seq 100)"))["process"]
    first = await talk.call("read_output", process=process, max_output=100)
    assert first["output"] == "a" + "ä" * 49
    rest = await talk.call("read_output", process=process, offset=first["offset"], max_output=1000)
    assert (rest["output"], rest["more"]) == ("ä" * 51, False)
