"""Replays of real sandboxes: every kind of step, differences, traces from elsewhere, and hanging steps."""

from __future__ import annotations

import hashlib
import io
import json
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from msgspec import structs
from support.cli import SKERRY, environment, skerry
from support.server import Server, wait_until
from world.world import World

from skerry import Client, Lifecycle, Network, Options, Sandbox, Secret
from skerry.client.replay.normalise import ALL_RULES
from skerry.client.replay.report import lines_of
from skerry.codecs import tar
from skerry.codecs.traces import MANIFEST, STEPS, TraceFile, encode_manifest, entry_header
from skerry.errors import InvalidRequest, NotFound, QuotaExceeded
from skerry.types.replays import ReplayReport


def verdicts(report: ReplayReport) -> dict[str, str]:
    return {f"{step.n} {step.kind} {step.text}": step.verdict for step in report.steps if step.verdict != "same"}


def exported(http: httpx2.Client, sandbox_id: str) -> bytes:
    answer = http.get(f"/v1/sandboxes/{sandbox_id}/trace/export", headers={"Accept": "application/x-tar"})
    assert answer.status_code == 200, answer.text
    return answer.content


@pytest.fixture(scope="module")
def worked(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox with one step of every kind that a replay repeats."""
    upload = tmp_path_factory.mktemp("upload")
    (upload / "data.txt").write_text("uploaded\n")
    with Sandbox(server=client, name="worked", env={"COLOR": "red"}, options=Options(auto_snapshot=True)) as sandbox:
        sandbox.review.start()
        sandbox.files.write("/workspace/a.txt", "one\n")
        sandbox.files.write("/workspace/big.bin", b"\x00\xff" * 50_000, mode=0o600)
        sandbox.files.append("/workspace/a.txt", "two\n")
        sandbox.files.mkdir("/workspace/b")
        sandbox.files.move("/workspace/big.bin", "/workspace/b/big.bin")
        sandbox.files.replace("/workspace/a.txt", "two", "three")
        sandbox.files.upload(upload, "/workspace/up")
        sandbox.run("cat a.txt up/data.txt; echo $COLOR; exit 3", cwd="/workspace")
        sandbox.run("tr a-z A-Z > upper.txt; cat upper.txt", cwd="/workspace", stdin="shout\n")
        sandbox.run(["sha256sum"], stdin=io.BytesIO(b"x" * 600_000))
        sandbox.run("date; cat /proc/sys/kernel/random/uuid; mktemp -u")
        sandbox.run("sleep 100", timeout=0.5)
        session = sandbox.session("build", cwd="/workspace")
        session.run("cd b; export MODE=test")
        session.run("pwd; echo $MODE; false")
        sandbox.code.run("x = 6")
        sandbox.code.run("print('in code'); x * 7")
        context = sandbox.code.context("python")
        context.run("y = 1; 1 / 0")
        context.run("y")
        process = sandbox.spawn(["cat"])
        process.stdin.write("to a background process\n")
        process.stdin.close()
        process.wait(60)
        sandbox.update(env={"COLOR": "blue"})
        sandbox.run("echo $COLOR > /workspace/colour")
        snapshot = sandbox.snapshot("before")
        sandbox.run("rm -r /workspace/b; echo gone")
        sandbox.rollback(snapshot)
        sandbox.run('ls /workspace/b; echo \'{"of":2,"at":1.0,"exit_code":9}\'')
        sandbox.run("echo last > /workspace/last")
        sandbox.rollback(steps=1)
        sandbox.run("ls /workspace; echo made > /workspace/made")
        yield sandbox
    snapshot.delete()


def test_repeated_steps_are_the_same(client: Client, worked: Sandbox) -> None:
    report = worked.records.replay()
    assert report.ok, "\n".join(map(str, (step for step in report.steps if step.verdict == "different")))
    assert {text.split(" ", 2)[2]: kind for text, kind in verdicts(report).items()} == {
        "date; cat /proc/sys/kernel/random/uuid; mktemp -u": "normalised"
    }
    assert report.verdict == "normalised"
    assert len(report.steps) > 30
    assert (report.source, report.kept) == (worked.id, False)
    with pytest.raises(NotFound):
        Sandbox.get(report.sandbox, server=client)


def test_replay_ends_at_a_step_and_keeps_its_sandbox(client: Client, worked: Sandbox, http: httpx2.Client) -> None:
    steps = TraceFile(io.BytesIO(exported(http, worked.id)), max_size=1 << 30).trace.steps
    last = next(step.n for step in steps if step.kind == "file.replace")
    report = client.replay(sandbox=worked.id, until=last, keep=True)
    kept = Sandbox.get(report.sandbox, server=client)
    try:
        assert (report.kept, report.verdict, max(step.n for step in report.steps)) == (True, "same", last)
        assert kept.files.read_text("/workspace/a.txt") == "one\nthree\n"
        assert not kept.files.exists("/workspace/up")
        assert kept.info().network.allow == ()
    finally:
        kept.delete(force=True)


def test_replay_from_a_snapshot_repeats_the_later_steps(client: Client, worked: Sandbox) -> None:
    report = client.replay(sandbox="before")
    assert report.steps[0].text == "rm -r /workspace/b; echo gone"
    assert [step.kind for step in report.steps].count("process.run") == 4
    assert [step.verdict for step in report.steps if step.kind == "process.run"][:2] == ["same", "same"]


def test_exported_trace_is_replayed_after_its_sandbox(client: Client, http: httpx2.Client, tmp_path: Path) -> None:
    """Also by the ID of the deleted sandbox."""
    with Sandbox(server=client) as sandbox:
        sandbox.run("echo hello; echo $((6 * 7))")
        file = tmp_path / "dev.trace"
        file.write_bytes(exported(http, sandbox.id))
    assert client.replay(file).verdict == "same"
    assert client.replay(sandbox=sandbox.id).verdict == "same"


def test_sandbox_with_a_repository_and_a_service_is_repeated(client: Client, tmp_path: Path) -> None:
    """The import is repeated as an upload, and the service starts again when the repository is there."""
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-C", str(tmp_path))
    (tmp_path / "index.html").write_text("one\n")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "one")):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "index.html").write_text("two\n")
    (tmp_path / "new.txt").write_text("untracked\n")
    serve = "test -e index.html && exec python3 -m http.server 8000"
    lifecycle = Lifecycle(on_start=(serve,), ready="curl -fsS http://localhost:8000/new.txt", ready_timeout="5m")
    fetch = "curl -fsS http://localhost:8000/index.html; cat new.txt; git log --format=%s; git status --short"
    with Sandbox(server=client, repo=str(tmp_path), lifecycle=lifecycle) as sandbox:
        assert sandbox.run(fetch).stdout == "two\nuntracked\none\n M index.html\n?? new.txt\n"
        sandbox.stop()
        sandbox.resume()
        sandbox.run("curl -fsS http://localhost:8000/index.html && echo three > index.html")
        report = client.replay(sandbox=sandbox.id)
        steps = sandbox.records.trace().steps
    shown = "\n".join(lines_of(report))
    assert report.ok, shown
    assert "files were not compared" not in " ".join(report.notes)
    assert [step.kind for step in report.steps].count("process.run") == 2, shown
    assert {step.verdict for step in report.steps if step.kind == "process.run"} == {"same"}, shown
    started = [(step.process, step.text) for step in steps if step.kind == "process.spawn"]
    assert started == [("on-start-0", serve), ("on-start-ready", lifecycle.ready)] * 2
    ready = [step.end for step in steps if step.process == "on-start-ready"]
    assert [end.exit_code for end in ready if end is not None] == [0, 0]


def test_files_are_compared_without_a_review_while_the_sandbox_exists(
    client: Client, http: httpx2.Client, tmp_path: Path
) -> None:
    compiled = "printf 'A = 1\\n' > a.py && python3 -m compileall -q a.py && git init -q . && git add a.py"
    with Sandbox(server=client) as sandbox:
        for command in (compiled, "mkdir d; echo same > d/same; date > /tmp/ignored"):
            sandbox.run(command, cwd="/workspace", check=True)
        before = {one["id"] for one in http.get("/v1/snapshots").json()["snapshots"]}
        report = client.replay(sandbox=sandbox.id)
        assert report.ok, "\n".join(lines_of(report))
        assert not [note for note in report.notes if "files were not compared" in note]
        sandbox.run("cat /proc/sys/kernel/random/uuid > d/random; chmod 600 d/same", cwd="/workspace")
        sandbox.run('test "$(cat /proc/sys/kernel/random/uuid)" && cp d/random /tmp/ && touch "$(cat /tmp/random)"')
        report = client.replay(sandbox=sandbox.id)
        assert {one["id"] for one in http.get("/v1/snapshots").json()["snapshots"]} == before
        assert report.verdict == "different"
        (files,) = [one for step in report.steps for one in step.differences]
        assert (files.part, files.before) == ("files", "3 files differ")
        lines = (files.diff or "").splitlines()
        assert "/workspace/d/random: file (before) -> file (after)" in lines
        assert sorted(line.partition(": ")[2] for line in lines) == [
            "file (before) -> file (after)", "file (before) -> removed", "removed -> file (after)",
        ]  # fmt: skip
        until = client.replay(sandbox=sandbox.id, until=2)
        (tmp_path / "dev.trace").write_bytes(exported(http, sandbox.id))
        from_file = client.replay(tmp_path / "dev.trace")
    deleted = client.replay(sandbox=sandbox.id)
    for one, why in ((until, "ended before its last step"), (from_file, "is a file"), (deleted, "was deleted")):
        assert [why in note for note in one.notes if "files were not compared" in note] == [True]


def test_differences_are_named_and_make_the_exit_code_1(client: Client, server: Server) -> None:
    with Sandbox(server=client, name="random") as sandbox:
        sandbox.review.start()
        sandbox.run("echo same; echo $RANDOM$RANDOM > /workspace/number")
        sandbox.run("cat number; exit $(( $(cksum < number | cut -d' ' -f1) % 200 ))", cwd="/workspace")
        sandbox.run("test $(hostname) = random && echo mine || sleep 1000")
        found = skerry("replay", "random", "--json", "--step-timeout", "5", server=server.address)
        shown = skerry("replay", "random", "--until", "4", server=server.address)
    assert found.returncode == 1, found.stderr.decode()
    begin, first, second, third = json.loads(found.stdout)["steps"]
    assert begin["kind"] == "review.begin"
    assert first["verdict"] == "different"
    assert [one["part"] for one in first["differences"]] == ["files"]
    assert first["differences"][0]["diff"].startswith("/workspace/number: 100644 ")
    parts = {one["part"]: one for one in second["differences"]}
    assert {"exit_code", "stdout"} <= parts.keys()
    assert parts["stdout"]["diff"].startswith("@@ -1 +1 @@\n-")
    assert {one["part"] for one in third["differences"]} >= {"exit_code", "timed_out", "stdout"}
    assert shown.returncode == 1
    assert b"different  process.run  echo same" in shown.stdout


def test_rules_are_listed_without_a_server() -> None:
    found = skerry("replay", "--rules", "--json", server="unix:///nonexistent")
    assert found.returncode == 0
    assert [rule["name"] for rule in json.loads(found.stdout)] == [rule.name for rule in ALL_RULES]
    assert all(rule["pattern"] for rule in json.loads(found.stdout))
    missing = skerry("replay", server="unix:///nonexistent")
    assert missing.returncode == 2
    assert b"skerry replay dev.trace" in missing.stderr


def test_interrupted_replay_deletes_its_sandbox(client: Client, server: Server, http: httpx2.Client) -> None:
    with Sandbox(server=client, name="slow") as sandbox:
        sandbox.run("test $(hostname) = slow || sleep 1000")
        running = subprocess.Popen(
            [*SKERRY, "replay", "slow"], env=environment(SKERRY_SERVER=server.address), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        with running:
            assert running.stderr is not None
            assert running.stderr.readline().startswith(b"step 2: process.run")
            running.send_signal(signal.SIGINT)
            assert running.wait(60) == 130
        assert None not in [one["name"] for one in http.get("/v1/sandboxes").json()["sandboxes"]]


def test_overlapping_commands_run_at_the_same_time_again(client: Client) -> None:
    """The first waits for the second: one after the other, it would never end."""
    with Sandbox(server=client) as sandbox, ThreadPoolExecutor(1) as threads:
        first = threads.submit(sandbox.run, "touch /tmp/on; until test -e /tmp/go; do sleep 0.05; done; echo first")
        wait_until(lambda: sandbox.files.exists("/tmp/on"), "the first command to run")
        sandbox.run("until test -e /tmp/on; do sleep 0.05; done; touch /tmp/go; echo second")
        assert first.result().stdout == "first\n"
        report = client.replay(sandbox=sandbox.id)
    assert [(step.kind, step.verdict) for step in report.steps] == [("process.run", "same")] * 2


def test_image_that_is_not_there_is_named_by_its_digest(client: Client, http: httpx2.Client, tmp_path: Path) -> None:
    with Sandbox(server=client) as sandbox:
        sandbox.run("true")
        data, digest = exported(http, sandbox.id), sandbox.info().image_digest
    assert digest is not None
    other = "sha256:" + "0" * 64
    file = tmp_path / "old.trace"
    file.write_bytes(resealed(data, digest, other))
    before = len(http.get("/v1/sandboxes").json()["sandboxes"])
    with pytest.raises(NotFound, match=other) as found:
        client.replay(file)
    assert found.value.hint is not None
    assert "skerry image" in found.value.hint
    assert len(http.get("/v1/sandboxes").json()["sandboxes"]) == before


def resealed(data: bytes, old: str, new: str) -> bytes:
    """Return an exported trace with a text replaced, and with the hash that fits again."""
    trace = TraceFile(io.BytesIO(data), max_size=1 << 30)
    start = data.index(STEPS) + tar.BLOCK
    lines = data[start : start + trace.manifest.steps_size].replace(old.encode(), new.encode())
    sha256 = hashlib.sha256(lines).hexdigest()
    manifest = encode_manifest(structs.replace(trace.manifest, steps_size=len(lines), steps_sha256=sha256))
    entries = ((MANIFEST, manifest), (STEPS, lines))
    packed = b"".join(entry_header(name, len(part)) + part + tar.padding(len(part)) for name, part in entries)
    return packed + data[start + trace.manifest.steps_size + -trace.manifest.steps_size % tar.BLOCK :]


def test_trace_from_elsewhere_gets_no_more_than_the_operator_allows(
    client: Client, http: httpx2.Client, tmp_path: Path
) -> None:
    with Sandbox(server=client, env={"SIZE": "small"}) as sandbox:
        sandbox.run("true")
        data = exported(http, sandbox.id)
    file = tmp_path / "greedy.trace"
    for old, new, expected in (
        ('"memory":"2G"', '"memory":"4000T"', QuotaExceeded),
        ('"SIZE":"small"', '"SIZE":7', InvalidRequest),
        ('"cmd":"true"', '"cmd":{"a":1}', InvalidRequest),
    ):
        assert old.encode() in data, old
        file.write_bytes(resealed(data, old, new))
        with pytest.raises(expected):
            client.replay(file)
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(InvalidRequest, match="not an exported trace"):
        client.replay(file)
    with pytest.raises(InvalidRequest, match="No such file"):
        client.replay(tmp_path / "none.trace")


def test_sandbox_of_another_owner_is_not_found(client: Client, server: Server, worked: Sandbox) -> None:
    token = client.tokens.create(owner="eve")
    with Client(server.address, token=token.secret) as eve, pytest.raises(NotFound):
        eve.replay(sandbox=worked.id)
    client.tokens.remove(token.id)


PIP = (
    "pip install --quiet --disable-pip-version-check --no-cache-dir --index-url https://index.example.test/simple"
    " --target site tinylib && ls site"
)
TEST = """import sys, unittest
sys.path.insert(0, "site")
import tinylib

class Test(unittest.TestCase):
    def test_answer(self):
        self.assertIsNotNone(tinylib.ANSWER)
"""
LOOKS = """python3 -c 'print({"a", "b", "c"})'; hostname; cat /etc/machine-id; date"""
COMMIT = "git init -q -b main && git add test_tiny.py && git commit -q -m first && git rev-parse HEAD"
CURL = 'curl -sS -H "Authorization: Bearer $TOKEN" https://secret.example.test/me -o /dev/null -w "%{http_code}"'


def test_reproducible_task_run_twice_has_the_same_trace(world: World, world_server: Server, tmp_path: Path) -> None:
    """An installation with pip from an index, a test suite, and a commit, whose hash is the same too. The second run
    gets the recorded responses, and sends nothing."""
    network = Network(allow=["*.example.test"], cassette="record")
    options = Options(reproducible=True, clock="2026-01-01T12:00:00Z")
    secrets = [Secret("TOKEN", hosts=["secret.example.test"], value="real-value-of-this-test")]
    with Sandbox(server=world_server.address, network=network, options=options, secrets=secrets) as sandbox:
        client = sandbox.client
        sandbox.review.start()
        sandbox.files.write("/workspace/test_tiny.py", TEST)
        for command in (PIP, "python3 -m unittest -v", COMMIT, LOOKS, CURL):
            sandbox.run(command, cwd="/workspace", check=True)
        before = calls(world)
        report = sandbox.records.replay()
        sandbox.records.export(tmp_path / "task.trace")
        again = client.replay(tmp_path / "task.trace")
    assert calls(world) == before
    for one in (report, again):
        assert one.ok, "\n".join(lines_of(one))
        # The suite prints its duration, and leaves compiled files with the time of their source.
        other = {step.text: set(step.rules) for step in one.steps if step.verdict != "same"}
        assert set().union(*other.values()) <= {"duration", "compiled-python"}, other


def calls(world: World) -> int:
    return sum(len(call["requests"]) for call in world.calls())
