"""cp: a file into a sandbox, or out of one."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import click

from skerry.cli.session import Session, pass_session
from skerry.client.content import open_host_file
from skerry.errors import InvalidRequest

_INSIDE = re.compile(r"([a-z0-9][a-z0-9._-]*):(.+)", re.DOTALL)


@click.command(short_help="Copy one file in or out.")
@click.option("--user", metavar="NAME", help="Whose rights count inside; the image's user if left out.")
@click.argument("source")
@click.argument("target")
@pass_session
def cp(session: Session, source: str, target: str, user: str | None) -> None:
    """Copy one file: PATH NAME:/path, or NAME:/path PATH. `-` is stdin or stdout.

    A path of this host that looks like NAME:… is written with ./ before it.
    """
    inward, outward = _INSIDE.fullmatch(target), _INSIDE.fullmatch(source)
    if bool(inward) == bool(outward):
        raise InvalidRequest("one of the two must be inside a sandbox", hint="write that one like NAME:/path")
    if inward:
        _copy_in(session, source, inward[1], inward[2], user)
    elif outward:
        _copy_out(session, outward[1], outward[2], target, user)


def _copy_in(session: Session, source: str, ref: str, path: str, user: str | None) -> None:
    files = session.sandbox(ref).files
    if source == "-":
        files.write(path, sys.stdin.buffer, user=user)
        return
    content, mode = open_host_file(source)
    with content:
        if path.endswith("/"):
            path += Path(source).name
        files.write(path, content, mode=mode, user=user)


def _copy_out(session: Session, ref: str, path: str, target: str, user: str | None) -> None:
    files = session.sandbox(ref).files
    pieces = files.stream(path, user=user)
    if target == "-":
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    place = Path(target)
    if place.is_dir() or target.endswith("/"):
        place = place / PurePosixPath(path).name
    first = next(pieces, b"")  # a file that can't be read inside leaves no empty one here
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        with _new(part) as file:
            file.write(first)
            for piece in pieces:
                file.write(piece)
        part.replace(place)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def _new(path: Path) -> BinaryIO:
    try:
        return path.open("xb")
    except OSError as error:
        raise InvalidRequest(f"{path.parent}: {error.strerror}") from error
