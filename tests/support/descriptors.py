"""How many descriptors this process has. Threads that other tests have left may hold one for a moment."""

from __future__ import annotations

import gc
import os
import time

WITHIN_S = 20.0


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def left_over(before: int) -> int:
    """Return the number of additional descriptors: 0 as soon as there are none, else the number at the timeout."""
    end = time.monotonic() + WITHIN_S
    while (more := descriptors() - before) > 0 and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    return max(more, 0)
