"""Many commands in one sandbox with the default limits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from support.server import Server, wait_until

from skerry import Result, Sandbox

MANY = 200


def test_two_hundred_concurrent_commands_have_correct_exits(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox, ThreadPoolExecutor(MANY) as pool:
        sandbox.run("mkfifo gate; sh -c 'exec 3<>gate; exec sleep 1000' >/dev/null 2>&1 &", check=True)  # holds it open

        def one(number: int) -> Result:
            return sandbox.run(["sh", "-c", 'echo "$0"; read x < gate; exit "$0"', str(number)], timeout=100)

        def running() -> int:
            return int(sandbox.run(["pgrep", "-fc", "^sh -c echo"]).stdout)

        results = [pool.submit(one, number) for number in range(MANY)]
        wait_until(lambda: running() == MANY, "all of them to run", 60)
        sandbox.run(f"yes | head -n {MANY} > gate", check=True)
        ended = [result.result(60) for result in results]
        assert [(r.exit_code, r.stdout) for r in ended] == [(n, f"{n}\n") for n in range(MANY)]
        assert sandbox.run("echo alive").stdout == "alive\n"
