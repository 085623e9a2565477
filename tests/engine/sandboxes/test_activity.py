"""Active processes and their waiters; nothing is kept for waiters that left."""

from __future__ import annotations

import asyncio

from skerry.engine.sandboxes.activity import MAX_OOM_VERDICTS, Activity


async def test_waiters_are_notified_and_cancelled_ones_are_removed() -> None:
    work = Activity()
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


async def test_end_of_the_sandbox_is_not_an_exit_of_the_process() -> None:
    work = Activity()
    work.started("p-a")
    waiting = work.end_of("p-a")
    work.clear()
    assert waiting.cancelled()
    assert work.running == set()


async def test_oom_kill_is_certain_only_for_a_single_process() -> None:
    work = Activity()
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


async def test_processes_found_at_startup_are_never_certainly_alone() -> None:
    work = Activity()
    work.set_running(["p-a"])
    assert work.end("p-a", lambda: 1) is None
    work.set_running(["p-b"])
    assert work.running == {"p-b"}
    assert work.end("p-b", lambda: 0) is False


async def test_number_of_old_verdicts_is_bounded() -> None:
    work = Activity()
    for number in range(2 * MAX_OOM_VERDICTS):
        work.begin(f"p-{number}", 0)
        work.end(f"p-{number}", lambda: 0)
    assert len(work._oom_verdicts) == MAX_OOM_VERDICTS


async def test_idle_kernel_is_not_active_but_can_be_the_oom_victim() -> None:
    work = Activity()
    work.begin("p-kernel", 0)
    work.started("p-kernel")
    assert work.busy
    assert work.end("p-kernel", lambda: 0) is False
    work.mark_resting("p-kernel")
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
    work.mark_resting("p-kernel")
    work.ended("p-kernel")
    work.begin("p-d", 3)
    assert work.end("p-d", lambda: 4) is True, "a kernel that has ended is nobody's excuse"


async def test_kernels_found_at_startup_do_not_make_verdicts_uncertain() -> None:
    work = Activity()
    work.set_running(["p-kernel"])
    work.mark_resting("p-kernel")
    work.set_running(["p-kernel"])
    assert not work.busy
    work.begin("p-a", 0)
    assert work.end("p-a", lambda: 1, killed=True) is True
