"""The network on the command line: flags and skerry.toml, the log, suggestions and hints for denials."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.test_command_line import BEGIN, end, running
from support.cli import SKERRY, environment, skerry
from support.lying_server import SANDBOX, Asked, Said, lying, said

from skerry.cli.options.network import PRESETS
from skerry.client.presets import KNOWN

NDJSON = "application/x-ndjson"


def attempt(**more: object) -> dict[str, object]:
    return {
        "id": "t-1", "at": 1763210000.0, "kind": "connection", "host": "example.test", "port": 443,
        "decision": "denied", "why": "no rule allows example.test:443", "hint": "--allow example.test",
        "seq": 1, **more,
    }  # fmt: skip


def sent(tmp_path: Path, *flags: str) -> dict[str, object]:
    (tmp_path / "l.sock").unlink(missing_ok=True)
    with lying(tmp_path, running(BEGIN + end())) as server:
        done = skerry("create", *flags, server=server.address, cwd=tmp_path)
        assert done.returncode == 0, done.stderr.decode()
    found: dict[str, object] = json.loads(server.asked[0].body)
    return found


def test_flags_form_a_policy(tmp_path: Path) -> None:
    flags = (
        "--allow",
        "a.test",
        "--allow",
        "b.test:8080",
        "--deny",
        "c.test",
        "--peer",
        "db=other",
        "--inspect",
        "a.test",
    )
    assert sent(tmp_path, *flags)["network"] == {
        "allow": ["a.test", "b.test:8080"], "deny": ["c.test"], "peers": {"db": "other"}, "inspect": ["a.test"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "network"),
    [
        ("none", {}),
        ("open", {"allow": ["*"]}),
        ("learn", {"on_unknown": "learn"}),
        ("ask", {"on_unknown": "ask"}),
    ],
)
def test_network_mode_sets_the_policy(tmp_path: Path, mode: str, network: dict[str, object]) -> None:
    assert sent(tmp_path, "--network", mode)["network"] == network


def test_without_flags_no_policy_is_sent(tmp_path: Path) -> None:
    assert "network" not in sent(tmp_path)


def test_flags_extend_the_project_policy_and_none_replaces_it(tmp_path: Path) -> None:
    (tmp_path / "skerry.toml").write_text('[network]\nallow = ["a.test"]\ndeny = ["b.test"]\n')
    assert sent(tmp_path, "--trust")["network"] == {"allow": ["a.test"], "deny": ["b.test"]}
    assert sent(tmp_path, "--trust", "--allow", "c.test", "--allow", "a.test")["network"] == {
        "allow": ["a.test", "c.test"], "deny": ["b.test"],
    }  # fmt: skip
    assert sent(tmp_path, "--trust", "--network", "none")["network"] == {}


@pytest.mark.parametrize(
    "flags",
    [
        ("--network", "none", "--allow", "a.test"),
        ("--peer", "db"),
        ("--peer", "db=x", "--peer", "db=y"),
        ("--network", "some"),
        ("--allow", ""),
    ],
)
def test_invalid_flags_are_rejected_before_creation(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with lying(tmp_path, running(BEGIN + end())) as server:
        done = skerry("create", *flags, server=server.address, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count(b"error:") == 1
    assert server.asked == []


def test_denial_is_reported_once_per_host_after_the_output(tmp_path: Path) -> None:
    denied = [
        attempt(id="t-1", kind="name", port=None, why="no rule allows example.test"),
        *(attempt(id=f"t-{n}", seq=n) for n in range(2, 6)),
        attempt(
            id="t-9", host="other.test", port=8080, why="no rule allows other.test:8080", hint="--allow other.test:8080"
        ),
    ]
    with lying(tmp_path, running(BEGIN + end(exit_code=6, denied=denied))) as server:
        done = skerry("run", "--", "x", server=server.address, cwd=tmp_path)
        quiet = skerry("-q", "run", "--", "x", server=server.address, cwd=tmp_path)
    assert done.returncode == 6
    assert done.stderr.decode().splitlines() == [
        "hint: example.test:443 was denied: no rule allows example.test:443; --allow example.test",
        "hint: other.test:8080 was denied: no rule allows other.test:8080; --allow other.test:8080",
    ]
    assert quiet.stderr == b""


def test_hint_for_an_existing_sandbox_is_a_command(tmp_path: Path) -> None:
    with lying(tmp_path, running(BEGIN + end(denied=[attempt()]))) as server:
        done = skerry("exec", "dev", "--", "x", server=server.address, cwd=tmp_path)
    assert b"; skerry network allow dev example.test\n" in done.stderr


def test_hint_for_a_deny_rule_removes_it(tmp_path: Path) -> None:
    denied = attempt(rule="*.test", why="it is denied by *.test", hint="deny wins: take *.test out of deny")
    with lying(tmp_path, running(BEGIN + end(denied=[denied]))) as server:
        done = skerry("exec", "dev", "--", "x", server=server.address, cwd=tmp_path)
    assert b"`skerry network allow dev '*.test'` removes the deny rule" in done.stderr


def test_denied_lookup_mentions_ports(tmp_path: Path) -> None:
    name = attempt(kind="name", port=None, why="no rule allows example.test")
    with lying(tmp_path, running(BEGIN + end(denied=[name]))) as server:
        done = skerry("run", "--", "ssh", "example.test", server=server.address, cwd=tmp_path)
    assert b"--allow example.test (for ports 80 and 443; for another port, like example.test:22)\n" in done.stderr


@pytest.mark.parametrize(
    ("command", "preset"),
    [
        (("pip", "install", "x"), "pip"),
        (("/usr/bin/python3", "-m", "pip", "install", "x"), "pip"),
        (("bash", "-lc", "cd a&&npm ci"), "npm"),
        (("sudo", "apt-get", "update"), "apt"),
        (("curl", "pipe"), None),
    ],
)
def test_program_with_a_preset_gets_a_hint(tmp_path: Path, command: tuple[str, ...], preset: str | None) -> None:
    with lying(tmp_path, running(BEGIN + end(exit_code=1, denied=[attempt()]))) as server:
        told = skerry("run", "--", *command, server=server.address, cwd=tmp_path).stderr.decode()
        stays = skerry("exec", "dev", "--", *command, server=server.address, cwd=tmp_path).stderr.decode()
    assert (f"hint: --preset {preset} allows all hosts that" in told) == (preset is not None)
    assert (f"hint: a sandbox created with --preset {preset} allows" in stays) == (preset is not None)


def test_allowing_localhost_prints_a_hint(tmp_path: Path) -> None:
    with lying(tmp_path, running(BEGIN + end())) as server:
        told = skerry("run", "--allow", "localhost:5432", "--", "x", server=server.address, cwd=tmp_path)
        quiet = skerry("-q", "run", "--allow", "127.0.0.1", "--", "x", server=server.address, cwd=tmp_path)
        named = skerry("run", "--allow", "db.test@127.0.0.1", "--", "x", server=server.address, cwd=tmp_path)
    assert b"hint: localhost:5432: in a sandbox, this is the sandbox itself." in told.stderr
    assert (quiet.stderr, named.stderr) == (b"", b"")


def test_hostile_text_in_the_log_is_escaped(tmp_path: Path) -> None:
    evil = attempt(host="\x1b]0;owned\x07evil\n.test", why="\x1b[2J", hint="--allow \x1b[2J")
    with lying(tmp_path, running(BEGIN + end(denied=[evil]))) as server:
        done = skerry("run", "--", "x", server=server.address, cwd=tmp_path)
    assert b"\x1b" not in done.stderr
    assert b"\x07" not in done.stderr


def below(path: str, answer: Said) -> Callable[[Asked], Said]:
    return lambda asked: answer if asked.path.endswith(path) else said(SANDBOX)


def test_log_is_text_or_json(tmp_path: Path) -> None:
    tries = [
        attempt(),
        attempt(seq=2, decision="allowed", why="allowed by a.test", host="a.test", hint=None, sent=10, received=4096,
                process="p-aaaaaaaaaa"),
        attempt(seq=3, kind="request", method="GET", path="/v1\x1b[2J", count=3),
        attempt(seq=4, method="CONNECT"),
    ]  # fmt: skip
    lines = b"".join(json.dumps(one).encode() + b"\n" for one in tries)
    with lying(tmp_path, below("/log", Said(200, lines, NDJSON))) as server:
        shown = skerry("network", "log", "dev", server=server.address)
        as_json = skerry("network", "log", "--json", "--denied", "-n", "3", "dev", server=server.address)
    first, second, third, fourth = shown.stdout.decode().splitlines()
    assert first.split("  ")[-1] == "hint: skerry network allow dev example.test"
    assert "denied" in first
    assert "p-aaaaaaaaaa" in second
    assert second.endswith("sent 10, received 4.0K")
    assert "GET /v1\\x1b[2J" in third
    assert "×3" in third
    assert "  CONNECT  " in fourth
    assert [json.loads(line)["seq"] for line in as_json.stdout.splitlines()] == [1, 2, 3, 4]
    assert server.asked[-1].query == {"follow": ["false"], "since": ["0"], "denied": ["true"], "limit": ["3"]}


def test_suggested_policy_is_a_valid_patch(tmp_path: Path) -> None:
    (tmp_path / "skerry.toml").write_text('# ours\nimage = "base"\n\n[network]\nallow = ["a.test"]\n')
    with lying(tmp_path, below("/suggested-policy", said({"allow": ["a.test", "b.test:8080"]}))) as server:
        done = skerry("network", "suggest", "dev", server=server.address, cwd=tmp_path)
        as_json = skerry("network", "suggest", "dev", "--json", server=server.address, cwd=tmp_path)
        assert done.returncode == 0
        subprocess.run(["patch", "--strip=1"], input=done.stdout, cwd=tmp_path, check=True, capture_output=True)
        again = skerry("network", "suggest", "dev", server=server.address, cwd=tmp_path)
    assert json.loads(as_json.stdout)["allow"] == ["a.test", "b.test:8080"]
    text = (tmp_path / "skerry.toml").read_text()
    assert text.startswith('# ours\nimage = "base"\n')
    assert '"b.test:8080"' in text
    assert (again.stdout, again.stderr) == (b"", b"nothing to add\n")


def test_suggestion_omits_rules_of_presets(tmp_path: Path) -> None:
    (tmp_path / "skerry.toml").write_text('[network]\npresets = ["pip"]\n')
    presets = [{"name": "pip", "allow": ["index.test:443"]}, {"name": "npm", "allow": ["npm.test:443"]}]
    sandbox = said({**SANDBOX, "network": {"presets": presets}})
    learned = said({"allow": ["b.test", "index.test:443", "npm.test:443"]})
    with lying(tmp_path, lambda asked: learned if asked.path.endswith("/suggested-policy") else sandbox) as server:
        done = skerry("network", "suggest", "dev", server=server.address, cwd=tmp_path).stdout
    assert b"b.test" in done
    assert b"npm.test" in done, "the project does not have that one"
    assert b"index.test" not in done


def test_long_policy_is_truncated(tmp_path: Path) -> None:
    rules = [f"h{n}.test" for n in range(50)]
    info = {
        "network": {"allow": rules, "on_unknown": "ask"},
        "sent": 5,
        "received": 0,
        "open_connections": 1,
        "ready": True,
    }
    with lying(tmp_path, below("/network", said(info))) as server:
        shown = skerry("network", "show", "dev", server=server.address).stdout.decode().splitlines()
        as_json = json.loads(skerry("network", "show", "--json", "dev", server=server.address).stdout)
    assert shown[0] == "network  ask: destinations without a rule need an approval"
    assert shown[-2:] == ["allow    and 30 more: --json lists them all", "traffic  sent 5, received 0, 1 open now"]
    assert as_json["network"]["allow"] == rules


def test_rules_are_sent_and_the_new_policy_is_shown(tmp_path: Path) -> None:
    with lying(tmp_path, below("/network", said({"network": {"allow": ["a.test"]}}))) as server:
        assert skerry("network", "allow", "dev", "a.test", server=server.address).returncode == 0
        assert skerry("network", "deny", "dev", "b.test", "c.test", server=server.address).returncode == 0
        done = skerry("network", "set", "dev", "--allow", "a.test", server=server.address, cwd=tmp_path)
        assert done.returncode == 0
        nothing = skerry("network", "set", "dev", server=server.address, cwd=tmp_path)
    assert nothing.returncode == 2
    assert b"--network none" in nothing.stderr
    bodies = [json.loads(asked.body) for asked in server.asked if asked.body]
    assert bodies == [{"allow": ["a.test"]}, {"deny": ["b.test", "c.test"]}, {"allow": ["a.test"]}]


def test_ask_needs_a_terminal(tmp_path: Path) -> None:
    with lying(tmp_path, lambda _: said(SANDBOX)) as server:
        done = subprocess.run(
            ["setsid", "--wait", *SKERRY, "network", "ask", "dev"],
            env=environment(SKERRY_SERVER=server.address),
            capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert b"hint: " in done.stderr


def test_shell_completes_presets_and_peers(tmp_path: Path) -> None:
    with lying(tmp_path, lambda _: said({"sandboxes": [{**SANDBOX, "name": "my-db"}]})) as server:

        def complete(words: str, count: int) -> list[str]:
            done = skerry(
                server=server.address, _SKERRY_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(count)
            )
            return done.stdout.decode().split()

        assert complete("skerry run --preset ", 3) == [f"plain,{name}" for name in PRESETS]
        assert complete("skerry run --peer db=m", 3) == ["plain,db=my-db"]
        assert complete("skerry network log ", 3) == ["plain,my-db"]


def test_completed_presets_match_the_sdk() -> None:
    assert PRESETS == KNOWN


def test_handlers_of_flags_and_of_a_trusted_project_are_sent(tmp_path: Path) -> None:
    (tmp_path / "skerry.toml").write_text(
        "[network]\nallow = ['a.test']\nmirror = ['a.test']\n"
        "handlers = ['a.test set X: project', 'b.test answer 201 body.txt']\n"
    )
    (tmp_path / "body.txt").write_text("hi")
    with lying(tmp_path, below("/network", said({"network": {}}))) as server:
        untrusted = skerry("network", "set", "dev", server=server.address, cwd=tmp_path)
        words = ("network", "set", "dev", "--trust", "--handle", "a.test set X: flag", "--handle", "a.test remove Y")
        done = skerry(*words, server=server.address, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert skerry("network", "handle", "dev", "c.test redirect d.test", server=server.address).returncode == 0
        assert skerry("network", "unhandle", "dev", "c.test", server=server.address).returncode == 0
        assert skerry("network", "mirror", "dev", server=server.address).returncode == 0
        none = skerry(
            "network", "set", "dev", "--network", "none", "--handle", "a.test remove Y", server=server.address
        )
    assert untrusted.returncode == 2
    assert b"network.handlers  b.test answer 201 body.txt\n" in untrusted.stderr
    assert b"network.mirror    a.test\n" in untrusted.stderr
    assert (none.returncode, b"--handle" in none.stderr) == (2, True)
    bodies = [json.loads(asked.body) for asked in server.asked if asked.body]
    answer = {"status": 201, "headers": [["Content-Type", "text/plain"]], "body": "aGk="}
    assert bodies == [
        {
            "allow": ["a.test"], "mirror": ["a.test"],
            "handlers": [
                {"host": "a.test", "set_headers": {"X": "flag"}, "remove_headers": ["Y"]},
                {"host": "b.test", "answer": answer},
            ],
        },
        {"handlers": [{"host": "c.test", "redirect": "d.test"}]},
        {"remove_handlers": ["c.test"]},
        {"mirror": []},
    ]  # fmt: skip


def test_handlers_are_shown_as_rules(tmp_path: Path) -> None:
    handlers = [
        {"host": "a.test", "set_headers": {"X": "y"}, "response_remove_headers": ["Z"], "redirect": "b.test"},
        {"host": "c.test", "answer": {"status": 404, "body": "aGk="}},
        {"host": "d.test", "callback": "both"},
    ]
    with lying(tmp_path, below("/network", said({"network": {"handlers": handlers}}))) as server:
        shown = skerry("network", "show", "dev", server=server.address).stdout.decode().splitlines()
    assert [line.removeprefix("handler  ") for line in shown if line.startswith("handler")] == [
        "a.test set X: y",
        "a.test response remove Z",
        "a.test redirect b.test",
        "c.test answer 404, 2 bytes",
        "d.test a client decides about requests and responses",
    ]
