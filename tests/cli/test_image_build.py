"""`skerry image build`, and a project's setup."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from support.cli import SKERRY, environment, skerry
from support.server import Server

from skerry import Client, Sandbox, Snapshot

DOCKERFILE = "FROM base\nRUN echo said; echo $((6*7)) > ~/answer\nEXPOSE 80\n"


def builds(server: Server) -> list[Sandbox]:
    return [one for one in Sandbox.list(server=server.address) if "skerry.build" in one.labels]


def test_dockerfile_build_prints_progress_to_stderr(server: Server, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    done = skerry("image", "build", "-t", "tests/cli", ".", server=server.address, cwd=tmp_path)
    try:
        assert re.fullmatch(rb"tests/cli sha256:[0-9a-f]{64}\n", done.stdout), done.stderr
        assert done.stderr.decode().splitlines() == [
            "Dockerfile:3: EXPOSE is ignored: it has no effect here",
            "[1/1] Dockerfile:2: RUN echo said; echo $((6*7)) > ~/answer",
            "  said",
        ]
        ran = skerry("run", "--image", "tests/cli", "--", "cat", "/home/user/answer", server=server.address)
        assert ran.stdout == b"42\n"
    finally:
        with Client(server.address) as client:
            client.images.remove("tests/cli")


def test_build_without_a_name_is_a_snapshot(server: Server, tmp_path: Path) -> None:
    (tmp_path / "image.toml").write_text('[[steps]]\nrun = "echo quiet"\n')
    done = skerry("-q", "image", "build", "-f", "image.toml", "--json", server=server.address, cwd=tmp_path)
    assert done.stderr == b""
    assert Snapshot.get(json.loads(done.stdout)["id"], server=server.address).info.kind == "build"
    again = skerry("image", "build", str(tmp_path), server=server.address)
    assert again.stdout.decode().strip() == json.loads(done.stdout)["id"]
    assert again.stderr.decode().splitlines() == [f"[1/1] {tmp_path}/image.toml:1: run echo quiet (cached)"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-t", "x", "."], "no image.toml or Dockerfile in ."),
        (["-f", "image.toml", "--target", "x"], "--build-arg and --target are for a Dockerfile"),
    ],
)
def test_invalid_builds_are_reported(server: Server, tmp_path: Path, words: list[str], said: str) -> None:
    done = skerry("image", "build", *words, server=server.address, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert said in done.stderr.decode()


def test_failed_step_shows_line_and_output_and_interrupt_leaves_nothing(server: Server, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM base\nRUN echo why; false\n")
    done = skerry("image", "build", "-t", "x", ".", server=server.address, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.decode().endswith(
        "  why\nerror: Dockerfile:2: RUN echo why; false: step 1 of 1 ended with exit code 1\n"
    )
    (tmp_path / "Dockerfile").write_text("FROM base\nRUN echo begun; sleep 600\n")
    build = subprocess.Popen(
        [*SKERRY, "image", "build", "-t", "x", "."], cwd=tmp_path, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        env=environment(SKERRY_SERVER=server.address),
    )  # fmt: skip
    assert build.stderr is not None
    said = b""
    while b"begun" not in said:
        said += (more := os.read(build.stderr.fileno(), 4096))
        assert more, f"it ended: {said!r}"
    build.send_signal(signal.SIGINT)
    build.communicate(timeout=30)
    assert build.returncode == 130
    assert builds(server) == []


def test_project_setup_runs_again_after_changes_or_expiry(server: Server, tmp_path: Path) -> None:
    def run(*flags: str) -> tuple[str, str]:
        done = skerry("run", *flags, "--", "cat", "log", server=server.address, cwd=tmp_path)
        return done.stdout.decode(), done.stderr.decode()

    def project(second: str, expires: str = "7d") -> None:
        lines = ["cat deps/list.txt > log; id -un >> log", f"echo {second}-$A-$RANDOM >> log"]
        (tmp_path / "skerry.toml").write_text(
            f'setup = {json.dumps(lines)}\nsetup_files = ["deps/*"]\nsetup_max_age = "{expires}"\nenv = {{A = "a"}}\n'
        )

    (tmp_path / "deps").mkdir()
    (tmp_path / "deps/list.txt").write_text("wanted\n")
    project("two")
    out, said = run()
    assert re.fullmatch(r"wanted\nuser\ntwo-a-\d+\n", out), said
    assert said.splitlines()[0].startswith("running the setup of this project (skerry.toml)")
    assert said.splitlines()[1] == "[1/3] skerry.toml: setup_files deps/*"
    assert run() == (out, ""), "it starts from what was kept, and says nothing"
    project("other")
    changed, said = run()
    assert changed.startswith("wanted\nuser\nother-a-")
    assert [line.endswith("(cached)") for line in said.splitlines()[1:]] == [True, True, False]
    project("other", "1ms")
    created = skerry("create", server=server.address, cwd=tmp_path)
    with Sandbox.get(created.stdout.decode().strip(), server=server.address) as sandbox:
        assert sandbox.run("cat log").stdout not in (out, changed), "it was too old"
        assert sandbox.run("stat -c %U deps deps/list.txt").stdout == "user\nuser\n"
    assert run("--no-setup")[0] == ""


def test_project_image_is_built_from_its_dockerfile_and_cached(server: Server, tmp_path: Path) -> None:
    def run(*flags: str) -> tuple[int, str, str]:
        done = skerry("run", *flags, "--", "cat", "/workspace/log", server=server.address, cwd=tmp_path / "src")
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    (tmp_path / "src").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "given.txt").write_text("given\n")
    file = tmp_path / "docker" / "Dockerfile"
    file.write_text("FROM base\nCOPY given.txt .\nRUN cat given.txt > log; echo $RANDOM >> log\n")
    (tmp_path / "skerry.toml").write_text('image = "./docker/Dockerfile"\nsetup = ["echo set up >> log"]\n')
    code, out, said = run()
    assert (code, out.splitlines()[0], out.splitlines()[2]) == (0, "given", "set up"), said
    assert said.startswith("building docker/Dockerfile"), "also from a directory below the project"
    assert run() == (0, out, ""), "all of it is cached"
    assert run("--no-setup")[1] == "".join(out.splitlines(keepends=True)[:2])
    file.write_text("FROM base\nRUN echo other > log\n")
    assert run()[1] == "other\nset up\n"
    for outside in ("./../Dockerfile", "./link"):
        (tmp_path / "skerry.toml").write_text(f'image = "{outside}"\n')
        if not (tmp_path / "link").is_symlink():
            (tmp_path / "link").symlink_to("/etc/passwd")
        code, _, said = run()
        assert code != 0
        assert "outside of the project" in said
    (tmp_path / "skerry.toml").write_text('image = "./missing"\n')
    assert "missing" in run()[2]


def test_failed_setup_creates_no_sandbox(server: Server, tmp_path: Path) -> None:
    (tmp_path / "skerry.toml").write_text('setup = ["echo why; exit 3"]\n')
    done = skerry("create", "--label", "test=failed", server=server.address, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert "  why\nerror: skerry.toml: echo why; exit 3: step 1 of 1 ended with exit code 3\n" in done.stderr.decode()
    quiet = skerry("-q", "create", server=server.address, cwd=tmp_path)
    assert quiet.stderr == b"error: skerry.toml: echo why; exit 3: step 1 of 1 ended with exit code 3\nwhy\n"
    assert Sandbox.list(labels={"test": "failed"}, server=server.address) == builds(server) == []
