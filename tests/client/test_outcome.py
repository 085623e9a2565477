"""Results: bounded output with its head and tail, the truth about how a command ended, the errors of check=True."""

from __future__ import annotations

import pytest

from skerry.client.outcome import Gathered, Kept, checked
from skerry.errors import CommandFailed, CommandTimeout
from skerry.types import OUTPUT_KEPT, Result, RunResult


def ended(**how: object) -> RunResult:
    return RunResult(**{"id": "p-1", "exit_code": 0, "duration_s": 0.5, **how})  # type: ignore[arg-type]


def test_output_within_the_bound_is_kept_whole() -> None:
    kept = Kept(10)
    for piece in (b"", b"012", b"3456789"):
        kept.add(piece)
    assert (kept.value(), kept.omitted) == (b"0123456789", 0)


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_beyond_the_bound_head_and_tail_stay_and_the_gap_is_marked(size: int) -> None:
    kept = Kept(10)
    data = b"".join(b"%02d" % number for number in range(50))
    for at in range(0, len(data), size):
        kept.add(data[at : at + size])
    assert kept.omitted == 90
    assert kept.value() == data[:5] + b"\n[skerry: 90 bytes left out here]\n" + data[-5:]


def test_memory_stays_flat_however_much_comes() -> None:
    kept = Kept()
    for _ in range(64):
        kept.add(b"x" * OUTPUT_KEPT)
    assert len(kept.value()) < OUTPUT_KEPT + 100
    assert kept.omitted == 63 * OUTPUT_KEPT


def test_streams_stay_apart_and_truncation_shows_in_the_result() -> None:
    gathered = Gathered()
    gathered.add("stderr", b"bad\xff")
    gathered.add("stdout", b"x" * (OUTPUT_KEPT + 1))
    result = gathered.result(ended())
    assert result.stderr_bytes == b"bad\xff"
    assert result.stderr == "bad\ufffd"
    assert result.truncated
    assert "[skerry: 1 bytes left out here]" in result.stdout


def test_a_hint_names_what_would_change_it() -> None:
    assert "--timeout" in (Gathered().result(ended(timed_out=True, exit_code=None)).hint or "")
    assert "--memory" in (Gathered().result(ended(oom_killed=True, exit_code=None)).hint or "")
    assert Gathered().result(ended(oom_killed=None)).hint is None
    assert Gathered().result(ended(timed_out=True, hint="the server's")).hint == "the server's"


def test_check_gives_a_good_result_back() -> None:
    result = Result(id="p", exit_code=0)
    assert checked(result, "true") is result


def test_check_raises_with_the_result_and_the_last_words() -> None:
    result = Result(id="p", exit_code=3, stderr_bytes=b"no such thing\n")
    with pytest.raises(CommandFailed, match=r"'make all' ended with exit code 3\nno such thing") as caught:
        checked(result, ["make", "all"])
    assert caught.value.result is result


def test_check_tells_a_signal_and_a_time_out_apart() -> None:
    with pytest.raises(CommandFailed, match="ended by SIGKILL"):
        checked(Result(id="p", exit_code=None, signal="KILL"), "x")
    with pytest.raises(CommandTimeout, match="ran out of time") as caught:
        checked(Result(id="p", exit_code=None, signal="KILL", timed_out=True, duration_s=2), "x")
    assert isinstance(caught.value, TimeoutError)
