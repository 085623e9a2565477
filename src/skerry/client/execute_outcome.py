"""What `execute_code` answers: the same fields for other systems, whatever happened, and each of them true. Pure."""

from __future__ import annotations

from typing import Literal

from skerry.client.code_outcome import CodeOutcome, CodeValue
from skerry.client.outcome import how_it_ended
from skerry.errors import InvalidRequest, SkerryError
from skerry.types import OUTPUT_KEPT, Answer, SandboxInfo, parse_size

OUTPUT_CHARS = 100_000
OUTPUT_CHARS_MOST = OUTPUT_KEPT // 4  # so many characters of a stream are there in any case: one has up to four bytes
CONTENT_MOST = 1 << 20  # bytes of a file that come along
CONTENTS_MOST = 8 << 20
CONTENT_FILES_MOST = 100
_MARK = "\n[skerry: more was printed, and is left out here]\n"

Status = Literal["success", "timeout", "execution_error", "setup_error"]


class ResourceUsage(Answer, frozen=True, kw_only=True):
    """What the code used, as it was measured from outside, with all that it started; of a process beside the one that
    runs it, what memory it had for less than a tenth of a second may be missed. None: it could not be measured."""

    execution_time_seconds: float = 0.0
    memory_peak_mb: float | None = None
    cpu_seconds: float = 0.0


class LimitsApplied(Answer, frozen=True, kw_only=True):
    """What held while it ran. None: no limit of time; where nothing could be run, that there was nothing to limit."""

    time_limit_seconds: float | None = None
    memory_limit_mb: float | None = None
    cpu_limit_cores: float | None = None
    max_output_chars: int = OUTPUT_CHARS


class ExecutedFile(Answer, frozen=True, kw_only=True):
    """A file that the code made or changed. `content`: None where it is too large to come along (1 MiB; 8 MiB in all),
    or was gone again."""

    path: str
    size: int
    media_type: str
    content: bytes | None = None


class ExecuteResult(Answer, frozen=True, kw_only=True):
    """`status`: `success`; `timeout`; `execution_error`, the code failed, and `error_message` says how; `setup_error`,
    nothing of it was run, and `error_message` says why. `text`: the last expression's value, `results` all values.
    `truncated`: stdout or stderr were longer. `notice`: what else there is to know, such as that a session began anew.
    """

    status: Status
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    execution_time: float = 0.0
    error_message: str | None = None
    resource_usage: ResourceUsage = ResourceUsage()
    limits_applied: LimitsApplied = LimitsApplied()
    files: tuple[ExecutedFile, ...] = ()
    text: str | None = None
    results: tuple[CodeValue, ...] = ()
    truncated: bool = False
    notice: str | None = None


def check_chars(most: int) -> None:
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= OUTPUT_CHARS_MOST:
        raise InvalidRequest(
            f"max_output_chars: {most!r} is out of range",
            hint=f"between 1 and {OUTPUT_CHARS_MOST:,}; sandbox.code.stream() gives all of an output",
        )


def limits_of(info: SandboxInfo, limits: LimitsApplied) -> LimitsApplied:
    """Those of the sandbox, as they really are, beside those of the call."""
    memory = info.limits.memory
    return LimitsApplied(
        time_limit_seconds=limits.time_limit_seconds,
        memory_limit_mb=None if memory is None else parse_size(memory) / (1 << 20),
        cpu_limit_cores=info.limits.cpus,
        max_output_chars=limits.max_output_chars,
    )


def shortened(text: str, most: int) -> str:
    """Its head and its tail, with a mark between them: at most so many characters with it."""
    if len(text) <= most:
        return text
    room = most - len(_MARK)
    if room <= 0:
        return text[:most]
    return text[: room - room // 2] + _MARK + text[len(text) - room // 2 :]


def executed(
    result: CodeOutcome, limits: LimitsApplied, files: tuple[ExecutedFile, ...], hint: str | None
) -> ExecuteResult:
    most, peak = limits.max_output_chars, result.usage.memory_peak
    notices = [told for told in (result.lost, None if result.ok else hint) if told]
    return ExecuteResult(
        status="success" if result.ok else "timeout" if result.timed_out else "execution_error",
        stdout=shortened(result.stdout, most),
        stderr=shortened(result.stderr, most),
        exit_code=result.exit_code,
        execution_time=result.duration_s,
        error_message=None if result.ok else _how(result, limits),
        resource_usage=ResourceUsage(
            execution_time_seconds=result.duration_s,
            memory_peak_mb=None if peak is None else peak / (1 << 20),
            cpu_seconds=result.usage.cpu_s,
        ),
        limits_applied=limits,
        files=files,
        text=result.text,
        results=result.results,
        truncated=result.truncated or max(len(result.stdout), len(result.stderr)) > most,
        notice="; ".join(notices) or None,
    )


def not_set_up(error: SkerryError, limits: LimitsApplied) -> ExecuteResult:
    return ExecuteResult(status="setup_error", error_message=error.message, limits_applied=limits, notice=error.hint)


def _how(result: CodeOutcome, limits: LimitsApplied) -> str:
    if result.timed_out:
        return f"it ran out of time after {limits.time_limit_seconds or result.duration_s:g} s"
    if result.oom_killed:
        return "it ran out of memory"
    if result.error is None:
        return f"it {how_it_ended(result)}"
    return f"{result.error.name}: {result.error.message}" if result.error.message else result.error.name
