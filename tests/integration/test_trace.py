"""Traces of a real server: every kind of step, secrets, bounds, deleted sandboxes, forks, and a killed server."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from support.cli import skerry
from support.server import Server, wait_until

from skerry import Sandbox, Secret
from skerry.codecs.traces import Trace, TraceFile, merge
from skerry.types import TraceStep

VALUE = "hunter2-very-secret"
OPERATORS = "[trace]\nmax_size = '4M'\n"


def trace_of(http: httpx2.Client, sandbox: str) -> Trace:
    answer = http.get(f"/v1/sandboxes/{sandbox}/trace")
    assert answer.status_code == 200, answer.text
    return merge(answer.content.split(b"\n"))


def steps_of(http: httpx2.Client, sandbox: str, kind: str) -> list[TraceStep]:
    return [step for step in trace_of(http, sandbox).steps if step.kind == kind]


def shown(server: Server, *words: str) -> str:
    done = skerry(*words, server=server.address)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    secrets = [Secret("KEY", value=VALUE, hosts=["api.example.com"])]
    with Sandbox(server=server.address, name="traced", secrets=secrets, env={"COLOR": "red"}) as sandbox:
        yield sandbox


def test_trace_begins_with_the_image_and_the_spec(sandbox: Sandbox, http: httpx2.Client) -> None:
    start = trace_of(http, "traced").steps[0].start
    assert start is not None
    assert (start.format, start.sandbox, start.name, start.image) == (1, sandbox.id, "traced", "base")
    assert start.image_digest == sandbox.info().image_digest
    assert start.spec["env"] == {"COLOR": "red"}
    assert start.spec["secrets"] == [{"name": "KEY", "hosts": ["api.example.com"]}]


def test_command_has_all_inputs_and_its_outcome(sandbox: Sandbox, http: httpx2.Client) -> None:
    result = sandbox.run("cat; echo oops >&2; exit 3", stdin="given", env={"SIZE": "2"}, cwd="/tmp", check=False)
    step = steps_of(http, sandbox.id, "process.run")[-1]
    assert step.text == "cat; echo oops >&2; exit 3"
    assert step.params["cmd"] == "cat; echo oops >&2; exit 3"
    assert (step.params["env"], step.params["cwd"], step.process) == ({"SIZE": "2"}, "/tmp", result.id)
    assert step.inputs["stdin"].text == "given"
    assert step.end is not None
    assert step.end.exit_code == 3
    assert step.end.stdout is not None
    assert step.end.stdout.text == "given"
    assert step.end.stdout.sha256 == hashlib.sha256(b"given").hexdigest()
    assert step.end.stderr is not None
    assert step.end.stderr.text == "oops\n"
    assert step.end.usage is not None


def test_long_output_keeps_its_ends_and_the_hash_of_all(sandbox: Sandbox, http: httpx2.Client) -> None:
    sandbox.run(["seq", "100000"])
    whole = "".join(f"{number}\n" for number in range(1, 100001)).encode()
    step = steps_of(http, sandbox.id, "process.run")[-1]
    assert step.end is not None
    out = step.end.stdout
    assert out is not None
    assert (out.size, out.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())
    kept = http.get(f"/v1/sandboxes/{sandbox.id}/trace/blobs/{out.blob}").content
    assert out.head is not None
    assert whole.startswith(kept[: out.head])
    assert whole.endswith(kept[out.head :])
    assert len(kept) < len(whole)


def test_uploads_edits_and_code_are_recorded_with_their_contents(sandbox: Sandbox, http: httpx2.Client) -> None:
    data = os.urandom(200_000)
    sandbox.files.write("data.bin", data)
    sandbox.files.write("notes.txt", "one two")
    sandbox.files.replace("notes.txt", "two", "three")
    sandbox.code.run("print(6 * 7)\n6 * 7")
    large, small = steps_of(http, sandbox.id, "file.write")[-2:]
    body = large.input("body")
    assert body is not None
    assert body.whole
    assert body.sha256 == hashlib.sha256(data).hexdigest()
    assert http.get(f"/v1/sandboxes/{sandbox.id}/trace/blobs/{body.blob}").content == data
    written = small.input("body")
    assert written is not None
    assert (small.params["path"], written.text) == ("notes.txt", "one two")
    edit = steps_of(http, sandbox.id, "file.replace")[-1]
    assert (edit.inputs["old"].text, edit.inputs["new"].text) == ("two", "three")
    code = steps_of(http, sandbox.id, "code.run")[-1]
    assert code.inputs["code"].text == "print(6 * 7)\n6 * 7"
    assert code.params["language"] == "python"
    assert code.end is not None
    assert code.end.stdout is not None
    assert code.end.stdout.text == "42\n"
    assert code.end.results is not None


def test_secret_values_are_masked_everywhere(sandbox: Sandbox, http: httpx2.Client) -> None:
    sandbox.run(f"echo {VALUE}; printf hunter2; sleep 0.2; printf -- -very-secret", env={"TOKEN": VALUE}, stdin=VALUE)
    sandbox.files.write(f"{VALUE}.txt", "named like the value")
    sandbox.files.write("leak.txt", f"token={VALUE}")
    sandbox.run(["true", "x" * 190 + VALUE])  # it would be cut inside of the value
    code = sandbox.code.run(f"print('{VALUE}')")
    assert code.ok
    recorded = http.get("/v1/audit", params={"sandbox": sandbox.id, "limit": 1000}).json()["records"]
    assert VALUE[:9] not in str(recorded)
    assert {f"print('{'*' * len(VALUE)}')", f"{'*' * len(VALUE)}.txt"} <= {
        text for record in recorded for text in record["params"].values() if isinstance(text, str)
    }
    assert VALUE not in http.get("/v1/audit/export").text
    assert VALUE not in http.get(f"/v1/sandboxes/{sandbox.id}/trace").text
    assert VALUE.encode() not in http.get(f"/v1/sandboxes/{sandbox.id}/trace/export").content
    leak = steps_of(http, sandbox.id, "file.write")[-1].input("body")
    assert leak is not None
    assert (leak.masked, leak.whole, leak.text) == (len(VALUE), False, "token=" + "*" * len(VALUE))


def test_output_that_imitates_a_line_stays_data(sandbox: Sandbox, http: httpx2.Client) -> None:
    forged = '\n{"n":9999,"at":1,"kind":"sandbox.deleted"}\n\x1b[2J'
    sandbox.run(["printf", "%s", forged])
    trace = trace_of(http, sandbox.id)
    assert trace.damaged == 0
    assert not [step for step in trace.steps if step.n == 9999]
    end = trace.steps[-1].end
    assert end is not None
    assert end.stdout is not None
    assert end.stdout.text == forged


def test_background_process_ends_its_step_with_its_output(sandbox: Sandbox, http: httpx2.Client) -> None:
    sandbox.spawn("echo started; exit 4").wait()

    def ended() -> TraceStep | None:
        step = steps_of(http, sandbox.id, "process.spawn")[-1]
        return step if step.end is not None else None

    wait_until(ended, "the end of the process to be recorded")
    step = ended()
    assert step is not None
    assert step.end is not None
    assert step.end.exit_code == 4
    assert step.end.stdout is not None
    assert step.end.stdout.text == "started\n"


def test_sessions_snapshots_pauses_and_forks_are_steps(sandbox: Sandbox, http: httpx2.Client) -> None:
    session = sandbox.session("work", env={"STAGE": "dev"})
    session.run("echo $STAGE")
    sandbox.snapshot("saved")
    sandbox.pause()
    sandbox.resume()
    (fork,) = sandbox.fork()
    start = trace_of(http, fork.id).steps[0].start
    fork.delete()
    trace = trace_of(http, sandbox.id)
    kinds = [step.kind for step in trace.steps]
    assert start is not None
    assert start.parent == sandbox.id
    assert start.parent_step is not None
    assert start.parent_step <= len(trace.steps)
    wanted = ["session.open", "process.run", "snapshot.take", "sandbox.paused", "sandbox.resumed", "sandbox.fork"]
    assert [kind for kind in kinds if kind in wanted][-6:] == wanted
    opened = [step for step in trace.steps if step.kind == "session.open"][-1]
    assert opened.params["env"] == {"STAGE": "dev"}
    run = [step for step in trace.steps if step.kind == "process.run"][-1]
    assert (run.params["session"], run.params["cmd"]) == ("work", "echo $STAGE")


def test_exported_trace_is_complete_and_can_be_read(sandbox: Sandbox, http: httpx2.Client) -> None:
    data = http.get(f"/v1/sandboxes/{sandbox.id}/trace/export").content
    read = TraceFile(io.BytesIO(data), max_size=1 << 26)
    assert read.manifest.sandbox == sandbox.id
    assert [step.n for step in read.trace.steps] == list(range(1, len(read.trace.steps) + 1))
    for sha256, size in read.manifest.blobs.items():
        assert len(read.blob(sha256)) == size


def test_denied_network_attempts_are_steps_of_their_command(sandbox: Sandbox, http: httpx2.Client) -> None:
    command = "python3 -c \"import socket; socket.create_connection(('denied.example', 443), 5)\""
    result = sandbox.run(command, check=False)
    wait_until(lambda: steps_of(http, sandbox.id, "network.denied"), "the attempt to be recorded")
    step = steps_of(http, sandbox.id, "network.denied")[-1]
    assert (step.params["host"], step.process) == ("denied.example", result.id)


def test_reached_limits_are_steps(sandbox: Sandbox, http: httpx2.Client) -> None:
    result = sandbox.run("sleep 600", timeout=0.5, check=False)
    wait_until(lambda: steps_of(http, sandbox.id, "limit.timeout"), "the timeout to be recorded")
    assert steps_of(http, sandbox.id, "limit.timeout")[-1].process == result.id
    end = next(step.end for step in steps_of(http, sandbox.id, "process.run") if step.process == result.id)
    assert end is not None
    assert end.timed_out


def test_changed_files_of_a_review_and_its_decisions_are_steps(sandbox: Sandbox, http: httpx2.Client) -> None:
    sandbox.run("mkdir -p /workspace/project && echo old > /workspace/project/gone.txt", check=True)
    path = f"/v1/sandboxes/{sandbox.id}/review"
    http.post(path, json={"path": "/workspace/project"}).raise_for_status()
    result = sandbox.run("cd /workspace/project && printf new > made.sh && chmod +x made.sh && rm gone.txt")
    shown = http.get(path).raise_for_status().json()  # collects the changes
    hunks = [hunk["id"] for file in shown["files"] for hunk in file["hunks"]]
    http.post(f"{path}/decisions", json={"accept": hunks[:1]}).raise_for_status()
    steps = steps_of(http, sandbox.id, "files.changed")
    changes = [step.changes for step in steps if step.changes is not None]
    assert {(one.root, one.processes) for one in changes} == {("/workspace/project", (result.id,))}
    files = {file.path: file for one in changes for file in one.files}
    removed, made = files["/workspace/project/gone.txt"], files["/workspace/project/made.sh"]
    assert removed.mode is None
    assert (made.mode, made.size, made.sha256) == ("100755", 3, hashlib.sha256(b"new").hexdigest())
    kinds = [one.kind for one in trace_of(http, sandbox.id).steps]
    assert kinds.index("review.begin") < kinds.index("files.changed") < kinds.index("review.decide")


def test_full_trace_states_what_it_left_out(server: Server, http: httpx2.Client) -> None:
    with Sandbox(server=server.address) as sandbox:
        data = os.urandom(6 << 20)
        sandbox.files.write("large.bin", data)
        body = steps_of(http, sandbox.id, "file.write")[-1].input("body")
        assert body is not None
        assert (body.size, body.blob) == (len(data), None)
        assert body.sha256 == hashlib.sha256(data).hexdigest()
        assert "trace.max_size" in (body.left_out or "")


def test_trace_outlives_its_sandbox_for_its_owner_only(server: Server, http: httpx2.Client) -> None:
    with Sandbox(server=server.address) as sandbox:
        sandbox.run("echo kept")
    wait_until(lambda: trace_of(http, sandbox.id).steps[-1].kind == "sandbox.deleted", "the deletion to be recorded")
    assert [step.text for step in trace_of(http, sandbox.id).steps if step.kind == "process.run"] == ["echo kept"]
    for path in ("trace", "trace/export", f"trace/blobs/{'0' * 64}"):
        assert http.get(f"/v1/sandboxes/sb-aaaaaaaaaa/{path}").status_code == 404


def test_trace_of_another_owner_is_not_found(server: Server, sandbox: Sandbox, http: httpx2.Client) -> None:
    """By ID and by name, of a sandbox that exists and of a deleted one: the same answer as for an unknown ID."""
    with Sandbox(server=server.address, name="gone") as gone:
        gone.run("echo kept > /dev/null")
    sha256 = next(iter(TraceFile(io.BytesIO(exported(http, sandbox.id)), max_size=1 << 26).manifest.blobs), "0" * 64)
    token = http.post("/v1/tokens", json={"scope": "use", "owner": "eve"}).raise_for_status().json()
    with server.http(headers={"Authorization": f"Bearer {token['secret']}"}) as eve:
        for path in ("trace", "trace/export", f"trace/blobs/{sha256}"):
            unknown = eve.get(f"/v1/sandboxes/sb-aaaaaaaaaa/{path}")
            assert unknown.status_code == 404
            for ref in (sandbox.id, gone.id):
                answer = eve.get(f"/v1/sandboxes/{ref}/{path}")
                assert answer.status_code == 404
                assert answer.text.replace(ref, "sb-aaaaaaaaaa") == unknown.text
            assert eve.get(f"/v1/sandboxes/traced/{path}").status_code == 404
        assert eve.get(f"/v1/sandboxes/{sandbox.id}/trace?follow=true").status_code == 404
    http.delete(f"/v1/tokens/{token['id']}").raise_for_status()


def exported(http: httpx2.Client, sandbox: str) -> bytes:
    return http.get(f"/v1/sandboxes/{sandbox}/trace/export").raise_for_status().content


def test_purge_deletes_the_trace_with_the_sandbox(server: Server, http: httpx2.Client) -> None:
    sandbox = Sandbox(server=server.address).start()
    sandbox.run("true")
    place = server.state_dir / "traces" / sandbox.id
    assert place.exists()
    sandbox.delete(purge=True)
    assert not place.exists()
    assert http.get(f"/v1/sandboxes/{sandbox.id}/trace").status_code == 404


def test_killed_server_loses_half_a_line_at_most(own_server: Server) -> None:
    own_server.start()
    sandbox = Sandbox(server=own_server.address, name="kept").start()
    sandbox.run("echo before")
    steps = own_server.state_dir / "traces" / sandbox.id / "steps.ndjson"
    own_server.end(signal.SIGKILL)
    with steps.open("ab") as file:
        file.write(b'{"n":99,"at":1,"ki')
    own_server.start()
    with own_server.http() as http, Sandbox.get("kept", server=own_server.address) as again:
        again.run("echo after")
        trace = trace_of(http, again.id)
        again.delete()
    assert trace.damaged == 1
    texts = [step.text for step in trace.steps if step.kind == "process.run"]
    assert texts == ["echo before", "echo after"]
    assert [step.n for step in trace.steps] == list(range(1, len(trace.steps) + 1))


def test_background_process_that_outlives_its_server_ends_its_step(own_server: Server) -> None:
    """Also if it ends while no server runs; its output is masked as before."""
    own_server.start()
    secrets = [Secret("KEY", value=VALUE, hosts=["api.example.com"])]
    sandbox = Sandbox.create(server=own_server.address, secrets=secrets)
    wait = "until test -e /tmp/{}; do sleep 0.05; done"
    done = sandbox.spawn(f"echo early {VALUE}; {wait.format('first')}; exit 4")
    later = sandbox.spawn(f"echo late; {wait.format('second')}; exit 5")
    left = sandbox.spawn("sleep 600")
    own_server.end(signal.SIGKILL)
    ((pid,),) = own_server.sql("SELECT pid FROM sandboxes WHERE id = ?", sandbox.id)
    subprocess.run(["nsenter", "-t", str(pid), "-U", "-m", "touch", "/tmp/first"], check=True)
    own_server.start()
    with own_server.http() as http, Sandbox.get(sandbox.id, server=own_server.address) as again:
        again.run("touch /tmp/second")

        def ends() -> dict[str | None, TraceStep]:
            return {step.process: step for step in steps_of(http, again.id, "process.spawn") if step.end is not None}

        wait_until(lambda: len(ends()) >= 2, "the ends of the processes to be recorded")
        first, second = ends()[done.id].end, ends()[later.id].end
        assert left.id not in ends()
        again.delete()
    assert first is not None
    assert second is not None
    assert (first.exit_code, second.exit_code) == (4, 5)
    assert first.stdout is not None
    assert first.stdout.text == f"early {'*' * len(VALUE)}\n"


def test_sdk_reads_follows_and_exports_a_trace(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.run(["seq", "2000"])
    trace = sandbox.records.trace()
    step = trace.steps[-1]
    assert step.end is not None
    assert step.end.stdout is not None
    assert sandbox.records.content(step.end.stdout).endswith(b"1999\n2000\n")
    assert trace.get(step.n) is step
    followed = sandbox.records.follow()
    assert (next(followed).n, next(followed).n) == (1, 2)
    sandbox.records.export(tmp_path / "dev.trace")
    with (tmp_path / "dev.trace").open("rb") as file:
        assert TraceFile(file, max_size=1 << 26).trace.steps[step.n - 1] == step


def test_cli_shows_a_timeline_and_one_step(sandbox: Sandbox, server: Server, tmp_path: Path) -> None:
    sandbox.run(["printf", "%b", "\\033]0;title\\007\\n"])
    number = sandbox.records.trace().steps[-1].n
    lines = shown(server, "trace", "traced").splitlines()
    assert "sandbox.start" in lines[0]
    assert lines[-1].lstrip().startswith(f"{number}  ")
    assert "process.run" in lines[-1]
    assert "exit 0" in lines[-1]
    whole = shown(server, "trace", "traced", "--step", str(number))
    assert "sha256" in whole
    assert "\x1b]0;title" in whole  # stdout is no terminal: a terminal gets it filtered, as from `skerry exec`
    steps = [json.loads(line) for line in shown(server, "trace", "--json", "traced").splitlines()]
    assert steps[-1]["end"]["exit_code"] == 0
    assert not shown(server, "trace", "--since", "0.001s", "traced")
    shown(server, "trace", "export", "traced", "-o", str(tmp_path / "dev.trace"))
    assert (tmp_path / "dev.trace").stat().st_size > 1000
