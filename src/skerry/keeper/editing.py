"""Files of a sandbox edited where they are, by its keeper with a user's rights: all of an edit or nothing, and never
over what another wrote meanwhile."""

from __future__ import annotations

from typing import Final

import msgspec

from skerry.keeper.entries import join, query
from skerry.keeper.finding import Finding
from skerry.keeper.values import Patched as SaidPatched
from skerry.keeper.values import Replaced as SaidReplaced
from skerry.types import Patched, PatchedFile, Replaced, told_path

MAX_PATCHED: Final = 16 << 20

_replaced = msgspec.json.Decoder(SaidReplaced)
_patched = msgspec.json.Decoder(SaidPatched)


class Editing(Finding):
    async def replace(self, path: str, old: bytes, new: bytes, count: int | None, user: str | None = None) -> Replaced:
        """Puts `new` in the place of `old`, which has to be there `count` times; None: at least once."""
        wish = query(path, user, split=len(old), count=count)
        said = await self._channel.ask(_replaced, "POST", "/v1/files/replace", wish, body=old + new)
        return Replaced(count=said.count, lines=said.lines)

    async def patch(self, path: str, diff: bytes, user: str | None = None) -> Patched:
        """Applies a unified diff to a file, or to the files that it names below a directory."""
        wish = query(path, user)
        said = await self._channel.ask(_patched, "POST", "/v1/files/patch", wish, body=diff, limit=MAX_PATCHED)
        files = []
        for one in said.files:
            told, raw = told_path(join(path, one.below) if one.below else path)
            files.append(
                PatchedFile(
                    path=told,
                    action=one.action,
                    added=one.added,
                    removed=one.removed,
                    offsets=one.offsets,
                    raw_path=raw,
                )
            )
        return Patched(files=files)
