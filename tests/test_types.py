"""Values at the border are strict and say what is wrong."""

from __future__ import annotations

import msgspec
import pytest

from skerry.errors import FileMissing, InvalidRequest, SkerryError, error_for_code, file_failure
from skerry.types import (
    ENV_MOST,
    WORDS_MOST,
    BeginReview,
    CreateRequest,
    Lifecycle,
    Limits,
    RunRequest,
    format_size,
    parse_size,
    parse_span,
)


@pytest.mark.parametrize(
    ("text", "number"), [("2G", 2 << 30), ("1.5GiB", 3 << 29), ("1024", 1024), (7, 7), ("1kb", 1024)]
)  # fmt: skip
def test_sizes_are_read(text: str | int, number: int) -> None:
    assert parse_size(text) == number


@pytest.mark.parametrize("text", ["", "G", "-1", "1e9", "١G", "1 2", "1G\n2", "0", 0, -3, True, None, 1.5, "9" * 100])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(InvalidRequest):
        parse_size(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("15m", 900), ("24h", 86400), ("500ms", 0.5), (2.5, 2.5)])
def test_times_are_read(text: str | float, seconds: float) -> None:
    assert parse_span(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-1s", "1y", float("nan"), float("inf"), 0, True, "1h30m"])
def test_what_is_no_time_is_refused(text: object) -> None:
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
    error = error_for_code("file_missing", "no", details={"path": "/x", "errno": 2})
    assert isinstance(error, FileMissing)
    assert isinstance(error, FileNotFoundError)
    assert error.filename == "/x"
    assert type(error_for_code("from-the-future", "?")) is SkerryError
    assert file_failure(39, "/d", "not empty").errno == 39


def test_a_number_too_long_for_a_float_is_out_of_range() -> None:
    with pytest.raises(InvalidRequest, match=r"lifecycle\.life"):
        Lifecycle(life=10**400)


def test_variables_are_bounded_in_all() -> None:
    CreateRequest(env={"A": "x" * (ENV_MOST - 3)})
    with pytest.raises(InvalidRequest, match="env"):
        CreateRequest(env={"A": "x" * ENV_MOST})
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
        RunRequest(cmd=["echo", *[""] * WORDS_MOST])


def test_the_rules_of_a_review_are_bounded_in_all() -> None:
    BeginReview(ignore=(("", ("x" * 1000,) * 4000),), tracked=("y" * 4000,) * 1000)
    for more in ({"ignore": (("", ("x" * 1000,) * 9000),)}, {"tracked": ("y" * 4000,) * 2200}):
        with pytest.raises(InvalidRequest, match="ignore and tracked"):
            BeginReview(**more)  # type: ignore[arg-type]
