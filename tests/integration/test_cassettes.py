"""Network cassettes from end to end: real programs record, and run again with the network closed."""

from __future__ import annotations

import base64
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from support.cli import skerry
from support.egress_attack import worker_of
from support.server import Server, wait_until
from world.world import World

from skerry import Client, Conflict, InvalidRequest, Network, NotFound, Options, Sandbox, Secret

VALUE = "real-Value.of+the/tests=9f4c2a7e31"
EMPTY = b'{"skerry":"cassette","version":1}\n'
API, SECRET_HOST = "api.example.test", "secret.example.test"
RECORD, REPLAY = Network(allow=["*.example.test"], cassette="record"), Network(cassette="replay")
PIP = (
    "pip install --quiet --disable-pip-version-check --no-cache-dir --index-url https://index.example.test/simple"
    " --target /tmp/site tinylib && PYTHONPATH=/tmp/site python3 -c 'import tinylib; print(tinylib.ANSWER)'"
)
GIT = "git clone -q https://git.example.test/tiny.git /tmp/tiny && git -C /tmp/tiny log"


@pytest.fixture(scope="module")
def recorder(world: World, world_server: Server) -> Iterator[Sandbox]:
    """A sandbox that records, with a secret."""
    secrets = [Secret("TOKEN", hosts=[SECRET_HOST], value=VALUE)]
    with Sandbox(server=world_server.address, network=RECORD, secrets=secrets) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def player(world: World, world_server: Server) -> Iterator[Sandbox]:
    """A sandbox that replays; its secret has the same name and another value."""
    secrets = [Secret("TOKEN", hosts=[SECRET_HOST], value="another-value-of-the-tests")]
    with Sandbox(server=world_server.address, network=REPLAY, secrets=secrets) as sandbox:
        yield sandbox


def served(world: World) -> int:
    return sum(len(call["requests"]) for call in world.calls())


def with_cassette(sandbox: Sandbox, cassette: bytes | None = None) -> Sandbox:
    """Begin with an empty cassette, or with this one."""
    sandbox.network.set(REPLAY)
    sandbox.network.load_cassette(cassette or EMPTY)
    if cassette is None:
        sandbox.network.set(RECORD)
    return sandbox


@pytest.mark.parametrize("command", [PIP, GIT], ids=["pip", "git"])
def test_program_runs_again_from_the_cassette(world: World, recorder: Sandbox, player: Sandbox, command: str) -> None:
    first = with_cassette(recorder).run(command, check=True)
    with_cassette(player, recorder.network.cassette())
    before = served(world)
    again = player.run(command)
    assert (again.exit_code, again.stdout, again.stderr, again.denied) == (0, first.stdout, first.stderr, ())
    assert served(world) == before, "nothing left the sandbox"


def test_secret_is_never_in_a_cassette(recorder: Sandbox, player: Sandbox) -> None:
    """The host echoes each request in its response; placeholders are equal in the recording and the replay."""
    login = base64.b64encode(f"me:{VALUE}".encode()).decode()
    command = f"""
    curl -sS -H "Authorization: Bearer $TOKEN" https://{SECRET_HOST}/header
    curl -sS "https://{SECRET_HOST}/query?key=$TOKEN"
    curl -sS -u "me:$TOKEN" https://{SECRET_HOST}/login
    curl -sS -D - -o /dev/null -H "X-Key: $TOKEN" "https://{SECRET_HOST}/redirect?to=/$TOKEN"
    """
    first = with_cassette(recorder).run(command, check=True).stdout
    cassette = recorder.network.cassette()
    assert recorder.network.cassette_info().exchanges == 4
    assert f"https://{SECRET_HOST}/query?key=skerry-secret-TOKEN".encode() in cassette
    for form in (VALUE, quote(VALUE), quote(VALUE, safe=""), login, base64.b64encode(VALUE.encode()).decode()[:40]):
        assert form.encode() not in cassette
        assert form not in first
    placeholder = recorder.run("printf %s $TOKEN").stdout
    assert placeholder.encode() not in cassette
    with_cassette(player, cassette)
    again = player.run(command, check=True).stdout
    assert again == first
    assert player.run(command).denied != ()


def test_secret_from_another_host_is_masked_in_the_cassette(recorder: Sandbox) -> None:
    """A host that does not receive the secret may know it anyway, and the URL may have it."""
    said = (
        with_cassette(recorder)
        .run(["curl", "-sS", "-H", f"X-Key: {VALUE}", f"https://{API}/{VALUE}"], check=True)
        .stdout
    )
    assert VALUE in said, "the program sees what it sent itself"
    cassette = recorder.network.cassette()
    assert recorder.network.cassette_info().exchanges == 1
    assert VALUE.encode() not in cassette
    assert b"*" * len(VALUE) in cassette


def test_unrecorded_request_is_in_the_result_and_the_log(world: World, recorder: Sandbox, player: Sandbox) -> None:
    with_cassette(recorder).run(f"curl -sS https://{API}/one", check=True)
    with_cassette(player, recorder.network.cassette())
    before = served(world)
    refused = player.run(f"curl -sS -w '%{{http_code}}' https://{API}/two")
    assert "skerry: the cassette has no response to this request" in refused.stdout
    assert refused.stdout.endswith("502")
    assert [(one.host, one.path, one.why) for one in refused.denied] == [
        (API, "/two", "the cassette has no response to this request")
    ]
    assert refused.hint is not None
    assert "cassette" in refused.hint
    other = player.run("curl -sS -m 20 http://never.example.test/")
    assert other.denied
    assert served(world) == before


def test_rules_of_a_replay_decide_first(recorder: Sandbox, player: Sandbox) -> None:
    """A destination that was denied in the recording is denied in the same way."""
    with_cassette(recorder).run(f"curl -sS http://{API}/one", check=True)
    cassette = recorder.network.cassette()
    player.network.set(Network(allow=["files.example.test"], cassette="replay"))
    player.network.load_cassette(cassette)
    assert "no rule allows" in player.run(f"curl -sS http://{API}/one").denied[0].why
    player.network.set(Network(allow=[API], cassette="replay"))
    assert '"target": "/one"' in player.run(f"curl -sS http://{API}/one").stdout


def test_fork_continues_the_cassette_of_its_source(recorder: Sandbox, player: Sandbox) -> None:
    command = f"curl -sS https://{API}/twice"
    with_cassette(recorder)
    for _ in range(2):
        recorder.run(command, check=True)
    with_cassette(player, recorder.network.cassette())
    assert player.run(command).ok
    [fork] = player.fork()
    with fork:
        for one in (fork, player):
            assert one.run(command).denied == ()
            assert one.run(command).denied != ()


def test_loaded_bytes_are_checked(recorder: Sandbox, player: Sandbox) -> None:
    with_cassette(recorder).run(f"curl -sS https://{API}/one", check=True)
    cassette = recorder.network.cassette()
    with pytest.raises(Conflict, match="does not replay"):
        recorder.network.load_cassette(cassette)
    with_cassette(player, cassette)
    for damaged in (b"", b"nothing", cassette[:-5], cassette + b"{}", cassette.replace(b"https", b"https\n")):
        with pytest.raises(InvalidRequest, match="the cassette cannot be used"):
            player.network.load_cassette(damaged)
    assert player.network.cassette() == cassette, "the old one stays"
    assert player.run(f"curl -sS https://{API}/one").denied == ()


def test_worker_that_writes_garbage_is_noticed(world_server: Server, recorder: Sandbox, player: Sandbox) -> None:
    with_cassette(recorder).run(f"curl -sS https://{API}/one", check=True)
    file = world_server.state_dir / "cassettes" / recorder.id
    content = file.read_bytes()
    file.write_bytes(content + b'{"line":"data","number":77,"length":3}\nabc\n')
    with pytest.raises(Conflict, match="is damaged"):
        recorder.network.cassette()
    file.write_bytes(b"x" * (2 << 20))
    with pytest.raises(Conflict, match="is damaged"):
        recorder.network.cassette_info()
    assert with_cassette(recorder).run(f"curl -sS https://{API}/one", check=True).ok


def test_recording_and_replay_survive_the_death_of_the_worker(
    world_server: Server, recorder: Sandbox, player: Sandbox
) -> None:
    with_cassette(recorder).run(f"curl -sS https://{API}/before", check=True)
    killed = worker_of(world_server)
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: worker_of(world_server) not in (None, killed), "another worker")
    wait_until(lambda: recorder.network.show().ready, "a worker that is ready")
    recorder.run(f"curl -sS --retry 5 --retry-all-errors https://{API}/after", check=True)
    with_cassette(player, recorder.network.cassette())
    for path in ("before", "after"):
        assert f'"target": "/{path}"' in player.run(f"curl -sS https://{API}/{path}").stdout


def test_sandbox_that_never_recorded_has_no_cassette(world_server: Server) -> None:
    with Sandbox(server=world_server.address) as sandbox:
        with pytest.raises(NotFound, match="has no cassette"):
            sandbox.network.cassette()
        sandbox.network.set(RECORD)
        assert sandbox.network.cassette_info().exchanges == 0
        place = world_server.state_dir / "cassettes" / sandbox.id
        assert place.exists()
    assert not place.exists()


# Long before the certificates of the world were made.
FIXED = Options(reproducible=True, clock="2024-02-29T05:06:07Z", git_name="Ada", git_email="ada@example.test")
SUITE = """import tinylib, unittest
class Test(unittest.TestCase):
    def test(self):
        print({"a", "b", "c"})
        self.assertEqual(tinylib.ANSWER, 42)
"""


def test_same_task_yields_the_same_trace(world: World, world_server: Server, tmp_path: Path) -> None:
    """pip install, a test suite and a commit; the second time without a network, from the exported trace of a deleted
    sandbox."""
    with Client(world_server.address) as client:
        with Sandbox(server=client, network=RECORD, options=FIXED) as sandbox:
            sandbox.review.start()
            sandbox.run(PIP, check=True)
            sandbox.files.write("/workspace/test_it.py", SUITE)
            sandbox.run("PYTHONPATH=/tmp/site python3 -B -m unittest -q 2>/dev/null", check=True)
            commit = "git init -q . && git add test_it.py && git commit -qm 'Test it' && git rev-parse HEAD; date"
            first = sandbox.run(commit, check=True)
            assert sandbox.run(f"curl -sS https://{API}/twice; curl -sSm 20 https://evil.test/").denied
        file = tmp_path / "task.trace"
        client.records(sandbox.id).export(file)
        before = served(world)
        report = client.replay(file)
        assert {step.text: step.differences for step in report.steps if step.verdict != "same"} == {}
        assert report.verdict == "same"
        assert served(world) == before
        assert "the network is closed; responses come from the cassette of the trace" in report.notes
        assert first.stdout.endswith("Thu Feb 29 05:06:07 UTC 2024\n")


def test_command_line_records_and_replays(world: World, world_server: Server, tmp_path: Path) -> None:
    file, address = str(tmp_path / "one.cassette"), world_server.address
    curl = ("--", "curl", "-sS", f"https://{API}/cli")
    done = skerry("run", "--allow", API, "--record-network", "--cassette", file, *curl, server=address)
    assert done.returncode == 0, done.stderr
    before = served(world)
    again = skerry("run", "--cassette", file, *curl, server=address)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    created = skerry("create", "--cassette", file, server=address).stdout.decode().strip()
    info = json.loads(skerry("network", "cassette", created, "--json", server=address).stdout)
    assert (info["exchanges"], info["omitted"], info["full"]) == (1, 0, None)
    copy = tmp_path / "copy"
    saved = skerry("network", "cassette", created, "-o", str(copy), server=address)
    assert b"exchanges" in saved.stdout
    assert copy.read_bytes() == (tmp_path / "one.cassette").read_bytes()
    assert b"replay" in skerry("network", "show", created, server=address).stdout
    assert skerry("rm", created, server=address).returncode == 0
    assert served(world) == before
    lost = skerry("run", "--allow", API, "--record-network", *curl, server=address)
    assert (lost.returncode, b"--cassette FILE" in lost.stderr) == (2, True)
    missing = skerry("run", "--cassette", str(tmp_path / "none"), *curl, server=address)
    assert b"cannot be read" in missing.stderr
