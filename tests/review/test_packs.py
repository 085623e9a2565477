"""Packs equal those that git writes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from skerry.errors import InvalidRequest
from skerry.review.ledger.packs import Pack


def test_index_equals_the_index_of_git(tmp_path: Path) -> None:
    pack = Pack(tmp_path / "pack-new.pack", stored=1 << 10)
    for number in range(600):
        pack.add("blob", b"%d\n" % number * (number % 7))
    large = b"large" * 100_000
    assert pack.add_pieces([large[at : at + 9999] for at in range(0, len(large), 9999)], len(large)) == pack.add(
        "blob", large
    )
    pack.add_pieces([large], len(large))  # it is there already
    pack.add("blob", b"the last")
    pack.finish()
    pack.write_index()
    other = tmp_path / "other.idx"
    subprocess.run(["git", "index-pack", "-o", other, pack.path], check=True, capture_output=True)
    assert (tmp_path / "pack-new.idx").read_bytes() == other.read_bytes()


def test_an_object_beyond_two_gibibytes_has_its_place_in_the_second_table(
    tmp_path: Path,
) -> None:
    pack = Pack(tmp_path / "pack-new.pack")
    near, far = pack.add("blob", b"near"), pack.add("blob", b"far")
    pack.finish()
    pack.objects[far] = ((1 << 31) + 5, pack.objects[far][1])
    pack.write_index()
    index = (tmp_path / "pack-new.idx").read_bytes()
    shown = subprocess.run(["git", "show-index"], input=index, check=True, capture_output=True).stdout.decode()
    places = {line.split()[1]: int(line.split()[0]) for line in shown.splitlines()}
    assert places == {near.hex(): 12, far.hex(): (1 << 31) + 5}


def test_a_file_with_the_wrong_size_is_rejected(tmp_path: Path) -> None:
    for pieces in ([b"abc"], [b"abcd", b"e"]):
        pack = Pack(tmp_path / f"{len(pieces)}.pack")
        with pytest.raises(InvalidRequest):
            pack.add_pieces(pieces, 4)
        pack.close()
