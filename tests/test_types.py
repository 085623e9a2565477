"""Values at the border are strict, with clear errors."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skerry.errors import FileNotFound, InvalidRequest, SkerryError, error_for_code, file_error
from skerry.types import (
    MAX_ENV,
    MAX_WORDS,
    BeginReview,
    CreateRequest,
    Lifecycle,
    Limits,
    ProcessInfo,
    RunRequest,
    format_size,
    parse_size,
    parse_span,
    readable_size,
)


@pytest.mark.parametrize(
    ("text", "number"), [("2G", 2 << 30), ("1.5GiB", 3 << 29), ("1024", 1024), (7, 7), ("1kb", 1024)]
)  # fmt: skip
def test_sizes_are_read(text: str | int, number: int) -> None:
    assert parse_size(text) == number


@pytest.mark.parametrize("text", ["", "G", "-1", "1e9", "١G", "1 2", "1G\n2", "0", 0, -3, True, None, 1.5, "9" * 100])
def test_invalid_size_is_rejected(text: object) -> None:
    with pytest.raises(InvalidRequest):
        parse_size(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("15m", 900), ("24h", 86400), ("500ms", 0.5), (2.5, 2.5)])
def test_times_are_read(text: str | float, seconds: float) -> None:
    assert parse_span(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-1s", "1y", float("nan"), float("inf"), 0, True, "1h30m"])
def test_invalid_time_is_rejected(text: object) -> None:
    with pytest.raises(InvalidRequest):
        parse_span(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [1, 1023, 1024, 512 << 20, 2 << 30, (2 << 30) + 1])
def test_a_size_is_shown_as_it_can_be_read_back(number: int) -> None:
    assert parse_size(format_size(number)) == number


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(msgspec.ValidationError, match="memroy"):
        msgspec.json.decode(b'{"limits": {"memroy": 1}}', type=CreateRequest)


def test_stdin_comes_one_way_only() -> None:
    with pytest.raises(InvalidRequest, match="stdin"):
        RunRequest(cmd="cat", stdin="a", stdin_stream=True)


def test_a_named_size_is_there_and_an_unknown_one_lists_them() -> None:
    assert Limits.size("small").memory == "512M"
    with pytest.raises(InvalidRequest, match="medium"):
        Limits.size("gigantic")


def test_every_code_gives_its_error_back() -> None:
    error = error_for_code("file_not_found", "no", details={"path": "/x", "errno": 2})
    assert isinstance(error, FileNotFound)
    assert isinstance(error, FileNotFoundError)
    assert error.filename == "/x"
    assert type(error_for_code("from-the-future", "?")) is SkerryError
    assert file_error(39, "/d", "not empty").errno == 39


def test_a_number_too_long_for_a_float_is_out_of_range() -> None:
    with pytest.raises(InvalidRequest, match=r"lifecycle\.max_lifetime"):
        Lifecycle(max_lifetime=10**400)


def test_variables_are_bounded_in_all() -> None:
    CreateRequest(env={"A": "x" * (MAX_ENV - 3)})
    with pytest.raises(InvalidRequest, match="env"):
        CreateRequest(env={"A": "x" * MAX_ENV})
    with pytest.raises(InvalidRequest, match="env"):
        RunRequest(cmd="true", env={f"A{number}": "ü" * 1000 for number in range(70)})


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_text_that_no_program_could_be_given_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="cmd"):
        RunRequest(cmd=["echo", text])


def test_a_label_that_could_not_be_asked_for_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="labels"):
        CreateRequest(labels={"a=b": "c"})


def test_a_command_has_a_bounded_number_of_arguments() -> None:
    with pytest.raises(InvalidRequest, match="arguments"):
        RunRequest(cmd=["echo", *[""] * MAX_WORDS])


def test_the_rules_of_a_review_are_bounded_in_all() -> None:
    BeginReview(ignore=(("", ("x" * 1000,) * 500),), tracked=("y" * 4000,) * 100)
    too_much = {"ignore": (("", ("x" * 1000,) * 1100),)}, {"tracked": ("y" * 4000,) * 270}
    too_many = {"ignore": (("", ("x",) * 20_001),)}, {"tracked": ("y",) * 20_001}
    for more in (*too_much, *too_many):
        with pytest.raises(InvalidRequest, match="ignore and tracked"):
            BeginReview(**more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("number", "down", "up"),
    [
        (5, "5", "5"), (2048, "2K", "2K"), (1025 << 20, "1025M", "1025M"), (5368713216, "5G", "5.1G"),
        (1610612737, "1.5G", "1.6G"), (16374480 << 10, "15.6G", "15.7G"), (123456789, "117M", "118M"),
    ],
)  # fmt: skip
def test_readable_sizes_are_short_and_accepted_again(number: int, down: str, up: str) -> None:
    assert (readable_size(number), readable_size(number, up=True)) == (down, up)
    assert parse_size(down) <= number <= parse_size(up)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"state": "running", "pid": 0}, "starting"),
        ({"state": "running", "pid": 7}, "running"),
        ({"state": "exited", "pid": 7, "exit_code": 0}, "completed"),
        ({"state": "exited", "pid": 7, "exit_code": 1}, "failed"),
        ({"state": "exited", "pid": 0, "signal": "KILL"}, "killed"),
    ],
)
def test_status_of_a_process_is_one_word(fields: dict[str, Any], word: str) -> None:
    process = ProcessInfo(id="p-1", cmd="true", **fields)
    assert process.status == word
    assert msgspec.json.decode(msgspec.json.encode(process))["status"] == word
