"""Which languages a sandbox has: really looked for, whatever those who are asked answer."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from typing import Any

import pytest
from cli.calling import skerry
from serving import Server

from skerry import Sandbox

OPERATORS = """
[languages.awk]
version = ["awk", "-W", "version"]
run = ["awk", "-f", "{file}"]

[languages.go.images.base]
version = ["echo", "9.9.9"]
"""


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address) as made:
        yield made


def listed(server: Server, sandbox: Sandbox | None = None) -> dict[str, dict[str, Any]]:
    path = "/v1/languages" if sandbox is None else f"/v1/sandboxes/{sandbox.id}/languages"
    with server.http() as http:
        return {row["name"]: row for row in http.get(path).json()["languages"]}


def put(sandbox: Sandbox, program: str, script: str) -> None:
    sandbox.files.write(f"/usr/local/bin/{program}", f"#!/bin/bash\n{script}\n", user="root")
    sandbox.files.chmod(f"/usr/local/bin/{program}", stat.S_IRWXU | 0o055, user="root")


def test_the_table_is_told_without_a_sandbox(server: Server) -> None:
    rows = listed(server)
    assert len(rows) == 14
    assert rows["python"]["versions"]["3.12"] == "python:3.12-slim"
    assert rows["c"]["how"] == "gcc -o ./main main.c -lm && ./main"
    assert not any(row["version"] or row["missing"] for row in rows.values())


def test_a_sandbox_tells_the_versions_that_it_has_and_what_would_bring_the_others(
    server: Server, sandbox: Sandbox
) -> None:
    rows = listed(server, sandbox)
    there = {name: row["version"] for name, row in rows.items() if row["version"]}
    assert there.keys() == {"python", "javascript", "typescript", "bash", "perl", "awk", "go"}
    assert sandbox.run("python3 --version").stdout == f"Python {there['python']}\n"
    assert sandbox.run("node --version").stdout == f"v{there['javascript']}\n"
    assert all(rows[name]["missing"] is None for name in there)
    assert "apt-get install gcc" in rows["c"]["missing"]
    assert all(rows[name]["missing"] for name in rows.keys() - there.keys())
    assert {process.known.state for process in sandbox.processes.list()} <= {"exited"}


def test_a_toolchain_that_is_installed_later_is_found(server: Server, sandbox: Sandbox) -> None:
    assert listed(server, sandbox)["ruby"]["version"] is None
    put(sandbox, "ruby", "echo ruby 3.3.8")
    assert listed(server, sandbox)["ruby"]["version"] == "3.3.8"
    put(sandbox, "ruby", "echo ruby 3.4.1")
    assert listed(server, sandbox)["ruby"]["version"] == "3.4.1"


@pytest.mark.parametrize(
    ("script", "version"),
    [
        (r"printf '\033]0;owned\007 8.1.0\nmore <script>'", "0"),
        (r"printf '\377\376 php\0 8.4.5'", "8.4.5"),
        ("yes 8.4.5", None),
        ("echo 8.4.5; exit 3", None),
        ("kill -9 $$", None),
        ("cat; echo 8.4.5 >&2", "8.4.5"),
        ("printf '%01000d.1' 0", "0" * 40),
    ],
)
def test_what_claims_to_be_a_toolchain_can_print_what_it_likes(
    server: Server, sandbox: Sandbox, script: str, version: str | None
) -> None:
    put(sandbox, "php", script)
    row = listed(server, sandbox)["php"]
    assert row["version"] == version
    assert bool(row["missing"]) == (version is None)


def test_an_operator_has_a_language_of_their_own_and_others_per_image(server: Server, sandbox: Sandbox) -> None:
    rows = listed(server, sandbox)
    assert (rows["awk"]["how"], bool(rows["awk"]["version"])) == ("awk -f main", True)
    assert (rows["go"]["version"], listed(server)["go"]["version"]) == ("9.9.9", None)


def test_the_command_line_lists_them(server: Server, sandbox: Sandbox) -> None:
    table = skerry("languages", server=server.address).stdout.decode()
    assert re.search(r"^python +py python3 py3 +yes +3\.9 .* +python3 main\.py$", table, re.MULTILINE)
    inside = skerry("languages", sandbox.id, server=server.address).stdout.decode()
    assert re.search(r"^rust +- +- +`sudo apt-get install rustc`, or the image rust", inside, re.MULTILINE)
    rows = json.loads(skerry("languages", "--json", sandbox.id, server=server.address).stdout)
    assert {row["name"]: row for row in rows} == listed(server, sandbox)
    nobody = skerry("languages", "nobody", server=server.address)
    assert (nobody.returncode, b"there is no sandbox" in nobody.stderr) == (2, True)
    words = {"_SKERRY_COMPLETE": "bash_complete", "COMP_WORDS": "skerry languages sb-", "COMP_CWORD": "2"}
    assert sandbox.id.encode() in skerry(server=server.address, **words).stdout
