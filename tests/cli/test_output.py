"""Messages are escaped, exit codes depend on the error, JSON has every field."""

from __future__ import annotations

import json

import click
import pytest

from skerry import errors
from skerry.cli import output
from skerry.codecs.text import escape
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
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert escape(text) == shown
    assert escape(text, lines=True) == shown


def test_plain_text_is_unchanged() -> None:
    assert escape("naïve 你好 🦭 a-b_c.d/e:f") == "naïve 你好 🦭 a-b_c.d/e:f"


def test_line_breaks_are_kept_only_with_lines() -> None:
    assert escape("a\nb") == r"a\nb"
    assert escape("a\nb", lines=True) == "a\nb"


def test_error_is_printed_with_its_hint_and_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    output.error(errors.NotFound("no \x1b[31m'x'", hint="try \x07y"))
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "error: no \\x1b[31m'x'\nhint: try \\x07y\n"


def test_table_escapes_cells(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("ID", "NAME"), [("a", "x\ny"), ("bbb", "\x1b[1m")])
    assert capsys.readouterr().out == "ID   NAME\na    x\\ny\nbbb  \\x1b[1m\n"


def test_json_has_every_field_and_only_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    output.json([ProcessInfo(id="p", cmd="\x1b\u202e\x9b", state="running", pid=1), Limits()])
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
        (errors.InvalidRequest("x"), 2), (errors.NotFound("x"), 2), (errors.Conflict("x"), 2),
        (errors.PermissionDenied("x"), 2),
        (errors.FileNotFound("x"), 2), (errors.SandboxUnavailable("x"), 125), (errors.ServerUnreachable("x"), 125),
        (errors.QuotaExceeded("x", details={"limit": "disk", "maximum": "1G"}), 2),
        (errors.RegistryError("x", details={"reason": "refused"}), 2),
        (errors.RegistryError("x", details={"reason": "unreachable"}), 125),
        (errors.HostUnsupported("x"), 125), (errors.QuotaExceeded("x"), 125), (errors.SkerryError("x"), 125),
    ],
)  # fmt: skip
def test_exit_code_depends_on_the_error(error: errors.SkerryError, code: int) -> None:
    assert output.error_exit_code(error) == code


@pytest.mark.parametrize(
    ("how", "code"),
    [({"exit_code": 0}, 0), ({"exit_code": 255}, 255), ({"exit_code": None, "signal": "KILL"}, 137),
     ({"exit_code": None, "signal": "SEGV"}, 139), ({"exit_code": None, "signal": "KILL", "timed_out": True}, 124)],
)  # fmt: skip
def test_exit_code_depends_on_the_result(how: dict[str, object], code: int) -> None:
    assert output.result_exit_code(Result(id="p", **how)) == code  # type: ignore[arg-type]


def test_confirm_without_a_terminal_needs_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/null") as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        with pytest.raises(click.UsageError, match="--yes"):
            output.confirm("Delete?", yes=False)
        assert output.confirm("Delete?", yes=True)
