"""A directory of this host as an archive."""

from __future__ import annotations

import io
import os
import socket
import tarfile
from pathlib import Path

import pytest

from skerry.client.host.archive_files import PIECE, tree_pieces
from skerry.errors import InvalidRequest


def test_archive_has_every_kind_of_file(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "d/empty").mkdir(parents=True)
    (tree / "d/file").write_bytes(b"content")
    (tree / "d/file").chmod(0o4750)
    os.link(tree / "d/file", tree / "d/same")
    os.symlink("/etc/passwd", tree / "link")
    os.symlink("d", tree / "to-directory")
    os.mkfifo(tree / "fifo", 0o600)
    os.utime(tree / "d/file", ns=(5 * 10**9, 1_500_000_000 * 10**9 + 500_000_000))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tree / "socket"))
    (tmp_path / "given").symlink_to(tree)  # the argument itself may be a link
    archive = tarfile.open(fileobj=io.BytesIO(b"".join(tree_pieces(tmp_path / "given"))))  # noqa: SIM115 - in memory
    found = {member.name: member for member in archive}
    assert sorted(found) == [".", "d", "d/empty", "d/file", "d/same", "fifo", "link", "to-directory"]
    file, same = sorted((found["d/file"], found["d/same"]), key=lambda member: member.islnk())
    assert (file.mode, file.uid, file.mtime, same.linkname) == (0o4750, os.getuid(), 1_500_000_000.5, file.name)
    content = archive.extractfile(file)
    assert content is not None
    assert content.read() == b"content"
    assert (found["link"].linkname, found["to-directory"].linkname) == ("/etc/passwd", "d")
    assert found["fifo"].isfifo()
    assert found["d/empty"].isdir()


@pytest.mark.parametrize("replaced", ["directory", "file"])
def test_a_directory_replaced_by_a_link_is_not_followed(tmp_path: Path, replaced: str) -> None:
    """A program that still writes into the tree must not be able to put other files of this host into the image."""
    tree, secret = tmp_path / "tree", tmp_path / "secret"
    (tree / "d").mkdir(parents=True)
    (tree / "d/a").write_bytes(os.urandom(3 * PIECE))
    (tree / "d/b").write_bytes(b"own     ")
    secret.mkdir()
    (secret / "b").write_bytes(b"password")
    pieces = tree_pieces(tree)
    sent = [next(pieces)]  # a part of d/a
    if replaced == "directory":
        (tree / "d").rename(tree / "moved")
        (tree / "d").symlink_to(secret)
    else:
        (tree / "d/b").unlink()
        (tree / "d/b").symlink_to(secret / "b")
    try:
        sent += pieces
    except InvalidRequest:
        return
    assert b"password" not in b"".join(sent)
