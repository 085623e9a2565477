"""run, and processes that go on: by a model."""

from __future__ import annotations

import pytest
from talking import Talk

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_command_runs_in_the_default_sandbox_without_any_id(talk: Talk) -> None:
    first = await talk.call("run", command="echo out; echo err >&2; exit 3")
    assert (first["stdout"], first["stderr"], first["exit_code"], first["ok"]) == ("out\n", "err\n", 3, False)
    again = await talk.call("run", command=["printf", "%s", "a b"], sandbox=first["sandbox"])
    assert (again["stdout"], again["ok"]) == ("a b", True)
    assert (await talk.call("run", command="true"))["sandbox"] == first["sandbox"]


async def test_stdin_that_looks_like_json_arrives_as_it_is(talk: Talk) -> None:
    assert (await talk.call("run", command="cat", stdin='{"a": [1]}'))["stdout"] == '{"a": [1]}'
    assert (await talk.call("run", command="cat", stdin="null"))["stdout"] == "null"


async def test_directory_variables_and_user_are_the_commands(talk: Talk) -> None:
    ran = await talk.call("run", command='pwd; echo "$A"; id -un', cwd="/tmp", env={"A": "ä"}, user="root")
    assert ran["stdout"] == "/tmp\nä\nroot\n"


async def test_a_session_keeps_its_directory_and_variables(talk: Talk) -> None:
    assert (await talk.call("run", command="cd /usr && X=7", session="s"))["cwd"] == "/usr"
    assert (await talk.call("run", command="echo $PWD $X", session="s"))["stdout"] == "/usr 7\n"


async def test_a_run_has_a_bounded_time_and_points_to_spawn(talk: Talk) -> None:
    ran = await talk.call("run", command="echo begun; sleep 60", timeout=0.3)
    assert (ran["timed_out"], ran["ok"], ran["stdout"]) == (True, False, "begun\n")
    assert "spawn" in ran["hint"]
    assert "less than or equal to 600" in await talk.fails("run", command="true", timeout=601)


async def test_a_run_that_is_to_be_kept_goes_on_when_its_time_is_over(talk: Talk) -> None:
    ran = await talk.call("run", command="sleep 60", timeout=0.2, keep=True)
    assert (ran["running"], ran["ok"]) == (True, False)
    assert (await talk.call("kill", process=ran["process"]))["state"] == "exited"
    assert (await talk.call("run", command="echo done", keep=True))["stdout"] == "done\n"


async def test_too_much_output_is_shortened_and_the_rest_can_be_read(talk: Talk) -> None:
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


async def test_the_client_hears_that_a_run_goes_on(talk: Talk) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    arguments = {"command": "echo first; printf 'now\\033[31m here\\n'; sleep 0.7", "timeout": 20}
    await talk.raw("run", arguments, progress_callback=hear)
    assert heard
    assert heard[0][1:] == (20, "now\\x1b[31m here")


async def test_long_work_is_spawned_and_waited_for_with_a_cursor(talk: Talk) -> None:
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


async def test_a_text_that_never_comes_is_said_not_to_have_come(talk: Talk) -> None:
    process = (await talk.call("spawn", command="echo aaaaaaaaaaaa"))["process"]
    await talk.call("wait", process=process)
    assert (await talk.call("wait", process=process, until="never", seconds=5))["found"] is False


async def test_a_process_is_killed_with_what_it_started(talk: Talk) -> None:
    process = (await talk.call("spawn", command="sleep 600 & sleep 600"))["process"]
    ended = await talk.call("kill", process=process)
    assert (ended["state"], ended["signal"], ended["children"]) == ("exited", "KILL", [])
    assert (await talk.call("kill", process=process, signal="TERM"))["state"] == "exited"
    assert "list_processes" in await talk.fails("kill", process="p-aaaaaaaaaa")


async def test_output_is_cut_between_characters(talk: Talk) -> None:
    process = (await talk.call("run", command="printf 'a'; printf 'ä%.0s' $(seq 100)"))["process"]
    first = await talk.call("read_output", process=process, max_output=100)
    assert first["output"] == "a" + "ä" * 49
    rest = await talk.call("read_output", process=process, offset=first["offset"], max_output=1000)
    assert (rest["output"], rest["more"]) == ("ä" * 51, False)
