"""rename, fork --name, stats, help, and commands under the names of other tools."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator

import click
import pytest
from support.cli import skerry
from support.recorded_terminal import Wire
from support.server import Server, wait_until

from skerry import Client, Conflict, InvalidRequest, NotFound, Sandbox
from skerry.cli.app import SYNONYMS
from skerry.cli.app import skerry as group
from skerry.cli.commands.stats import cpu_percent
from skerry.results import SandboxStats
from skerry.types import Limits, Usage


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(name="first", server=server.address) as sandbox:
        yield sandbox
        sandbox.delete()


# -- names --


def test_renamed_sandbox_has_only_its_new_name(server: Server, client: Client, sandbox: Sandbox) -> None:
    old = sandbox.name
    assert old is not None
    done = skerry("rename", old, "second", server=server.address)
    assert (done.returncode, done.stderr.decode()) == (0, f"{old}: renamed to second\n")
    assert Sandbox.get("second", server=client).id == sandbox.id
    with pytest.raises(NotFound):
        Sandbox.get(old, server=client)
    inside = sandbox.run("hostname; getent hosts $(hostname)")
    assert inside.stdout.splitlines()[0] == "second"
    assert (inside.ok, inside.denied) == (True, ()), "its name is looked up without an attempt to get out"
    event = [one for one in client.events(sandbox=sandbox.id) if one.type == "sandbox.renamed"][-1]
    assert (event.name, event.reason) == ("second", f"was {old}")
    (record,) = [path for path in server.state_dir.rglob(f"{sandbox.id}.json") if path.parent.name == "r"]
    wait_until(lambda: b'"second"' in record.read_bytes(), "the record file to have the name")
    sandbox.rename(old)
    assert sandbox.name == old


def test_taken_or_invalid_name_changes_nothing(server: Server, client: Client, sandbox: Sandbox) -> None:
    with Sandbox(server=client) as other:
        with pytest.raises(Conflict, match="already exists"):
            other.rename(sandbox.name or "")
        with pytest.raises(InvalidRequest):
            other.rename("No Name")
        assert other.info().name is None
        assert skerry("rename", other.id, sandbox.name or "", server=server.address).returncode == 2
        other.rename("third")
        other.rename("third")
        assert other.info().lifecycle.on_idle == "stop", "a named sandbox is not deleted automatically"
        assert len([one for one in client.events(sandbox=other.id) if one.type == "sandbox.renamed"]) == 1
        other.delete()


def test_stopped_sandbox_is_renamed(client: Client) -> None:
    with Sandbox(server=client) as sandbox:
        sandbox.stop()
        sandbox.rename("asleep")
        assert sandbox.state == "stopped"
        assert sandbox.run("hostname").stdout == "asleep\n"
        sandbox.delete()


def test_fork_can_be_named(server: Server, client: Client, sandbox: Sandbox) -> None:
    made = json.loads(skerry("fork", "--name", "copy", "--json", sandbox.id, server=server.address).stdout)
    assert [one["name"] for one in made] == ["copy"]
    assert made[0]["lifecycle"]["on_idle"] == "stop"
    copy = Sandbox.get("copy", server=client)
    assert copy.run("hostname").stdout == "copy\n"
    with pytest.raises(Conflict, match="already exists"):
        sandbox.fork(name="copy")
    with pytest.raises(InvalidRequest, match="single"):
        sandbox.fork(2, name="more")
    copy.delete()


# -- stats --


def test_stats_have_usage_and_limits(server: Server, client: Client, sandbox: Sandbox) -> None:
    sandbox.run("head -c 20M /dev/urandom >/workspace/data; sync")
    spinning = sandbox.spawn(["sh", "-c", "while :; do :; done"])
    (one,) = client.stats(sandbox.id)
    assert one == SandboxStats(
        id=sandbox.id, name=sandbox.name, state="running", at=one.at, usage=one.usage, limits=sandbox.cached_info.limits
    )
    assert one.usage.memory is not None
    assert one.usage.memory_peak is not None
    assert 0 < one.usage.memory <= one.usage.memory_peak
    assert (one.usage.pids or 0) >= 2
    wait_until(lambda: sandbox.stats().usage.cpu_s > one.usage.cpu_s, "CPU time to be counted")
    wait_until(lambda: (sandbox.stats().usage.disk or 0) >= 20 << 20, "the file to be counted")
    spinning.kill()
    shown = skerry("stats", server=server.address).stdout.decode().splitlines()
    assert shown[0].split() == ["SANDBOX", "STATE", "CPU", "MEMORY", "DISK", "PROCESSES", "SENT", "RECEIVED"]
    assert [line.split()[:2] for line in shown[1:]] == [[sandbox.name, "running"]]
    assert "% " in shown[1]
    listed = json.loads(skerry("stats", "--json", sandbox.id, server=server.address).stdout)
    assert [one["id"] for one in listed] == [sandbox.id]
    assert skerry("stats", "nobody", server=server.address).returncode == 2


def test_stats_of_a_stopped_sandbox_have_its_disk(client: Client) -> None:
    with Sandbox(server=client) as sandbox:
        sandbox.stop()
        stats = sandbox.stats()
    assert (stats.state, stats.usage.memory, stats.usage.pids) == ("stopped", None, None)
    assert stats.usage.disk is not None


def test_stats_can_be_watched(server: Server, sandbox: Sandbox) -> None:
    with Wire(server.address, "stats", "--watch", "--interval", "0.1") as wire:
        wait_until(lambda: wire.seen().count(b"SANDBOX") >= 3, "three measurements")
        assert (sandbox.name or "").encode() in wire.seen()
        wire.press(b"\x03")
        assert wire.ends() == 130
        assert b"Traceback" not in wire.seen()
        assert wire.modes == wire.before


@pytest.mark.parametrize(
    ("cpu_s", "at", "shown"), [(1.5, 11.0, "50%"), (1.0, 12.0, "0%"), (5.0, 12.0, "200%"), (0.5, 11.0, "-")]
)
def test_cpu_use_follows_from_two_measurements(cpu_s: float, at: float, shown: str) -> None:
    def measured(cpu_s: float, at: float) -> SandboxStats:
        usage = Usage(cpu_s=cpu_s, memory=1)
        return SandboxStats(id="sb-aaaaaaaaaa", state="running", at=at, usage=usage, limits=Limits())

    assert cpu_percent(measured(cpu_s, at), measured(1.0, 10.0)) == shown
    assert cpu_percent(measured(cpu_s, at), None) == "-"


# -- help --


def test_help_of_a_command_is_its_help() -> None:
    for words in ([], ["ls"], ["image", "build"]):
        asked = skerry("help", *words)
        assert (asked.returncode, asked.stdout) == (0, skerry(*words, "--help").stdout)
    assert skerry("help", "nonsense").returncode == 2
    assert skerry("help", "ls", "more").returncode == 2


@pytest.mark.parametrize("name", ["start", "inspect", "delete", "restart", "top", "version", "pull", "build"])
def test_names_of_other_tools_are_explained(name: str) -> None:
    assert (name in SYNONYMS) != (name in group.commands)
    if name not in group.commands:
        done = skerry(name, "x")
        assert (done.returncode, f"Did you mean {SYNONYMS[name]}?" in done.stderr.decode()) == (2, True)


def test_explanations_name_existing_commands() -> None:
    for words in (words.split() for hint in SYNONYMS.values() for words in hint.split("'")[1::2]):
        command: click.Command = group
        for word in words if words != ["--version"] else []:
            assert isinstance(command, click.Group)
            command = command.commands[word]


# -- usage --


def test_usage_in_a_table_as_json_and_as_csv(server: Server) -> None:
    with Sandbox(labels={"task": "=a,\n\x1b[31mb"}, server=server.address) as sandbox:
        sandbox.run("true")
        by = ("usage", "--by", "label:task")
        shown = skerry(*by, "--since", "7d", server=server.address)
        lines = shown.stdout.decode().splitlines()
        assert (lines[0].split()[:3], lines[-1].split()[0]) == (["task", "SANDBOXES", "CPU"], "total")
        assert b"\x1b[31m" not in shown.stdout
        assert re.search(r"  [0-9.]+s  +[0-9.]+[KM]? h  +[0-9.]+M  +[0-9.]+[KM]? h  +0 ", lines[-1]), lines[-1]
        table = skerry(*by, "--csv", server=server.address).stdout.decode()
        rows = [row[:4] for row in csv.reader(table.splitlines(keepends=True))]
        assert rows[0] == ["key", "name", "sandboxes", "cpu_s"]
        assert ["'=a,\n\x1b[31mb", "", "1"] in [row[:3] for row in rows]
        report = json.loads(skerry("usage", "--sandbox", sandbox.id, "--json", server=server.address).stdout)
        assert [(row["key"], row["sandboxes"]) for row in report["rows"]] == [(sandbox.id, 1)]
        assert report["total"]["cpu_s"] > 0
        shown = json.loads(skerry("show", sandbox.id, "--json", server=server.address).stdout)["usage"]
        assert shown["wall_s"] > 0
        assert b"cpu used" in skerry("show", sandbox.id, server=server.address).stdout
    assert skerry("usage", "--by", "colour", server=server.address).returncode == 2
    assert skerry("usage", "--csv", "--json", server=server.address).returncode == 2
    assert skerry("usage", "--since", "yesterday", server=server.address).returncode == 2


# -- show --

FORKS = """
import os, signal
children = []
try:
    while len(children) < 200:
        children.append(os.fork())
        if not children[-1]:
            signal.pause()
except OSError:
    print(len(children))
for child in children:
    os.kill(child, signal.SIGKILL)
"""


def test_show_prints_the_limits_that_hold_inside(server: Server, client: Client) -> None:
    limits = Limits(cpus=0.5, memory="256M", disk="1G", pids=100, open_files=2048)
    with Sandbox(limits=limits, server=client) as sandbox:

        def shown() -> dict[str, str]:
            text = skerry("show", sandbox.id, server=server.address).stdout.decode()
            return dict(re.split(" {2,}", line, maxsplit=1) for line in text.splitlines())

        found = shown()
        named = ("cpus", "memory", "disk", "processes", "open files")
        assert [found[name].split(" (")[0] for name in named] == ["0.5", "256M", "1G", "100", "2048 per process"]
        assert re.fullmatch(r"\d+(\.\d)?[BKMG] hours, peak .*", found["memory used"])
        assert sandbox.run("ulimit -n").stdout == "2048\n"
        assert 0 < int(sandbox.run(["python3", "-c", FORKS]).stdout) < 100
        sandbox.update(limits=Limits(memory="512M", cpus=2))
        found = shown()
        assert [found[name].split(" (")[0] for name in named] == ["2", "512M", "1G", "100", "2048 per process"]
