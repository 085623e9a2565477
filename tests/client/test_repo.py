"""`sandbox.repo` with a server that misbehaves."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from support.lying_server import SANDBOX, Asked, Said, lying, refused, said
from support.patch_sets import repository

from skerry import Conflict, Sandbox
from skerry.client.repository.origin import origin_of

COMMIT, BLOB = "1" * 40, ["100644", "2" * 40]


def tree(*paths: str) -> Said:
    head = {"synced": COMMIT, "base": COMMIT, "tip": COMMIT, "path": "/workspace"}
    lines = [head, *({"path": path, "synced": BLOB} for path in paths), {"end": True}]
    return Said(200, b"".join(json.dumps(line).encode() + b"\n" for line in lines), "application/x-ndjson")


def test_pull_gives_up_when_the_review_changes_during_each_try(tmp_path: Path) -> None:
    root = repository(tmp_path / "project", {"a.txt": b"a\n"})

    def answer(asked: Asked) -> Said:
        if asked.path.endswith("/tree"):
            return tree()
        if asked.path.endswith("/pulls"):
            return refused(409, "conflict", "the review changed during the pull", details={"stale": True})
        return Said(204) if asked.method == "DELETE" else said(SANDBOX, 201)

    with lying(tmp_path, answer) as server, Sandbox(server=server.address) as sandbox:
        with pytest.raises(Conflict, match="changes its files faster than they can be merged"):
            sandbox.repo.pull(root)
        assert len([asked for asked in server.asked if asked.path.endswith("/pulls")]) == 5


def test_paths_outside_that_a_server_lists_are_not_looked_at(tmp_path: Path) -> None:
    root = repository(tmp_path / "project", {"a.txt": b"a\n"})
    (tmp_path / "beside").write_text("")
    copy = {"sandbox": SANDBOX["id"], "origin": origin_of(root), "copied_at": time.time() + 1000, "listing": "0" * 64}

    def answer(asked: Asked) -> Said:
        if asked.path.endswith("/tree"):
            return tree("a.txt", "../gone", "../beside", "/etc/gone", ".git/gone", "gone")
        if asked.path.endswith("/copies"):
            return said({"copies": [copy]})
        return Said(204) if asked.method == "DELETE" else said(SANDBOX, 201)

    with lying(tmp_path, answer) as server, Sandbox(server=server.address) as sandbox:
        assert sandbox.repo.status(root).files == 1
