"""Many small files: in one call, and in one call each."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from bench.measure import Figure, Part, row, timed
from skerry import Options, Sandbox

FILES = 3000
UPLOAD, WRITE, DOWNLOAD = "files.upload, 3,000 files of 1 KiB", "files.write, one of them", "files.download of them"


def trees(_: int, rounds: int = 5) -> Part:
    """In turns, so that a noisy moment of the machine hits both alike. The files stay until the end: a file system that
    has just lost thousands of files is slow to make new ones."""
    times: dict[str, list[float]] = {UPLOAD: [], WRITE: [], DOWNLOAD: []}
    with tempfile.TemporaryDirectory() as place, Sandbox(options=Options(use_pool=False)) as sandbox:
        source = Path(place, "source")
        names = [source / f"d{n // 100}" / f"f{n}" for n in range(FILES)]
        for name in names:
            name.parent.mkdir(parents=True, exist_ok=True)
            name.write_bytes(os.urandom(1024))
        for turn in range(rounds):
            times[UPLOAD].append(timed(lambda turn=turn: sandbox.files.upload(source, f"/workspace/up{turn}")))
            for name in names[:200]:
                path = f"/workspace/one{turn}/{name.relative_to(source)}"
                times[WRITE].append(timed(lambda name=name, path=path: sandbox.files.write(path, name.read_bytes())))
            back = Path(place, f"back{turn}")
            times[DOWNLOAD].append(
                timed(lambda turn=turn, back=back: sandbox.files.download(f"/workspace/up{turn}", back))
            )
    rows = {name: row(name, spent) for name, spent in times.items()}
    each, whole = rows[WRITE].p50 * FILES, rows[UPLOAD].p50
    ratio = Figure("3,000 files, one call each / one upload", each / whole, f"{each:.0f} ms / {whole:.0f} ms", least=20)
    return list(rows.values()), [ratio]
