"""An agent for an editor, over the Agent Client Protocol on stdin and stdout."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from skerry.cli import output
from skerry.cli.commands.agent_run import show_changes
from skerry.cli.commands.agent_sandbox import AgentRequest, mark_used, open_sandbox, refresh
from skerry.cli.context import CliContext
from skerry.cli.terminal import read_chunks
from skerry.client.agents.acp import AcpBridge, LineReader, Passed
from skerry.errors import InvalidRequest, SkerryError
from skerry.types import ReportedCall

if TYPE_CHECKING:
    from skerry.client._sync.client import Client
    from skerry.client._sync.processes import Run
    from skerry.client._sync.sandbox import Sandbox
    from skerry.client.results.command import Output

END_TIMEOUT_S: Final = 5.0  # of an agent after the end of its input, as kits promise


def run_acp(cli: CliContext, client: Client, request: AgentRequest, words: Sequence[str], repo: str) -> int:
    """Connect the editor to the agent until one of them ends; return the agent's exit code."""
    entry = request.kit.editor
    if entry is None:
        raise InvalidRequest(f"{request.kit.name} does not speak the Agent Client Protocol")
    sandbox, _, _ = open_sandbox(cli, client, request)
    connection = _Connection(cli, sandbox, request.top, repo)
    code = connection.run([*entry.argv, *words], entry.env)
    if connection.used:
        mark_used(sandbox)
    show_changes(cli, sandbox)
    return code


class _Connection:
    def __init__(self, cli: CliContext, sandbox: Sandbox, top: str | None, repo: str) -> None:
        self.used = False
        self._cli, self._sandbox, self._top = cli, sandbox, top
        # An editor may name the repository by a path with links.
        names = (top, os.path.abspath(repo), os.environ.get("PWD", top)) if top is not None else ()
        same = [name for name in names if name is not None and os.path.realpath(name) == top]
        self._bridge = AcpBridge(tuple(dict.fromkeys([top, *same] if top is not None else [])))
        self._lock = threading.Lock()  # of the bridge
        self._writing = threading.Lock()  # of stdout: two threads write to it, and a long message takes several writes
        self._input: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._from_agent = LineReader(lambda line: self._pass_on(self._bridge.from_agent, line))
        self._run: Run | None = None
        self._killed = False  # the editor had left
        self._ended = threading.Event()

    def run(self, argv: list[str], env: dict[str, str]) -> int:
        threading.Thread(target=self._read_editor, name="skerry-editor", daemon=True).start()
        try:
            result = self._sandbox.run(
                argv, env=env, stdin=self._chunks(), timeout=None, on_output=self._shown, on_start=self._started
            )
        finally:
            self._ended.set()
        return 0 if self._killed else output.result_exit_code(result)

    def _started(self, run: Run) -> None:
        self._run = run

    # -- the editor --------------------------------------------------------------------------------------------------

    def _read_editor(self) -> None:
        """Pass the editor's messages on. After the end of them, the agent ends; one that does not is ended."""
        reader = LineReader(lambda line: self._pass_on(self._bridge.from_editor, line))
        with suppress(OSError):
            for piece in read_chunks(0):
                reader.feed(piece)
        self._input.put(None)
        for name in ("TERM", "KILL"):
            if not self._ended.wait(END_TIMEOUT_S) and self._run is not None:
                self._killed = True
                with suppress(SkerryError):
                    self._run.signal(name)

    def _chunks(self) -> Iterator[bytes]:
        while (piece := self._input.get()) is not None:
            yield piece

    # -- the agent ---------------------------------------------------------------------------------------------------

    def _shown(self, piece: Output) -> None:
        if piece.stream == "stdout":
            self._from_agent.feed(piece.data)
        else:
            output.write("stderr", piece.data)

    def _pass_on(self, bridge: Callable[[bytes], Passed], line: bytes) -> None:
        with self._lock:
            passed = bridge(line)
        if passed.prompt:
            self.used = True
            self._refresh()
        if passed.call is not None:
            self._report(passed.call)  # before the editor sees it: the change may come soon
        if passed.notice and not self._cli.quiet:
            output.info(passed.notice)
        if passed.to_editor:
            with self._writing:
                output.write_raw("stdout", passed.to_editor)
        if passed.to_agent:
            self._input.put(passed.to_agent)

    def _refresh(self) -> None:
        """Bring the user's edits in before each prompt."""
        if self._top is None:
            return
        try:
            refresh(self._cli, self._sandbox, self._top)
        except SkerryError as error:  # the prompt matters more
            output.info(f"your later edits are not in the sandbox: {error.message}")

    def _report(self, call: ReportedCall) -> None:
        """Report a tool call to the review. A sandbox without a repository has none."""
        if self._run is not None:
            with suppress(SkerryError):
                self._sandbox.processes.report_tool_calls(self._run.id, [call])
