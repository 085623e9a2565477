"""Suggested policies: host by host and port by port, nothing that only an attack asks for; and the patch of
skerry.toml."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from skerry.errors import InvalidRequest
from skerry.network.policy.suggest import MAX_SIBLINGS, project_file_patch, suggest_network
from skerry.types import Network, NetworkAttempt


def tried(host: str, port: int | None = 443, *, denied: bool = False, **more: Any) -> NetworkAttempt:
    kind = "name" if port is None else "connection"
    hint = "--allow something" if denied else None
    decision = "denied" if denied else "allowed"
    return NetworkAttempt(
        id="a", at=0.0, kind=kind, host=host, port=port, decision=decision, why="", **{"hint": hint, **more}
    )  # type: ignore[arg-type]


def test_attempts_are_suggested_host_by_host_and_port_by_port() -> None:
    network = suggest_network(
        [tried("b.example"), tried("a.example", 80), tried("a.example"), tried("b.example"), tried("db.example", 5432),
         tried("b.example", 8443), tried("203.0.113.5", 22), tried("2606:4700::1", 22)]
    )  # fmt: skip
    assert network.allow == (
        "203.0.113.5:22", "[2606:4700::1]:22", "a.example", "b.example:443,8443", "db.example:5432",
    )  # fmt: skip
    assert network.on_unknown == "deny"


def test_a_private_address_is_named_and_nothing_that_only_an_attack_asks_for() -> None:
    network = suggest_network(
        [tried("db.internal", 5432, denied=True, address="10.0.0.5"), tried("192.168.0.9", 22, denied=True),
         tried("a.example", address="203.0.113.1"), tried("rebound.example", denied=True, address="169.254.169.254"),
         tried("169.254.169.254", 80, denied=True), tried("127.0.0.1", 22, denied=True),
         tried("localhost", 80, denied=True, address="::1")]
    )  # fmt: skip
    assert network.allow == ("192.168.0.9:22", "a.example:443", "db.internal:5432@10.0.0.5")


def test_address_from_the_hint_counts_too() -> None:
    hint = "--allow db.internal:5432@10.0.0.5"
    network = suggest_network([tried("db.internal", 5432), tried("db.internal", 5432, denied=True, hint=hint)])
    assert network.allow == ("db.internal:5432@10.0.0.5",)
    hint = "--allow sly.example@169.254.169.254"
    assert suggest_network(
        [tried("sly.example"), tried("sly.example", denied=True, hint=hint), tried("sly.example", 22)]
    ).allow == ("sly.example:22",)


def test_denied_by_rule_and_already_allowed_attempts_are_not_suggested() -> None:
    assert suggest_network([
        tried("bad.example", denied=True, rule="bad.example", hint="deny wins: take bad.example out of deny"),
        tried("far.example", denied=True, hint="max.network in the server's settings must name it"),
        tried("db", 5432, rule="peer db"), tried("api.example", rule="secret TOKEN"), tried("evil\0.example"),
        tried("seen.example", None),
    ]).allow == ()  # fmt: skip


def test_a_rule_that_looks_at_requests_is_kept_and_not_widened() -> None:
    rule = "GET api.example/v1"
    assert suggest_network([tried("api.example", rule=rule), tried("api.example", denied=True, rule=rule)]).allow == (
        rule,
    )


def test_a_refused_name_that_never_got_to_a_port_is_learned_for_the_web() -> None:
    assert suggest_network([tried("a.example", None, denied=True)]).allow == ("a.example",)
    assert suggest_network([tried("a.example", None, denied=True), tried("a.example", 22)]).allow == ("a.example:22",)


def test_many_siblings_become_one_rule_and_few_do_not() -> None:
    few = [tried(f"h{i}.cdn.example.org") for i in range(MAX_SIBLINGS)]
    assert len(suggest_network(few).allow) == MAX_SIBLINGS
    network = suggest_network([*few, tried("h.cdn.example.org"), tried("x.cdn.example.org", 22)])
    assert network.allow == ("*.cdn.example.org:443", "x.cdn.example.org:22")
    assert "more than 8 names" in project_file_patch(network, "")
    for everybodys in ("com", "co.uk"):
        assert not any(
            rule.startswith("*") for rule in suggest_network(tried(f"h{i}.{everybodys}") for i in range(50)).allow
        )


RULES = Network(allow=("a.example:443", "db.internal:5432@10.0.0.5"))
FILES = {
    "nothing": "",
    "another table": '# mine\n[limits]\nmemory = "2G"  # enough\n',
    "no newline at the end": '[limits]\nmemory = "2G"',
    "an empty table": "[network]\n",
    "a table without allow": '[network] # ours\ndeny = ["x.example"]\n\n[limits]\ncpus = 2\n',
    "one line": '[network]\nallow = ["z.example"]  # z ] is [ needed\npresets = ["pip"]\n',
    "an empty list": "[network]\nallow = []\n",
    "many lines": '[network]\nallow = [\n    "z.example", # why ]\n    # before y\n'
                  '    "y.example" # no comma ]\n    ,\n]\n[env]\nA = "1"\n',
    "no comma at the end": "[network]\nallow = [\n  'z.example',\n  'y.example'  # last\n]\n",
    "dotted": '# top\nnetwork.allow = ["z.example"]\nimage = "base"\n',
    "lines end as on Windows": '[network]\r\nallow = ["z.example"]\r\n[limits]\r\ncpus = 2\r\n',
    "a text that looks like it": 'image = """\n[limits]\nallow = ["no"]\n"""\n[network]\nallow = ["z.example"]\n',
    "quoted": '["network"]\nallow = ["""z.example"""]\n',
}  # fmt: skip


@pytest.mark.parametrize("old", FILES.values(), ids=FILES.keys())
def test_the_patch_applies_and_keeps_every_line_and_comment(old: str, tmp_path: Path) -> None:
    file = tmp_path / "skerry.toml"
    if old:
        file.write_text(old)
    diff = project_file_patch(RULES, old)
    subprocess.run(
        ["patch", "-p1", "--no-backup-if-mismatch"], input=diff.encode(), cwd=tmp_path, check=True, timeout=20
    )
    new = file.read_text()
    before = tomllib.loads(old)
    after = tomllib.loads(new)
    assert after["network"]["allow"] == [*before.get("network", {}).get("allow", []), *RULES.allow]
    after["network"].pop("allow")
    before.setdefault("network", {}).pop("allow", None)
    assert after == before
    for comment in (line.partition("#")[2] for line in old.splitlines()):
        assert comment in new
    assert project_file_patch(RULES, new) == "", "nothing is left to add"


def test_rules_that_the_file_already_has_are_not_added() -> None:
    old = '[network]\nallow = ["*.example", "db.internal:5432@10.0.0.0/8"]\n'
    assert project_file_patch(RULES, old) == ""
    assert project_file_patch(RULES, old.replace("@10.0.0.0/8", "")) != ""
    assert project_file_patch(RULES, old.replace('"*.example"', '"GET *.example"')) != "", (
        "only some requests were allowed"
    )


def test_ten_thousand_rules_are_no_trouble() -> None:
    rules = tuple(f"h{i}.example" for i in range(10_000))
    old = "[network]\nallow = [\n" + "".join(f'    "{rule}", # {i}\n' for i, rule in enumerate(rules)) + "]\n"
    assert project_file_patch(Network(allow=rules), old) == ""
    assert project_file_patch(Network(allow=(*rules, "new.example:22")), old).count("\n+") == 2, (
        "the line of +++, and the rule's"
    )


@pytest.mark.parametrize(
    "old",
    ['network = { deny = ["x.example"] }\n', "[network]\nallow = 5\n", "[network\n", '[network]\nallow = ["a..b"]\n'],
)
def test_unchangeable_file_is_an_error(old: str) -> None:
    with pytest.raises(InvalidRequest, match=r"skerry\.toml"):
        project_file_patch(RULES, old)
