"""The Agent Client Protocol between an editor on this machine and an agent in a sandbox. Pure: lines in, lines out.

The editor's half is the user's, the agent's half is not trusted. An agent may report and ask for permission; it may not
use the editor's hands: requests for its files and terminals (`fs/*`, `terminal/*`) are answered with an error, since
they would act on this machine, without a review. Paths and `file://` URIs below the repository become those of its
copy, and back; a path of the sandbox that has no counterpart is never shown as one of this machine.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from skerry.client.agents.events import reported
from skerry.types import WORKSPACE, ReportedCall

MAX_LINE: Final = 64 << 20  # bytes of a message; prompts may have images
MAX_PENDING: Final = 10_000  # requests without an answer, and tool calls whose kind is known
VERSION: Final = 1  # of the protocol
_NEW_SESSION: Final = frozenset(("session/new", "session/load", "session/resume", "session/fork"))
_FROM_AGENT: Final = frozenset(("session/update", "session/request_permission"))
_RAW: Final = frozenset(("rawInput", "rawOutput"))
_WRITES: Final = frozenset(("edit", "delete", "move"))
_INVALID_PARAMS: Final = -32602
_NOT_FOUND: Final = -32601
_PARSE_ERROR: Final = -32700
_decode = msgspec.json.Decoder().decode
Json = dict[str, Any]


@dataclass(frozen=True)
class Passed:
    """The messages that follow from one line. `call`: a reported tool call. `notice`: for the user. `prompt`: the
    message starts a turn."""

    to_agent: bytes = b""
    to_editor: bytes = b""
    call: ReportedCall | None = None
    notice: str = ""
    prompt: bool = False


class AcpBridge:
    """One connection. `tops`: the paths by which the editor may name the repository, the real one first; none for a
    sandbox without a repository."""

    def __init__(self, tops: tuple[str, ...]) -> None:
        self._tops = tops
        self._asked: dict[str | int, str] = {}  # the editor's requests without an answer: their methods
        self._kinds: dict[str, str] = {}  # of tool calls
        self._noticed = set[str]()

    # -- from the editor ---------------------------------------------------------------------------------------------

    def from_editor(self, line: bytes) -> Passed:
        """Return the messages that follow from a line of the editor."""
        try:
            return self._from_editor(line)
        except (RecursionError, ValueError):
            return Passed(to_editor=_error(None, _PARSE_ERROR, "not a JSON-RPC message"))

    def _from_editor(self, line: bytes) -> Passed:
        message = _message(line)
        if message is None:
            return Passed(to_editor=_error(None, _PARSE_ERROR, "not a JSON-RPC message"))
        message = _without_extensions(message)
        method, id_ = message.get("method"), message.get("id")
        if not isinstance(method, str):  # an answer to a request for permission
            return Passed(to_agent=_line(message))
        if method.startswith("_"):
            return Passed(to_editor=_error(id_, _NOT_FOUND, "not available in a sandbox") if "id" in message else b"")
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        notice = ""
        if method == "initialize":
            message["params"] = _initialize(params)
        elif method in _NEW_SESSION:
            cwd = self._inside(params.get("cwd"))
            if cwd is None:
                place = self._tops[0] if self._tops else "no repository"
                reason = f"the sandbox has a copy of {place}; the session is in {params.get('cwd')!r}"
                return Passed(to_editor=_error(id_, _INVALID_PARAMS, reason), notice=f"{reason}. --repo names another")
            message["params"], notice = self._session(params, cwd)
        elif method == "session/prompt":
            message["params"] = {**params, "prompt": self._inward(params.get("prompt"))}
        elif "cwd" in params:
            message["params"] = {**params, "cwd": self._inside(params["cwd"]) or WORKSPACE}
        if isinstance(id_, (str, int)) and len(self._asked) < MAX_PENDING:
            self._asked[id_] = method
        return Passed(to_agent=_line(message), notice=notice, prompt=method == "session/prompt")

    def _session(self, params: Json, cwd: str) -> tuple[Json, str]:
        """Return the parameters of a session inside. The editor's MCP servers are programs and logins of this machine:
        they stay here."""
        servers = params.get("mcpServers")
        names = [str(one.get("name")) for one in servers if isinstance(one, dict)] if isinstance(servers, list) else []
        more = params.get("additionalDirectories")
        changed = {**params, "cwd": cwd, "mcpServers": []}
        if isinstance(more, list):
            changed["additionalDirectories"] = [path for one in more if (path := self._inside(one)) is not None]
        return changed, f"MCP servers of the editor are not passed on: {', '.join(names)}" if names else ""

    def _inside(self, path: object) -> str | None:
        """Return the path inside of a path on this machine; None outside of the repository."""
        if not isinstance(path, str) or not path.startswith("/"):
            return None
        plain = posixpath.normpath(path)
        for top in self._tops:
            if plain == top or plain.startswith(f"{top}/"):
                return posixpath.normpath(f"{WORKSPACE}/{plain[len(top) :]}")
        return None if self._tops else WORKSPACE

    def _inward(self, value: Any) -> Any:
        """Return a prompt with the URIs of the sandbox. A URI outside of the repository stays: nothing is there."""
        if isinstance(value, list):
            return [self._inward(one) for one in value]
        if not isinstance(value, dict):
            return value
        changed = {key: self._inward(one) for key, one in value.items()}
        uri = changed.get("uri")
        if isinstance(uri, str):
            path, rest = _file_path(uri)
            inside = self._inside(path) if self._tops else None
            if inside is not None:
                changed["uri"] = f"file://{quote(inside)}{rest}"
        return changed

    # -- from the agent ----------------------------------------------------------------------------------------------

    def from_agent(self, line: bytes) -> Passed:
        """Return the messages that follow from a line of the agent."""
        try:
            return self._from_agent(line)
        except (RecursionError, ValueError):  # nested too deeply, or half of a surrogate pair
            return Passed(notice=self._once("a message of the agent was damaged"))

    def _from_agent(self, line: bytes) -> Passed:
        message = _message(line)
        if message is None:
            text = line[:200].decode("utf-8", "replace").strip()
            return Passed(notice=f"not a message of the agent: {text}" if text else "")
        method, id_ = message.get("method"), message.get("id")
        if not isinstance(method, str):
            return self._answer(message, id_)
        if "id" in message and (not isinstance(id_, (str, int)) or isinstance(id_, bool)):
            return Passed(notice=self._once("a request of the agent has no usable ID"))
        if method not in _FROM_AGENT:
            answer = _error(id_, _NOT_FOUND, "not available in a sandbox") if "id" in message else b""
            return Passed(to_agent=answer, notice=self._once(f"the agent's {method[:80]} is not passed to the editor"))
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        update = params.get("update") if method == "session/update" else None
        call = self._call(update) if isinstance(update, dict) else None
        asked = {"id": id_} if "id" in message else {}
        return Passed(
            to_editor=_line({"jsonrpc": "2.0", **asked, "method": method, "params": self._outward(params)}), call=call
        )

    def _answer(self, message: Json, id_: object) -> Passed:
        method = self._asked.pop(id_, None) if isinstance(id_, (str, int)) else None
        if method is None:
            return Passed(notice=self._once("the agent answered a request that was not made"))
        if "error" in message:
            return Passed(to_editor=_line({"jsonrpc": "2.0", "id": id_, "error": self._outward(message["error"])}))
        result = self._outward(message.get("result"))
        if method == "initialize" and isinstance(result, dict):
            # A sign-in method may name a command that the editor runs on this machine. The agent is signed in already.
            result["authMethods"] = []
        return Passed(to_editor=_line({"jsonrpc": "2.0", "id": id_, "result": result}))

    def _once(self, notice: str) -> str:
        if notice in self._noticed or len(self._noticed) > 20:
            return ""
        self._noticed.add(notice)
        return notice

    def _outward(self, value: Any) -> Any:
        """Return a value with the paths of this machine, without extensions (`_meta`), whose effects are unknown."""
        if isinstance(value, list):
            return [one for one in (self._outward(one) for one in value) if one is not _GONE]
        if not isinstance(value, dict):
            return value
        if value.get("type") == "diff" and self._outside(value.get("path")) is None:
            text = f"{value.get('path')} in the sandbox was changed"
            return {"type": "content", "content": {"type": "text", "text": text}}
        if set(value) <= {"path", "line", "_meta"} and "path" in value and self._outside(value["path"]) is None:
            return _GONE  # a location to open, such as /etc/passwd
        changed: Json = {}
        for key, one in value.items():
            if key in _RAW:
                changed[key] = one
            elif key == "path":
                changed[key] = self._outside(one) or f"sandbox:{one}"
            elif key == "cwd":
                changed[key] = self._outside(one) or (self._tops[0] if self._tops else "/")
            elif key == "uri":
                changed[key] = self._outside_uri(one)
            elif key != "_meta":
                changed[key] = self._outward(one)
        return {key: one for key, one in changed.items() if one is not _GONE}

    def _outside(self, path: object) -> str | None:
        """Return the path on this machine of a path inside; None outside of the workspace."""
        if not isinstance(path, str) or not path or not self._tops or "\0" in path or ".." in path.split("/"):
            return None
        plain = posixpath.normpath(path if path.startswith("/") else f"{WORKSPACE}/{path}")
        if plain != WORKSPACE and not plain.startswith(f"{WORKSPACE}/"):
            return None
        return f"{self._tops[0]}{plain[len(WORKSPACE) :]}"

    def _outside_uri(self, uri: object) -> str:
        text = uri if isinstance(uri, str) else ""
        if text.lower().startswith(("https://", "http://")):
            return text
        path, rest = _file_path(text)
        outside = self._outside(path)
        return f"file://{quote(outside)}{rest}" if outside is not None else f"sandbox:{quote(text, safe='/')}"

    def _call(self, update: Json) -> ReportedCall | None:
        """Return the tool call of an update."""
        if update.get("sessionUpdate") not in ("tool_call", "tool_call_update"):
            return None
        id_, title, status = str(update.get("toolCallId"))[:128], update.get("title"), update.get("status")
        if isinstance(update.get("kind"), str) and (id_ in self._kinds or len(self._kinds) < MAX_PENDING):
            self._kinds[id_] = update["kind"]
        ended = status in ("completed", "failed")
        kind = self._kinds.pop(id_, "") if ended else self._kinds.get(id_, "")
        paths = _paths(update) if kind in _WRITES else []
        state = "failed" if status == "failed" else "ended" if ended else "started"
        return reported(id_, " ".join(str(title).split()) if isinstance(title, str) else "", paths, state)


_GONE: Final = object()


def _paths(update: Json) -> list[object]:
    parts: list[object] = []
    for key in ("locations", "content"):
        found = update.get(key)
        parts += found if isinstance(found, list) else []
    return [one.get("path") for one in parts if isinstance(one, dict)]


def _without_extensions(value: Any) -> Any:
    """Return a message of the editor without `_meta`: it may name files, logins or other facts of this machine."""
    if isinstance(value, list):
        return [_without_extensions(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_extensions(one) for key, one in value.items() if key != "_meta"}


def _initialize(params: Json) -> Json:
    """Offer no file system and no terminal of this machine to the agent."""
    known: Json = {key: params[key] for key in ("clientInfo",) if key in params}
    version = params.get("protocolVersion")
    version = min(version, VERSION) if isinstance(version, int) else VERSION
    nothing = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
    return {**known, "protocolVersion": version, "clientCapabilities": nothing}


def _file_path(uri: str) -> tuple[str | None, str]:
    """Return the path of a file URI, and its query and fragment."""
    if not uri.lower().startswith("file://"):
        return None, ""
    rest = uri[len("file://") :]
    end = next((at for at, char in enumerate(rest) if char in "?#"), len(rest))
    host, slash, path = rest[:end].partition("/")
    return (unquote(slash + path), rest[end:]) if host in ("", "localhost") and slash else (None, "")


def _message(line: bytes) -> Json | None:
    try:
        found = _decode(line) if len(line) <= MAX_LINE else None
    except (msgspec.MsgspecError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _line(message: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def _error(id_: object, code: int, text: str) -> bytes:
    return _line({"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": text}})


class LineReader:
    """Splits a stream into lines; a line above the maximum is dropped. `handle` receives each line."""

    def __init__(self, handle: Callable[[bytes], None]) -> None:
        self._handle, self._held, self._dropping = handle, bytearray(), False

    def feed(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            if not self._dropping:
                self._held += line
                if self._held.strip():
                    self._handle(bytes(self._held))
            self._held, self._dropping = bytearray(), False
        if not self._dropping:
            self._held += rest
        if len(self._held) > MAX_LINE:
            self._held, self._dropping = bytearray(), True
