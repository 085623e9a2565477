"""What is in files of a sandbox, line by line, found by its keeper with a user's rights."""

from __future__ import annotations

from typing import Final

import msgspec

from skerry.keeper.entries import Entries, join, query
from skerry.keeper.values import Lines as Said
from skerry.keeper.values import Search
from skerry.types import Lines, Match, Matches, SearchRequest, told_path

MAX_LINES: Final = 16 << 20  # 1 MiB of text, every byte of it escaped, and once more as bytes
MAX_MATCHES: Final = 64 << 20

_lines = msgspec.json.Decoder(Said)
_search = msgspec.json.Decoder(Search)


class Finding(Entries):
    async def lines(self, path: str, start: int, end: int | None, user: str | None = None) -> Lines:
        """From line `start` to line `end`, as far as they fit into an answer."""
        wish = query(path, user, start=start, end=end)
        said = await self._channel.ask(_lines, "GET", "/v1/files/lines", wish, limit=MAX_LINES)
        return Lines(
            lines=said.text.split("\n") if said.count else [],
            start=said.start,
            end=said.start + said.count - 1,
            more=said.more,
            cut=said.cut,
            raw=said.raw,
        )

    async def search(self, wish: SearchRequest) -> Matches:
        arguments = query(
            wish.path,
            wish.user,
            pattern=wish.pattern,
            glob=wish.glob,
            context=wish.context,
            limit=wish.limit,
            ignore_case=wish.ignore_case,
            literal=wish.literal,
            hidden=wish.hidden,
        )
        said = await self._channel.ask(_search, "GET", "/v1/files/search", arguments, limit=MAX_MATCHES)
        matches = []
        for one in said.matches:
            path, raw = told_path(join(wish.path, one.below) if one.below else wish.path)
            matches.append(
                Match(
                    path=path,
                    line=one.line,
                    text=one.text,
                    cut=one.cut,
                    before=one.before,
                    after=one.after,
                    raw_path=raw,
                )
            )
        return Matches(matches=matches, more=said.more, searched=said.searched, skipped=said.skipped)
