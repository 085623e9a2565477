"""The audit record of a request: its actor, its source and its parameters without secret values.

A parameter is recorded only if a table here names its field, and long values are cut and hashed. A test requires that
every field of every recorded route is in one of the tables.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import struct
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.types import Scope

from skerry.engine.records.trace.mask import SecretMask
from skerry.engine.records.trace.recorder import Step, plain
from skerry.errors import NotFound
from skerry.server.http.protocol import ACTOR_HEADER, CONNECTION, BoundedProtocol
from skerry.types import SandboxInfo, SandboxList, SecretValue

if TYPE_CHECKING:
    from skerry.engine.records.audit.service import Action
    from skerry.engine.sandboxes.record import SandboxRecord
    from skerry.server.http.call import Call

MAX_TEXT: Final = 200  # characters of a value; of a longer one, the hash is recorded too
MAX_ITEMS: Final = 32
# Names of recorded fields; of tables and lists with values, the names only; and of hidden fields: content, credentials
# (`origin` is a URL that may hold a password), or no part of the effect.
_RECORDED: Final = """
accept all allow append approval_timeout auto_resume auto_snapshot budget bytes_per_second close cmd code cols context
cost count cpu cpus cwd deny digest disk do elsewhere entrypoint exclude expires files force fresh hard head hunks id
idle_timeout ids image insecure inspect journal label language lifecycle limits max_bytes max_connections max_lifetime
memory mode n name network note on_exceeded on_idle on_unknown open_files options overwrite owner parents path paths
pids platform port pty public purge reason rebuild recursive reference reject remember reopen replace reproducible
rows runtime scope session signal snapshot split steps sudo target timeout tip to use_pool user wait waive_guarantees
wall cassette clock read_only_root image_digest keep size volumes auto_remove
default_session on_start ready ready_timeout ttl mirror remove_handlers redirect error
"""
_NAMES_ONLY: Final = "calls edit env handlers labels peers presets secrets"
_HIDDEN: Final = """
copied_at credentials git_email git_name haves headers ignore key known new new_base64 old old_base64 origin replay
response seen
since stdin stdin_base64 stdin_stream token tracked wants
"""
RECORDED, NAMES_ONLY, HIDDEN = (frozenset(names.split()) for names in (_RECORDED, _NAMES_ONLY, _HIDDEN))
_DETAILS: Final = ("exit_code", "signal", "timed_out", "oom_killed", "id")
TRACED_INSIDE: Final = frozenset((
    "code.run", "port.connect", "process.resize", "process.run", "process.stdin", "sandbox.delete", "sandbox.pause",
    "sandbox.rename", "sandbox.resume", "sandbox.stop", "terminal.attach",
))  # fmt: skip
_USER: Final = re.compile(r"uid:[0-9]{1,10}")
_CREDENTIALS: Final = struct.Struct("3i")


def begin(effect: str, call: Call[Any, Any], scope: Scope) -> Action:
    """Record an action before its effect."""
    actor, source = caller_of(call, scope)
    call.caller = msgspec.structs.replace(call.caller, actor=actor)
    owner, sandbox, record = call.caller.owner, None, _record(call)
    if record is not None:
        owner, sandbox = record.owner, record.id
    call.masks = _masks(call, record)
    params = parameters(call)
    if record is None and (ref := call.parameters.get("ref")) is not None:
        params["ref"] = call.masked(_text(ref))[:MAX_TEXT]
    return call.engine.audit.begin(
        effect, owner=owner, actor=actor, source=source, sandbox=sandbox, params=params
    )  # fmt: skip


def _record(call: Call[Any, Any]) -> SandboxRecord | None:
    ref = call.parameters.get("ref")
    with suppress(NotFound):
        return call.engine.registry.find(call.caller, ref).record if ref is not None else None
    return None


def _masks(call: Call[Any, Any], record: SandboxRecord | None) -> tuple[SecretMask, ...]:
    """Return the masks of the secrets of the request and of its sandbox: none for most."""
    masks = [call.engine.traces.mask(record)] if record is not None else []
    if values := [one.value for one in getattr(call.body, "secrets", None) or () if isinstance(one, SecretValue)]:
        masks.append(SecretMask())
        masks[-1].add(values)
    return tuple(mask for mask in masks if mask)


def begin_step(effect: str, call: Call[Any, Any], action: Action) -> Step | None:
    """Record an action in the trace of its sandbox. Commands, code and files are recorded where they happen, with their
    contents, and changes of a sandbox's state with their reasons."""
    ref = call.parameters.get("ref")
    if ref is None or effect in TRACED_INSIDE or effect.startswith("file."):
        return None
    try:
        sandbox = call.engine.registry.find(call.caller, ref)
    except NotFound:
        return None
    params = {name: value for name, value in call.parameters.items() if name != "ref"}
    for part in (call.query, call.body):
        params |= plain(part)
    return call.engine.traces.begin(sandbox, effect, params, text=_summary(params), audit=action.seq)


def _summary(params: dict[str, Any]) -> str:
    """Return the first short arguments of an action."""
    shown = [
        f"{name}={value}" for name, value in params.items() if isinstance(value, (str, int, float)) and value != ""
    ]
    return " ".join(shown).split("\n", 1)[0]


def caller_of(call: Call[Any, Any], scope: Scope) -> tuple[str, str]:
    """Return the actor and the source. A tool of /mcp connects to the server's own socket, and names its user."""
    client, token = scope.get("client"), call.caller.token
    if client is not None and client[0]:
        return token or "-", str(client[0])
    pid, uid = peer(scope.get(CONNECTION))
    if pid != os.getpid():
        return token or f"uid:{uid}", "unix"
    named = call.headers.get(ACTOR_HEADER.encode()) or ""
    return token or (named if _USER.fullmatch(named) else f"uid:{uid}"), "mcp"


def peer(connection: Any) -> tuple[int, int]:
    """Return the pid and the uid of a unix socket's peer, as the kernel noted them when it connected; -1 if it has
    gone. They are read once for each connection."""
    if isinstance(connection, BoundedProtocol) and connection.peer is not None:
        return connection.peer
    try:
        line = connection.transport.get_extra_info("socket")
        pid, uid, _ = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    except (AttributeError, OSError):
        return -1, -1
    if isinstance(connection, BoundedProtocol):
        connection.peer = pid, uid
    return pid, uid


def parameters(call: Call[Any, Any]) -> dict[str, Any]:
    """Return the recorded parameters of the path, the query and the body."""
    params: dict[str, Any] = {}
    for name, value in call.parameters.items():
        if name != "ref":
            _put(call, params, name, value)
    for part in (call.query, call.body):
        _describe(call, part, params)
    return params


def outcome(call: Call[Any, Any], answer: Any) -> tuple[str | None, dict[str, Any] | None]:
    """Return the sandbox that an action created, and the details of its result."""
    if isinstance(answer, SandboxList):
        return None, {"sandboxes": [info.id for info in answer.sandboxes]}
    details = dict(call.outcome)
    for name in _DETAILS:
        value = getattr(answer, name, None)
        if value or (value == 0 and value is not False):
            details[name] = value
    details = {name: call.masked(_text(value)) if isinstance(value, str) else value for name, value in details.items()}
    return (answer.id if isinstance(answer, SandboxInfo) else None), details or None


@cache
def _fields(kind: type) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a type that may be recorded, with their defaults."""
    found = []
    for field in msgspec.structs.fields(kind):
        if field.name in RECORDED or field.name in NAMES_ONLY:
            default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
            found.append((field.name, default))
    return tuple(found)


def _describe(call: Call[Any, Any], value: msgspec.Struct, params: dict[str, Any]) -> None:
    for name, default in _fields(type(value)):
        given = getattr(value, name)
        if given is None or given == default:
            continue
        if name in NAMES_ONLY:
            _put(call, params, name, [item if isinstance(item, str) else item.name for item in given])
        elif isinstance(given, msgspec.Struct):
            _describe(call, given, params.setdefault(name, {}))
        else:
            _put(call, params, name, given)


def _put(call: Call[Any, Any], params: dict[str, Any], name: str, value: Any) -> None:
    """Values are masked before they are cut: a part of a secret would not be found."""
    if isinstance(value, str):
        text = call.masked(_text(value))
        params[name] = text[:MAX_TEXT]
        if len(text) > MAX_TEXT:
            params[f"{name}_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    elif isinstance(value, (list, tuple)):
        texts = [call.masked(_text(item)) if isinstance(item, str) else item for item in value]
        params[name] = [text[:MAX_TEXT] if isinstance(text, str) else text for text in texts[:MAX_ITEMS]]
        if params[name] != texts:
            params[f"{name}_sha256"] = hashlib.sha256(msgspec.json.encode(texts)).hexdigest()
    elif isinstance(value, (bool, int, float)):
        params[name] = value


def _text(value: str) -> str:
    """Return text that JSON can hold: a file name inside need not be Unicode."""
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
