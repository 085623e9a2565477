"""The operator's rules for commands and code: the longest run time and the languages."""

from __future__ import annotations

import pytest
from support.server import Server

from skerry import Sandbox, execute_code, supported_languages
from skerry.errors import PermissionDenied

OPERATORS = """
[max]
timeout = "1s"

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


def test_only_allowed_languages_are_listed_and_run(server: Server, sandbox: Sandbox) -> None:
    assert supported_languages(server.address) == ["python", "bash", "awk"]
    assert [row.name for row in sandbox.code.languages()] == ["python", "bash", "awk"]
    assert sandbox.code.run("1 + 1").text == "2"
    with pytest.raises(PermissionDenied, match=r"javascript code is not allowed.*\n.*python, bash, awk"):
        sandbox.code.run("1", "js")
    refused = execute_code("js", "1", server=server.address)
    assert (refused.status, "not allowed" in (refused.error_message or "")) == ("setup_error", True)
