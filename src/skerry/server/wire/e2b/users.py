"""The users of a sandbox, as its own files name them: homes for relative paths, and names for numeric owners.

Root inside can write anything into these files, so their content is used inside that sandbox only.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import posixpath
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from skerry.errors import FileError, InvalidRequest
from skerry.server.http.call import Call
from skerry.server.wire.e2b.errors import UnknownUser
from skerry.types import check_path, check_user

if TYPE_CHECKING:
    from skerry.engine.engine import Engine

MAX_FILE: Final = 1 << 20
MAX_CACHED: Final = 4096  # sandboxes
_ID: Final = re.compile(r"[0-9]{1,10}")  # Python refuses to convert thousands of digits


@dataclass(frozen=True)
class Account:
    name: str
    uid: int
    gid: int
    home: str


@dataclass(frozen=True)
class Accounts:
    """The users and groups of one sandbox."""

    users: dict[str, Account] = field(default_factory=dict)
    groups: dict[int, str] = field(default_factory=dict)

    def owner(self, uid: int) -> str:
        return next((user.name for user in self.users.values() if user.uid == uid), str(uid))

    def group(self, gid: int) -> str:
        return self.groups.get(gid, str(gid))

    def find(self, name: str) -> Account | None:
        """Find a user by name or number; an image may name its user either way."""
        user = name.partition(":")[0]
        by_number = (one for one in self.users.values() if str(one.uid) == user)
        return self.users.get(user) or next(by_number, None)


class UserTable:
    """Reads the accounts of a sandbox once per start, and again for an unknown user: one may have been added."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, float | None], Accounts] = OrderedDict()

    async def accounts(self, call: Call[Any, Any], again: bool = False) -> Accounts:
        record = call.engine.registry.find(call.caller, call.ref).record
        key = record.id, record.started_at
        if again or key not in self._known:
            files = (_content(call.engine, call, f"/etc/{name}") for name in ("passwd", "group"))
            passwd, group = await asyncio.gather(*files)
            self._known[key] = Accounts(dict(_users(passwd)), dict(_groups(group)))
            while len(self._known) > MAX_CACHED:
                self._known.popitem(last=False)
        return self._known[key]

    async def user(self, call: Call[Any, Any], name: str | None = None) -> Account:
        """Return the user that a call names, in its query or as a name of HTTP's basic authentication."""
        default = call.engine.registry.find(call.caller, call.ref).record.spec.user
        wanted = name or _basic_user(call) or default
        check_user(wanted)
        found = (await self.accounts(call)).find(wanted) or (await self.accounts(call, again=True)).find(wanted)
        if found is None:
            raise UnknownUser(f"invalid username: '{wanted}'")
        return found


def absolute(path: str, user: Account) -> str:
    """Return an absolute path: others start at the user's home."""
    check_path("path", path or ".")
    if path == "~" or path.startswith("~/"):
        path = f"{user.home}/{path[2:]}"
    elif path.startswith("~"):
        raise InvalidRequest(f"path: {path[:80]!r} names the home of another user")
    return posixpath.normpath(posixpath.join(user.home, path)).replace("//", "/", 1)


def _basic_user(call: Call[Any, Any]) -> str | None:
    kind, _, given = (call.headers.get(b"authorization") or "").partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        return base64.b64decode(given.strip(), validate=True).decode().partition(":")[0] or None
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest("Authorization: not a user's name in base64") from error


async def _content(engine: Engine, call: Call[Any, Any], path: str) -> str:
    """Return the content of a small file; the empty text for a missing or large one."""
    try:
        reader = await engine.files.of(call.caller, call.ref).read(path, user="root")
    except FileError:
        return ""
    try:
        data = bytearray()
        async for chunk in reader:
            data += chunk
            if len(data) > MAX_FILE:
                return ""
        return data.decode("utf-8", "replace")
    finally:
        await reader.aclose()


def _users(text: str) -> list[tuple[str, Account]]:
    found = []
    for line in text.splitlines():
        words = line.split(":")
        if len(words) == 7 and all(map(_ID.fullmatch, words[2:4])) and words[5].startswith("/"):
            found.append((words[0], Account(words[0], int(words[2]), int(words[3]), posixpath.normpath(words[5]))))
    return found


def _groups(text: str) -> list[tuple[int, str]]:
    lines = (line.split(":") for line in text.splitlines())
    return [(int(words[2]), words[0]) for words in lines if len(words) == 4 and _ID.fullmatch(words[2])]
