"""Tools for models: definitions for the APIs of OpenAI and Anthropic, and the calls carried out in a sandbox.

    tools = SandboxTools(sandbox)
    client.messages.create(model=…, messages=messages, tools=tools.anthropic())
    messages += tools.anthropic_results(reply.content)

It needs no package beside Skerry: definitions are dictionaries, and replies are read by their attributes or keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from skerry import Conflict, FileExists, InvalidRequest, NotFound, Result, Sandbox, Session, SkerryError
from skerry.errors import FileError, FileIsDirectory
from skerry.integrations.output import exit_code
from skerry.mcp.text import shorten

Json = dict[str, Any]

_SESSION = "tools"
_EDITOR = "str_replace_based_edit_tool"
_VIEWED = 2000  # lines that `view` shows without a range


def _schema(required: str, **properties: Json) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


_TEXT: Json = {"type": "string"}
_DESCRIPTIONS = {
    "bash": (
        "Run a command in a bash session of an isolated Linux machine. The working directory, variables and files stay "
        "between calls. The result has the exit code and the output."
    ),
    _EDITOR: (
        "View, create and edit text files in the sandbox. `view` shows a file with line numbers, or a directory; "
        "`create` writes a new file; `str_replace` replaces a text that occurs exactly once; "
        "`insert` adds text after a line."
    ),
    "code_execution": (
        "Run Python code in the sandbox and return its output and the value of its last line. Variables and imports "
        "stay between calls."
    ),
}
_PARAMETERS = {
    "bash": _schema(
        "",
        command={"type": "string", "description": "The command to run."},
        restart={"type": "boolean", "description": "Discard the session and start a new one."},
    ),
    _EDITOR: _schema(
        "command path",
        command={"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
        path={"type": "string", "description": "Absolute path, or relative to the working directory."},
        file_text=_TEXT,
        old_str=_TEXT,
        new_str=_TEXT,
        insert_line={"type": "integer", "description": "The line after which to insert; 0 is the start of the file."},
        insert_text=_TEXT,
        view_range={"type": "array", "items": {"type": "integer"}, "description": "First and last line; -1: the end."},
    ),
    "code_execution": _schema("code", code={"type": "string", "description": "Python code."}),
}
_NATIVE = {"bash": "bash_20250124", _EDITOR: "text_editor_20250728"}  # types that Anthropic's models are trained on


class SandboxTools:
    """The tools `bash`, `str_replace_based_edit_tool` and `code_execution` of a sandbox.

    A failed command, a wrong argument and a denied path are texts for the model. Errors of the sandbox itself, such as
    ServerUnreachable, are raised. `max_output`: characters of a result; `timeout`: seconds of a call.
    """

    def __init__(self, sandbox: Sandbox, *, timeout: float = 120, max_output: int = 16_000) -> None:
        self.sandbox = sandbox
        self._timeout = timeout
        self._max_output = max_output
        self._session: Session | None = None
        self._calls: dict[str, Callable[[Json], str]] = {
            "bash": self._bash, _EDITOR: self._edit, "code_execution": self._code
        }  # fmt: skip

    def openai(self) -> list[Json]:
        """Return the definitions for `chat.completions.create(tools=…)`."""
        return [
            {"type": "function", "function": {"name": name, "description": text, "parameters": _PARAMETERS[name]}}
            for name, text in _DESCRIPTIONS.items()
        ]

    def openai_responses(self) -> list[Json]:
        """Return the definitions for `responses.create(tools=…)`."""
        return [
            {"type": "function", "name": name, "description": text, "parameters": _PARAMETERS[name], "strict": False}
            for name, text in _DESCRIPTIONS.items()
        ]

    def anthropic(self, *, native: bool = True) -> list[Json]:
        """Return the definitions for `messages.create(tools=…)`. `native`: bash and the editor as Anthropic's own tool
        types, which the models know; False: all as plain tools, for other servers of that API."""
        return [
            {"type": _NATIVE[name], "name": name}
            if native and name in _NATIVE
            else {"name": name, "description": text, "input_schema": _PARAMETERS[name]}
            for name, text in _DESCRIPTIONS.items()
        ]

    def call(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Carry out one call and return the text for the model. `arguments`: a mapping, or JSON as OpenAI sends it."""
        return self._answer(name, arguments)[0]

    def openai_results(self, message: Any) -> list[Json]:
        """Carry out all tool calls of a chat message and return the messages to append after it."""
        return [
            {"role": "tool", "tool_call_id": _get(call, "id"), "content": self.call(*_function(call))}
            for call in _get(message, "tool_calls") or []
        ]

    def openai_responses_results(self, output: Iterable[Any]) -> list[Json]:
        """Carry out all function calls of a response's `output` and return the input items to append after it."""
        return [
            {
                "type": "function_call_output",
                "call_id": _get(item, "call_id"),
                "output": self.call(_get(item, "name"), _get(item, "arguments")),
            }
            for item in output
            if _get(item, "type") == "function_call"
        ]

    def anthropic_results(self, content: Iterable[Any]) -> list[Json]:
        """Carry out all tool uses of a reply's `content`; return the user message to append, if any."""
        results = []
        for block in content:
            if _get(block, "type") == "tool_use":
                text, failed = self._answer(_get(block, "name"), _get(block, "input"))
                results.append(
                    {"type": "tool_result", "tool_use_id": _get(block, "id"), "content": text, "is_error": failed}
                )
        return [{"role": "user", "content": results}] if results else []

    def _answer(self, name: str, arguments: str | Mapping[str, Any]) -> tuple[str, bool]:
        """Return the text for the model and whether the call itself was wrong."""
        try:
            text, failed = self._calls[_known(name, self._calls)](_arguments(arguments)), False
        except (InvalidRequest, Conflict, FileError, NotFound) as error:
            text, failed = f"error: {error}", True
            self._check_alive(error)
        return shorten(text, self._max_output)[0], failed

    def _check_alive(self, error: SkerryError) -> None:
        """Raise the error of a sandbox that is gone: the model can do nothing about it."""
        if isinstance(error, NotFound):
            self.sandbox.info()

    def _bash(self, given: Json) -> str:
        restart = given.get("restart", False)
        if restart is True:
            if self._session is not None:
                self._session.close()
                self._session = None
            if "command" not in given:
                return "the session was restarted"
        if self._session is None:
            self._session = self.sandbox.session(_SESSION)
        return self._described(self._session.run(_text(given, "command"), timeout=self._timeout))

    def _described(self, result: Result) -> str:
        lines = [part for part in (result.stdout.rstrip("\n"), result.stderr.rstrip("\n")) if part]
        if result.timed_out:
            lines.append(f"timed out after {self._timeout:g} s; the command was ended")
        elif not result.ok:
            lines.append(f"exit code {exit_code(result)}")
        if result.oom_killed:
            lines.append("processes were ended because the memory limit was reached")
        if result.denied:
            lines.append("network access was denied; only the operator of this program can allow hosts")
        return "\n".join(lines) or "(no output)"

    def _code(self, given: Json) -> str:
        result = self.sandbox.code.run(_text(given, "code"), timeout=self._timeout)
        parts = [result.stdout.rstrip("\n"), result.stderr.rstrip("\n")]
        parts += [value.text for value in result.results if value.text]
        if result.error is not None:
            parts.append(result.error.traceback or f"{result.error.name}: {result.error.message}")
        parts += [f"file: {file.path} ({file.size} bytes)" for file in result.files]
        if result.timed_out:
            parts.append(f"timed out after {self._timeout:g} s; the code was interrupted")
        if result.lost is not None:
            parts.append(f"earlier variables are lost: {result.lost}")
        return "\n".join(part for part in parts if part) or "(no output)"

    def _edit(self, given: Json) -> str:
        command, path = _text(given, "command"), _text(given, "path")
        files = self.sandbox.files
        if command == "view":
            return self._view(path, given.get("view_range"))
        if command == "create":
            if files.exists(path):
                raise FileExists(f"{path}: already exists", hint="use str_replace, or remove it first")
            files.write(path, _text(given, "file_text"))
            return f"{path} was created"
        if command == "str_replace":
            found = files.replace(path, _text(given, "old_str"), given.get("new_str") or "")
            return f"{path} was edited in line {found.lines[0]}" if found.lines else f"{path} was edited"
        if command == "insert":
            return self._insert(path, given)
        raise InvalidRequest(f"command: {command!r} is unknown", hint="view, create, str_replace or insert")

    def _view(self, path: str, wanted: object) -> str:
        files = self.sandbox.files
        start, end = _lines(wanted)
        try:
            part = files.read_lines(path, start, end if end is not None else start + _VIEWED - 1)
        except FileIsDirectory:
            entries = files.list(path, depth=2, hidden=False)
            return "\n".join(f"{entry.path}{'/' if entry.type == 'directory' else ''}" for entry in entries)
        numbered = [f"{number:6}\t{line}" for number, line in enumerate(part.lines, part.start)]
        if part.more and end is None:
            numbered.append(f"(the file continues; continue with view_range [{part.end + 1}, -1])")
        return "\n".join(numbered) or "(empty)"

    def _insert(self, path: str, given: Json) -> str:
        line, text = given.get("insert_line"), given.get("insert_text", given.get("new_str"))
        if isinstance(line, bool) or not isinstance(line, int) or line < 0 or not isinstance(text, str):
            raise InvalidRequest("insert needs `insert_line` (0 or more) and `insert_text`")
        files = self.sandbox.files
        lines = files.read_text(path).splitlines(keepends=True)
        if line > len(lines):
            raise InvalidRequest(f"insert_line: {path} has only {len(lines)} lines")
        if lines and line == len(lines) and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        lines.insert(line, text if text.endswith("\n") else f"{text}\n")
        files.write(path, "".join(lines))
        return f"{path} was edited after line {line}"


def _known(name: object, names: Iterable[str]) -> str:
    if not isinstance(name, str) or name not in names:
        raise InvalidRequest(f"tool {name!r} not found", hint=", ".join(names))
    return name


def _arguments(given: object) -> Json:
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except (ValueError, RecursionError):
            raise InvalidRequest("the arguments are not valid JSON") from None
    if not isinstance(given, Mapping):
        raise InvalidRequest("the arguments are not an object")
    return dict(given)


def _text(given: Json, name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{name}: a string is needed")
    return value


def _lines(wanted: object) -> tuple[int, int | None]:
    """Return the first and last line of a `view_range`; None: as many as are shown by default."""
    if wanted is None:
        return 1, None
    if not isinstance(wanted, list) or len(wanted) != 2 or not all(type(number) is int for number in wanted):
        raise InvalidRequest("view_range: two line numbers are needed", hint="like [1, 50]; -1 is the last line")
    first, last = wanted
    if first < 1 or (last != -1 and last < first):
        raise InvalidRequest(f"view_range: {wanted} is not a range of lines", hint="like [1, 50]")
    return first, None if last == -1 else last


def _function(call: Any) -> tuple[str, str]:
    function = _get(call, "function")
    return _get(function, "name"), _get(function, "arguments")


def _get(value: Any, name: str) -> Any:
    """Return a field of an SDK's object or of a dictionary."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
