"""A plan becomes true: all of it, or none of it. A kill at any point leaves what `recover` completes or takes back.

What is to come is written under names of its own first, and lies on the disk before anything changes. Then each path
changes in one step: two names are swapped, so that nothing is lost that somebody wrote in that very moment: what came
out is looked at, and if it is not what was planned for, all is taken back.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from skerry.client.applying.content import FEW, MERGE_MOST, Contents, sync_all
from skerry.client.applying.directories import nearest
from skerry.client.applying.plan import shown
from skerry.client.applying.record import Change, Entry, Journal, Record
from skerry.client.applying.tree import DIRECTORY, Moved, Tree
from skerry.errors import Conflict, SkerryError

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OURS: Final = ".skerry-"
_WAITS: Final = 86400.0
_CARRIED: Final = ("user.", "system.posix_acl_access")
Step = Callable[[str], None]


def quietly(_: str) -> None:
    """Called before each step, by its name; a test ends the process there."""


def prepared(tree: Tree, record: Record) -> Record:
    """With names of ours for what comes and what goes, each in a directory that is there before and after."""
    going = {path for path, _ in record.removed}
    changes = []
    for number, change in enumerate(record.changes):
        above = nearest(tree, change.path, going)
        name = b"%b%b-%d" % (_OURS.encode(), record.id[:12].encode(), number)
        changes.append(replace(change, aside=above + b"/" + name if above else name))
    return replace(record, changes=tuple(changes))


@dataclass(frozen=True)
class Landing:
    """What is to happen once all is written: `land` moves a ref, `landed` tells whether it was moved, `finish` is for
    what only follows from that."""

    land: Callable[[Record], None]
    landed: Callable[[Record], bool]
    finish: Callable[[Record], None]


def perform(
    journal: Journal, tree: Tree, record: Record, *, landing: Landing | None = None, step: Step = quietly
) -> Record:
    record = prepared(tree, record)
    step("record")
    journal.save(record)
    try:
        record = _stage_all(journal, tree, record, step)
        _write(tree, record, step)
        if landing is not None:
            step("land")
            landing.land(record)
            step("finish")
            landing.finish(record)
        step("done")
        record = journal.save(replace(record, state="done"))
    except BaseException as error:
        if landing is None or not landing.landed(record):  # else the next call completes it
            _take_back(journal, tree, record, error)
        if isinstance(error, OSError) and not isinstance(error, SkerryError):
            raise in_words(error) from error
        raise
    return close(journal, tree, record, step)


def _stage_all(journal: Journal, tree: Tree, record: Record, step: Step) -> Record:
    contents = journal.contents(record.id)
    for change in record.changes:
        step(f"keep {change.path!r}")
        if change.before is not None and not contents.has(change.before.oid):
            contents.keep_own(change.before.oid, change.before.size, tree.pieces(change.path))
    staged = []
    for change in record.changes:
        step(f"stage {change.path!r}")
        staged.append(_stage(tree, change, contents, last=len(record.changes) <= FEW))
    step("staged")
    contents.sync()
    if len(staged) > FEW:
        sync_all(tree.root)
    tree.sync({change.aside.rpartition(b"/")[0] for change in staged})
    return journal.save(replace(record, changes=tuple(staged), state="writing"))


def in_words(error: OSError) -> Conflict:
    name = error.filename
    where = shown(os.fsencode(name)) if isinstance(name, (str, bytes)) else "a file"
    if where.startswith(_OURS):
        where = "a file"
    hint = "make room, and apply again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else None
    return Conflict(f"{where}: {error.strerror}; nothing was changed", hint=hint, details={"errno": error.errno})


def close(journal: Journal, tree: Tree, record: Record, step: Step = quietly) -> Record:
    """What was replaced goes, now that it is not needed beside its place any more. What can't be reached, for its
    directory was moved away, is left to the next call."""
    reached = True
    for change in record.changes:
        step(f"clear {change.path!r}")
        try:
            _settle(tree, change)
            tree.remove(change.aside)
        except OSError:
            reached = False
    contents = journal.contents(record.id)
    kept = {change.before.oid for change in record.changes if change.before is not None}
    kept |= {c.after.oid for c in record.changes if c.after is not None and c.after.size <= MERGE_MOST}
    for path in contents.directory.iterdir():
        if path.name not in kept:
            path.unlink()
    step("close")
    closed = reached or time.time() - record.at > _WAITS
    return journal.save(replace(record, state="closed" if closed else "done"))


def _write(tree: Tree, record: Record, step: Step) -> None:
    drops = [change for change in record.changes if change.after is None]
    puts = [change for change in record.changes if change.after is not None]
    for change in drops:
        step(f"remove {change.path!r}")
        tree.move(change.path, change.aside)
        _check(tree, change)
    for path, _ in record.removed:
        step(f"rmdir {path!r}")
        with suppress(OSError), tree.above(path) as (above, name):  # somebody put a file there: it stays
            os.rmdir(name, dir_fd=above)
    for path in record.made:
        step(f"mkdir {path!r}")
        with tree.above(path) as (above, name), suppress(FileExistsError):
            os.mkdir(name, 0o777, dir_fd=above)
            _give(above, name)
    for change in puts:
        step(f"put {change.path!r}")
        if change.before is None:
            tree.move(change.aside, change.path)
        else:
            tree.swap(change.aside, change.path)
            _check(tree, change)
    step("sync")
    touched = [change.path for change in record.changes] + [*record.made, *(path for path, _ in record.removed)]
    tree.sync({path.rpartition(b"/")[0] for path in touched} | {b""})


def _check(tree: Tree, change: Change) -> None:
    """Whether what was there is what was planned for."""
    with tree.above(change.aside) as (above, name):
        found = os.stat(name, dir_fd=above, follow_symlinks=False)
    if (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) == change.mark:
        return
    if change.before is None or not change.before.is_at(tree.look(change.aside)):
        raise Moved(f"{shown(change.path)} was written to in this very moment; nothing was changed", hint="apply again")


def _stage(tree: Tree, change: Change, contents: Contents, *, last: bool) -> Change:
    if change.after is None:
        return change
    with tree.above(change.aside) as (above, name):
        if change.after.kind == "link":
            os.symlink(contents.read(change.after.oid), name, dir_fd=above)
            return change
        private = 0o600 if change.after.mode is not None else 0o777 if change.after.executable else 0o666
        descriptor = os.open(name, _NEW, private, dir_fd=above)
        try:
            for piece in contents.pieces(change.after.oid):
                view = memoryview(piece)
                while view:
                    view = view[os.write(descriptor, view) :]
            _like_before(tree, change, descriptor, above)
            if last:
                os.fsync(descriptor)
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        finally:
            os.close(descriptor)
    return replace(change, after=replace(change.after, mode=mode))


def _like_before(tree: Tree, change: Change, descriptor: int, above: int) -> None:
    """Owner, group, access list and mode of what it replaces. Another name of the same file keeps the old content: it
    may lie outside of the tree."""
    old = None
    with suppress(OSError), tree.above(change.path) as (there, name):
        old = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=there)
    try:
        if old is not None and change.before is not None:
            found = os.fstat(old)
            for owner in ((found.st_uid, found.st_gid), (-1, found.st_gid)):
                with suppress(OSError):
                    os.fchown(descriptor, *owner)
                    break
            with suppress(OSError):
                for key in os.listxattr(old):
                    if key.startswith(_CARRIED):
                        os.setxattr(descriptor, key, os.getxattr(old, key))
        else:
            with suppress(OSError):
                os.fchown(descriptor, *_owner(above))
    finally:
        if old is not None:
            os.close(old)
    if change.after is not None and change.after.mode is not None:
        os.fchmod(descriptor, change.after.mode & 0o777)


def _owner(above: int) -> tuple[int, int]:
    """What root makes in somebody's directory is theirs."""
    found = os.fstat(above)
    return (found.st_uid, found.st_gid) if os.geteuid() == 0 else (-1, -1)


def _give(above: int, name: bytes, mode: int | None = None) -> None:
    """A directory that was just made, to whom it belongs."""
    made = os.open(name, DIRECTORY, dir_fd=above)
    try:
        with suppress(OSError):
            os.fchown(made, *_owner(above))
        if mode is not None:
            os.fchmod(made, mode)
    finally:
        os.close(made)


def _take_back(journal: Journal, tree: Tree, record: Record, error: BaseException) -> None:
    """What can't be taken back now stays in the journal, and the next call goes on with it."""
    try:
        left = take_back(tree, record)
        clear(tree, record, left)
    except OSError as second:
        error.add_note(f"and taking it back was cut off: {second}")
        return
    if left:
        error.add_note(f"not taken back, for they were changed meanwhile: {', '.join(map(shown, left))}")
    else:
        journal.forget(record.id)


def take_back(tree: Tree, record: Record) -> list[bytes]:
    """As it was before, wherever nobody wrote meanwhile; the other paths are given. May be done again."""
    if record.state != "writing":
        return []
    left = []
    for change in reversed(record.changes):
        _settle(tree, change)
        if change.after is not None and not _unput(tree, change, change.after):
            left.append(change.path)
    for path in reversed(record.made):
        with suppress(OSError), tree.above(path) as (above, name):
            os.rmdir(name, dir_fd=above)
    for path, mode in reversed(record.removed):
        with suppress(OSError), tree.above(path) as (above, name):
            os.mkdir(name, mode, dir_fd=above)
            _give(above, name, mode)
    return left + [c.path for c in reversed(record.changes) if c.after is None and not _undrop(tree, c)]


def clear(tree: Tree, record: Record, but: Sequence[bytes] = ()) -> None:
    """Names of ours go, but for those that still are of use. OSError if some could not be reached."""
    failed = None
    for change in record.changes:
        if change.path not in but:
            try:
                tree.remove(change.aside)
            except OSError as error:
                failed = error
    if failed is not None:
        raise failed
    tree.sync({change.path.rpartition(b"/")[0] for change in record.changes} | {b""})


def _settle(tree: Tree, change: Change) -> None:
    if change.before is not None and change.after is not None:
        with suppress(NotADirectoryError):  # somebody took its directory away
            tree.settle(change.aside, change.path)


def _unput(tree: Tree, change: Change, after: Entry) -> bool:
    found, aside = tree.look(change.path), tree.look(change.aside)
    if change.before is None:
        if aside is not None or found is None:
            return True  # it never came there, or went again
        if not after.is_at(found):
            return False
        tree.move(change.path, change.aside)
        return True
    if after.is_at(aside) or change.before.is_at(found):
        return True
    if not after.is_at(found) or aside is None:
        return False
    tree.swap(change.aside, change.path)
    return True


def _undrop(tree: Tree, change: Change) -> bool:
    if tree.look(change.aside) is None:
        return True
    try:
        tree.move(change.aside, change.path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return False
    return True


def recover(journal: Journal, landing: Landing | None = None) -> list[str]:
    """What a killed apply left: completed if its commit stands already, else taken back. In words."""
    told = []
    for record in journal.records():
        if record.state != "closed":
            try:
                tree = Tree(record.root)
            except OSError as error:
                raise Conflict(f"an apply to {record.root} was cut off, and that is gone: {error.strerror}") from error
            with tree:
                told += _recover(journal, tree, record, landing)
    journal.sweep()
    return told


def _recover(journal: Journal, tree: Tree, record: Record, landing: Landing | None) -> list[str]:
    what = "an earlier undo" if record.undoes else "an earlier apply"
    if record.state == "done":
        close(journal, tree, record)
        return []
    if record.state == "writing" and landing is not None and landing.landed(record):
        landing.finish(record)
        close(journal, tree, record)
        return [f"{what} was cut off after its commit; it was completed"]
    left = take_back(tree, record)
    try:
        clear(tree, record)
    except OSError as error:
        if time.time() - record.at < _WAITS:  # a directory that was moved away may come back
            return [f"{what} was cut off, and can't be taken back wholly: {error}"] if record.state == "writing" else []
    if not left:
        journal.forget(record.id)
        return [f"{what} was cut off; it was taken back"] if record.state == "writing" else []
    journal.save(replace(record, state="closed", told=True, undoes=record.undoes or record.id))
    kept = journal.contents(record.id).directory
    return [f"{what} was cut off; it was taken back but for what was changed since: {', '.join(map(shown, left))}; "
            f"what was there before is in {kept}"]  # fmt: skip
