"""Backups of the database, the audit log and usage, as a tar archive: consistent copies, also of a server in use.

    manifest.json          version, time, and the database's identity
    state.db               the copy
    records/<id>.json      the rows of each sandbox, snapshot, token and budget as JSON; of reviews,
                           records/review-<id>.json
    audit/<number>.jsonl   the segments of the audit log, up to their last complete line
    audit-keys/<id>.pub    the public keys of the audit log; the private key is in no backup
    usage.db               the usage of sandboxes, also of deleted ones

The files of sandboxes and snapshots are not part of it: export those as archives."""

from __future__ import annotations

import io
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import IO, Literal

import msgspec

from skerry._version import __version__
from skerry.config import Settings
from skerry.engine.database import SCHEMA_VERSION, newer_schema
from skerry.engine.records.audit.keys import key_directory, public_keys, write_file
from skerry.engine.records.audit.verification import list_segments, read_keys
from skerry.engine.repair.rebuild import swap_database
from skerry.engine.repair.record_files import all_keys, encode_record
from skerry.engine.state_dir import StateDir
from skerry.errors import Conflict, InvalidRequest, NotFound
from skerry.storage import tree

MAX_DATABASE = 16 << 30
MAX_SEGMENT = 64 << 20
USAGE = "usage.db"
_SEGMENT = re.compile(r"audit/([0-9]{16}\.jsonl)")
_KEY = re.compile(r"audit-keys/([0-9a-f]{16}\.pub)")
_DATA = ("pool.img", "loop", "plain", "ledgers")


class BackupManifest(msgspec.Struct, frozen=True):
    version: Literal[1]
    skerry: str
    created_at: float
    database: str
    schema: int
    change: int
    objects: int


def back_up(settings: Settings, target: Path) -> BackupManifest:
    """Write a backup to a new file, which only its owner can read. The server may be running."""
    state_dir = settings.state_dir
    database = state_dir / "state.db"
    if not database.exists() or database.stat().st_size == 0:
        raise NotFound(f"{database} not found", hint="a server creates it; `skerry server repair` rebuilds a lost one")
    if os.path.lexists(target):
        raise Conflict(f"{target} already exists", hint="choose another name")
    with tempfile.TemporaryDirectory(prefix="backup-", dir=state_dir) as scratch:
        archive = target.with_name(f".{target.name}.{os.getpid()}")
        copy = _copied(database, Path(scratch))
        if (state_dir / USAGE).exists():
            _copied(state_dir / USAGE, Path(scratch))
        try:
            manifest = _write(archive, copy, settings)
            os.link(archive, target)  # fails if it exists by now
        finally:
            archive.unlink(missing_ok=True)
    tree.sync(target.parent)
    return manifest


def _copied(database: Path, directory: Path) -> Path:
    copy = directory / database.name
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as connection:
        source.backup(connection)
    return copy


def _write(archive: Path, copy: Path, settings: Settings) -> BackupManifest:
    fd = os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
        with closing(sqlite3.connect(copy)) as connection:
            manifest = _manifest(connection)
            _add(tar, "manifest.json", msgspec.json.encode(manifest))
            tar.add(copy, "state.db", filter=_anonymous)
            for kind, name in sorted(all_keys(connection)):
                word = f"review-{name}" if kind == "review" else name
                _add(tar, f"records/{word}.json", encode_record(connection, (kind, name)) or b"")
        for segment in list_segments(settings.state_dir / "audit"):
            content = segment.path.read_bytes()
            _add(tar, f"audit/{segment.path.name}", content[: content.rfind(b"\n") + 1])
        for key in public_keys(key_directory(settings)):
            _add(tar, f"audit-keys/{key.name}", key.read_bytes())
        if (usage := copy.with_name(USAGE)).exists():
            tar.add(usage, USAGE, filter=_anonymous)
        tar.close()
        file.flush()
        os.fsync(fd)
    return manifest


def _manifest(connection: sqlite3.Connection) -> BackupManifest:
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    if schema > SCHEMA_VERSION:
        raise newer_schema("the database", schema)
    if schema < SCHEMA_VERSION:
        raise Conflict("the database has an older schema", hint="start this version of the server once")
    identity, change = connection.execute("SELECT id, change FROM identity").fetchone()
    objects = len(all_keys(connection))
    return BackupManifest(1, __version__, time.time(), identity, schema, change, objects)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    tar.addfile(member, io.BytesIO(data))


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o600
    return member


def restore(settings: Settings, source: Path, *, force: bool = False) -> BackupManifest:
    """Put the database of a backup in place; no server may run. With `force`, also beside existing data: the present
    database is kept under another name, and the next server adds objects that are newer than the backup. The audit log
    and the usage of the backup are used only without present ones: records are never replaced."""
    state_dir = settings.state_dir
    state = StateDir.acquire(state_dir)
    try:
        database = state.database
        held = database.exists() and database.stat().st_size > 0
        if not force and (held or any(_holds(state_dir / name) for name in _DATA)):
            raise Conflict(
                f"{state_dir} is not empty",
                hint="--force restores all the same; the present database is kept as state.db.replaced-…",
            )
        draft = database.with_name("state.db.new")
        try:
            manifest = _extract(source, draft)
            if not list_segments(state_dir / "audit"):
                _restore_audit(source, state_dir / "audit", key_directory(settings))
            if not (state_dir / USAGE).exists():
                _restore_usage(source, state_dir / USAGE)
            swap_database(database, draft, "replaced")
        finally:
            draft.unlink(missing_ok=True)
        return manifest
    finally:
        state.release()


def _restore_audit(source: Path, directory: Path, keys: Path) -> None:
    """Put the segments and the public keys of a backup in place. Extract nothing else."""
    draft = directory.with_name("audit.new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    with tarfile.open(source, "r:") as tar:
        for name in tar.getnames():
            if found := _SEGMENT.fullmatch(name):
                write_file(draft / found[1], _member(tar, name, MAX_SEGMENT).read(), 0o600)
            elif found := _KEY.fullmatch(name):
                _add_key(keys / "keys" / found[1], _member(tar, name, 1000).read(), source)
    shutil.rmtree(directory, ignore_errors=True)  # an index without segments
    os.rename(draft, directory)
    tree.sync(directory.parent)


def _restore_usage(source: Path, target: Path) -> None:
    """Put the record of usage in place. A damaged one is found when the server opens it."""
    draft = target.with_name(f"{USAGE}.new")
    with tarfile.open(source, "r:") as tar:
        if USAGE not in tar.getnames():  # a backup of an earlier version
            return
        with _member(tar, USAGE, MAX_DATABASE) as data, draft.open("wb") as file:
            os.fchmod(file.fileno(), 0o600)
            shutil.copyfileobj(data, file)
            file.flush()
            os.fsync(file.fileno())
    for suffix in ("-wal", "-shm"):  # of a file that is gone
        target.with_name(USAGE + suffix).unlink(missing_ok=True)
    os.rename(draft, target)


def _add_key(path: Path, content: bytes, source: Path) -> None:
    try:
        known = read_keys([content])
    except ValueError as error:
        raise InvalidRequest(f"{source} is damaged: {error}") from error
    if list(known) != [path.stem]:
        raise InvalidRequest(f"{source} is damaged: {path.name} is another key")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        write_file(path, content, 0o644)


def _holds(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def _extract(source: Path, draft: Path) -> BackupManifest:
    """Extract the database and check it."""
    try:
        with tarfile.open(source, "r:") as tar:
            manifest = msgspec.json.decode(_member(tar, "manifest.json", 1 << 20).read(), type=BackupManifest)
            with _member(tar, "state.db", MAX_DATABASE) as data, draft.open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                shutil.copyfileobj(data, file)
        with closing(sqlite3.connect(draft)) as connection:
            (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if answer != "ok" or _manifest(connection).database != manifest.database:
                raise InvalidRequest(f"{source} is damaged: {answer}")
    except OSError as error:
        raise NotFound(f"{source}: {error.strerror}") from error
    except (tarfile.TarError, msgspec.MsgspecError, sqlite3.DatabaseError, EOFError) as error:
        raise InvalidRequest(f"{source} is not a backup: {error}") from error
    return manifest


def _member(tar: tarfile.TarFile, name: str, limit: int) -> IO[bytes]:
    try:
        member = tar.getmember(name)
    except KeyError:
        raise InvalidRequest(f"the backup has no {name}") from None
    file = tar.extractfile(member) if member.isreg() and member.size <= limit else None
    if file is None:
        raise InvalidRequest(f"{name} of the backup can't be read")
    return file
