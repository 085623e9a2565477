"""audit, audit verify, export, key, rotate."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from skerry.cli import output
from skerry.cli.context import CliContext, SandboxName, json_lines_option, json_option, pass_cli
from skerry.errors import InvalidRequest
from skerry.extras import require
from skerry.types import AuditRecord, AuditReport, parse_span

DEFAULT_LIMIT = 1000


@click.group("audit", invoke_without_command=True)
@click.option("--sandbox", type=SandboxName(), metavar="SANDBOX", help="List only records of this sandbox.")
@click.option("--actor", metavar="ACTOR", help="List only records of this actor: a token's ID, uid:N, server, sandbox.")
@click.option("--owner", metavar="OWNER", help="List only records of this owner.")
@click.option("--type", "kind", metavar="TYPE", help="List only this type, like process.run, or process.")
@click.option("--since", metavar="SPAN", help="List only records of this time span, like 1h or 7d.")
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=DEFAULT_LIMIT, show_default=True, help="List at most N records."
)
@json_lines_option
@pass_cli
@click.pass_context
def audit(
    context: click.Context,
    cli: CliContext,
    /,
    kind: str | None,
    since: str | None,
    limit: int,
    as_json: bool,
    **which: Any,
) -> None:
    """List the newest records of the audit log, oldest first."""
    if context.invoked_subcommand is not None:
        return
    start = time.time() - parse_span(since, "since") if since is not None else None
    with cli.client() as client:
        found = list(client.audit.records(type=kind, since=start, limit=limit, **which))
    for record in reversed(found):
        if as_json:
            output.json_line(record)
        else:
            output.line(_line(record))


def _line(record: AuditRecord) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.at))
    words = [str(record.seq).rjust(6), moment, (record.actor or "-").ljust(13), record.type.ljust(16)]
    params = " ".join(f"{name}={_value(value)}" for name, value in record.params.items())
    return "  ".join([*words, (record.sandbox or "-").ljust(13), *([params] if params else []), *_result(record)])


def _value(value: Any) -> str:
    return value if isinstance(value, str) and value and " " not in value else msgspec.json.encode(value).decode()


def _result(record: AuditRecord) -> list[str]:
    result = record.result
    if result is None:
        return []
    exit_code = result.details.get("exit_code")
    return [f"-> {result.code or result.status}" + (f" exit {exit_code}" if exit_code is not None else "")]


@audit.command()
@click.argument("file", required=False, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--key", "keys", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="Trust the public keys in this file; repeatable. Default for an export: the server's.",
)  # fmt: skip
@click.option(
    "--checkpoint", "checkpoints", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="Require the checkpoints in this file, one JSON object per line.",
)  # fmt: skip
@json_option
@pass_cli
def verify(cli: CliContext, file: Path | None, keys: tuple[Path, ...], checkpoints: Path | None, as_json: bool) -> None:
    """Verify the audit log of the server, or FILE: an export, or a directory of segments. With --key, FILE is verified
    without a server."""
    if file is None:
        if keys or checkpoints:
            raise InvalidRequest("--key and --checkpoint: only with FILE", hint="skerry audit verify FILE --key KEY")
        with cli.client() as client:
            report = client.audit.verify()
    else:
        report = _verify_file(cli, file, keys, checkpoints)
    if as_json:
        output.json(report)
    else:
        _show(report)
    if not report.ok:
        sys.exit(1)


def _verify_file(cli: CliContext, file: Path, keys: tuple[Path, ...], checkpoints: Path | None) -> AuditReport:
    """Verify on this machine; a part of the server's code is loaded for it. Without `keys`, ask the server for them."""
    require("audit")
    from skerry.engine.records.audit.chain import Checkpoint
    from skerry.engine.records.audit.verification import list_segments, read_keys
    from skerry.engine.records.audit.verification import verify as verify_lines

    if not keys and file.is_dir():  # of a stopped server: a request for the keys would start it
        raise InvalidRequest(
            "--key: required to verify a directory", hint="`skerry audit key > audit.pub` while the server runs"
        )
    texts = [path.read_bytes() for path in keys] or _server_keys(cli)
    try:
        trusted = read_keys(texts)
        lines = checkpoints.read_bytes().splitlines() if checkpoints is not None else []
        points = [msgspec.json.decode(line, type=Checkpoint) for line in lines if line.strip()]
    except ValueError as error:
        raise InvalidRequest(f"--key, --checkpoint: {error}", hint="as `skerry audit key` prints them") from error
    files = [segment.path for segment in list_segments(file)] if file.is_dir() else [file]
    return verify_lines(files, trusted, points)


def _server_keys(cli: CliContext) -> list[bytes]:
    with cli.client() as client:
        return [one.public.encode() for one in client.audit.keys().keys]


def _show(report: AuditReport) -> None:
    for problem in report.problems:
        output.line(f"record {problem.seq}: {problem.problem} ({problem.place})")
    if report.ok:
        signed = f", signed up to {report.sealed}" if report.sealed is not None else ""
        output.line(f"ok: {report.records:,} records ({report.first} to {report.last}){signed}")
    else:
        output.info("error: the audit log was changed")


@audit.command()
@pass_cli
def export(cli: CliContext) -> None:
    """Write the whole audit log to stdout, one record per line."""
    with cli.client() as client, client.audit.export() as pieces:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


@audit.command()
@click.option("--checkpoint", is_flag=True, help="Print the newest checkpoint instead.")
@json_option
@pass_cli
def key(cli: CliContext, checkpoint: bool, as_json: bool) -> None:
    """Print the public keys of the audit log, oldest first."""
    with cli.client() as client:
        found = client.audit.keys()
    if as_json:
        output.json(found)
    elif checkpoint:
        output.line(found.checkpoint or "")
    else:
        for one in found.keys:
            output.line(one.public)


@audit.command()
@pass_cli
def rotate(cli: CliContext) -> None:
    """Sign the audit log with a new key from now on, and print its public key."""
    with cli.client() as client:
        found = client.audit.rotate_key()
    output.line(next(one.public for one in found.keys if one.current))
