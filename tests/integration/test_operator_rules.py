"""The operator's rules for commands and code: the longest run time and the languages."""

from __future__ import annotations

import pytest
from support.server import Server, wait_until

from skerry import Lifecycle, Limits, Sandbox, execute_code, execute_with_limits, supported_languages
from skerry.errors import PermissionDenied, QuotaExceeded

OPERATORS = """
[max]
timeout = "1s"
memory = "4G"

[languages]
allow = ["py", "bash", "awk"]

[languages.awk]
run = ["awk", "-f", "{file}"]
"""


def test_maximum_timeout_ends_commands_and_code_with_higher_timeouts_and_without(sandbox: Sandbox) -> None:
    for timeout in (None, 600):
        ended = sandbox.run("sleep 600", timeout=timeout)
        assert ended.timed_out
        assert "max.timeout" in (ended.hint or "")
        code = sandbox.code.run("while True: pass", timeout=timeout)
        assert code.timed_out
        assert "max.timeout" in (code.hint or "")
    spawned = sandbox.spawn("sleep 600").wait(timeout=60)
    assert spawned.timed_out
    assert sandbox.session("kept").run("sleep 600", timeout=None).timed_out
    assert sandbox.run("sleep 600", timeout=0.1).timed_out
    assert sandbox.run("true", timeout=None).ok


def test_maximum_timeout_ends_start_commands_and_terminals(server: Server) -> None:
    with Sandbox(server=server.address, lifecycle=Lifecycle(on_start=["sleep 600"])) as sandbox:
        wait_until(lambda: [one for one in sandbox.processes.list() if one.id == "on-start-0"], "the start command")
        assert sandbox.processes.get("on-start-0").wait(timeout=60).timed_out
        assert sandbox.spawn("bash", pty=True).wait(timeout=60).timed_out


def test_execute_code_names_the_maximum_of_a_higher_timeout(server: Server) -> None:
    refused = execute_code("python", "1", timeout=600, server=server.address)
    assert (refused.status, refused.exit_code) == ("setup_error", -1)
    assert "maximum of 1 s (max.timeout)" in (refused.error_message or "")
    late = execute_code("python", "while True: pass", server=server.address)
    assert (late.status, late.limits_applied.time_limit_seconds) == ("timeout", 1)
    assert (late.error_message or "").startswith("it timed out after 1 s; use a larger timeout=")


def test_execute_code_names_the_quota_of_a_larger_sandbox(server: Server) -> None:
    limits = Limits(memory="64G")
    refused = execute_with_limits("python", "1", limits, server=server.address)
    assert (refused.status, refused.exit_code) == ("setup_error", -1)
    assert "max.memory" in (refused.error_message or "")
    with pytest.raises(QuotaExceeded, match=r"max\.memory"):
        execute_with_limits("python", "1", limits, check=True, server=server.address)


def test_only_allowed_languages_are_listed_and_run(server: Server, sandbox: Sandbox) -> None:
    assert supported_languages(server.address) == ["python", "bash", "awk"]
    assert [row.name for row in sandbox.code.languages()] == ["python", "bash", "awk"]
    assert sandbox.code.run("1 + 1").text == "2"
    with pytest.raises(PermissionDenied, match=r"javascript code is not allowed.*\n.*python, bash, awk"):
        sandbox.code.run("1", "js")
    refused = execute_code("js", "1", server=server.address)
    assert (refused.status, "not allowed" in (refused.error_message or "")) == ("setup_error", True)
