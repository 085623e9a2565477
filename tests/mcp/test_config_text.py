"""Adding and removing an entry in a hand-written file keeps all other bytes."""

from __future__ import annotations

import json
import random
import tomllib
from typing import Any

import pytest

from skerry.mcp.install import jsonc
from skerry.mcp.install.installer import drop_toml_table, put_toml_table

PATH = ("mcpServers", "skerry")
ENTRY = {"command": "skerry", "args": ["mcp"]}

BY_HAND = {
    "comments": '{\n   // mine\n   "mcpServers": {\n      "a": {}, // of a\n      /* b */ "b": 2 // last\n   }\n}\n',
    "trailing commas and tabs": '{\n\t"mcpServers": {\n\t\t"a": [1, 2,],\n\t},\n}\n',
    "line ends of Windows": '{\r\n  "mcpServers": {\r\n    "a": 1\r\n  }\r\n}\r\n',
    "one line": '{"mcpServers": {"a": 1}, "z": 2}',
    "an empty object": '{\n  "mcpServers": {}\n}\n',
    "only a comment": '{\n  "mcpServers": {\n    // none yet\n  }\n}\n',
    "what looks like a comment in a text": '{\n  "mcpServers": {\n    "a": "http://x /* \\" ,}"\n  }\n}',
    "a mark of byte order": '\ufeff{\n  "mcpServers": {\n    "a": 1\n  }\n}\n',
    "something behind it": '{\n  "mcpServers": {\n    "a": 1\n  },\n  "z": null // end\n}\n// bye\n',
}  # fmt: skip


@pytest.mark.parametrize("text", BY_HAND.values(), ids=BY_HAND)
def test_adding_and_removing_an_entry_restores_the_text(text: str) -> None:
    put = jsonc.put(text, PATH, ENTRY)
    wanted = jsonc.read(text)
    wanted["mcpServers"]["skerry"] = ENTRY
    assert jsonc.read(put) == wanted
    assert jsonc.drop(put, PATH) == text


@pytest.mark.parametrize("text", BY_HAND.values(), ids=BY_HAND)
def test_comments_and_other_lines_are_kept(text: str) -> None:
    put = jsonc.put(text, PATH, ENTRY)
    kept = [line.strip().rstrip(",") for line in text.splitlines() if "//" in line or "/*" in line]
    assert all(line.partition("//")[2] in put and line.partition("//")[0].rstrip() in put for line in kept)
    assert ("\r\n" in put) == ("\r\n" in text)
    assert ("\n" in put.replace("\r\n", "")) == ("\n" in text.replace("\r\n", ""))


def test_new_entry_has_the_indentation_of_its_neighbours() -> None:
    put = jsonc.put('{\n    "mcpServers": {\n        "a": 1 // of a\n    }\n}\n', PATH, {"command": "x"})
    assert put == (
        '{\n    "mcpServers": {\n        "a": 1, // of a\n'
        '        "skerry": {\n            "command": "x"\n        }\n    }\n}\n'
    )


def test_existing_entry_is_replaced_in_place() -> None:
    text = '{\n  "mcpServers": {\n    "skerry": {"old": true}, // ours\n    "b": 1\n  }\n}\n'
    put = jsonc.put(text, PATH, ENTRY)
    assert list(jsonc.read(put)["mcpServers"].items()) == [("skerry", ENTRY), ("b", 1)]
    assert "// ours" in put


@pytest.mark.parametrize("text", ["", " \n", "{}", '{"z": 1}', "// hello\n{}\n"])
def test_missing_objects_are_created(text: str) -> None:
    assert jsonc.read(jsonc.put(text, PATH, ENTRY))["mcpServers"] == {"skerry": ENTRY}


def test_removing_a_missing_entry_changes_nothing() -> None:
    for text in ("", "{}", '{"mcpServers": {}}', '{"mcpServers": {"a": {}}}'):
        assert jsonc.drop(text, PATH) == text


@pytest.mark.parametrize(
    "text",
    ["[]", "{", '{"mcpServers": []}', '{"mcpServers": {}, "mcpServers": {}}', '{"a": 1} x', "{'a': 1}", '{"a" 1}',
     '{"mcpServers": {"skerry": 1, "skerry": 2}}', '{"a": "\n"}', "{a: 1}", '{"a": 1 "b": 2}', "/* never ends {}"],
)  # fmt: skip
def test_invalid_json_is_rejected(text: str) -> None:
    with pytest.raises(jsonc.InvalidJson):
        jsonc.put(text, PATH, ENTRY)


def test_random_texts_are_restored() -> None:
    chance = random.Random(8)
    for _ in range(300):
        servers = {f"s{number}": _anything(chance, 3) for number in range(chance.randrange(4))}
        text = _written(chance, {"x": _anything(chance, 2), "mcpServers": servers, "y": 1}, 0)
        put = jsonc.put(text, PATH, ENTRY)
        assert jsonc.read(put) == {**jsonc.read(text), "mcpServers": {**servers, "skerry": ENTRY}}
        gone = jsonc.drop(put, PATH)
        assert jsonc.read(gone) == jsonc.read(text)
        assert gone.count("/* n */") == put.count("/* n */") == text.count("/* n */")


def _anything(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(6 if depth else 4)
    if kind < 4:
        return [None, -1.5e3, 'a "q" // b \\', True][kind]
    inner = [_anything(chance, depth - 1) for _ in range(chance.randrange(3))]
    return inner if kind == 4 else {f"k{number}": one for number, one in enumerate(inner)}


def _written(chance: random.Random, value: Any, depth: int) -> str:
    """Format a value irregularly, with comments and trailing commas."""
    note = lambda: chance.choice(["", "", " ", " /* n */ "])  # noqa: E731
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else ((None, one) for one in value)
        inner = [
            f"{json.dumps(key)}:{note()}" * (key is not None) + _written(chance, one, depth + 1) for key, one in pairs
        ]
        line = "\n" + "  " * depth if chance.random() < 0.5 else ""
        comma = "," if inner and chance.random() < 0.3 else ""
        marks = "{}" if isinstance(value, dict) else "[]"
        return f"{marks[0]}{line}" + f",{note()}{line}".join(inner) + f"{comma}{note()}{line}{marks[1]}"
    return json.dumps(value)


TOML = 'model = "x" # which\n\n# servers\n[mcp_servers.other]\ncommand = "a"\n\n# the last\n[profiles.x]\na = 1\n'
TABLE = ("mcp_servers", "skerry")


def test_table_is_appended_and_removed_again() -> None:
    put = put_toml_table(TOML, TABLE, ENTRY)
    assert tomllib.loads(put) == {**tomllib.loads(TOML), "mcp_servers": {"other": {"command": "a"}, "skerry": ENTRY}}
    assert put.startswith(TOML)
    assert drop_toml_table(put, TABLE) == TOML


def test_table_is_replaced_with_its_subtables() -> None:
    old = '[mcp_servers.skerry]\ncommand = "old"\n[mcp_servers.skerry.env]\nA = "1"\n\n# next\n[z]\nb = 1\n'
    put = put_toml_table(old, TABLE, {"url": 'https://x/"mcp"', "http_headers": {"Authorization": "Bearer é"}})
    assert tomllib.loads(put) == {
        "mcp_servers": {"skerry": {"url": 'https://x/"mcp"', "http_headers": {"Authorization": "Bearer é"}}},
        "z": {"b": 1},
    }
    assert put.endswith("\n\n# next\n[z]\nb = 1\n")
