"""What is at work: who waits for whom, and nothing is remembered of those who left."""

from __future__ import annotations

import asyncio

from skerry.engine.work import VERDICTS_MOST, Work


async def test_those_who_wait_are_told_and_those_who_left_are_forgotten() -> None:
    work = Work()
    work.started("p-a")
    told, left = work.end_of("p-a"), work.end_of("p-a")
    left.cancel()
    work.ended("p-a")
    assert await told is None
    for number in range(1000):
        work.end_of(f"p-{number}").cancel()
    await work_is_done()
    assert work._waiting == {}


async def work_is_done() -> None:
    """Callbacks of futures come with the loop's next turn."""
    await asyncio.sleep(0)


async def test_an_end_of_the_sandbox_is_no_end_of_the_process() -> None:
    work = Work()
    work.started("p-a")
    waiting = work.end_of("p-a")
    work.over()
    assert waiting.cancelled()
    assert work.running == set()


async def test_a_kill_is_certain_only_for_one_that_was_alone() -> None:
    work = Work()
    work.begin("p-a", 0)
    assert work.end("p-a", lambda: 1) is True
    work.begin("p-b", 1)
    work.begin("p-c", 1)
    assert work.end("p-b", lambda: 2) is None
    assert work.end("p-c", lambda: 2) is None
    work.begin("p-d", 2)
    assert work.end("p-d", lambda: 2) is False
    work.left_behind = True
    work.begin("p-e", 2)
    assert work.end("p-e", lambda: 3) is None
    assert work.end("p-a", lambda: 99) is True, "the first answer stands"
    assert work.end("p-unknown", lambda: 0) is None


async def test_what_a_starting_server_finds_at_work_was_never_alone_for_certain() -> None:
    work = Work()
    work.found(["p-a"])
    assert work.end("p-a", lambda: 1) is None
    work.found(["p-b"])
    assert work.running == {"p-b"}
    assert work.end("p-b", lambda: 0) is False


async def test_little_is_remembered_of_what_is_long_ago() -> None:
    work = Work()
    for number in range(2 * VERDICTS_MOST):
        work.begin(f"p-{number}", 0)
        work.end(f"p-{number}", lambda: 0)
    assert len(work._verdicts) == VERDICTS_MOST


async def test_a_kernel_that_rests_is_not_at_work_and_may_be_the_one_that_was_killed() -> None:
    work = Work()
    work.begin("p-kernel", 0)
    work.started("p-kernel")
    assert work.busy
    assert work.end("p-kernel", lambda: 0) is False
    work.rest("p-kernel")
    assert not work.busy
    work.begin("p-a", 0)
    assert work.end("p-a", lambda: 1) is None, "it may have been the kernel"
    work.begin("p-b", 1)
    assert work.end("p-b", lambda: 2, killed=True) is True
    work.begin("p-kernel", 2)
    assert work.busy
    work.begin("p-c", 2)
    assert work.end("p-c", lambda: 3, killed=True) is None, "two were at work"
    work.end("p-kernel", lambda: 3)
    work.rest("p-kernel")
    work.ended("p-kernel")
    work.begin("p-d", 3)
    assert work.end("p-d", lambda: 4) is True, "a kernel that has ended is nobody's excuse"


async def test_kernels_that_a_starting_server_finds_do_not_make_others_uncertain() -> None:
    work = Work()
    work.found(["p-kernel"])
    work.rest("p-kernel")
    work.found(["p-kernel"])
    assert not work.busy
    work.begin("p-a", 0)
    assert work.end("p-a", lambda: 1, killed=True) is True
