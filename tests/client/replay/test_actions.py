"""From a trace to requests: strict about a trace from elsewhere, and only for its own sandbox."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skerry.client.replay import actions as plans
from skerry.client.replay.actions import InvalidTrace, NotRepeatable, ReplayAction
from skerry.codecs import tar
from skerry.codecs.traces import BLOBS, MANIFEST, STEPS, TraceFile, encode_line, encode_manifest, entry_header
from skerry.errors import InvalidRequest, SkerryError
from skerry.types import SnapshotInfo
from skerry.types.traces import (
    TRACE_FORMAT,
    TraceContent,
    TraceEnd,
    TraceError,
    TraceManifest,
    TraceStart,
    TraceStep,
)

START = TraceStart(
    format=TRACE_FORMAT, sandbox="sb-aaaaaaaaaa", owner="local", image="base", image_digest="sha256:1", created_at=1.0
)
SB = "sb-bbbbbbbbbb"


def step(n: int, kind: str, end: TraceEnd | bool | None = True, **more: Any) -> TraceStep:
    ended = TraceEnd(of=n, at=n + 0.5, last=n, exit_code=0) if end is True else end or None
    return TraceStep(n=n, at=float(n), kind=kind, end=ended, **more)


def start(**spec: Any) -> TraceStep:
    return TraceStep(n=1, at=1.0, kind="sandbox.start", start=msgspec.structs.replace(START, spec=spec))


def content(data: bytes) -> TraceContent:
    return TraceContent(size=len(data), sha256=hashlib.sha256(data).hexdigest(), data=data)


def exported(steps: list[TraceStep], blobs: dict[str, bytes] | None = None) -> bytes:
    """Return an exported trace, as the server writes it."""
    lines = b""
    for one in steps:
        lines += encode_line(msgspec.structs.replace(one, end=None))
        lines += encode_line(one.end) if one.end is not None else b""
    sizes = {name: len(data) for name, data in (blobs or {}).items()}
    manifest = encode_manifest(
        TraceManifest(
            format=TRACE_FORMAT, sandbox="sb-aaaaaaaaaa", image="base", image_digest="sha256:1", exported_at=1.0,
            steps_size=len(lines), steps_sha256=hashlib.sha256(lines).hexdigest(), blobs=sizes,
        )
    )  # fmt: skip
    entries = [
        (MANIFEST, manifest),
        (STEPS, lines),
        *((BLOBS + k.encode(), v) for k, v in sorted((blobs or {}).items())),
    ]
    return b"".join(entry_header(name, len(data)) + data + tar.padding(len(data)) for name, data in entries) + tar.END


def opened(*steps: TraceStep, **blobs: bytes) -> TraceFile:
    return TraceFile(io.BytesIO(exported(list(steps), blobs)), max_size=1 << 30)


EMPTY = opened(start())


# -- the choice of steps -----------------------------------------------------------------------------------------------


def test_only_known_steps_after_the_start_are_repeated() -> None:
    steps = [start(), step(2, "process.run"), step(3, "network.denied"), step(4, "files.changed"), step(5, "code.run")]
    assert [one.step.n for one in plans.actions_of(steps)] == [2, 5]
    assert [one.step.n for one in plans.actions_of(steps, 2)] == [5]


def test_overlapping_command_runs_in_the_background() -> None:
    steps = [
        step(2, "process.run", TraceEnd(of=2, at=9.0, last=3), process="p-a"),
        step(3, "process.run", process="p-b"),
        step(4, "process.run", process="p-c"),
    ]
    found = plans.actions_of(steps)
    assert [one.background for one in found] == [True, False, False]
    assert found[0].last == 3  # it ends before step 4


def test_input_of_a_waiting_caller_is_a_part_of_its_command() -> None:
    body = content(b"two\n")
    steps = [
        step(2, "process.run", process="p-a", params={"cmd": ["cat"], "stdin_stream": True}),
        step(3, "process.stdin", process="p-a", inputs={"body": body}),
        step(4, "process.spawn", process="p-b", params={"cmd": ["cat"]}),
        step(5, "process.stdin", process="p-b", inputs={"body": body}),
    ]
    found = plans.actions_of(steps)
    assert [one.step.n for one in found] == [2, 4, 5]
    request, stdin = plans.run_of(found[0], EMPTY, None)
    assert (request.cmd, request.stdin_stream, stdin) == (["cat"], False, b"two\n")
    assert plans.request_of(SB, found[2].step, EMPTY, {"p-b": "p-x"}).path == f"/v1/sandboxes/{SB}/processes/p-x/stdin"
    with pytest.raises(NotRepeatable):
        plans.request_of(SB, found[2].step, EMPTY, {})


def test_step_gets_a_bounded_time() -> None:
    quick, slow = (step(2, "process.run", TraceEnd(of=2, at=1.0, duration_s=s)) for s in (0.1, 100.0))
    assert plans.step_timeout(quick, None, None) == plans.MIN_STEP_S
    assert plans.step_timeout(slow, None, None) == 1000.0
    assert plans.step_timeout(quick, 5.0, None) == 5.0
    assert plans.step_timeout(slow, 300.0, 2.0) == 2.0
    timed_out = step(2, "process.run", TraceEnd(of=2, at=1.0, duration_s=200.0, timed_out=True))
    assert plans.step_timeout(timed_out, 200.0, None) == 200.0
    forged = step(2, "process.run", TraceEnd(of=2, at=1.0, duration_s=1e300))
    assert plans.step_timeout(forged, 1e8, None) == plans.MAX_STEP_S


def test_context_with_a_generated_name_gets_it_again() -> None:
    steps = [
        step(2, "context.create", params={"language": "python"}),
        step(3, "context.create", params={"name": "own"}),
        step(4, "code.run", params={"language": "python", "context": "python"}),
        step(5, "code.run", params={"language": "python", "context": "own"}),
        step(6, "code.run", params={"language": "python", "context": "python-x"}),
    ]
    found = plans.actions_of(steps)
    assert plans.request_of(SB, found[0].step, EMPTY, {}).content == b'{"name":"python-x"}'
    unused = plans.actions_of(steps[:1])
    assert plans.request_of(SB, unused[0].step, EMPTY, {}).content == b"{}"


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "params", "expected"),
    [
        ("file.mkdir", {"path": "/a", "parents": True}, ("POST", "files/mkdir", {"path": "/a", "parents": "true"})),
        ("file.remove", {"path": "/a"}, ("DELETE", "files", {"path": "/a"})),
        ("file.move", {"path": "/a", "to": "/b"}, ("POST", "files/move", {"path": "/a", "to": "/b"})),
        ("context.restart", {"context": "c"}, ("POST", "contexts/c/restart", {})),
        ("session.delete", {"session": "s"}, ("DELETE", "sessions/s", {})),
        ("session.open", {"name": "s"}, ("POST", "sessions", {})),
        ("sandbox.stopped", {}, ("POST", "stop", {})),
        ("review.begin", {"path": "/workspace"}, ("POST", "review", {})),
    ],
)  # fmt: skip
def test_requests_repeat_the_call_in_the_new_sandbox(
    kind: str, params: dict[str, Any], expected: tuple[str, str, dict[str, str]]
) -> None:
    request = plans.request_of(SB, step(2, kind, params=params), EMPTY, {})
    method, path, query = expected
    assert (request.method, request.path, dict(request.params)) == (method, f"/v1/sandboxes/{SB}/{path}", query)


def test_path_that_is_not_utf8_keeps_its_bytes() -> None:
    params = {"path": "/a\ufffd", "path_base64": "L2H/"}
    request = plans.request_of(SB, step(2, "file.mkdir", params=params), EMPTY, {})
    assert request.params == (("path", "/a\udcff"),)


def test_update_takes_neither_secrets_nor_labels_from_a_trace() -> None:
    params = {"env": {"A": "1"}, "labels": {"task": "1"}, "secrets": [{"name": "KEY", "value": "x"}]}
    request = plans.request_of(SB, step(2, "sandbox.update", params=params), EMPTY, {})
    assert request.content == b'{"env":{"A":"1"}}'


def test_start_commands_are_started_by_the_server_and_not_repeated() -> None:
    spec = {"lifecycle": {"on_start": ["serve"], "ready": 8000, "max_lifetime": "never", "idle_timeout": 1}}
    steps = [
        start(**spec),
        step(2, "process.spawn", process="on-start-0", params={"cmd": "serve"}),
        step(3, "process.stdin", process="on-start-0", inputs={"body": content(b"x")}),
        step(4, "sandbox.update", params={"lifecycle": {"on_start": ["other"], "ready": "", "max_lifetime": "never"}}),
        step(5, "snapshot.take", TraceEnd(of=5, at=5.0, result={"id": "sn-a"})),
        step(6, "process.run", params={"cmd": "ls"}),
    ]
    found = plans.actions_of(steps)
    assert [one.step.n for one in found] == [3, 4, 5, 6]
    stdin = plans.request_of(SB, found[0].step, EMPTY, {})
    assert stdin.path == f"/v1/sandboxes/{SB}/processes/on-start-0/stdin"
    update = plans.request_of(SB, found[1].step, EMPTY, {})
    assert msgspec.json.decode(update.content or b"") == {"lifecycle": {"on_start": ["other"], "ready": ""}}
    request, _ = plans.replay_request(steps, None, network=False, keep=False)
    assert (request.on_start, request.ready, request.ready_timeout) == (("serve",), 8000, None)
    snapshot = SnapshotInfo(
        id="sn-a", sandbox="sb-aaaaaaaaaa", image="base", digest="sha256:2", layers=(), created_at=1.0
    )
    request, _ = plans.replay_request(steps, snapshot, network=False, keep=False)
    assert (request.on_start, request.ready) == (("other",), "")


@pytest.mark.parametrize(
    "lifecycle", [{"on_start": "serve"}, {"on_start": [""]}, {"on_start": ["x"] * 100}, {"ready": "http://example.com"}]
)
def test_forged_start_commands_are_rejected(lifecycle: dict[str, Any]) -> None:
    with pytest.raises(InvalidTrace):
        plans.replay_request([start(lifecycle=lifecycle)], None, network=False, keep=False)
    change = step(2, "sandbox.update", params={"lifecycle": lifecycle})
    with pytest.raises(InvalidTrace):
        plans.request_of(SB, change, EMPTY, {})


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("process.run", {"cmd": 7}),
        ("process.run", {"cmd": ["x"], "surprise": 1}),
        ("process.run", {"cmd": ["x"], "cwd": "\0"}),
        ("code.run", {"language": ["python"]}),
        ("session.open", {"name": "../x"}),
        ("session.delete", {"session": None}),
        ("file.move", {"path": {"a": 1}}),
        ("file.mkdir", {"path": "/a", "path_base64": "!"}),
        ("process.signal", {"process": "p-a", "signal": 9}),
        ("file.replace", {"path": "/a", "count": "1"}),
    ],
)
def test_forged_arguments_are_rejected(kind: str, params: dict[str, Any]) -> None:
    one = step(2, kind, params=params)
    convert = {
        "process.run": lambda: plans.run_of(ReplayAction(one), EMPTY, None),
        "code.run": lambda: plans.code_of(ReplayAction(one), EMPTY, None),
    }.get(kind, lambda: plans.request_of(SB, one, EMPTY, {"p-a": "p-b"}))
    with pytest.raises(InvalidTrace, match="step 2"):
        convert()


@pytest.mark.parametrize("name", ["../../tokens", "a/b", "", ".."])
def test_names_in_a_trace_stay_below_the_own_sandbox(name: str) -> None:
    for kind, field in (("session.delete", "session"), ("context.delete", "context"), ("context.restart", "context")):
        with pytest.raises(SkerryError):
            plans.request_of(SB, step(2, kind, params={field: name}), EMPTY, {})


def test_inputs_with_secrets_or_without_content_are_not_repeated() -> None:
    for given in (
        TraceContent(size=9, sha256="a" * 64, text="***", masked=3),
        TraceContent(size=9, sha256="a" * 64, left_out="the trace is full"),
        TraceContent(size=9, sha256="a" * 64, text="ab", head=1),
    ):
        one = step(2, "file.write", params={"path": "/a"}, inputs={"body": given})
        with pytest.raises(NotRepeatable):
            plans.request_of(SB, one, EMPTY, {})
    with pytest.raises(NotRepeatable):
        plans.request_of(SB, step(2, "file.write", params={"path": "/a"}), EMPTY, {})


def test_blob_with_another_content_ends_the_replay() -> None:
    name = hashlib.sha256(b"right").hexdigest()
    trace = opened(start(), **{name: b"wrong"})
    one = step(2, "file.write", params={"path": "/a"}, inputs={"body": TraceContent(size=5, sha256=name, blob=name)})
    request = plans.request_of(SB, one, trace, {})
    with pytest.raises(InvalidRequest, match="damaged"):
        b"".join(request.content or ())  # type: ignore[arg-type]


# -- the start ---------------------------------------------------------------------------------------------------------


def test_start_takes_no_rights_from_a_trace() -> None:
    spec = {
        "env": {"A": "1"},
        "limits": {"memory": "64M"},
        "labels": {"task": "9"},
        "secrets": [{"name": "KEY", "hosts": ["api.example.com"]}],
        "network": {"allow": ["api.example.com"], "peers": {"db": "sb-cccccccccc"}},
        "volumes": [{"path": "/data", "name": "data", "volume": "vol-aaaaaaaaaa"}],
        "options": {"reproducible": True, "runtime": "runc", "waive_guarantees": ["seccomp"]},
    }
    request, notes = plans.replay_request([start(**spec)], None, network=False, keep=False)
    assert (request.env, request.limits.memory) == ({"A": "1"}, "64M")
    assert (request.network.allow, request.network.peers) == ((), {})
    assert (request.options.reproducible, request.options.runtime, request.options.waive_guarantees) == (True, None, ())
    assert any("KEY" in note for note in notes)
    assert "volumes are not in a trace: /data" in notes
    opened_too, _ = plans.replay_request([start(**spec)], None, network=True, keep=False)
    assert (opened_too.network.allow, opened_too.network.peers) == (("api.example.com",), {})


def test_cassette_is_served_with_the_network_closed() -> None:
    spec = {
        "network": {"allow": ["a.test"]},
        "secrets": [{"name": "KEY", "hosts": ["a.test"], "value": "in-the-trace"}],
    }
    request, _ = plans.replay_request([start(**spec)], None, network=False, keep=False, cassette=True)
    assert (request.network.allow, request.network.cassette) == (("a.test",), "replay")
    (secret,) = request.secrets
    assert (secret.name, secret.hosts) == ("KEY", ("a.test",))
    assert secret.value != "in-the-trace"
    for network in (True, False):
        request, _ = plans.replay_request([start(**spec)], None, network=network, keep=False)
        assert (request.network.cassette, request.secrets) == (None, ())


def test_trace_without_a_valid_start_is_rejected() -> None:
    for steps in ([], [step(2, "process.run")], [start(limits={"memory": []})], [start(env={"A": 1})]):
        with pytest.raises(InvalidTrace):
            plans.replay_request(steps, None, network=False, keep=False)
    fork = msgspec.structs.replace(START, parent="sb-cccccccccc", parent_step=3)
    with pytest.raises(InvalidRequest, match="fork of sb-cccccccccc"):
        plans.replay_request(
            [TraceStep(n=1, at=1.0, kind="sandbox.start", start=fork)], None, network=False, keep=False
        )


# -- files from elsewhere ----------------------------------------------------------------------------------------------


def test_trace_that_is_cut_short_or_changed_is_rejected() -> None:
    whole = exported([start(), step(2, "process.run", params={"cmd": ["true"]})], {"0" * 64: b"data"})
    TraceFile(io.BytesIO(whole), max_size=1 << 30)
    for size in (0, 1, 511, 512, 1024, len(whole) // 2, len(whole) - 1024, len(whole) - 1):
        with pytest.raises(InvalidRequest, match="not an exported trace"):
            TraceFile(io.BytesIO(whole[:size]), max_size=1 << 30)
    with pytest.raises(InvalidRequest, match="not an exported trace"):
        TraceFile(io.BytesIO(whole.replace(b'"true"', b'"evil"')), max_size=1 << 30)
    with pytest.raises(InvalidRequest, match="at most"):
        TraceFile(io.BytesIO(whole), max_size=100)


def test_output_that_imitates_lines_of_a_trace_stays_output(tmp_path: Path) -> None:
    forged = encode_line(step(9, "process.run", params={"cmd": ["evil"]})).decode() + '{"of":2,"at":1,"exit_code":7}\n'
    end = TraceEnd(of=2, at=2.5, last=2, exit_code=0, stdout=content(forged.encode()))
    text = TraceEnd(of=3, at=3.5, last=3, exit_code=0, stdout=TraceContent(size=len(forged), text=forged))
    trace = opened(start(), step(2, "process.run", end), step(3, "process.run", text))
    assert [(one.n, one.end.exit_code if one.end else None) for one in trace.trace.steps] == [(1, None), (2, 0), (3, 0)]


def test_interrupted_step_is_recognised() -> None:
    for end in (False, TraceEnd(of=2, at=2.0, error=TraceError(code="interrupted"))):
        assert ReplayAction(step(2, "process.run", end)).is_interrupted
    assert not ReplayAction(step(2, "process.run")).is_interrupted
