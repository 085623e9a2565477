"""Events of coding agents: the JSON lines that they print for programs, as text and tool calls. Pure.

Every line comes from the sandbox: a line that is not an event is text, and no field is trusted to have a type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from skerry.types import MAX_TOOL_NAME, MAX_TOOL_PATH, MAX_TOOL_PATHS, ReportedCall

MAX_LINE: Final = 4 << 20  # bytes: longer lines are dropped, since no event that matters is as long
_PATHS: Final = ("file_path", "filePath", "path", "absolute_path", "notebook_path", "target_file")
_SUBJECTS: Final = ("command", "cmd", *_PATHS, "pattern", "query", "url", "description")
_READS: Final = re.compile(r"(?i)read|view|ls|list|glob|grep|search|fetch|cat|open")
_decode = msgspec.json.Decoder().decode
Json = dict[str, Any]


@dataclass(frozen=True)
class AgentEvent:
    """`text`: words of the agent for the user, with their line ends. `call`: a tool call that started or ended.
    `error`: the reason why the agent gave up."""

    text: str = ""
    call: ReportedCall | None = None
    error: str = ""


def tool_call(id_: object, name: object = "", arguments: object = None, *, state: str = "started") -> ReportedCall:
    """Return a tool call, cut to the bounds of a report. Its title is the name with the most informative argument."""
    given = arguments if isinstance(arguments, dict) else {}
    subject = next((value for key in _SUBJECTS if isinstance(value := given.get(key), str) and value), "")
    title = " ".join(part for part in (_plain(name), " ".join(_plain(subject).split())) if part)
    changes = [] if _READS.match(_plain(name)) else [given.get(key) for key in _PATHS]
    return reported(id_, title, changes, state)


def reported(id_: object, title: str, paths: object, state: str) -> ReportedCall:
    """Return a tool call of untrusted values."""
    found = [path for path in paths if isinstance(path, str)] if isinstance(paths, (list, tuple)) else []
    return ReportedCall(
        id=_plain(id_)[:128] or "-", name=_plain(title)[:MAX_TOOL_NAME],
        paths=tuple(dict.fromkeys(_plain(path) for path in found if 0 < len(path) <= MAX_TOOL_PATH))[:MAX_TOOL_PATHS],
        state="ended" if state == "ended" else "failed" if state == "failed" else "started",
    )  # fmt: skip


def _plain(value: object) -> str:
    """Return a text that an API call may carry: without NUL, and without halves of surrogate pairs."""
    text = str(value) if isinstance(value, (str, int)) else ""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


class EventReader:
    """Reads the output of an agent. `dialect`: a name in DIALECTS."""

    def __init__(self, dialect: str) -> None:
        self._dialect, self._held, self._dropping = DIALECTS[dialect], bytearray(), False

    def feed(self, data: bytes) -> Iterator[AgentEvent]:
        """Yield the events of the lines that are complete now."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            if not self._dropping:
                self._held += line
                yield from self._events(bytes(self._held))
            self._held, self._dropping = bytearray(), False
        if not self._dropping:
            self._held += rest
        if len(self._held) > MAX_LINE:
            self._held, self._dropping = bytearray(), True

    def end(self) -> Iterator[AgentEvent]:
        """Yield the events of a last line without an end."""
        held, self._held = bytes(self._held), bytearray()
        if held:
            yield from self._events(held)

    def _events(self, line: bytes) -> Iterator[AgentEvent]:
        if len(line) > MAX_LINE:
            return
        try:
            event = _decode(line)
        except (msgspec.MsgspecError, RecursionError):
            event = None
        if isinstance(event, dict):
            yield from self._dialect(event)
        elif line.strip():
            yield AgentEvent(text=line.decode("utf-8", "replace") + "\n")


def _claude(event: Json) -> Iterator[AgentEvent]:
    """claude-code and qwen-code: `--output-format stream-json`."""
    if event.get("type") == "result":
        if event.get("is_error"):
            said = event.get("result") or _dict(event.get("error")).get("message") or event.get("subtype")
            yield AgentEvent(error=_plain(said) or "the agent failed")
        return
    content = _dict(event.get("message")).get("content")
    for part in map(_dict, content if isinstance(content, list) else ()):
        if event.get("type") == "assistant" and part.get("type") == "text":
            yield AgentEvent(text=_plain(part.get("text")) + "\n")
        elif event.get("type") == "assistant" and part.get("type") == "tool_use":
            yield AgentEvent(call=tool_call(part.get("id"), part.get("name"), part.get("input")))
        elif event.get("type") == "user" and part.get("type") == "tool_result":
            state = "failed" if part.get("is_error") else "ended"
            yield AgentEvent(call=tool_call(part.get("tool_use_id"), state=state))


def _codex(event: Json) -> Iterator[AgentEvent]:
    """codex: `exec --json`."""
    kind, item = event.get("type"), _dict(event.get("item"))
    if kind == "turn.failed":
        yield AgentEvent(error=_plain(_dict(event.get("error")).get("message")) or "the turn failed")
    if kind not in ("item.started", "item.completed"):
        return
    if item.get("type") == "agent_message" and kind == "item.completed":
        yield AgentEvent(text=_plain(item.get("text")) + "\n")
        return
    failed = item.get("status") == "failed"
    state = "started" if kind == "item.started" else "failed" if failed else "ended"
    if item.get("type") == "command_execution":
        yield AgentEvent(call=tool_call(item.get("id"), "shell", item, state=state))
    elif item.get("type") == "file_change":
        changes = item.get("changes")
        paths = [_dict(change).get("path") for change in changes] if isinstance(changes, list) else []
        title = f"edit {', '.join(map(_plain, paths))}"
        yield AgentEvent(call=reported(item.get("id"), title, paths, state))
    elif item.get("type") == "mcp_tool_call":
        name = f"{_plain(item.get('server'))}.{_plain(item.get('tool'))}"
        yield AgentEvent(call=tool_call(item.get("id"), name, item.get("arguments"), state=state))


def _gemini(event: Json) -> Iterator[AgentEvent]:
    """gemini-cli: `--output-format stream-json`. Its text arrives in pieces, whose lines are not complete."""
    kind = event.get("type")
    if kind == "message" and event.get("role") == "assistant":
        yield AgentEvent(text=_plain(event.get("content")))
    elif kind == "tool_use":
        yield AgentEvent(call=tool_call(event.get("tool_id"), event.get("tool_name"), event.get("parameters")))
    elif kind == "tool_result":
        state = "failed" if event.get("status") == "error" else "ended"
        yield AgentEvent(call=tool_call(event.get("tool_id"), state=state))
    elif kind == "result" and event.get("status") == "error":
        yield AgentEvent(error=_plain(_dict(event.get("error")).get("message")) or "the agent failed")


def _opencode(event: Json) -> Iterator[AgentEvent]:
    """opencode: `run --format json`. A tool call is reported at its end."""
    part = _dict(event.get("part"))
    if event.get("type") == "text":
        yield AgentEvent(text=_plain(part.get("text")) + "\n")
    elif event.get("type") == "tool_use":
        state = _dict(part.get("state"))
        ended = "failed" if state.get("status") == "error" else "ended"
        yield AgentEvent(call=tool_call(part.get("callID"), part.get("tool"), state.get("input"), state=ended))
    elif event.get("type") == "error":
        error = _dict(event.get("error"))
        said = _dict(error.get("data")).get("message") or error.get("name")
        yield AgentEvent(error=_plain(said) or "the agent failed")


def _pi(event: Json) -> Iterator[AgentEvent]:
    """pi: `--mode json`."""
    kind, message = event.get("type"), _dict(event.get("message"))
    if kind == "message_end" and message.get("role") == "assistant":
        content = message.get("content")
        for part in map(_dict, content if isinstance(content, list) else ()):
            if part.get("type") == "text":
                yield AgentEvent(text=_plain(part.get("text")) + "\n")
        if message.get("stopReason") in ("error", "aborted"):
            yield AgentEvent(error=_plain(message.get("errorMessage")) or "the agent failed")
    elif kind == "tool_execution_start":
        yield AgentEvent(call=tool_call(event.get("toolCallId"), event.get("toolName"), event.get("args")))
    elif kind == "tool_execution_end":
        state = "failed" if event.get("isError") else "ended"
        yield AgentEvent(call=tool_call(event.get("toolCallId"), state=state))


def _dict(value: object) -> Json:
    return value if isinstance(value, dict) else {}


DIALECTS: Final[Mapping[str, Callable[[Json], Iterator[AgentEvent]]]] = {
    "claude-code": _claude, "codex": _codex, "gemini-cli": _gemini, "opencode": _opencode, "pi": _pi,
}  # fmt: skip
