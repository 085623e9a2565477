"""Volumes: the cost of a mount, a clone and of reading and writing through one, beside the sandbox's own files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.creation import COLD
from bench.measure import Figure, Part, Row, row, side_by_side, timed
from bench.states import FILES, FILL, MEGABYTES, sync_disk
from skerry import Client, Limits, Sandbox, Volume

WRITTEN_MEGABYTES = 300
# Reading after the cache was dropped needs a right that no sandbox has; both read from the cache.
TRANSFER = f"""
import os, sys, time
path = sys.argv[1] + "/large"
piece = os.urandom(1 << 20)
start = time.perf_counter()
with open(path, "wb", buffering=0) as file:
    for _ in range({WRITTEN_MEGABYTES}): file.write(piece)
    os.fsync(file.fileno())
written = time.perf_counter() - start
start = time.perf_counter()
with open(path, "rb", buffering=0) as file:
    while file.read(1 << 20): pass
print(written, time.perf_counter() - start)
os.unlink(path)
"""


@contextmanager
def large_volume(client: Client) -> Iterator[Volume]:
    """A volume with the files of the other benchmarks of large workspaces."""
    made = client.volumes.create("bench-large", "20G")
    try:
        with Sandbox(options=COLD, limits=Limits(memory="4G"), volumes={"/workspace": made}, server=client) as sandbox:
            sandbox.run(["python3", "-c", FILL], check=True, timeout=300)
        yield made
    finally:
        made.delete()


def volumes(count: int) -> Part:
    with Client() as client, large_volume(client) as large:
        with_volume, without = mounts(client, large, count)
        clones: list[float] = []
        for turn in range(count // 2 + 2):
            sync_disk()
            clones += [timed(lambda: large.clone("bench-clone"))] * (turn >= 2)
            client.volumes.get("bench-clone").delete()
        rates = transfers(client, large, max(count // 10, 3))
    clone = row(f"clone of a volume, {FILES:,} files, {MEGABYTES} MB", clones)
    added = with_volume.p50 - without.p50
    beside = f"{with_volume.p50:.1f} ms - {without.p50:.1f} ms"
    return [with_volume, without, clone], [
        Figure("a mounted volume adds to a create, ms", added, beside, most=3),
        Figure(f"{clone.name}, ms", clone.p50, f"p95 {clone.at(0.95):.1f} ms", most=30),
        *rates,
    ]


def mounts(client: Client, large: Volume, count: int) -> list[Row]:
    def create(**volumes: Volume) -> None:
        made = Sandbox.create(options=COLD, volumes={f"/{name}": one for name, one in volumes.items()}, server=client)
        made.delete()

    return side_by_side({"create and delete, a volume": lambda: create(data=large), "create and delete": create}, count)


def transfers(client: Client, large: Volume, rounds: int) -> list[Figure]:
    """In turns, in one sandbox."""
    spent: dict[str, list[tuple[float, float]]] = {"/data": [], "/workspace": []}
    limits = Limits(memory="4G")
    with Sandbox(options=COLD, limits=limits, volumes={"/data": large}, server=client) as sandbox:
        for _ in range(rounds):
            for path, found in spent.items():
                sync_disk()
                words = sandbox.run(["python3", "-c", TRANSFER, path], check=True).stdout.split()
                found.append((float(words[0]), float(words[1])))
    figures = []
    for number, what in enumerate(("write", "read")):
        times_ = {path: sorted(one[number] for one in found)[rounds // 2] for path, found in spent.items()}
        rates = {path: WRITTEN_MEGABYTES / seconds for path, seconds in times_.items()}
        beside = f"{rates['/data']:.0f} MB/s / {rates['/workspace']:.0f} MB/s"
        figures.append(
            Figure(f"{what} through a volume / own files", rates["/data"] / rates["/workspace"], beside, least=0.9)
        )
    return figures
