"""The author of commits made in a sandbox: a file that git's system-wide configuration includes.

Users inside can override it. It is written at every start, into memory."""

from __future__ import annotations

import contextlib
from typing import Final

from skerry.errors import FileError, FileNotFound
from skerry.keeper import Keeper
from skerry.types import Options

PLACE: Final = "/run/skerry/gitconfig"
_SYSTEM: Final = "/etc/gitconfig"
_ROOT: Final = "0"


def of(options: Options) -> tuple[str | None, str | None]:
    return options.git_name, options.git_email


async def write(keeper: Keeper, options: Options) -> None:
    if of(options) == (None, None):
        return
    with contextlib.suppress(FileError):  # an image without /etc has no git either
        await keeper.files.write(PLACE, _text(options).encode(), mode=0o644, user=_ROOT)
        try:
            await keeper.files.stat(_SYSTEM, user=_ROOT)
        except FileNotFound:  # `base` has one; another image's own is not touched
            await keeper.files.write(_SYSTEM, f"[include]\n\tpath = {PLACE}\n".encode(), mode=0o644, user=_ROOT)


def _text(options: Options) -> str:
    given = (("name", options.git_name), ("email", options.git_email))
    return "[user]\n" + "".join(f"\t{key} = {_quoted(value)}\n" for key, value in given if value is not None)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
