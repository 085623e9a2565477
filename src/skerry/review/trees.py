"""A tree of git with some of its paths changed: pure, but for reading old trees and writing new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from skerry.errors import InvalidRequest

Entry = tuple[bytes, bytes]
"""Mode as git writes it (`100644`; `40000` for a tree), and the object's 20 bytes."""
TREE: Final = b"40000"
NODES_MOST: Final = 2_000_000  # of a keeper that lies: real ones have fewer directories


def parse(data: bytes) -> dict[bytes, Entry]:
    entries: dict[bytes, Entry] = {}
    at = 0
    while at < len(data):
        space = data.index(b" ", at)
        zero = data.index(b"\0", space)
        entries[data[space + 1 : zero]] = (data[at:space], data[zero + 1 : zero + 21])
        at = zero + 21
    return entries


def serialised(entries: dict[bytes, Entry]) -> bytes:
    """In git's order: as if every directory's name ended in a slash."""
    ordered = sorted((name + b"/" if mode == TREE else name, mode, oid) for name, (mode, oid) in entries.items())
    return b"".join(
        b"%s %s\0%s" % (mode, name[:-1] if mode == TREE else name, oid) for name, mode, oid in ordered
    )  # fmt: skip


@dataclass(slots=True)
class _Node:
    """What is to become of one path: `gone` (all that was there), then an entry of its own or something below it."""

    gone: bool = False
    entry: Entry | None = None
    below: dict[bytes, _Node] = field(default_factory=dict)


def changed(
    root: bytes | None,
    drops: Iterable[bytes],
    puts: Iterable[tuple[bytes, Entry]],
    read: Callable[[bytes], bytes],
    write: Callable[[bytes], bytes],
) -> bytes:
    """The root of a tree that has what `root` has, but nothing at or below `drops`, and these `puts`: a file takes the
    place of a directory and the other way round; of two puts that can't both be, the later counts. Directories without
    files are left out, as git does."""
    top = _Node()
    for node in _reached(top, ((path, None) for path in drops)):
        node.gone = True
        node.below.clear()
    for node in _reached(top, puts):
        node.gone = True
        node.below.clear()
    return _rebuilt(top, root, read, write)


def _reached(top: _Node, changes: Iterable[tuple[bytes, Entry | None]]) -> Iterator[_Node]:
    count = 0
    for path, entry in changes:
        node = top
        for part in path.split(b"/"):
            node.entry = None
            found = node.below.get(part)
            if found is None:
                found = node.below[part] = _Node()
                count += 1
            node = found
        if count > NODES_MOST:
            raise InvalidRequest(f"more than {NODES_MOST} files and directories changed at once")
        node.entry = entry
        yield node


@dataclass(slots=True)
class _Open:
    """A directory that is being rebuilt, from what it was (`data`, the object `was`)."""

    name: bytes
    was: bytes | None
    data: bytes
    entries: dict[bytes, Entry]
    todo: Iterator[tuple[bytes, _Node]]

    def closed(self, write: Callable[[bytes], bytes]) -> bytes:
        data = serialised(self.entries)
        return self.was if self.was is not None and data == self.data else write(data)


def _opened(name: bytes, node: _Node, was: bytes | None, read: Callable[[bytes], bytes]) -> _Open:
    data = b"" if was is None else read(was)
    return _Open(name, was, data, parse(data), iter(node.below.items()))


def _rebuilt(
    top: _Node, root: bytes | None, read: Callable[[bytes], bytes], write: Callable[[bytes], bytes]
) -> bytes:  # fmt: skip
    """Without recursion: the inside decides how deep it goes."""
    stack = [_opened(b"", top, root, read)]
    while True:
        here = stack[-1]
        for name, node in here.todo:
            if node.below:
                old = None if node.gone else here.entries.get(name)
                was = old[1] if old is not None and old[0] == TREE else None
                if old is None or was is not None or _puts(node):  # else: drops below what is a file
                    stack.append(_opened(name, node, was, read))
                    break
            elif node.entry is not None:
                here.entries[name] = node.entry
            elif node.gone:
                here.entries.pop(name, None)
        else:
            stack.pop()
            if not stack:
                return here.closed(write)
            if here.entries:
                stack[-1].entries[here.name] = (TREE, here.closed(write))
            else:
                stack[-1].entries.pop(here.name, None)


def _puts(node: _Node) -> bool:
    pending = [node]
    while pending:
        one = pending.pop()
        if one.entry is not None:
            return True
        pending += one.below.values()
    return False
