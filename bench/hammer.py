"""python -m bench.hammer SANDBOX: run commands with 32 threads until a line comes on stdin; print the rate."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from bench.crowd import THREADS
from skerry import Sandbox


def main() -> None:
    sandbox, end = Sandbox.get(sys.argv[1]), Event()

    def work(_: int) -> int:
        done = 0
        while not end.is_set():
            sandbox.run(["/bin/true"])
            done += 1
        return done

    with ThreadPoolExecutor(THREADS) as pool:
        start = time.perf_counter()
        counts = pool.map(work, range(THREADS))
        print("running", flush=True)
        sys.stdin.readline()
        end.set()
        print(sum(counts) / (time.perf_counter() - start))


if __name__ == "__main__":
    main()
