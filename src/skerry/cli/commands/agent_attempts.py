"""Several attempts of an agent at one prompt: forks of its sandbox, run at once, then compared."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from skerry.cli import output
from skerry.cli.commands.agent_run import AgentOutput, headless_command, report_denied
from skerry.cli.commands.agent_sandbox import AgentRequest, mark_used, open_sandbox, resume_sign_in
from skerry.cli.commands.compare import show
from skerry.cli.context import CliContext
from skerry.client._sync.sandbox import Sandbox
from skerry.errors import SkerryError
from skerry.types import Comparison, Result

if TYPE_CHECKING:
    from skerry.client._sync.client import Client
    from skerry.client._sync.processes import Process

MAX_ATTEMPTS = 16


def run_attempts(
    cli: CliContext,
    client: Client,
    request: AgentRequest,
    prompt: str,
    words: Sequence[str],
    *,
    count: int,
    check: str | None,
    fresh: bool,
) -> int:
    """Run a prompt in several forks of the agent's sandbox; print a comparison. Return 0 if the check succeeded in one
    of them or, without a check, if one of the agents did."""
    sandbox, image, again = open_sandbox(cli, client, request)
    argv, dialect = headless_command(request.kit, image, prompt, words, again=again and not fresh)
    forks = _fork(client, sandbox, count)
    for fork in forks:
        resume_sign_in(fork, replace(request, sign_in=False))
    if not cli.quiet:
        output.info(f"{count} attempts: {', '.join(str(fork.name) for fork in forks)}")
    results, codes = zip(*_run(cli, forks, argv, dialect), strict=True)
    for fork, result in zip(forks, results, strict=True):
        mark_used(fork)
        report_denied(cli, request.kit, fork, result)
    compared = forks[0].review.compare(*forks[1:], check=check)
    show(compared)
    if not cli.quiet:
        _suggest(compared)
    if check is not None:
        return 0 if any(one.check is not None and one.check.ok for one in compared.attempts) else 1
    return 0 if 0 in codes else codes[0]


def _fork(client: Client, sandbox: Sandbox, count: int) -> list[Sandbox]:
    """Return forks with the next free names: NAME-1, NAME-2 and so on. All or none."""
    taken = {one.name for one in Sandbox.list(server=client)}
    names = (name for number in itertools.count(1) if (name := f"{sandbox.name}-{number}") not in taken)
    forks = sandbox.fork(count)
    try:
        for fork in forks:
            fork.rename(next(names))
    except BaseException:
        for fork in forks:
            fork.delete(force=True, purge=True)
        raise
    return forks


def _run(cli: CliContext, forks: Sequence[Sandbox], argv: list[str], dialect: str | None) -> list[tuple[Result, int]]:
    """Run the command in all forks at once; return their results and exit codes. Ctrl-C kills all of them."""
    attempts = [_Attempt(cli, fork, dialect, number) for number, fork in enumerate(forks, 1)]
    with ThreadPoolExecutor(len(forks), "skerry-attempt") as pool:
        futures: list[Future[tuple[Result, int]]] = [pool.submit(attempt.run, argv) for attempt in attempts]
        try:
            wait(futures)
        except BaseException:
            for attempt in attempts:
                attempt.end()
            raise
    return [future.result() for future in futures]


class _Attempt:
    """One fork. Each of its lines begins with its number."""

    _printing = threading.Lock()

    def __init__(self, cli: CliContext, sandbox: Sandbox, dialect: str | None, number: int) -> None:
        self._sandbox, self._mark = sandbox, f"[{number}] "
        self._held = {"stdout": b"", "stderr": b""}
        self._shown = AgentOutput(cli, sandbox, dialect, self._write, self._info)
        self._process: Process | None = None
        self._over = False

    def run(self, argv: list[str]) -> tuple[Result, int]:
        """Run the command to its end. An attempt that fails for another reason leaves the others alone."""
        try:
            return self._run(argv)
        except SkerryError as error:
            self._info(f"error: {error.message}")
            return Result(id="-", exit_code=None, command=argv), output.error_exit_code(error)

    def _run(self, argv: list[str]) -> tuple[Result, int]:
        if self._over:
            return Result(id="-", exit_code=None, command=argv), 1
        self._process = process = self._sandbox.spawn(argv, stdin=False)
        self._shown.started(process.id)
        if self._over:  # Ctrl-C came meanwhile
            process.kill()
        for piece in process.follow():
            self._shown.pass_on(piece)
        self._shown.end()
        for stream, rest in self._held.items():
            self._print(stream, rest + b"\n" if rest else b"")
        result = process.wait()
        return result, self._shown.exit_code(result)

    def end(self) -> None:
        self._over = True
        if self._process is not None:
            with suppress(SkerryError):
                self._process.kill()

    def _write(self, stream: str, data: bytes) -> None:
        *lines, self._held[stream] = (self._held[stream] + data).split(b"\n")
        self._print(stream, b"".join(line + b"\n" for line in lines))

    def _print(self, stream: str, data: bytes) -> None:
        with self._printing:
            for line in data.splitlines(keepends=True):
                output.write(stream, self._mark.encode() + line)

    def _info(self, text: str) -> None:
        with self._printing:
            output.info(self._mark + text)


def _suggest(found: Comparison) -> None:
    best = next((one for one in found.attempts if one.check is not None and one.check.ok), None)
    name = (best.name or best.sandbox) if best is not None else "ATTEMPT"
    if any(one.files for one in found.attempts):
        output.info(f"hint: skerry review {name}; then skerry apply {name}. skerry rm deletes the others")
