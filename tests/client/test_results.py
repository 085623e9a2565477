"""Results: bounded output with its head and tail, the truth about how a command ended, the errors of check=True."""

from __future__ import annotations

import pytest

from skerry.client.results.command import OutputCollector, check_result
from skerry.codecs.output import HeadAndTail
from skerry.errors import CommandFailed, CommandTimeout
from skerry.types import OUTPUT_KEPT, Result, RunResult


def ended(**how: object) -> RunResult:
    return RunResult(**{"id": "p-1", "exit_code": 0, "duration_s": 0.5, **how})  # type: ignore[arg-type]


def test_output_within_the_bound_is_complete() -> None:
    kept = HeadAndTail(10)
    for piece in (b"", b"012", b"3456789"):
        kept.add(piece)
    assert (kept.value(), kept.omitted) == (b"0123456789", 0)


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_output_beyond_the_bound_keeps_head_and_tail_with_a_marked_gap(size: int) -> None:
    kept = HeadAndTail(10)
    data = b"".join(b"%02d" % number for number in range(50))
    for at in range(0, len(data), size):
        kept.add(data[at : at + size])
    assert kept.omitted == 90
    assert kept.value() == data[:5] + b"\n[skerry: 90 bytes left out here]\n" + data[-5:]


def test_memory_is_constant_for_any_output() -> None:
    kept = HeadAndTail()
    for _ in range(64):
        kept.add(b"x" * OUTPUT_KEPT)
    assert len(kept.value()) < OUTPUT_KEPT + 100
    assert kept.omitted == 63 * OUTPUT_KEPT


def test_streams_are_separate_and_truncation_is_in_the_result() -> None:
    gathered = OutputCollector()
    gathered.add("stderr", b"bad\xff")
    gathered.add("stdout", b"x" * (OUTPUT_KEPT + 1))
    result = gathered.result(ended())
    assert result.stderr_bytes == b"bad\xff"
    assert result.stderr == "bad\ufffd"
    assert result.truncated
    assert "[skerry: 1 bytes left out here]" in result.stdout


def test_hint_names_the_argument_to_change() -> None:
    assert "--timeout" in (OutputCollector().result(ended(timed_out=True, exit_code=None)).hint or "")
    assert "--memory" in (OutputCollector().result(ended(oom_killed=True, exit_code=None)).hint or "")
    assert OutputCollector().result(ended(oom_killed=None)).hint is None
    assert OutputCollector().result(ended(timed_out=True, hint="the server's")).hint == "the server's"


def test_check_returns_a_successful_result() -> None:
    result = Result(id="p", exit_code=0)
    assert check_result(result, "true") is result


def test_check_raises_with_the_result_and_the_last_output() -> None:
    result = Result(id="p", exit_code=3, stderr_bytes=b"no such thing\n")
    with pytest.raises(CommandFailed, match=r"'make all' ended with exit code 3\nno such thing") as caught:
        check_result(result, ["make", "all"])
    assert caught.value.result is result


def test_check_distinguishes_a_signal_and_a_timeout() -> None:
    with pytest.raises(CommandFailed, match="killed by SIGKILL"):
        check_result(Result(id="p", exit_code=None, signal="KILL"), "x")
    with pytest.raises(CommandTimeout, match="timed out") as caught:
        check_result(Result(id="p", exit_code=None, signal="KILL", timed_out=True, duration_s=2), "x")
    assert isinstance(caught.value, TimeoutError)
