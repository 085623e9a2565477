"""Handlers as text: parsed strictly, and files of a repository stay in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skerry.client.handler_rules import parse_handlers
from skerry.errors import InvalidRequest
from skerry.types import Handler, HttpResponse


def test_rules_of_one_host_are_one_handler(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text("{}")
    rules = [
        "api.example.com set X-Team: blue", "GET,HEAD api.example.com/v1 answer 503", "api.example.com add X-A: b: c",
        "api.example.com remove X-Debug", "api.example.com response set Cache-Control: no-store",
        "api.example.com response remove Server", "localhost redirect http://mock:8080", "s.test answer status.json",
    ]  # fmt: skip
    assert parse_handlers(rules, tmp_path) == (
        Handler(
            host="api.example.com", set_headers={"X-Team": "blue"}, add_headers={"X-A": "b: c"},
            remove_headers=("X-Debug",), response_set_headers={"Cache-Control": "no-store"},
            response_remove_headers=("Server",),
        ),
        Handler(host="GET,HEAD api.example.com/v1", answer=HttpResponse(status=503)),
        Handler(host="localhost", redirect="http://mock:8080"),
        Handler(host="s.test", answer=HttpResponse(headers=(("Content-Type", "application/json"),), body=b"{}")),
    )  # fmt: skip


@pytest.mark.parametrize(
    "rule",
    ["", "a.test", "a.test set", "a.test set X", "a.test replace X: y", "set X: y", "a.test set X: y\nb: c",
     "a.test response redirect b.test", "a.test response answer 200", "a.test answer missing", "a.test answer x\0y",
     "a.test answer .", "a.test set Content-Length: 5", "a.test redirect b.test/path", "a.test answer 199 f"],
)  # fmt: skip
def test_invalid_rule_is_rejected(rule: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        parse_handlers([rule], tmp_path)


@pytest.mark.parametrize("rules", [["a.test set X: y", "a.test set X: z"], ["a.test redirect b", "a.test redirect c"]])
def test_effect_given_twice_is_rejected(rules: list[str], tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="given twice"):
        parse_handlers(rules, tmp_path)


@pytest.mark.parametrize("name", ["/etc/hostname", "../secret", "link", "directory/../../secret", "linked/secret"])
def test_attack_repository_cannot_pass_a_file_outside_of_it_into_a_sandbox(name: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "directory").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (project / "link").symlink_to("../secret")
    (project / "linked").symlink_to(tmp_path)
    with pytest.raises(InvalidRequest, match="is outside of"):
        parse_handlers([f"a.test answer {name}"], project, confined=True)


def test_file_that_blocks_or_is_too_large_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").write_bytes(b"x" * (64 << 10) + b"x")
    for name, why in (("fifo", "not a regular file"), ("large", "larger than 64K")):
        with pytest.raises(InvalidRequest, match=why):
            parse_handlers([f"a.test answer {name}"], tmp_path)
