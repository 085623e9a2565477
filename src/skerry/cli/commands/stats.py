"""stats: CPU, memory, disk and network use of sandboxes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from skerry.cli import output, terminal
from skerry.cli.context import CliContext, SandboxName, json_option, pass_cli
from skerry.types import SandboxStats

if TYPE_CHECKING:
    from skerry.client._sync.client import Client

HEAD = ("SANDBOX", "STATE", "CPU", "MEMORY", "DISK", "PROCESSES", "SENT", "RECEIVED")
SAMPLE_S = 0.5  # between the two measurements from which the CPU use follows
_CLEAR = b"\x1b[H\x1b[2J"


@click.command()
@click.option("-w", "--watch", is_flag=True, help="Measure again and again, until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="With --watch: the time between two measurements.",
)
@json_option
@click.argument("sandboxes", type=SandboxName(), nargs=-1, metavar="[SANDBOX...]")
@pass_cli
def stats(cli: CliContext, sandboxes: tuple[str, ...], watch: bool, interval: float, as_json: bool) -> None:
    """Show the CPU, memory, disk and network use of sandboxes, of all of yours by default.

    CPU is in percent of one CPU. Memory is without caches that can be freed. SENT and RECEIVED count the bytes to and
    from other hosts since the sandbox was created. With --json, `cpu_s` is the CPU time since the start of the sandbox;
    with --watch, each measurement is one line.
    """
    with cli.client() as client:
        if as_json and not watch:
            output.json(client.stats(*sandboxes))
            return
        screen = watch and terminal.is_terminal(1)
        before: dict[str, SandboxStats] = {}
        for number, now in enumerate(_measurements(client, sandboxes, interval, watch)):
            if as_json:
                output.json_line(now)
            elif watch or number:
                _show(now, before, screen=screen)
            before = {one.id: one for one in now}


def _measurements(client: Client, refs: tuple[str, ...], interval: float, watch: bool) -> Iterator[list[SandboxStats]]:
    yield client.stats(*refs)
    time.sleep(SAMPLE_S)
    yield client.stats(*refs)
    while watch:
        time.sleep(interval)
        yield client.stats(*refs)


def _show(now: list[SandboxStats], before: Mapping[str, SandboxStats], *, screen: bool) -> None:
    if screen:
        output.write_raw("stdout", _CLEAR)
    output.table(HEAD, [_row(one, before.get(one.id)) for one in now])


def _row(one: SandboxStats, before: SandboxStats | None) -> tuple[str, ...]:
    usage, limits = one.usage, one.limits
    return (
        one.name or one.id,
        one.state,
        cpu_percent(one, before),
        _of(usage.memory, limits.memory_bytes),
        _of(usage.disk, limits.disk_bytes),
        "-" if usage.pids is None else f"{usage.pids} / {limits.pids}",
        output.format_size(one.sent),
        output.format_size(one.received),
    )


def cpu_percent(one: SandboxStats, before: SandboxStats | None) -> str:
    """Return the CPU use between two measurements; `-` without an earlier one, or after a restart."""
    if before is None or one.usage.memory is None or one.at <= before.at or one.usage.cpu_s < before.usage.cpu_s:
        return "-"
    return f"{100 * (one.usage.cpu_s - before.usage.cpu_s) / (one.at - before.at):.0f}%"


def _of(used: int | None, limit: int) -> str:
    return "-" if used is None else f"{output.format_size(used)} / {output.format_size(limit)}"
