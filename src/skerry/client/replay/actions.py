"""From the steps of a trace to the requests that repeat them. Pure.

A trace from elsewhere is untrusted input. A replay sends only the requests in the tables here, only to its own sandbox,
and with the caller's rights; the server checks every value again."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any, TypeVar

import msgspec

from skerry.client.replay.compare import TraceBlobs
from skerry.client.transport.requests import code, files, review, sandboxes, snapshots
from skerry.client.transport.requests.sandboxes import Body, Request, json_request, sandbox_path
from skerry.codecs.traces import TraceFile
from skerry.errors import InvalidRequest, NotFound
from skerry.types import (
    START_ID,
    BeginReview,
    CodeRequest,
    ContextRequest,
    Network,
    RollbackRequest,
    RunRequest,
    SecretValue,
    SessionRequest,
    SnapshotInfo,
    SnapshotRequest,
    UpdateRequest,
)
from skerry.types.replays import RecordedLifecycle, RecordedNetwork, RecordedSpec, ReplayRequest
from skerry.types.traces import TraceContent, TraceEnd, TraceStart, TraceStep

T = TypeVar("T")
MIN_STEP_S = 60.0
MAX_STEP_S = 3600.0
SLOWER = 10.0  # a replay may take this many times as long as the original step
MAX_INPUT = 64 << 20  # bytes of an input that must be in memory: code, stdin, an edit
COMMANDS = ("process.run", "process.spawn", "code.run")
_FILE_CALLS = {
    "file.remove": ("DELETE", ()),
    "file.mkdir": ("POST", ("mkdir",)),
    "file.move": ("POST", ("move",)),
    "file.copy": ("POST", ("copy",)),
    "file.chmod": ("POST", ("chmod",)),
    "file.chown": ("POST", ("chown",)),
    "file.link": ("POST", ("link",)),
}
_FILE_BODIES = {
    "file.write": ("PUT", (), files.BYTES),
    "file.upload": ("PUT", ("tree",), sandboxes.TAR),
    "file.patch": ("POST", ("patch",), files.DIFF),
}
_START_FIELDS = RecordedLifecycle.__struct_fields__
_CONTEXT_CALLS = ("context.delete", "context.interrupt", "context.restart")
STATES = {"sandbox.stopped": "stop", "sandbox.resumed": "resume"}
REPEATED = frozenset((
    *COMMANDS, *_FILE_CALLS, *_FILE_BODIES, *_CONTEXT_CALLS, *STATES,
    "file.replace", "process.stdin", "process.signal", "session.open", "session.delete", "context.create",
    "snapshot.take", "sandbox.rollback", "sandbox.update", "review.begin", "review.pull",
))  # fmt: skip
LEFT_OUT = {  # steps that a replay cannot or must not repeat, although they may change its course
    "terminal.attach": "input of a terminal is not repeated",
    "network.set": "the network policy is not taken from a trace",
    "network.change": "the network policy is not taken from a trace",
    "sandbox.fork": "forks are not repeated",
}


class InvalidTrace(InvalidRequest):
    """A trace that no server can have written."""


class NotRepeatable(Exception):
    """A step cannot be repeated, for this reason."""


@dataclass(frozen=True)
class ReplayAction:
    """A step to repeat. `background`: other steps began before it ended. `last`: the newest step that did; the action
    must have ended before a later one."""

    step: TraceStep
    background: bool = False
    last: int = 0
    stdin: tuple[TraceContent, ...] = ()

    @property
    def is_interrupted(self) -> bool:
        end = self.step.end
        return end is None or (end.error is not None and end.error.code == "interrupted")


def actions_of(steps: list[TraceStep], after: int = 0) -> list[ReplayAction]:
    """Return the actions among the steps after a number, in order. Input that was sent to a command while its caller
    waited is a part of the command. `on_start` commands are none: the server starts them again, at each start."""
    chosen = [step for step in steps if step.n > after]
    runs = {step.process for step in chosen if step.kind == "process.run" and step.process is not None}
    fed: dict[str, list[TraceContent]] = {}
    repeated: list[TraceStep] = []
    rollback_end = 0
    for step in chosen:
        if step.kind == "sandbox.rollback" and step.end is not None:
            rollback_end = step.end.last
        if step.kind == "process.stdin" and step.process in runs:
            fed.setdefault(step.process, []).extend(filter(None, (step.input("body"),)))
        elif step.kind in STATES and step.n <= rollback_end:
            continue  # a rollback stops and resumes the sandbox itself
        elif step.kind == "process.spawn" and _is_start_command(step.process):
            continue
        elif step.kind in REPEATED or step.kind in LEFT_OUT:
            repeated.append(step)
    repeated = list(_with_context_names(repeated))
    numbers = [step.n for step in repeated]
    return [_action(step, numbers[n + 1 :][:1], fed) for n, step in enumerate(repeated)]


def _is_start_command(process: str | None) -> bool:
    return process is not None and process.startswith(START_ID)


def _with_context_names(steps: list[TraceStep]) -> Iterator[TraceStep]:
    """Yield the steps; a context whose name was generated gets it again: the first name that code uses without another
    reason."""
    known = {step.params.get("name") for step in steps if step.kind == "context.create"}
    used = [step.params for step in steps if step.kind == "code.run"]
    named = (
        str(params.get("context")) for params in used if params.get("context") not in (None, params.get("language"))
    )
    generated = iter(dict.fromkeys(name for name in named if name not in known))
    for step in steps:
        if step.kind == "context.create" and "name" not in step.params and (name := next(generated, None)) is not None:
            yield msgspec.structs.replace(step, params={**step.params, "name": name})
        else:
            yield step


def _action(step: TraceStep, following: list[int], fed: Mapping[str, list[TraceContent]]) -> ReplayAction:
    last = step.end.last if step.end is not None else 1 << 62
    simple = step.kind == "process.run" and "session" not in step.params
    overlaps = simple and bool(following) and following[0] <= last
    return ReplayAction(step, overlaps, last, tuple(fed.get(step.process or "", ())))


def step_timeout(step: TraceStep, given: float | None, most: float | None) -> float:
    """Return the time that a repeated step may take: its own timeout, but not much longer than it took, at most
    `most`. A step that timed out gets the whole timeout again."""
    end = step.end or TraceEnd(of=step.n, at=step.at)
    bound = min(MAX_STEP_S, max(MIN_STEP_S, SLOWER * max(0.0, end.duration_s)))
    if end.timed_out and given is not None:
        bound = given
    return min(bound, given or bound, most or bound)


# -- contents ---------------------------------------------------------------------------------------------------------


def check_whole(content: TraceContent) -> None:
    if content.masked:
        raise NotRepeatable("its input held the value of a secret")
    if not content.whole:
        raise NotRepeatable(f"its input was not kept: {content.left_out or 'it is too long'}")


def pieces_of(content: TraceContent, blobs: TraceBlobs) -> Iterator[bytes]:
    """Yield the bytes of an input, for a request that streams them."""
    if content.blob is not None:
        yield from blobs.pieces(content.blob)
    else:
        yield content.data if content.data is not None else (content.text or "").encode()


def bytes_of(content: TraceContent, blobs: TraceBlobs) -> bytes:
    check_whole(content)
    kept = bytearray()
    for piece in pieces_of(content, blobs):
        kept += piece
        if len(kept) > MAX_INPUT:
            raise NotRepeatable(f"its input is longer than {MAX_INPUT >> 20} MiB")
    return bytes(kept)


def input_of(step: TraceStep, name: str, blobs: TraceBlobs) -> bytes | None:
    content = step.input(name)
    return None if content is None else bytes_of(content, blobs)


def body_of(step: TraceStep, blobs: TraceBlobs) -> tuple[Body, int]:
    content = step.input("body")
    if content is None:
        raise NotRepeatable("its input was not kept")
    check_whole(content)
    return pieces_of(content, blobs), content.size


def params_of(step: TraceStep, blobs: TraceBlobs) -> dict[str, Any]:
    long = input_of(step, "params", blobs)
    if long is None:
        return step.params
    try:
        return msgspec.json.decode(long, type=dict[str, Any])
    except (ValueError, RecursionError):
        raise _invalid(step) from None


def converted(step: TraceStep, params: Mapping[str, Any], kind: type[T]) -> T:
    """Return the arguments as the value of a request, which checks them."""
    try:
        return msgspec.convert(dict(params), kind)
    except (msgspec.ValidationError, RecursionError, InvalidRequest):
        raise _invalid(step) from None


def _invalid(step: TraceStep) -> InvalidTrace:
    return InvalidTrace(f"step {step.n} of the trace is not valid", hint="export the trace again")


# -- requests ---------------------------------------------------------------------------------------------------------


def run_of(action: ReplayAction, blobs: TraceBlobs, most: float | None) -> tuple[RunRequest, bytes | None]:
    """Return a command and its standard input. A command of a session can wait for its turn, and its timeout counts
    from its start."""
    step = action.step
    request = converted(step, params_of(step, blobs), RunRequest)
    given = input_of(step, "stdin", blobs)
    if step.kind == "process.spawn":  # further input comes in separate steps
        return request, given
    fed = [bytes_of(content, blobs) for content in action.stdin]
    stdin = None if given is None and not (fed or request.stdin_stream) else b"".join([given or b"", *fed])
    timeout = _timeout(action, request.timeout, most)
    return msgspec.structs.replace(request, timeout=timeout, stdin_stream=False), stdin


def code_of(action: ReplayAction, blobs: TraceBlobs, most: float | None) -> CodeRequest:
    step = action.step
    params = {**params_of(step, blobs), "code": (input_of(step, "code", blobs) or b"").decode("utf-8", "replace")}
    if (stdin := input_of(step, "stdin", blobs)) is not None:
        params["stdin_base64"] = base64.b64encode(stdin).decode()
    request = converted(step, params, CodeRequest)
    if request.context == request.language:  # the default context of the language, which the first run creates
        request = msgspec.structs.replace(request, context=None)
    return msgspec.structs.replace(request, timeout=_timeout(action, request.timeout, most))


def _timeout(action: ReplayAction, given: float | None, most: float | None) -> float:
    end = action.step.end
    if action.is_interrupted and end is not None:
        return max(1.0, min(end.duration_s, MAX_STEP_S))
    return step_timeout(action.step, given, most)


def request_of(ref: str, step: TraceStep, blobs: TraceBlobs, processes: Mapping[str, str]) -> Request:
    """Return the request that repeats a step other than a command. `processes`: the IDs of the replay's processes by
    those of the trace."""
    kind, params = step.kind, params_of(step, blobs)
    if kind in _FILE_CALLS:
        method, rest = _FILE_CALLS[kind]
        return Request(method, sandbox_path(ref, "files", *rest), query_of(step, params), read_timeout=None)
    if kind in _FILE_BODIES:
        method, rest, media_type = _FILE_BODIES[kind]
        body, size = body_of(step, blobs)
        headers = {"content-length": str(size)}
        path = sandbox_path(ref, "files", *rest)
        return Request(
            method, path, query_of(step, params), body, media_type, read_timeout=None, more_headers=headers
        )  # fmt: skip
    if kind == "file.replace":
        return _replace_request(ref, step, params, blobs)
    if kind in ("process.stdin", "process.signal"):
        return _process_request(ref, step, params, blobs, processes)
    return _other_request(ref, step, params, blobs)


def with_body(request: Request, streamed: Callable[[Any], Body]) -> Request:
    """Return the request with its body as the client can send it."""
    if request.content is None or isinstance(request.content, bytes):
        return request
    return replace(request, content=streamed(request.content))


def _replace_request(ref: str, step: TraceStep, params: dict[str, Any], blobs: TraceBlobs) -> Request:
    old, new = (input_of(step, name, blobs) or b"" for name in ("old", "new"))
    given = {name: value for name, value in params.items() if not name.startswith("count")}
    count = params.get("count")
    if count is not None and not isinstance(count, int):
        raise _invalid(step)
    path = dict(query_of(step, given))
    return files.replace(ref, path.get("path", ""), old, new, count, path.get("user"))


def _process_request(
    ref: str, step: TraceStep, params: dict[str, Any], blobs: TraceBlobs, processes: Mapping[str, str]
) -> Request:
    recorded = step.process or str(params.get("process"))
    process = recorded if _is_start_command(recorded) else processes.get(recorded)
    if process is None:
        raise NotRepeatable("its process was not started by the replay")
    if step.kind == "process.signal":
        signal = params.get("signal")
        if not isinstance(signal, str):
            raise _invalid(step)
        return sandboxes.signal(ref, process, signal)
    body, _ = body_of(step, blobs) if step.input("body") is not None else (b"", 0)
    return sandboxes.stdin(ref, process, body, close=params.get("close") is True)


def _other_request(ref: str, step: TraceStep, params: dict[str, Any], blobs: TraceBlobs) -> Request:
    kind = step.kind
    if kind == "session.open":
        return sandboxes.open_session(ref, converted(step, params, SessionRequest))
    if kind == "session.delete":
        return sandboxes.close_session(ref, _name(step, params, "session"))
    if kind == "context.create":
        return code.open_context(ref, converted(step, params, ContextRequest))
    if kind == "context.delete":
        return code.context(ref, _name(step, params, "context"), "DELETE")
    if kind in _CONTEXT_CALLS:
        return code.act(ref, _name(step, params, "context"), kind.partition(".")[2])
    if kind in STATES:
        return sandboxes.act(ref, STATES[kind])
    if kind == "sandbox.update":
        given = {name: value for name, value in params.items() if name in ("env", "limits")}
        if isinstance(changed := params.get("lifecycle"), dict):
            given["lifecycle"] = {name: value for name, value in changed.items() if name in _START_FIELDS}
        return sandboxes.update(ref, converted(step, given, UpdateRequest))
    if kind == "review.begin":
        return review.start(ref, converted(step, params, BeginReview))
    if kind == "review.pull":
        body, _ = body_of(step, blobs)
        path = sandbox_path(ref, "review", "pulls")
        return Request("POST", path, (), body, review.BYTES, read_timeout=review.READ_TIMEOUT)
    raise NotRepeatable(LEFT_OUT.get(kind, "a replay does not repeat it"))


def snapshot_request(ref: str) -> Request:
    """Take a snapshot for a later rollback: without the name in the trace, which may belong to another snapshot."""
    return snapshots.take(ref, SnapshotRequest())


def rollback_request(ref: str, step: TraceStep, blobs: TraceBlobs, taken: Mapping[str, str]) -> Request:
    """`taken`: the IDs of the replay's snapshots by the names and IDs in the trace."""
    request = converted(step, params_of(step, blobs), RollbackRequest)
    if request.snapshot is not None and request.snapshot not in taken:
        raise NotRepeatable("the replay has not taken its snapshot")
    payload = replace_snapshot(request, taken)
    return replace(
        json_request("POST", sandbox_path(ref, "rollback"), payload), read_timeout=snapshots.READ_TIMEOUT
    )  # fmt: skip


def replace_snapshot(request: RollbackRequest, taken: Mapping[str, str]) -> RollbackRequest:
    if request.snapshot is None:
        return request
    return msgspec.structs.replace(request, snapshot=taken[request.snapshot])


def _name(step: TraceStep, params: Mapping[str, Any], field: str) -> str:
    name = params.get(field)
    if not isinstance(name, str):
        raise _invalid(step)
    return name


def query_of(step: TraceStep, params: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the arguments of a call of the files API. A path that is not UTF-8 is there twice, the second time as
    `NAME_base64`, with its bytes."""
    found = []
    for name, value in params.items():
        if name.endswith("_base64"):
            continue
        raw = params.get(f"{name}_base64")
        if isinstance(raw, str):
            try:
                value = os.fsdecode(base64.b64decode(raw, validate=True))
            except (ValueError, binascii.Error):
                raise _invalid(step) from None
        if isinstance(value, bool):
            found.append((name, "true" if value else "false"))
        elif isinstance(value, (str, int)):
            found.append((name, str(value)))
        elif value is not None:
            raise _invalid(step)
    return tuple(found)


# -- the start --------------------------------------------------------------------------------------------------------


def start_of(steps: list[TraceStep]) -> tuple[TraceStart, RecordedSpec]:
    """Return the start of a trace and its checked request."""
    first = steps[0] if steps else None
    if first is None or first.start is None:
        raise InvalidTrace("the trace has no beginning", hint="export the trace again")
    return first.start, converted(first, first.start.spec, RecordedSpec)


def first_step(steps: list[TraceStep], snapshot: SnapshotInfo | None) -> int:
    """Return the number of the step after which a replay begins."""
    if snapshot is None:
        return 0
    for step in steps:
        if step.kind == "snapshot.take" and step.end is not None and step.end.result.get("id") == snapshot.id:
            return step.n
    raise NotFound(
        f"the trace of sandbox {snapshot.sandbox or '-'} does not have the snapshot {snapshot.id}",
        hint="replay the sandbox instead",
    )


def replay_request(
    steps: list[TraceStep], snapshot: SnapshotInfo | None, *, network: bool, keep: bool, cassette: bool = False
) -> tuple[ReplayRequest, list[str]]:
    """Return the request for a sandbox in the state at the start, and notes about the parts that are left out.
    `cassette`: the trace has the responses of the network, and nothing else is reached."""
    start, spec = start_of(steps)
    if start.parent is not None and snapshot is None:
        raise InvalidRequest(
            f"sandbox {start.sandbox} is a fork of {start.parent}, and its trace does not have the files at its start",
            hint="replay the parent, or take a snapshot and replay from it",
        )
    options = msgspec.structs.replace(spec.options, runtime=None, waive_guarantees=())
    notes = []
    if spec.secrets and not (cassette and not network):
        names = ", ".join(sorted({str(secret.get("name")) for secret in spec.secrets}))
        notes.append(f"secrets are not taken from a trace: {names}")
    if spec.volumes:
        notes.append(f"volumes are not in a trace: {', '.join(volume.path for volume in spec.volumes)}")
    policy = spec.network
    if policy.handlers and network:
        notes.append("handlers are not taken from a trace: requests pass unchanged")
    if cassette and not network:
        notes.append("the network is closed; responses come from the cassette of the trace")
    elif policy.allow and not network:
        notes.append("the network is closed; the recorded policy allows some hosts")
    request = ReplayRequest(
        image=start.image if snapshot is None else snapshot.name or snapshot.id,
        image_digest=start.image_digest if snapshot is None else snapshot.digest,
        env=spec.env, limits=spec.limits, options=options, keep=keep, **_start_commands(steps, spec, snapshot),
        network=_network(policy, steps, network=network, cassette=cassette),
        secrets=_stand_ins(steps[0], spec) if cassette and not network else (),
    )  # fmt: skip
    return request, notes


def _start_commands(steps: list[TraceStep], spec: RecordedSpec, snapshot: SnapshotInfo | None) -> dict[str, Any]:
    """Return the `on_start` commands and their condition at the start of a replay: those of the creation, with the
    changes before the snapshot."""
    found = {name: getattr(spec.lifecycle, name) for name in _START_FIELDS}
    after = first_step(steps, snapshot)
    for step in steps:
        changed = step.params.get("lifecycle") if step.n <= after and step.kind == "sandbox.update" else None
        if isinstance(changed, dict):
            found |= {name: changed[name] for name in _START_FIELDS if changed.get(name) is not None}
    known = converted(steps[0], found, RecordedLifecycle)
    return {name: getattr(known, name) for name in _START_FIELDS}


def _stand_ins(first: TraceStep, spec: RecordedSpec) -> tuple[SecretValue, ...]:
    """Return secrets with the recorded names and random values: a cassette finds requests by the names, and no value
    leaves the sandbox."""
    made = ({**form, "value": token_hex(16)} for form in spec.secrets)
    return tuple(converted(first, form, SecretValue) for form in made)


def _network(policy: RecordedNetwork, steps: list[TraceStep], *, network: bool, cassette: bool) -> Network:
    """Return the policy of a replay. With a cassette, nothing gets out: presets are safe to take over, and a policy
    that was changed later, or that asked or learned, becomes one that looks every host up in the cassette."""
    if network:
        return Network(allow=policy.allow, deny=policy.deny, inspect=policy.inspect)
    if not cassette:
        return Network()
    changed = any(step.kind in ("network.set", "network.change") for step in steps)
    fixed = policy.on_unknown == "deny" and not policy.peers and not changed
    return Network(
        allow=policy.allow, deny=policy.deny, inspect=policy.inspect, presets=policy.presets,
        on_unknown="deny" if fixed else "learn", cassette="replay",
    )  # fmt: skip


def notes_of(trace: TraceFile) -> list[str]:
    """Return notes about a trace that is not complete."""
    found = []
    if trace.trace.damaged:
        found.append(f"{trace.trace.damaged} lines of the trace cannot be read")
    if omitted := sum(max(0, step.omitted) for step in trace.trace.steps):
        found.append(f"{omitted} steps were not recorded")
    return found


def has_review(trace: TraceFile) -> bool:
    return any(step.kind == "review.begin" for step in trace.trace.steps)


def workspace_of(steps: list[TraceStep]) -> str:
    """Return the working directory of a recorded sandbox."""
    cwd = start_of(steps)[0].spec.get("cwd")
    return cwd if isinstance(cwd, str) and cwd.startswith("/") else "/workspace"


# -- snapshots and contexts -------------------------------------------------------------------------------------------


def snapshot_names(step: TraceStep, blobs: TraceBlobs) -> set[str]:
    """Return the ID and the name of a snapshot that a step took."""
    found = (params_of(step, blobs).get("name"), step.end.result.get("id") if step.end is not None else None)
    return {name for name in found if isinstance(name, str)}


def rollback_targets(trace: TraceFile) -> set[str]:
    found = (step.params.get("snapshot") for step in trace.trace.steps if step.kind == "sandbox.rollback")
    return {name for name in found if isinstance(name, str)}
