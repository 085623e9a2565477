"""Carry out a plan: all of it or nothing. After a kill at any point, `recover` completes or reverts the rest.

New contents are first written under temporary names and synced to disk before anything changes. Then each path changes
in one step: two names are swapped, so that a file written at that very moment is not lost. The replaced file is
examined, and if it is not the planned one, everything is reverted.
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

from skerry.client.apply.content import MAX_MERGE_BYTES, MAX_SINGLE_SYNCS, Contents, sync_all
from skerry.client.apply.directories import nearest
from skerry.client.apply.journal import ApplyRecord, FileVersion, Journal, PathChange
from skerry.client.apply.plan import display_path
from skerry.client.apply.tree import PathMoved, Tree
from skerry.client.host.output_dir import SparseWriter
from skerry.client.host.posix import DIRECTORY, NEW_FILE
from skerry.errors import Conflict, SkerryError

_TEMPORARY_PREFIX: Final = ".skerry-"
_MAX_RECOVERY_AGE: Final = 86400.0
_COPIED_ATTRIBUTES: Final = ("user.", "system.posix_acl_access")
Step = Callable[[str], None]


def no_step(_: str) -> None:
    """Do nothing. Called before each step with its name; a test kills the process there."""


def with_temporary_names(tree: Tree, record: ApplyRecord) -> ApplyRecord:
    """Return the record with a temporary name for each change, in a directory that exists before and after."""
    going = {path for path, _ in record.removed}
    changes = []
    for number, change in enumerate(record.changes):
        above = nearest(tree, change.path, going)
        name = b"%b%b-%d" % (_TEMPORARY_PREFIX.encode(), record.id[:12].encode(), number)
        changes.append(replace(change, aside=above + b"/" + name if above else name))
    return replace(record, changes=tuple(changes))


@dataclass(frozen=True)
class CommitStep:
    """The commit after the written files: `move_ref` moves the ref, `moved` returns whether it was, `finish` does
    the rest."""

    move_ref: Callable[[ApplyRecord], None]
    moved: Callable[[ApplyRecord], bool]
    finish: Callable[[ApplyRecord], None]


def perform(
    journal: Journal, tree: Tree, record: ApplyRecord, *, commit_step: CommitStep | None = None, step: Step = no_step
) -> ApplyRecord:
    record = with_temporary_names(tree, record)
    step("record")
    journal.save(record)
    try:
        record = _stage_all(journal, tree, record, step)
        _write(tree, record, step)
        if commit_step is not None:
            step("land")
            commit_step.move_ref(record)
            step("finish")
            commit_step.finish(record)
        step("done")
        record = journal.save(replace(record, state="done"))
    except BaseException as error:
        if commit_step is None or not commit_step.moved(record):  # otherwise the next call completes it
            _revert_after(journal, tree, record, error)
        if isinstance(error, OSError) and not isinstance(error, SkerryError):
            raise host_error(error) from error
        raise
    return close(journal, tree, record, step)


def _stage_all(journal: Journal, tree: Tree, record: ApplyRecord, step: Step) -> ApplyRecord:
    contents = journal.contents(record.id)
    for change in record.changes:
        step(f"keep {change.path!r}")
        if change.before is not None and not contents.has(change.before.oid):
            contents.store_user_file(change.before.oid, change.before.size, tree.pieces(change.path))
    staged = []
    for change in record.changes:
        step(f"stage {change.path!r}")
        staged.append(_stage(tree, change, contents, last=len(record.changes) <= MAX_SINGLE_SYNCS))
    step("staged")
    contents.sync()
    if len(staged) > MAX_SINGLE_SYNCS:
        sync_all(tree.root)
    tree.sync({change.aside.rpartition(b"/")[0] for change in staged})
    return journal.save(replace(record, changes=tuple(staged), state="writing"))


def host_error(error: OSError) -> Conflict:
    name = error.filename
    where = display_path(os.fsencode(name)) if isinstance(name, (str, bytes)) else "a file"
    if where.startswith(_TEMPORARY_PREFIX):
        where = "a file"
    hint = "free disk space, then apply again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else None
    return Conflict(f"{where}: {error.strerror}; nothing was changed", hint=hint, details={"errno": error.errno})


def close(journal: Journal, tree: Tree, record: ApplyRecord, step: Step = no_step) -> ApplyRecord:
    """Remove the replaced files, which are no longer needed. A file that cannot be reached because its directory was
    moved away is left to the next call."""
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
    kept |= {c.after.oid for c in record.changes if c.after is not None and c.after.size <= MAX_MERGE_BYTES}
    for path in contents.directory.iterdir():
        if path.name not in kept:
            path.unlink()
    step("close")
    closed = reached or time.time() - record.at > _MAX_RECOVERY_AGE
    return journal.save(replace(record, state="closed" if closed else "done"))


def _write(tree: Tree, record: ApplyRecord, step: Step) -> None:
    drops = [change for change in record.changes if change.after is None]
    puts = [change for change in record.changes if change.after is not None]
    for change in drops:
        step(f"remove {change.path!r}")
        tree.move(change.path, change.aside)
        _check(tree, change)
    for path, _ in record.removed:
        step(f"rmdir {path!r}")
        with suppress(OSError), tree.above(path) as (above, name):  # a new file keeps the directory
            os.rmdir(name, dir_fd=above)
    for path in record.made:
        step(f"mkdir {path!r}")
        with tree.above(path) as (above, name), suppress(FileExistsError):
            os.mkdir(name, 0o777, dir_fd=above)
            _set_owner(above, name)
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


def _check(tree: Tree, change: PathChange) -> None:
    """Raise unless the replaced file is the planned one."""
    with tree.above(change.aside) as (above, name):
        found = os.stat(name, dir_fd=above, follow_symlinks=False)
    if (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) == change.mark:
        return
    if change.before is None or not change.before.is_at(tree.look(change.aside)):
        raise PathMoved(
            f"{display_path(change.path)} was written concurrently; nothing was changed", hint="apply again"
        )


def _stage(tree: Tree, change: PathChange, contents: Contents, *, last: bool) -> PathChange:
    if change.after is None:
        return change
    with tree.above(change.aside) as (above, name):
        if change.after.kind == "link":
            os.symlink(contents.read(change.after.oid), name, dir_fd=above)
            return change
        private = 0o600 if change.after.mode is not None else 0o777 if change.after.executable else 0o666
        descriptor = os.open(name, NEW_FILE, private, dir_fd=above)
        try:
            writer = SparseWriter(descriptor)
            for piece in contents.pieces(change.after.oid):
                writer.write(piece)
            writer.finish()
            _copy_attributes(tree, change, descriptor, above)
            if last:
                os.fsync(descriptor)
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        finally:
            os.close(descriptor)
    return replace(change, after=replace(change.after, mode=mode))


def _copy_attributes(tree: Tree, change: PathChange, descriptor: int, above: int) -> None:
    """Copy owner, group, access list and mode of the replaced file. Another hard link keeps the old content: it may lie
    outside of the tree."""
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
                    if key.startswith(_COPIED_ATTRIBUTES):
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
    """Return the owner for new files: files that root makes in a user's directory belong to that user."""
    found = os.fstat(above)
    return (found.st_uid, found.st_gid) if os.geteuid() == 0 else (-1, -1)


def _set_owner(above: int, name: bytes, mode: int | None = None) -> None:
    """Give a new directory its owner and mode."""
    made = os.open(name, DIRECTORY, dir_fd=above)
    try:
        with suppress(OSError):
            os.fchown(made, *_owner(above))
        if mode is not None:
            os.fchmod(made, mode)
    finally:
        os.close(made)


def _revert_after(journal: Journal, tree: Tree, record: ApplyRecord, error: BaseException) -> None:
    """Revert after a failure. Changes that cannot be reverted now stay in the journal for the next call."""
    try:
        left = revert(tree, record)
        remove_temporary(tree, record, left)
    except OSError as second:
        error.add_note(f"and reverting it was interrupted: {second}")
        return
    if left:
        error.add_note(f"not reverted, because they were changed meanwhile: {', '.join(map(display_path, left))}")
    else:
        journal.forget(record.id)


def revert(tree: Tree, record: ApplyRecord) -> list[bytes]:
    """Restore the previous state of every path that was not written meanwhile; return the other paths. Idempotent."""
    if record.state != "writing":
        return []
    left = []
    for change in reversed(record.changes):
        _settle(tree, change)
        if change.after is not None and not _revert_put(tree, change, change.after):
            left.append(change.path)
    for path in reversed(record.made):
        with suppress(OSError), tree.above(path) as (above, name):
            os.rmdir(name, dir_fd=above)
    for path, mode in reversed(record.removed):
        with suppress(OSError), tree.above(path) as (above, name):
            os.mkdir(name, mode, dir_fd=above)
            _set_owner(above, name, mode)
    return left + [c.path for c in reversed(record.changes) if c.after is None and not _revert_drop(tree, c)]


def remove_temporary(tree: Tree, record: ApplyRecord, but: Sequence[bytes] = ()) -> None:
    """Remove the temporary names, except for the paths in `but`. Raise OSError if some could not be reached."""
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


def _settle(tree: Tree, change: PathChange) -> None:
    if change.before is not None and change.after is not None:
        with suppress(NotADirectoryError):  # its directory was removed
            tree.settle(change.aside, change.path)


def _revert_put(tree: Tree, change: PathChange, after: FileVersion) -> bool:
    found, aside = tree.look(change.path), tree.look(change.aside)
    if change.before is None:
        if aside is not None or found is None:
            return True  # it was never moved there, or was removed
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


def _revert_drop(tree: Tree, change: PathChange) -> bool:
    if tree.look(change.aside) is None:
        return True
    try:
        tree.move(change.aside, change.path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return False
    return True


def recover(journal: Journal, commit_step: CommitStep | None = None) -> list[str]:
    """Complete interrupted applies that have a commit, revert the others. Return one notice for each."""
    notices = []
    for record in journal.records():
        if record.state != "closed":
            try:
                tree = Tree(record.root)
            except OSError as error:
                raise Conflict(
                    f"an apply to {record.root} was interrupted, and the directory is gone: {error.strerror}"
                ) from error
            with tree:
                notices += _recover(journal, tree, record, commit_step)
    journal.sweep()
    return notices


def _recover(journal: Journal, tree: Tree, record: ApplyRecord, commit_step: CommitStep | None) -> list[str]:
    what = "an earlier undo" if record.undoes else "an earlier apply"
    if record.state == "done":
        close(journal, tree, record)
        return []
    if record.state == "writing" and commit_step is not None and commit_step.moved(record):
        commit_step.finish(record)
        close(journal, tree, record)
        return [f"{what} was interrupted after its commit; it was completed"]
    left = revert(tree, record)
    try:
        remove_temporary(tree, record)
    except OSError as error:
        if time.time() - record.at < _MAX_RECOVERY_AGE:  # a directory that was moved away may come back
            return (
                [f"{what} was interrupted and cannot be fully reverted: {error}"] if record.state == "writing" else []
            )
    if not left:
        journal.forget(record.id)
        return [f"{what} was interrupted; it was reverted"] if record.state == "writing" else []
    journal.save(replace(record, state="closed", reported=True, undoes=record.undoes or record.id))
    kept = journal.contents(record.id).directory
    paths = ", ".join(map(display_path, left))
    notice = f"{what} was interrupted; it was reverted except for paths changed since: {paths}"
    return [f"{notice}; the previous contents are in {kept}"]
