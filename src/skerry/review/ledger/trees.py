"""Build a changed git tree: pure, except for reading old trees and writing new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from skerry.errors import InvalidRequest

TreeEntry = tuple[bytes, bytes]
"""Mode as git writes it (`100644`; `40000` for a tree), and the object's 20 bytes."""
TREE: Final = b"40000"
MAX_NODES: Final = 2_000_000  # real workspaces have fewer directories; a misbehaving keeper could send more


def parse(data: bytes) -> dict[bytes, TreeEntry]:
    entries: dict[bytes, TreeEntry] = {}
    at = 0
    while at < len(data):
        space = data.index(b" ", at)
        zero = data.index(b"\0", space)
        entries[data[space + 1 : zero]] = (data[at:space], data[zero + 1 : zero + 21])
        at = zero + 21
    return entries


def serialize(entries: dict[bytes, TreeEntry]) -> bytes:
    """Serialize in git's order: as if every directory's name ended with a slash."""
    ordered = sorted((name + b"/" if mode == TREE else name, mode, oid) for name, (mode, oid) in entries.items())
    return b"".join(
        b"%s %s\0%s" % (mode, name[:-1] if mode == TREE else name, oid) for name, mode, oid in ordered
    )  # fmt: skip


@dataclass(slots=True)
class _Node:
    """The change of one path: `gone` removes the old entry, then comes a new entry or children."""

    gone: bool = False
    entry: TreeEntry | None = None
    below: dict[bytes, _Node] = field(default_factory=dict)


def rewrite_tree(
    root: bytes | None,
    drops: Iterable[bytes],
    puts: Iterable[tuple[bytes, TreeEntry]],
    read: Callable[[bytes], bytes],
    write: Callable[[bytes], bytes],
) -> bytes:
    """Return the root of `root` without anything at or below `drops`, with `puts` added: a file replaces a directory
    and vice versa; of two conflicting puts the later one wins. Directories without files are left out, as in git."""
    top = _Node()
    for node in _reached(top, ((path, None) for path in drops)):
        node.gone = True
        node.below.clear()
    for node in _reached(top, puts):
        node.gone = True
        node.below.clear()
    return _rebuilt(top, root, read, write)


def _reached(top: _Node, changes: Iterable[tuple[bytes, TreeEntry | None]]) -> Iterator[_Node]:
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
        if count > MAX_NODES:
            raise InvalidRequest(f"more than {MAX_NODES} files and directories changed at once")
        node.entry = entry
        yield node


@dataclass(slots=True)
class _OpenTree:
    """A directory that is being rebuilt from its old state (`data`, the object `was`)."""

    name: bytes
    was: bytes | None
    data: bytes
    entries: dict[bytes, TreeEntry]
    todo: Iterator[tuple[bytes, _Node]]

    def closed(self, write: Callable[[bytes], bytes]) -> bytes:
        data = serialize(self.entries)
        return self.was if self.was is not None and data == self.data else write(data)


def _opened(name: bytes, node: _Node, was: bytes | None, read: Callable[[bytes], bytes]) -> _OpenTree:
    data = b"" if was is None else read(was)
    return _OpenTree(name, was, data, parse(data), iter(node.below.items()))


def _rebuilt(
    top: _Node, root: bytes | None, read: Callable[[bytes], bytes], write: Callable[[bytes], bytes]
) -> bytes:  # fmt: skip
    """Not recursive, because the sandbox controls the depth."""
    stack = [_opened(b"", top, root, read)]
    while True:
        here = stack[-1]
        for name, node in here.todo:
            if node.below:
                old = None if node.gone else here.entries.get(name)
                was = old[1] if old is not None and old[0] == TREE else None
                if old is None or was is not None or _puts(node):  # otherwise: drops below a path that is a file
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
