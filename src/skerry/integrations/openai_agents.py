"""A sandbox client for the OpenAI Agents SDK: `RunConfig(sandbox=SandboxRunConfig(client=SkerryClient()))`."""

from __future__ import annotations

import asyncio
import io
import shlex
import tempfile
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal, Unpack

from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession, SandboxSessionState
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.pty_types import (
    PtyExecUpdate,
    allocate_pty_process_id,
    clamp_pty_yield_time_ms,
    resolve_pty_write_yield_time_ms,
    truncate_text_by_tokens,
)
from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER, RuntimeHelperScript
from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
from agents.sandbox.session.tar_workspace import shell_tar_exclude_args
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, ExposedPortEndpoint

from skerry import AsyncProcess, AsyncSandbox, FileNotFound, NotFound, Output, SkerryError
from skerry.client.create_options import CreateTerms
from skerry.integrations.lifetime import delete
from skerry.integrations.output import FullOutput, exit_code
from skerry.mcp.text import whole_characters

MAX_ARCHIVE = 1 << 30  # bytes of a workspace's archive in memory or a temporary file
_IN_MEMORY = 16 << 20


class SkerryClientOptions(BaseSandboxClientOptions):
    """`image`: of a new sandbox; `exposed_ports`: ports inside that the agent's program may reach."""

    type: Literal["skerry"] = "skerry"
    image: str = "base"
    exposed_ports: tuple[int, ...] = ()


class SkerrySessionState(SandboxSessionState):
    """A session as the framework stores it. It names the sandbox and has no credentials."""

    type: Literal["skerry"] = "skerry"
    sandbox_id: str
    image: str = "base"


class RunningCommand:
    """A command of the agent that outlives a tool call. Its output is read from `offset` on."""

    def __init__(self, process: AsyncProcess, tty: bool) -> None:
        self.process = process
        self.tty = tty
        self._offset = 0

    async def read(self, milliseconds: int) -> tuple[bytes, int | None]:
        """Return new output and, after the end of the command, its exit code."""
        data = bytearray()

        async def follow() -> None:
            async for piece in self.process.follow(since=self._offset):
                data.extend(piece.data)
                self._offset = piece.offset

        try:
            await asyncio.wait_for(follow(), milliseconds / 1000)
        except TimeoutError:
            complete = whole_characters(bytes(data))
            self._offset -= len(data) - len(complete)
            return complete, None
        return bytes(data), exit_code(await self.process.wait())


class SkerrySession(BaseSandboxSession):
    """One session in one sandbox. Shutting it down stops the sandbox and keeps its files; the client deletes it."""

    state: SkerrySessionState

    def __init__(self, state: SkerrySessionState, sandbox: AsyncSandbox) -> None:
        self.state = state
        self.sandbox = sandbox
        self._commands: dict[int, RunningCommand] = {}
        self._forwards = AsyncExitStack()

    async def _prepare_backend_workspace(self) -> None:
        await self.sandbox.files.mkdir(self.state.manifest.root)

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    def _current_runtime_helper_cache_key(self) -> object:
        return self.state.sandbox_id

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    async def _shutdown_backend(self) -> None:
        await self._forwards.aclose()
        try:
            await self.sandbox.stop()
        except NotFound:
            return

    async def running(self) -> bool:
        try:
            return (await self.sandbox.info()).state == "running"
        except SkerryError:
            return False

    async def _options(self, words: tuple[str | Path, ...]) -> tuple[list[str], dict[str, Any]]:
        """Return an argv and the options of its run. The framework asks for another user with a `sudo` prefix."""
        argv, options = [str(word) for word in words], {"env": await self.state.manifest.environment.resolve()}
        if argv[:2] == ["sudo", "-u"] and argv[3:4] == ["--"]:
            options["user"], argv = argv[2], argv[4:]
        return argv, {**options, "cwd": self.state.manifest.root}

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        argv, options = await self._options(command)
        output = FullOutput()
        try:
            result = await self.sandbox.run(argv, timeout=timeout, on_output=output.add, **options)
        except SkerryError as error:
            raise ExecTransportError(command=command, cause=error, message=str(error)) from error
        if result.timed_out:
            raise ExecTimeoutError(command=command, timeout_s=timeout)
        return ExecResult(stdout=output.stdout_bytes, stderr=output.stderr_bytes, exit_code=exit_code(result))

    def supports_pty(self) -> bool:
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: Any = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        argv, options = await self._options(tuple(self._prepare_exec_command(*command, shell=shell, user=user)))
        try:
            process = await self.sandbox.spawn(argv, pty=tty, stdin=tty, timeout=timeout, **options)
        except SkerryError as error:
            raise ExecTransportError(command=command, cause=error, message=str(error)) from error
        number = allocate_pty_process_id(set(self._commands))
        self._commands[number] = RunningCommand(process, tty)
        milliseconds = 10_000 if yield_time_s is None else int(yield_time_s * 1000)
        return await self._update(number, clamp_pty_yield_time_ms(milliseconds), max_output_tokens)

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        running = self._resolve_pty_session_entry(pty_processes=self._commands, session_id=session_id)
        if chars:
            if not running.tty:
                raise RuntimeError("stdin is not available for this process")
            await running.process.stdin.write(chars)
        milliseconds = 250 if yield_time_s is None else int(yield_time_s * 1000)
        wait = resolve_pty_write_yield_time_ms(yield_time_ms=milliseconds, input_empty=not chars)
        return await self._update(session_id, wait, max_output_tokens)

    async def _update(self, number: int, milliseconds: int, max_tokens: int | None) -> PtyExecUpdate:
        data, code = await self._commands[number].read(milliseconds)
        if code is not None:
            del self._commands[number]
        text, tokens = truncate_text_by_tokens(data.decode("utf-8", "replace"), max_tokens)
        return PtyExecUpdate(
            process_id=number if code is None else None,
            output=text.encode(),
            exit_code=code,
            original_token_count=tokens,
        )

    async def pty_terminate_all(self) -> None:
        while self._commands:
            _, running = self._commands.popitem()
            try:
                await running.process.kill()
            except NotFound:
                continue

    async def read(self, path: Path, *, user: Any = None) -> io.IOBase:
        target = await self._validate_path_access(path)
        try:
            return io.BytesIO(await self.sandbox.files.read_bytes(str(target), user=_name(user)))
        except FileNotFound as error:
            raise WorkspaceReadNotFoundError(path=path, cause=error) from error
        except SkerryError as error:
            raise WorkspaceArchiveReadError(path=path, cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: Any = None) -> None:
        content = data.read()
        if not isinstance(content, str | bytes | bytearray):
            raise WorkspaceWriteTypeError(path=path, actual_type=type(content).__name__)
        target = await self._validate_path_access(path, for_write=True)
        try:
            await self.sandbox.files.write(str(target), content, user=_name(user))
        except SkerryError as error:
            raise WorkspaceArchiveWriteError(path=target, cause=error) from error

    async def persist_workspace(self) -> io.IOBase:
        root = Path(self.state.manifest.root)
        archive: Any = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 -- returned open

        def keep(piece: Output) -> None:
            if piece.stream == "stdout":
                if archive.tell() + len(piece.data) > MAX_ARCHIVE:
                    raise WorkspaceArchiveReadError(path=root, context={"reason": "archive_too_large"})
                archive.write(piece.data)

        excluded = shlex.split(" ".join(shell_tar_exclude_args(self._persist_workspace_skip_relpaths())))
        try:
            result = await self.sandbox.run(
                ["tar", *excluded, "-C", str(root), "-cf", "-", "."],
                timeout=None,
                on_output=keep,
            )
            if not result.ok:
                raise WorkspaceArchiveReadError(path=root, context={"stderr": result.stderr})
        except BaseException:
            archive.close()
            raise
        archive.seek(0)
        return archive

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        root = Path(self.state.manifest.root)
        await self.sandbox.files.mkdir(str(root))
        result = await self.sandbox.run(["tar", "-C", str(root), "-xf", "-"], stdin=data, timeout=None)
        if not result.ok:
            raise WorkspaceArchiveWriteError(path=root, context={"stderr": result.stderr})

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        """Forward the port to the loopback interface of this machine, until the session is shut down."""
        try:
            forward = await self._forwards.enter_async_context(self.sandbox.forward(port))
        except (SkerryError, OSError) as error:
            raise ExposedPortUnavailableError(
                port=port, exposed_ports=self.state.exposed_ports, reason="backend_unavailable", cause=error
            ) from error
        return ExposedPortEndpoint(host="127.0.0.1", port=forward.port, tls=False)


class SkerryClient(BaseSandboxClient[SkerryClientOptions | None]):
    """Creates, resumes and deletes sandboxes for agents. The keyword arguments are those of `skerry.AsyncSandbox`, and
    apply to each new sandbox."""

    backend_id = "skerry"
    supports_default_options = True

    def __init__(self, **creation: Unpack[CreateTerms]) -> None:
        self._creation = creation

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: SkerryClientOptions | None = None,
    ) -> SandboxSession:
        given, wanted = options or SkerryClientOptions(), manifest or Manifest()
        self._validate_manifest_for_create(wanted)
        sandbox = await AsyncSandbox(given.image, **self._creation).start()
        number = uuid.uuid4()
        state = SkerrySessionState(
            session_id=number,
            manifest=wanted,
            snapshot=resolve_snapshot(snapshot, str(number)),
            sandbox_id=sandbox.id,
            image=given.image,
            exposed_ports=given.exposed_ports,
        )
        return self._wrap_session(SkerrySession(state, sandbox))

    async def delete(self, session: SandboxSession) -> SandboxSession:
        inner = session._inner
        if not isinstance(inner, SkerrySession):
            raise TypeError("SkerryClient.delete expects a session of this client")
        await delete(inner.sandbox)
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Attach to the sandbox of a session, or create another one, which the framework fills from the snapshot."""
        if not isinstance(state, SkerrySessionState):
            raise TypeError("SkerryClient.resume expects a state of this client")
        state.assert_path_grants_rebound()
        try:
            sandbox, kept = await AsyncSandbox.get(state.sandbox_id, server=self._creation.get("server")), True
        except NotFound:
            sandbox, kept = await AsyncSandbox(state.image, **self._creation).start(), False
            state.sandbox_id, state.workspace_root_ready = sandbox.id, False
        inner = SkerrySession(state, sandbox)
        inner._set_start_state_preserved(kept)
        return self._wrap_session(inner)

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, SkerrySessionState)


def _name(user: Any) -> str | None:
    return getattr(user, "name", user)
