"""A new server takes over the sandboxes of an older version: their keepers, which keep running, are older, too."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import Server

import skerry
from skerry import Network, Pty, Sandbox
from skerry.keeper import build_id

ROOT = Path(__file__).parents[3]
# The oldest keeper that this server must be able to use. If a change needs a newer one, raise PROTOCOL and
# OLDEST_PROTOCOL in src/skerry/keeper/values.py and keeper/internal/build, and name the commit of that change here.
OLDEST_KEEPER = "ade6636b7619f7a32b0c303c9e6298e7cf2aa7f7"
BUILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import hatch_build
hatch_build.SOURCES = Path(sys.argv[2])
hatch_build.compile_keeper("older", Path(sys.argv[3]))
"""
WAITS = "echo before; until [ -e /workspace/go ]; do sleep 0.05; done; echo after; exit 3"


@pytest.fixture(scope="module")
def older_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with this package and the keeper of the oldest supported commit."""
    place = tmp_path_factory.mktemp("older")
    packed = subprocess.run(["git", "archive", OLDEST_KEEPER, "keeper"], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"this clone does not have the history down to {OLDEST_KEEPER}")
    subprocess.run(["tar", "-x", "-C", str(place)], input=packed.stdout, check=True)  # Python 3.11.2 has no filters
    shutil.copytree(Path(skerry.__file__).parent, place / "skerry", ignore=shutil.ignore_patterns("__pycache__"))
    programs = place / "skerry/keeper/bin"
    (programs / "skerry-keeper").unlink()
    subprocess.run(
        [sys.executable, "-c", BUILD, str(ROOT), str(place / "keeper"), str(programs / "skerry-keeper")],
        check=True, timeout=110,
    )  # fmt: skip
    (programs / "build").write_text("older")
    return place


def keeper_build(sandbox: Sandbox) -> str:
    return sandbox.run("/run/skerry/bin/skerry-keeper --version").stdout


@pytest.mark.timeout(300)
def test_sandboxes_run_through_an_upgrade(own_server: Server, older_version: Path) -> None:
    own_server.start(PYTHONPATH=str(older_version))
    network = Network(allow=["api.example.com"])
    with (
        Sandbox(name="kept", server=own_server.address, network=network) as kept,
        Sandbox(name="paused", server=own_server.address) as paused,
    ):
        assert "older" in keeper_build(kept)
        process = kept.spawn(WAITS)
        process.wait_for_output("before")
        kept.session("build").run("cd /tmp && MODE=test")
        kept.code.run("x = 41")
        kept.files.write("src/a.py", "print(1)\n")
        kept.review.start()
        paused.run("echo kept > file; (sleep 1000 &)")
        paused.pause()
        own_server.end()
        own_server.start()
        assert own_server.http().get("/v1/server").json()["build"] == build_id()
        check_everything(kept, process.id)
        paused.resume()
        assert paused.run("cat file; pgrep -c sleep").stdout == "kept\n1\n"
        assert "older" in keeper_build(paused)  # its processes were not ended
        for sandbox in (kept, paused):
            sandbox.stop()
            assert build_id() in keeper_build(sandbox)  # the next start brings the new keeper
        assert kept.files.read_text("src/a.py") == "print(2)\n"
        kept.delete()
        paused.delete()


def check_everything(sandbox: Sandbox, process_id: str) -> None:
    """Use each part of the protocol once."""
    assert "older" in keeper_build(sandbox)
    sandbox.files.write("go", "")
    result = sandbox.processes.get(process_id).wait()
    assert (result.exit_code, result.stdout) == (3, "before\nafter\n")
    assert sandbox.session("build").run("pwd; echo $MODE").stdout == "/tmp\ntest\n"
    assert sandbox.code.run("x + 1").text == "42"
    with sandbox.files.watch("/workspace") as watch:
        sandbox.files.replace("src/a.py", "1", "2")
        assert next(iter(watch)).path == "/workspace/src/a.py"
    assert [match.line for match in sandbox.files.search("print", "src").matches] == [1]
    assert [entry.path for entry in sandbox.files.glob("src/*.py")] == ["src/a.py"]
    assert "src/a.py" in {hunk.path for hunk in sandbox.review.changes().hunks}
    with sandbox.spawn("exit 5", pty=Pty(cols=90, rows=30)).terminal() as terminal:
        assert b"".join(terminal) is not None
        assert terminal.result.exit_code == 5
    assert sandbox.run("sudo id -un").stdout == "root\n"
    assert sandbox.run("curl -s http://example.org/").denied[0].host == "example.org"
    sandbox.spawn(["python3", "-m", "http.server", "8000"])
    sandbox.wait_for_port(8000)
    (fork,) = sandbox.fork()
    with fork:
        assert build_id() in keeper_build(fork)
        assert fork.files.read_text("src/a.py") == "print(2)\n"
    snapshot = sandbox.snapshot()
    sandbox.files.remove("go")
    assert [change.path for change in snapshot.changes()] == ["/workspace/go"]
    snapshot.delete()
    sandbox.update(env={"NEW": "1"})
    assert sandbox.run("echo $NEW").stdout == "1\n"
