"""The files of cassettes: complete or absent, bounded, and removed with their sandboxes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.codecs import cassette as codec
from skerry.engine.network.cassettes import CassetteStore
from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded

BOX, OTHER = "sb-aaaaaaaaaa", "sb-bbbbbbbbbb"
HEAD = codec.ExchangeHead(number=1, method="GET", url="http://a.example/", status=200)
WHOLE = codec.MAGIC + codec.encode(HEAD) + codec.encode_data(1, b"body") + codec.encode(codec.End(number=1))


@pytest.fixture
def store(tmp_path: Path) -> CassetteStore:
    return CassetteStore(tmp_path / "cassettes")


def fill(store: CassetteStore, content: bytes, sandbox_id: str = BOX) -> None:
    fd = store.open(sandbox_id)
    os.pwrite(fd, content, 0)
    os.close(fd)


def receive(store: CassetteStore, *pieces: bytes) -> None:
    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def work() -> None:
        (await store.receive(BOX, body())).commit()

    asyncio.run(work())


def test_incomplete_exchanges_and_marks_are_not_exported(store: CassetteStore) -> None:
    half = codec.encode(codec.ExchangeHead(number=2, method="GET", url="http://b.example/", status=200))
    fill(store, WHOLE + codec.encode(codec.Used(number=1)) + half + b'{"line":"da')
    assert b"".join(store.export(BOX)) == WHOLE
    info = store.info(BOX)
    assert (info.exchanges, info.size, info.omitted, info.full) == (1, 4, 0, None)


def test_missing_and_damaged_cassettes_are_errors(store: CassetteStore, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has no cassette"):
        store.info(BOX)
    fill(store, WHOLE + b"garbage\n")
    for call in (store.info, lambda name: list(store.export(name))):
        with pytest.raises(Conflict, match="is damaged"):
            call(BOX)
    assert store.content(BOX, tmp_path / "none") is None


def test_received_cassette_replaces_the_old_one_only_if_it_is_whole(
    store: CassetteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive(store, WHOLE[:50], WHOLE[50:])
    for wrong in ((), (WHOLE[:-1],), (b"x" * 100,), (WHOLE, WHOLE)):
        with pytest.raises(InvalidRequest, match="cannot be used"):
            receive(store, *wrong)
    monkeypatch.setattr(codec, "MAX_SIZE", len(WHOLE) + 10)
    with pytest.raises(QuotaExceeded, match="larger than"):
        receive(store, *[WHOLE] * 100)
    assert b"".join(store.export(BOX)) == WHOLE
    assert os.listdir(tmp_path / "cassettes") == [BOX], "no draft is left"


def test_cassettes_are_removed_with_their_sandboxes_and_kept_for_their_traces(
    store: CassetteStore, tmp_path: Path
) -> None:
    fill(store, WHOLE)
    store.copy(BOX, OTHER)
    kept = tmp_path / "kept"
    for _ in range(2):  # a deletion may be repeated
        store.keep(BOX, kept)
        store.remove(BOX)
    (tmp_path / "cassettes" / f"{OTHER}.1234.new").touch()
    assert store.content(BOX, kept) == WHOLE
    store.sweep({OTHER})
    assert os.listdir(tmp_path / "cassettes") == [OTHER]
    store.sweep(())
    assert os.listdir(tmp_path / "cassettes") == []
