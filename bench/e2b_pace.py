# mypy: ignore-errors
"""A program for the SDK of E2B, or of Skerry: for each line of its input, it creates a sandbox, runs a command in it,
and writes the time. `bench.e2b` runs it with two interpreters, which take turns."""

from __future__ import annotations

import sys
import time


def of_e2b():
    from e2b import Sandbox

    begun = time.perf_counter()
    sandbox = Sandbox.create("base", timeout=120)
    done = sandbox.commands.run("echo hello")
    seconds = time.perf_counter() - begun
    sandbox.kill()
    return done.stdout, seconds


def of_skerry():
    from skerry import Network, Sandbox

    begun = time.perf_counter()
    sandbox = Sandbox.create(network=Network.open())  # as E2B's
    done = sandbox.run("echo hello")
    seconds = time.perf_counter() - begun
    sandbox.delete()
    return done.stdout, seconds


def main():
    measure = of_e2b if sys.argv[1] == "e2b" else of_skerry
    for _ in sys.stdin:
        said, seconds = measure()
        if said != "hello\n":
            sys.exit(f"unexpected output: {said!r}")
        sys.stdout.write(f"{seconds}\n")
        sys.stdout.flush()


main()
