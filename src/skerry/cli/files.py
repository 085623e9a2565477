"""cp: files and directories into a sandbox, or out of one."""

from __future__ import annotations

import re
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

from skerry.cli import talk
from skerry.cli.session import Session, json_option, pass_session
from skerry.errors import FileIsDirectory, InvalidRequest, SkerryError
from skerry.types import Transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from skerry.client._sync.files import Files
    from skerry.types import Progress

_INSIDE = re.compile(r"([a-z0-9][a-z0-9._-]*):(.+)", re.DOTALL)
_SHOWN = 20
LEFT_OUT = 1


@dataclass(frozen=True)
class Wish:
    recursive: bool
    gitignore: bool
    exclude: tuple[str, ...]
    all_links: bool
    user: str | None


@click.command(short_help="Copy files in or out.")
@click.option("-r", "--recursive", is_flag=True, help="Directories too, with all that is in them.")
@click.option("--gitignore", is_flag=True, help="Into a sandbox: only what git would take.")
@click.option(
    "--exclude", multiple=True, metavar="PATTERN", help="Leave out what matches, like '*.pyc' or 'build/*.o'."
)
@click.option("--all-links", is_flag=True, help="Out of a sandbox: also links that lead out of the directory.")
@click.option("--user", metavar="NAME", help="Whose rights count inside; the image's user if left out.")
@json_option
@click.argument("source")
@click.argument("target")
@pass_session
def cp(
    session: Session, source: str, target: str, recursive: bool, gitignore: bool, exclude: tuple[str, ...],
    all_links: bool, user: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Copy PATH NAME:/path, or NAME:/path PATH. `-` is stdin or stdout.

    As with `cp`: where TARGET is a directory, SOURCE goes into it; a SOURCE that ends in `/.` means what is in it.
    A path of this host that looks like NAME:… is written with ./ before it.
    """
    inward, outward = _INSIDE.fullmatch(target), _INSIDE.fullmatch(source)
    wish = Wish(recursive, gitignore, exclude, all_links, user)
    began = time.monotonic()
    with ExitStack() as stack:
        show = _bar(session, stack) if recursive else None
        if inward and not outward:
            moved = _copy_in(session.sandbox(inward[1]).files, source, inward[2], wish, show)
        elif outward and not inward:
            moved = _copy_out(session.sandbox(outward[1]).files, outward[2], target, wish, show)
        else:
            raise InvalidRequest("one of the two must be inside a sandbox", hint="write that one like NAME:/path")
    return _tell(session, moved, recursive, time.monotonic() - began, as_json)


def _bar(session: Session, stack: ExitStack) -> Callable[[Progress], None] | None:
    """For people only."""
    if session.quiet or not sys.stderr.isatty():
        return None
    from skerry.client.progress import Bar

    return stack.enter_context(Bar("copying", sys.stderr, transient=True)).update


def _copy_in(
    files: Files, source: str, path: str, wish: Wish, show: Callable[[Progress], None] | None
) -> Transfer | None:
    if source == "-":
        files.write(path, sys.stdin.buffer, user=wish.user)
        return None
    place = Path(source)
    if place.is_dir():
        if not wish.recursive:
            raise InvalidRequest(f"{source} is a directory", hint="-r copies it with all that is in it")
        if not _contents(source) and _is_directory(files, path, wish.user):
            path = f"{path.rstrip('/')}/{place.name}"
        return files.upload(place, path, gitignore=wish.gitignore, exclude=wish.exclude, user=wish.user, progress=show)
    if path.endswith("/"):
        path += place.name
    try:
        return files.upload(place, path, user=wish.user)
    except FileIsDirectory:
        return files.upload(place, f"{path}/{place.name}", user=wish.user)


def _copy_out(
    files: Files, path: str, target: str, wish: Wish, show: Callable[[Progress], None] | None
) -> Transfer | None:
    if target == "-":
        for piece in files.stream(path, user=wish.user):
            talk.show("stdout", piece)
        return None
    place = Path(target)
    if not _contents(path) and (place.is_dir() or (target.endswith("/") and not wish.recursive)):
        place = place / PurePosixPath(path).name
    if wish.recursive:
        return files.download(
            path, place, exclude=wish.exclude, outside_links=wish.all_links, user=wish.user, progress=show
        )
    return _copy_file_out(files, path, place, wish.user)


def _copy_file_out(files: Files, path: str, place: Path, user: str | None) -> Transfer:
    from skerry.client.landing import SingleFile

    info = files.stat(path, user=user)
    if info.type == "directory":
        raise InvalidRequest(f"{path} is a directory", hint="-r copies it with all that is in it")
    pieces = files.stream(path, user=user)
    first = next(pieces, b"")  # a file that can't be read inside leaves no empty one here
    with SingleFile(place, info.mode if info.type == "file" else 0o666) as file:
        file.write(first)
        for piece in pieces:
            file.write(piece)
    return Transfer(files=1, directories=0, links=0, bytes=file.size)


def _contents(source: str) -> bool:
    """What is in the directory is meant, not the directory: it has no name to go by."""
    return source.endswith("/.") or PurePosixPath(source).name in ("", "..")


def _is_directory(files: Files, path: str, user: str | None) -> bool:
    try:
        return files.stat(f"{path}/.", user=user).type == "directory"  # also behind a link
    except (OSError, SkerryError):
        return False


def _tell(session: Session, moved: Transfer | None, recursive: bool, seconds: float, as_json: bool) -> int:
    if moved is None:
        return 0
    if as_json:
        talk.give_json(moved)
    tell_skipped(moved)
    if recursive and not session.quiet:
        counts = ((moved.files, "files"), (moved.directories, "directories"), (moved.links, "links"))
        words = [f"{count:,} {name}" for count, name in counts if count or name == "files"]
        talk.say(f"copied {', '.join(words)}, {_size(moved.bytes)} in {seconds:.1f} s")
    return LEFT_OUT if moved.skipped or moved.more else 0


def tell_skipped(moved: Transfer) -> None:
    for one in moved.skipped[:_SHOWN]:
        talk.say(f"left out: {one.path}: {one.reason}")
    more = moved.more + max(0, len(moved.skipped) - _SHOWN)
    if more:
        talk.say(f"left out: {more} more")


def _size(number: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"
