"""An image with one static program and nothing else: no shell, no Python, no /etc/passwd, not even /proc."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from support.server import Server

from skerry import Sandbox, keeper
from skerry.errors import InvalidRequest
from skerry.storage import ImageStore, LayerStore, image_digest
from skerry.types import ImageInfo


@pytest.fixture(scope="module")
def bare(server: Server) -> Iterator[Sandbox]:
    tree = server.state_dir / "bare-tree"  # the store takes it by a rename
    tree.mkdir(mode=0o755)
    os.chmod(tree, 0o755)
    shutil.copy(keeper.binary(), tree / "tool")
    os.chmod(tree / "tool", 0o755)
    layers = LayerStore(server.state_dir / "layers")
    digest = layers.add_directory(tree)
    stack = (digest,)
    image = ImageInfo(
        name="bare", digest=image_digest(stack, {}, "root", "/"), layers=stack, size=1, created_at=time.time()
    )
    ImageStore(server.state_dir / "images", layers).put(image)
    with Sandbox("bare", server=server.address) as sandbox:
        yield sandbox


def test_program_runs_in_an_otherwise_empty_image(bare: Sandbox) -> None:
    result = bare.run(["/tool", "--version"])
    assert result.ok
    assert keeper.build_id() in result.stdout


def test_shell_line_reports_the_missing_shell(bare: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match="shell"):
        bare.run("echo hi")


def test_files_work_without_any_user_database(bare: Sandbox) -> None:
    bare.files.write("/b", b"x")
    assert bare.files.read_bytes("/b") == b"x"
    assert {entry.name for entry in bare.files.list("/")} >= {"tool", "proc", "b"}


def test_numeric_user_is_accepted_and_a_name_is_not(bare: Sandbox) -> None:
    assert bare.run(["/tool", "--version"], user="1234").ok
    with pytest.raises(InvalidRequest, match="user"):
        bare.run(["/tool", "--version"], user="user")


def test_sandboxes_do_not_change_the_image(server: Server, bare: Sandbox) -> None:
    bare.files.write("/only-here", b"x")
    with Sandbox("bare", server=server.address) as other:
        assert not other.files.exists("/only-here")


def test_layers_in_use_are_not_deleted(server: Server, bare: Sandbox) -> None:
    with server.http() as http:
        assert http.delete("/v1/images/bare").status_code == 409


def test_terminal_works_without_a_shell_and_a_shell_is_reported_missing(server: Server, bare: Sandbox) -> None:
    process = bare.spawn(["/tool", "--version"], pty=True)
    with process.terminal(since=0) as terminal:
        assert keeper.build_id().encode() in b"".join(terminal)
    master, slave = os.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "skerry", "shell", bare.id], env={**os.environ, "SKERRY_SERVER": server.address},
            stdin=slave, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(master)
        os.close(slave)
    assert done.returncode == 2
    assert b"no shell" in done.stderr
