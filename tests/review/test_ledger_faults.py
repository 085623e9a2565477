"""A ledger has its state before a commit or after it, despite killed processes and full disks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ledgers import begun, contents, git, put, said, sound

from skerry.errors import Conflict, SkerryError
from skerry.review.ledger import packs
from skerry.review.ledger.git import LedgerGitError
from skerry.review.ledger.ledger import Ledger, Put


def leftovers(ledger: Ledger) -> list[str]:
    wrong = [str(path) for path in ledger.path.rglob("*") if path.name.startswith(("incoming-", "tmp_", ".tmp-"))]
    locks = [str(path) for path in ledger.path.rglob("*.lock") if path.parent != ledger.path]
    return wrong + locks


def pack_count(ledger: Ledger) -> int:
    return len(list(ledger.path.glob("objects/pack/*.pack")))


def test_a_killed_writer_leaves_a_complete_commit_or_none(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"n", b"0"))
    chance = random.Random(6)
    ends = set()
    for _ in range(8):
        before = ledger.tip
        child = os.fork()
        if child == 0:
            try:
                for number in range(1000):
                    many = [put(b"f%d" % n, os.urandom(20_000)) for n in range(20)]
                    ledger.commit(said(), [put(b"n", b"%d" % number), *many])
            finally:
                os._exit(1)
        until = time.monotonic() + 20
        while ledger.tip == before and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        reopened = Ledger.open(ledger.path)
        assert leftovers(reopened) == []
        assert len(contents(reopened, reopened.tip)) == 21
        ends.add(reopened.tip)
    assert len(ends) == 8
    assert sound(ledger)
    assert ledger.commit(said(), [put(b"n", b"after")]) == Ledger.open(ledger.path).tip


def test_an_interrupted_commit_changes_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[Put]:
        yield put(b"a", b"2")
        raise ConnectionResetError("the keeper is gone")

    ledger = begun(tmp_path, put(b"a", b"1"))
    before = sorted(str(path) for path in ledger.path.rglob("*"))
    with pytest.raises(ConnectionResetError):
        ledger.commit(said(), broken())
    assert sorted(str(path) for path in ledger.path.rglob("*")) == before


def test_a_full_disk_is_reported_and_the_ledger_recovers(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "skerry-test", str(small)], check=True)
    try:
        ledger = begun(small, put(b"a", b"1"))
        base = ledger.tip
        filler = small / "filler"
        for size in (4 << 20, 1 << 20, 300_000):
            if size < 1 << 20:
                filler.write_bytes(b"x" * (os.statvfs(small).f_bavail * 4096 - 100_000))
            with pytest.raises(LedgerGitError) as failed:
                ledger.commit(said(), [put(b"big", os.urandom(size)), put(b"big2", os.urandom(size))])
            assert failed.value.full
            assert ledger.tip == base
            assert leftovers(ledger) == []
        with pytest.raises(LedgerGitError):
            ledger.write(os.urandom(2 << 20))
        filler.unlink()
        assert ledger.commit(said(), [put(b"a", b"2")]) == ledger.tip
        assert sound(Ledger.open(ledger.path))
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_two_writers_take_turns(tmp_path: Path) -> None:
    first = begun(tmp_path)
    second = Ledger.open(first.path)

    def work(ledger: Ledger, name: bytes) -> None:
        for number in range(10):
            ledger.commit(said(name.decode()), [put(name, b"%d" % number)])

    threads = [threading.Thread(target=work, args=(one, name)) for one, name in ((first, b"one"), (second, b"two"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert contents(first, second.tip) == {b"one": ("100644", b"9"), b"two": ("100644", b"9")}
    assert len(first.history()) == 21
    assert sound(first)


def test_a_writer_without_the_lock_gets_a_conflict(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with packs.held(path, 1), pytest.raises(Conflict), packs.held(path, 0.02):
        pass
    with packs.held(path, 0):
        pass


def test_open_sweeps_leftovers_and_nothing_else(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"a", b"1"))
    kept = {str(path) for path in ledger.path.rglob("*")}
    loose = ledger.write(b"still needed")
    kept |= {str(path) for path in ledger.path.rglob("*")}
    rubbish = [
        "incoming-abc/objects/pack/x", "objects/pack/tmp_pack_abc", "objects/pack/.tmp-1-pack-abc.pack",
        "objects/pack/pack-1.pack",
        "objects/pack/pack-2.idx", f"objects/{loose[:2]}/tmp_obj_x", "refs/heads/main.lock", "refs/agent/heads/x.lock",
        "config.lock", "shallow.lock",
    ]  # fmt: skip
    for name in rubbish:
        (ledger.path / name).parent.mkdir(parents=True, exist_ok=True)
        (ledger.path / name).write_bytes(b"x")
    Ledger.open(ledger.path)
    assert {str(path) for path in ledger.path.rglob("*") if path.is_file()} <= kept | {str(ledger.path / "care.lock")}
    assert kept <= {str(path) for path in ledger.path.rglob("*")}
    assert b"".join(ledger.blob(loose)) == b"still needed"


def test_a_first_commit_interrupted_between_its_refs_is_undone(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"a", b"1"))
    (ledger.path / "refs/heads/main").unlink()
    again = Ledger.open(ledger.path)
    assert again.rev("refs/skerry/base") is None
    assert again.commit(said("", kind="base"), [put(b"a", b"1")]) == again.base


def test_a_damaged_ledger_is_not_opened(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"a", b"1"))
    for text in ("1" * 40, "", "ref: refs/heads/../../x", "0" * 39):
        (ledger.path / "refs/heads/main").write_text(text)
        with pytest.raises(SkerryError):
            Ledger.open(ledger.path)


def test_packs_are_joined_before_there_are_many(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"a", b"0"), put(b"b", b"0"))
    written = [ledger.write(b"kept %d" % number) for number in range(5)]
    most = 0
    for number in range(packs.JOIN_LATER_ABOVE + 25):
        ledger.commit(
            said(f"command {number}"), [put(b"a", b"%d" % number), put(b"d/%d" % (number % 7), b"%d" % number)]
        )
        most = max(most, pack_count(ledger))
    until = time.monotonic() + 60
    while pack_count(ledger) > packs.JOIN_LATER_ABOVE and time.monotonic() < until:
        time.sleep(0.01)
    assert pack_count(ledger) <= packs.JOIN_LATER_ABOVE
    assert most < packs.JOIN_LATER_ABOVE + 25
    assert len(ledger.history()) == packs.JOIN_LATER_ABOVE + 26
    assert dict(ledger.blobs(written)) == {oid: b"kept %d" % number for number, oid in enumerate(written)}
    assert sound(Ledger.open(ledger.path))
    assert not ledger.maintain()


@pytest.mark.soak
def test_a_thousand_commits_cost_no_more_each_than_the_first_hundred(tmp_path: Path) -> None:
    ledger = begun(tmp_path, *(put(b"d%d/f%d" % (n % 30, n), os.urandom(2000)) for n in range(1500)))
    took = []
    for number in range(1000):
        began = time.perf_counter()
        ledger.commit(said(f"{number}"), [put(b"d%d/f%d" % (number % 30, number), os.urandom(3000))])
        took.append(time.perf_counter() - began)
    assert pack_count(ledger) <= packs.JOIN_NOW_ABOVE
    assert sum(1 for _ in ledger.path.rglob("*")) < 3 * packs.JOIN_NOW_ABOVE
    assert sorted(took[-100:])[50] < 5 * sorted(took[:100])[50]
    assert int(git(ledger, "rev-list", "--count", "main")) == 1001
    ledger.remove()
    assert list(tmp_path.iterdir()) == []
