"""cp: copy files and directories into or out of a sandbox."""

from __future__ import annotations

import re
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

from skerry.cli import output
from skerry.cli.context import CliContext, json_option, pass_cli
from skerry.client.host.output_dir import SingleFile, TransferLimit
from skerry.client.host.progress import ProgressBar
from skerry.errors import FileIsDirectory, InvalidRequest, SkerryError
from skerry.types import TransferResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from skerry.client._sync.files import Files
    from skerry.client._sync.sandbox import Sandbox
    from skerry.types import Progress

_INSIDE = re.compile(r"([a-z0-9][a-z0-9._-]*):(.+)", re.DOTALL)
_SHOWN = 20
EXIT_SKIPPED = 1


@dataclass(frozen=True)
class CopyRequest:
    """The options of a copy."""

    recursive: bool
    gitignore: bool
    exclude: tuple[str, ...]
    all_links: bool
    max_size: str | None
    user: str | None


@click.command()
@click.option("-r", "--recursive", is_flag=True, help="Copy directories recursively.")
@click.option("--gitignore", is_flag=True, help="Into a sandbox: skip files that git ignores.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Skip paths that match, like '*.pyc' or 'build/*.o'.")
@click.option("--all-links", is_flag=True, help="Out of a sandbox: also copy links that point outside the directory.")
@click.option(
    "--max-size", metavar="SIZE", help="Out of a sandbox: maximum size of all files. Default: the sandbox's disk limit."
)
@click.option("--user", metavar="NAME", help="Use this user's permissions in the sandbox. Default: the image's user.")
@json_option
@click.argument("source")
@click.argument("target")
@pass_cli
def cp(
    cli: CliContext, source: str, target: str, recursive: bool, gitignore: bool, exclude: tuple[str, ...],
    all_links: bool, max_size: str | None, user: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Copy PATH to NAME:/path, or NAME:/path to PATH. `-` is stdin or stdout.

    As with `cp`: if TARGET is a directory, SOURCE is copied into it; a SOURCE that ends in `/.` copies its contents.
    Write a local path that looks like NAME:… with ./ in front.
    """
    into, out_of = _INSIDE.fullmatch(target), _INSIDE.fullmatch(source)
    request = CopyRequest(recursive, gitignore, exclude, all_links, max_size, user)
    began = time.monotonic()
    with ExitStack() as stack:
        show = _bar(cli, stack) if recursive else None
        if into and not out_of:
            moved = _copy_in(cli.sandbox(into[1]).files, source, into[2], request, show)
        elif out_of and not into:
            moved = _copy_out(cli.sandbox(out_of[1]), out_of[2], target, request, show)
        else:
            raise InvalidRequest("SOURCE or TARGET must be in a sandbox", hint="write it as NAME:/path")
    return _report(cli, moved, recursive, time.monotonic() - began, as_json)


def _bar(cli: CliContext, stack: ExitStack) -> Callable[[Progress], None] | None:
    """Return a callback for a progress bar, or None without a terminal."""
    if cli.quiet or not sys.stderr.isatty():
        return None
    return stack.enter_context(ProgressBar("copying", sys.stderr, transient=True)).update


def _copy_in(
    files: Files, source: str, path: str, request: CopyRequest, show: Callable[[Progress], None] | None
) -> TransferResult | None:
    if source == "-":
        files.write(path, sys.stdin.buffer, user=request.user)
        return None
    place = Path(source)
    if place.is_dir():
        if not request.recursive:
            raise InvalidRequest(f"{source} is a directory", hint="use -r to copy directories")
        if not _contents(source) and _is_directory(files, path, request.user):
            path = f"{path.rstrip('/')}/{place.name}"
        return files.upload(
            place, path, gitignore=request.gitignore, exclude=request.exclude, user=request.user, progress=show
        )
    if path.endswith("/"):
        path += place.name
    try:
        return files.upload(place, path, user=request.user)
    except FileIsDirectory:
        return files.upload(place, f"{path}/{place.name}", user=request.user)


def _copy_out(
    sandbox: Sandbox, path: str, target: str, request: CopyRequest, show: Callable[[Progress], None] | None
) -> TransferResult | None:
    files = sandbox.files
    if target == "-":
        for piece in files.stream(path, user=request.user):
            output.write("stdout", piece)
        return None
    place = Path(target)
    if not _contents(path) and (place.is_dir() or (target.endswith("/") and not request.recursive)):
        place = place / PurePosixPath(path).name
    if request.recursive:
        return files.download(
            path, place, exclude=request.exclude, outside_links=request.all_links, limit=request.max_size,
            user=request.user, progress=show,
        )  # fmt: skip
    limit = TransferLimit(sandbox.cached_info.limits.disk_bytes, request.max_size)
    return _copy_file_out(files, path, place, limit, request.user)


def _copy_file_out(files: Files, path: str, place: Path, limit: TransferLimit, user: str | None) -> TransferResult:
    info = files.stat(path, user=user)
    if info.type == "directory":
        raise InvalidRequest(f"{path} is a directory", hint="use -r to copy directories")
    pieces = files.stream(path, user=user)
    first = next(pieces, b"")  # read first: a file that is unreadable in the sandbox must not leave an empty local file
    with SingleFile(place, info.mode if info.type == "file" else 0o666, limit) as file:
        file.write(first)
        for piece in pieces:
            file.write(piece)
    return TransferResult(files=1, directories=0, links=0, bytes=file.size)


def _contents(source: str) -> bool:
    """Return whether the path means the contents of a directory, because it ends without a name."""
    return source.endswith("/.") or PurePosixPath(source).name in ("", "..")


def _is_directory(files: Files, path: str, user: str | None) -> bool:
    try:
        return files.stat(f"{path}/.", user=user).type == "directory"  # "/." follows a link
    except (OSError, SkerryError):
        return False


def _report(cli: CliContext, moved: TransferResult | None, recursive: bool, seconds: float, as_json: bool) -> int:
    if moved is None:
        return 0
    if as_json:
        output.json(moved)
    report_skipped(moved)
    if recursive and not cli.quiet:
        counts = ((moved.files, "files"), (moved.directories, "directories"), (moved.links, "links"))
        words = [f"{count:,} {name}" for count, name in counts if count or name == "files"]
        output.info(f"copied {', '.join(words)}, {_size(moved.bytes)} in {seconds:.1f} s")
    return EXIT_SKIPPED if moved.skipped or moved.more else 0


def report_skipped(moved: TransferResult) -> None:
    for one in moved.skipped[:_SHOWN]:
        output.info(f"left out: {one.path}: {one.reason}")
    more = moved.more + max(0, len(moved.skipped) - _SHOWN)
    if more:
        output.info(f"left out: {more} more")


def _size(number: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"
