"""trace, trace export: the steps of a sandbox."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec
from click.shell_completion import CompletionItem

from skerry.cli import output
from skerry.cli.context import CliContext, SandboxName, json_lines_option, pass_cli, sandbox_argument
from skerry.client._sync.records.trace import Records
from skerry.codecs.traces import Trace
from skerry.errors import NotFound
from skerry.types import TraceContent, TraceEnd, TraceStep, parse_span, readable_size

_SHOW = "show"


class _ShowByDefault(click.Group):
    """`trace NAME` is `trace show NAME`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [_SHOW, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = click.Argument(["sandbox"], type=SandboxName())
        return [*super().shell_complete(ctx, incomplete), *names.type.shell_complete(ctx, names, incomplete)]


@click.group("trace", cls=_ShowByDefault)
def trace() -> None:
    """Show or export the trace of a sandbox.

    `skerry trace SANDBOX` is `skerry trace show SANDBOX`.
    """


@trace.command()
@click.option("--step", type=click.IntRange(1), metavar="N", help="Show one step completely, with its contents.")
@click.option("--since", metavar="SPAN", help="List only steps of this time span, like 1h or 7d.")
@click.option("-f", "--follow", is_flag=True, help="Follow new steps until the sandbox is deleted.")
@json_lines_option
@sandbox_argument
@pass_cli
def show(cli: CliContext, sandbox: str, step: int | None, since: str | None, follow: bool, as_json: bool) -> None:
    """List the steps of a sandbox, oldest first: commands, code runs, file changes, network attempts, snapshots,
    decisions and reached limits. A deleted sandbox is found by its ID."""
    if step is not None and (follow or since is not None):
        raise click.UsageError("--step cannot be combined with --since or --follow.")
    start = time.time() - parse_span(since, "since") if since is not None else 0.0
    with cli.client() as client:
        records = client.records(sandbox)
        if step is not None:
            _show_step(records, step, as_json)
            return
        found = Trace()
        for one in records.follow() if follow else (found := records.trace()).steps:
            if one.at >= start and (not follow or one.event or one.end is not None):
                _print(one, as_json)
    _print_notes(found)


def _print(step: TraceStep, as_json: bool) -> None:
    if as_json:
        output.json_line(step)
    else:
        output.line(_line(step))


def _print_notes(found: Trace) -> None:
    if found.damaged:
        output.info(f"{found.damaged} lines of the trace cannot be read: the server was killed, or the file is damaged")
    if found.omitted:
        output.info(f"{found.omitted} steps were not recorded: the trace was full (trace.max_size), or the disk was")


def _line(step: TraceStep) -> str:
    words = [str(step.n).rjust(6), _moment(step.at), step.kind.ljust(16), *([step.text] if step.text else [])]
    return "  ".join([*words, *_outcome(step)])


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def _outcome(step: TraceStep) -> list[str]:
    end = step.end
    if step.event:
        return []
    if end is None:
        return ["-> running, or its end was not recorded"]
    if end.error is not None:
        return [f"-> {end.error.code}" + _exit(end)]
    if step.kind in ("process.run", "process.spawn", "code.run"):
        return [f"->{_exit(end)}  {end.duration_s:.2f}s"]
    sizes = [readable_size(content.size) for name, content in end.inputs.items() if name == "body" and content.size]
    return [f"-> {sizes[0]}"] if sizes else ["-> ok"]


def _exit(end: TraceEnd) -> str:
    if end.timed_out:
        return " timed out"
    if end.oom_killed:
        return " out of memory"
    if end.signal is not None:
        return f" signal {end.signal}"
    return f" exit {end.exit_code}" if end.exit_code is not None else ""


def _show_step(records: Records, number: int, as_json: bool) -> None:
    found = records.trace()
    step = found.get(number)
    if step is None:
        raise NotFound(f"step {number} not found", hint=f"the trace has {len(found.steps)} steps")
    if as_json:
        output.json_line(step)
        return
    output.pairs(_pairs(step))
    contents = {**step.inputs, **(step.end.inputs if step.end is not None else {})}
    if step.end is not None:
        outputs = {"stdout": step.end.stdout, "stderr": step.end.stderr, "results": step.end.results}
        contents |= {name: content for name, content in outputs.items() if content is not None}
    for name, content in contents.items():
        _show_content(records, name, content)


def _pairs(step: TraceStep) -> list[tuple[str, str]]:
    rows = [("step", str(step.n)), ("time", _moment(step.at)), ("kind", step.kind), ("text", step.text or "-")]
    if step.process is not None:
        rows.append(("process", step.process))
    values: dict[str, Any] = {**step.params}
    if step.start is not None:
        values |= {"image": step.start.image, "digest": step.start.image_digest, **step.start.spec}
    rows += [(name, _value(value)) for name, value in values.items()]
    if step.changes is not None:
        rows += [("changed", f"{file.mode or 'removed'} {file.path}") for file in step.changes.files]
    if (end := step.end) is not None:
        rows += [("outcome", "".join(_outcome(step)).removeprefix("->").strip())]
        rows += [("error", end.error.message)] if end.error is not None and end.error.message else []
        rows += [("cpu", f"{end.usage.cpu_s:.3f} s")] if end.usage is not None else []
        rows += [(name, _value(value)) for name, value in end.result.items()]
    return rows


def _value(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _show_content(records: Records, name: str, content: TraceContent) -> None:
    masked = f", {content.masked} masked" if content.masked else ""
    output.line(f"-- {name}: {content.size} bytes{masked}, sha256 {content.sha256 or '-'}")
    if content.text is None and content.data is None and content.blob is None:
        output.info(f"not kept: {content.left_out}")
        return
    kept = records.content(content)
    if content.head is None:
        pieces = [kept]
    else:
        pieces = [kept[: content.head], b"\n[skerry: %d bytes left out here]\n" % (content.size - len(kept)),
                  kept[content.head :]]  # fmt: skip
    sys.stdout.flush()
    for piece in pieces:
        output.write("stdout", piece)
    if kept and not kept.endswith(b"\n"):
        output.write("stdout", b"\n")


@trace.command()
@click.option(
    "-o", "--output", "path", required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write to this file.",
)  # fmt: skip
@sandbox_argument
@pass_cli
def export(cli: CliContext, sandbox: str, path: Path) -> None:
    """Write the trace with all its contents into one file, which `skerry replay` takes."""
    with cli.client() as client:
        client.records(sandbox).export(path)
