"""The writer of record files: a thread that copies changed rows from the database, a moment after their commit.

It has a connection for reading, so neither reading rows nor writing files delays the event loop. A crash in between
loses nothing: the database has the change, and the next server writes the files again. A batch has all changes since
the previous one, so an object that changes often is written less often than it changes."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from skerry.engine.repair.record_files import (
    Key,
    RecordFile,
    RecordFiles,
    all_keys,
    encode_record,
    is_durable,
    read_record,
)

log = logging.getLogger("skerry.engine")
RETRY_S = 2.0
MAX_PAUSE_S = 5.0


class RecordWriter:
    """`notify` may be called from any thread; `close` writes the remaining changes."""

    def __init__(self, database: Path, files: RecordFiles) -> None:
        self._database, self.files = database, files
        self._pending: set[Key] = set()
        self._wake = threading.Condition()
        self._closing = False
        self._failing = False
        self._thread: threading.Thread | None = None
        self._found: dict[Key, RecordFile] | None = None

    def notify(self, keys: Iterable[Key]) -> None:
        with self._wake:
            self._pending.update(keys)
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="skerry-records", daemon=True)
                self._thread.start()
            self._wake.notify()

    def compare(self, found: dict[Key, RecordFile]) -> None:
        """Write the files that differ from the database, given those on disk."""
        self._found = found
        self.notify(())

    def close(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(sqlite3.connect(self._database, isolation_level=None)) as connection:
            pause, found, self._found = 0.0, self._found, None
            if found is not None:
                self.notify(outdated(connection, found))
            while (batch := self._next(pause)) is not None:
                pause = self._write_batch(connection, batch)

    def _next(self, pause: float) -> set[Key] | None:
        """Return the changed objects; None at the end. Pause between two batches, except at the end."""
        with self._wake:
            self._wake.wait_for(lambda: self._closing, pause)
            self._wake.wait_for(lambda: self._closing or self._pending)
            batch, self._pending = self._pending, set()
            return batch or None

    def _write_batch(self, connection: sqlite3.Connection, batch: set[Key]) -> float:
        """Write the record files of a batch. Return how long to pause: the thread never takes more than a quarter of
        the time, however large the records of a review are."""
        began = time.monotonic()
        try:
            connection.execute("BEGIN")
            try:
                found = [(key, encode_record(connection, key), is_durable(connection, key)) for key in batch]
            finally:
                connection.execute("ROLLBACK")
            for key, data, durable in found:
                if data is None:
                    self.files.remove(key)
                else:
                    self.files.write(key, data, durable=durable)
            self._failing = False
        except (OSError, sqlite3.Error) as error:
            if not self._failing:
                log.error("failed to write record files", extra={"error": str(error)})
            self._failing = True
            with self._wake:
                if not self._closing:
                    self._pending |= batch
            return RETRY_S
        return min(3 * (time.monotonic() - began), MAX_PAUSE_S)


def outdated(connection: sqlite3.Connection, found: dict[Key, RecordFile]) -> set[Key]:
    """Return the objects with record files that are missing, superfluous or not the database's rows."""
    keys = all_keys(connection)
    differing = {
        key
        for key in keys & found.keys()
        if (now := read_record(connection, key)) is None
        or (now.tables, now.schema, now.database) != (found[key].tables, found[key].schema, found[key].database)
    }
    return (keys ^ found.keys()) | differing
