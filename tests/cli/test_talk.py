"""What is said can't harm a terminal; exit codes say whose failure it was; JSON has every field."""

from __future__ import annotations

import json

import click
import pytest

from skerry import errors
from skerry.cli import talk
from skerry.client.harmless import harmless
from skerry.types import Limits, ProcessInfo, Result

HARMFUL = {
    "\x1b[2J\x1b]0;title\x07": r"\x1b[2J\x1b]0;title\x07",
    "a\rb": r"a\rb",
    "\x9b31m": r"\x9b31m",
    "\x7f\x08": r"\x7f\x08",
    "a\u202egnp.exe": r"a\u202egnp.exe",
    "zero\u200bwidth": r"zero\u200bwidth",
    "line\u2028sep": r"line\u2028sep",
    "\udcff": r"\udcff",
}


@pytest.mark.parametrize(("text", "shown"), HARMFUL.items())
def test_what_would_speak_to_the_terminal_becomes_visible(text: str, shown: str) -> None:
    assert harmless(text) == shown
    assert harmless(text, lines=True) == shown


def test_what_is_plain_stays_as_it_is() -> None:
    assert harmless("naïve 你好 🦭 a-b_c.d/e:f") == "naïve 你好 🦭 a-b_c.d/e:f"


def test_line_breaks_stay_only_where_lines_are_meant() -> None:
    assert harmless("a\nb") == r"a\nb"
    assert harmless("a\nb", lines=True) == "a\nb"


def test_an_error_is_said_with_its_hint_and_without_its_escape_codes(capsys: pytest.CaptureFixture[str]) -> None:
    talk.say_error(errors.NotFound("no \x1b[31m'x'", hint="try \x07y"))
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "error: no \\x1b[31m'x'\nhint: try \\x07y\n"


def test_a_table_keeps_its_rows_whatever_is_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    talk.give_table(("ID", "NAME"), [("a", "x\ny"), ("bbb", "\x1b[1m")])
    assert capsys.readouterr().out == "ID   NAME\na    x\\ny\nbbb  \\x1b[1m\n"


def test_json_has_every_field_and_only_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    talk.give_json([ProcessInfo(id="p", cmd="\x1b\u202e\x9b", state="running", pid=1), Limits()])
    text = capsys.readouterr().out
    assert text.isascii()
    assert "\x1b" not in text
    process, limits = json.loads(text)
    assert process["cmd"] == "\x1b\u202e\x9b"
    assert process["exit_code"] is None
    assert limits == {"cpus": None, "memory": None, "disk": None, "pids": None, "open_files": None}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequest("x"), 2), (errors.NotFound("x"), 2), (errors.Conflict("x"), 2), (errors.Denied("x"), 2),
        (errors.FileMissing("x"), 2), (errors.SandboxUnavailable("x"), 125), (errors.ServerUnreachable("x"), 125),
        (errors.HostUnsupported("x"), 125), (errors.QuotaExceeded("x"), 125), (errors.SkerryError("x"), 125),
    ],
)  # fmt: skip
def test_an_exit_code_says_whose_failure_it_was(error: errors.SkerryError, code: int) -> None:
    assert talk.code_of_error(error) == code


@pytest.mark.parametrize(
    ("how", "code"),
    [({"exit_code": 0}, 0), ({"exit_code": 255}, 255), ({"exit_code": None, "signal": "KILL"}, 137),
     ({"exit_code": None, "signal": "SEGV"}, 139), ({"exit_code": None, "signal": "KILL", "timed_out": True}, 124)],
)  # fmt: skip
def test_a_commands_end_is_our_exit_code(how: dict[str, object], code: int) -> None:
    assert talk.code_of_result(Result(id="p", **how)) == code  # type: ignore[arg-type]


def test_where_nobody_can_be_asked_only_yes_is_a_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/null") as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        with pytest.raises(click.UsageError, match="--yes"):
            talk.confirm("Delete?", yes=False)
        assert talk.confirm("Delete?", yes=True)
