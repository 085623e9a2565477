"""The result of `execute_code`: the same fields in every case, for other systems. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
from msgspec import structs

from skerry.client.create_options import seconds
from skerry.client.results.code import CodeResultBase, CodeValue
from skerry.client.results.command import describe_end
from skerry.errors import InvalidRequest, SandboxUnavailable, ServerUnreachable, SkerryError
from skerry.types import (
    NAME,
    OUTPUT_KEPT,
    SANDBOX_ID,
    VOLUME_ID,
    Answer,
    NetworkAttempt,
    OutputFile,
    SandboxInfo,
    Usage,
    parse_size,
)

DEFAULT_OUTPUT_CHARS = 100_000
# characters of a stream that are always available: a character has up to four bytes
MAX_OUTPUT_CHARS = OUTPUT_KEPT // 4
MAX_CONTENT_BYTES = 1 << 20  # bytes of a file that are included
MAX_TOTAL_CONTENT_BYTES = 8 << 20
MAX_CONTENT_FILES = 100
_MARK = "\n[skerry: output omitted]\n"

DEFAULT_TIMEOUT = 30.0
MIN_TIMEOUT = 1.0
MAX_TIMEOUT = 1e8
NO_EXIT_CODE = -1  # a timeout, an OOM kill, another signal, or code that did not run
_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NO_NAMES = (SANDBOX_ID, VOLUME_ID, re.compile(r"session-[0-9a-f]{32}"))  # the last: derived names

Status = Literal["success", "error", "timeout", "setup_error"]
Stage = Literal["setup", "requested", "started"]  # requested: the server did not confirm the start


class ResourceUsage(Answer, frozen=True, kw_only=True):
    """The resources that the code and all its child processes used, measured from outside, every tenth of a second.
    100 % is one core. None: not measured."""

    execution_time_seconds: float = 0.0
    cpu_seconds: float = 0.0
    cpu_average_percent: float | None = None
    cpu_peak_percent: float | None = None
    memory_start_mb: float | None = None
    memory_peak_mb: float | None = None


class LimitsApplied(Answer, frozen=True, kw_only=True):
    """The limits during the run. If nothing ran, memory and CPU are None."""

    time_limit_seconds: float | None = None
    memory_limit_mb: float | None = None
    cpu_limit_cores: float | None = None
    max_output_chars: int = DEFAULT_OUTPUT_CHARS


class _Fields(Answer, frozen=True, kw_only=True):
    status: Status
    stdout: str = ""
    stderr: str = ""
    exit_code: int = NO_EXIT_CODE
    execution_time: float = 0.0
    error_message: str | None = None
    resource_usage: ResourceUsage = ResourceUsage()
    limits_applied: LimitsApplied = LimitsApplied()
    files: tuple[OutputFile, ...] = ()
    text: str | None = None
    results: tuple[CodeValue, ...] = ()
    denied: tuple[NetworkAttempt, ...] = ()
    truncated: bool = False
    notice: str | None = None


class ExecuteResult(dict[str, Any]):
    """The result as attributes, and as a dictionary of plain values that `json.dumps` accepts.

    `status`: `success`; `timeout`; `error`: the code failed, or the connection broke while it may have run, see
    `error_message`; `setup_error`: nothing ran, see `error_message`, which ends with the remedy if one is known.
    `exit_code` is -1 after a timeout, an out-of-memory kill or another signal, and if nothing ran. `text`: the last
    expression's value, `results`: all values. `denied`: network attempts that were denied. `truncated`: stdout or
    stderr were longer. `notice`: the remedy alone, and other information, such as a restarted session."""

    __slots__ = ("_fields",)
    Usage: ClassVar[type[ResourceUsage]] = ResourceUsage
    Limits: ClassVar[type[LimitsApplied]] = LimitsApplied

    if TYPE_CHECKING:  # attributes are those of _Fields
        status: Status
        stdout: str
        stderr: str
        exit_code: int
        execution_time: float
        error_message: str | None
        resource_usage: ResourceUsage
        limits_applied: LimitsApplied
        files: tuple[OutputFile, ...]
        text: str | None
        results: tuple[CodeValue, ...]
        denied: tuple[NetworkAttempt, ...]
        truncated: bool
        notice: str | None

    def __init__(self, **fields: Any) -> None:
        self._fields = _Fields(**fields)
        plain = structs.replace(self._fields, files=tuple(map(_with_text_names, self._fields.files)))
        super().__init__(msgspec.json.decode(msgspec.json.encode(plain)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also while it is unpickled
            raise AttributeError(name)
        return getattr(self._fields, name)

    def __repr__(self) -> str:
        return repr(self._fields).replace("_Fields", "ExecuteResult", 1)


def _with_text_names(file: OutputFile) -> OutputFile:
    """Return the file with names that JSON can carry; `raw_path` has the bytes of others."""
    target = None if file.target is None else _json_text(file.target)
    return structs.replace(file, path=_json_text(file.path), name=_json_text(file.name), target=target)


def _json_text(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def check_timeout(timeout: float | None) -> float:
    """Return the time limit; None is the default."""
    limit = seconds(DEFAULT_TIMEOUT if timeout is None else timeout)
    if limit is None or not MIN_TIMEOUT <= limit <= MAX_TIMEOUT:
        raise InvalidRequest(
            f"timeout: {repr(timeout)[:80]} is out of range", hint=f"from 1 to {MAX_TIMEOUT:,.0f} seconds"
        )
    return limit


def timeout_in_force(timeout: float, most: float | None) -> float:
    """Return the time limit on a server with that maximum. The maximum lowers the default; a higher timeout is
    rejected."""
    if most is None or timeout <= most:
        return timeout
    if timeout == DEFAULT_TIMEOUT:
        return most
    raise InvalidRequest(
        f"timeout: {timeout:g} s is more than this server's maximum of {most:g} s (max.timeout)",
        hint=f"use a timeout of at most {most:g}",
    )


def validate_session_id(session_id: str) -> str:
    if not isinstance(session_id, str) or not _SESSION_ID.fullmatch(session_id):
        raise InvalidRequest(
            f"session_id: {str(session_id)[:80]!r} is not allowed", hint="1 to 64 letters, digits, '_' and '-'"
        )
    return session_id


def session_name(session_id: str) -> str:
    """Return the name of a session's sandbox: the id itself or, if it cannot be a name, a name derived from it."""
    validate_session_id(session_id)
    if NAME.fullmatch(session_id) and not any(form.fullmatch(session_id) for form in _NO_NAMES):
        return session_id
    return f"session-{hashlib.sha256(session_id.encode()).hexdigest()[:32]}"


def check_chars(most: int) -> None:
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MAX_OUTPUT_CHARS:
        raise InvalidRequest(
            f"max_output_chars: {most!r} is out of range",
            hint=f"between 1 and {MAX_OUTPUT_CHARS:,}; sandbox.code.stream() gives all of an output",
        )


def limits_of(info: SandboxInfo, limits: LimitsApplied) -> LimitsApplied:
    """Return the sandbox's actual limits together with those of the call."""
    memory = info.limits.memory
    return structs.replace(
        limits,
        memory_limit_mb=None if memory is None else parse_size(memory) / (1 << 20),
        cpu_limit_cores=info.limits.cpus,
    )


def shortened(text: str, most: int) -> str:
    """Return head and tail of a text with a mark between them, in at most that many characters."""
    if len(text) <= most:
        return text
    room = most - len(_MARK)
    if room <= 0:
        return text[:most]
    return text[: room - room // 2] + _MARK + text[len(text) - room // 2 :]


def execute_result(
    result: CodeResultBase,
    limits: LimitsApplied,
    files: tuple[OutputFile, ...],
    hint: str | None,
    problems: Sequence[str | None] = (),
) -> ExecuteResult:
    """Return the result of code that ran to its end. `problems`: those after the end."""
    most = limits.max_output_chars
    notices = [notice for notice in (result.lost, None if result.ok else hint, *problems) if notice]
    stderr = _with_traceback(result)
    return ExecuteResult(
        status="success" if result.ok else "timeout" if result.timed_out else "error",
        stdout=shortened(result.stdout, most),
        stderr=shortened(stderr, most),
        exit_code=_exit_code(result),
        execution_time=result.duration_s,
        error_message=None if result.ok else _with_remedy(_how(result, limits), _remedy(result, limits, hint)),
        resource_usage=_usage(result.usage, result.duration_s),
        limits_applied=limits,
        files=files,
        text=result.text,
        results=result.results,
        denied=result.denied,
        truncated=result.truncated or max(len(result.stdout), len(stderr)) > most,
        notice="; ".join(notices) or None,
    )


def failed_result(error: Exception, limits: LimitsApplied, stage: Stage = "setup") -> ExecuteResult:
    """Return the result of code that was not run, or whose result is lost. Errors that are not of Skerry come from
    objects of the caller, such as a generator in `files`."""
    failed = may_have_run(error, stage)
    if not isinstance(error, SkerryError):
        error = SkerryError(f"{type(error).__name__}: {error}")
    message = _with_remedy(error.message, error.hint).encode("utf-8", "replace").decode()
    status = "error" if failed else "setup_error"
    return ExecuteResult(status=status, error_message=message, limits_applied=limits, notice=error.hint)


def may_have_run(error: Exception, stage: Stage) -> bool:
    """Return whether the code may have been started: then a caller must not run it again. An error that the server
    sends instead of a start is a refusal, except one without a known code."""
    if isinstance(error, SandboxUnavailable) or stage == "started":
        return True
    if stage == "setup":
        return False
    refusal = isinstance(error, SkerryError) and type(error) is not SkerryError
    return not refusal or isinstance(error, ServerUnreachable)


def message_without_remedy(result: ExecuteResult) -> str | None:
    """Return the error message without the remedy that `notice` has too."""
    if result.error_message is None or not result.notice:
        return result.error_message
    return result.error_message.removesuffix(f"; {result.notice}")


def _with_remedy(message: str, remedy: str | None) -> str:
    return message if not remedy or remedy in message else f"{message}; {remedy}"


def _exit_code(result: CodeResultBase) -> int:
    """Return an integer in all cases. A shell reports the out-of-memory kill of its command as its own exit code."""
    killed = result.timed_out or (result.oom_killed and not result.ok)
    return NO_EXIT_CODE if killed or result.exit_code is None else result.exit_code


def _remedy(result: CodeResultBase, limits: LimitsApplied, hint: str | None) -> str | None:
    """Return the next step in the words of `execute_code`."""
    if result.timed_out:
        return "use a larger timeout=, at most the operator's max.timeout"
    if result.oom_killed:
        above = "" if limits.memory_limit_mb is None else f" above {limits.memory_limit_mb:g} MiB"
        return f"use less memory, or limits=Limits(memory=…){above}"
    return hint or (result.hint if result.denied else None)


def _usage(usage: Usage, duration_s: float) -> ResourceUsage:
    average = 100 * usage.cpu_s / duration_s if duration_s > 0 else None
    return ResourceUsage(
        execution_time_seconds=duration_s,
        cpu_seconds=usage.cpu_s,
        cpu_average_percent=average,
        cpu_peak_percent=None if average is None else max(average, usage.cpu_peak_percent or 0.0),
        memory_start_mb=_megabytes(usage.memory_start),
        memory_peak_mb=_megabytes(usage.memory_peak),
    )


def _megabytes(size: int | None) -> float | None:
    return None if size is None else size / (1 << 20)


def _time_limit(result: CodeResultBase, limits: LimitsApplied) -> float:
    """Return the limit that ended the run: the operator's maximum may be lower than the requested one."""
    asked = limits.time_limit_seconds or result.duration_s
    return asked if result.duration_s >= asked or not result.duration_s else round(result.duration_s, 1)


def _with_traceback(result: CodeResultBase) -> str:
    """Return stderr, with the traceback that a kernel reports apart from the streams."""
    traceback = result.error.traceback.strip() if result.error is not None else ""
    if not traceback or traceback in result.stderr:
        return result.stderr
    return result.stderr + ("" if result.stderr.endswith("\n") or not result.stderr else "\n") + traceback + "\n"


def _how(result: CodeResultBase, limits: LimitsApplied) -> str:
    if result.timed_out:
        return f"it timed out after {_time_limit(result, limits):g} s"
    if result.oom_killed:
        return "it ran out of memory"
    if result.error is None:
        return f"it {describe_end(result)}"
    what = f"{result.error.name}: {result.error.message}" if result.error.message else result.error.name
    return what if result.error.line is None else f"{what} (line {result.error.line})"
