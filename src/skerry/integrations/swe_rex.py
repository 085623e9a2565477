"""A deployment for SWE-ReX: `SkerryDeployment(image="base")`, for SWE-agent and other programs that use it."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Unpack

from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import (
    CommandTimeoutError,
    DeploymentNotStartedError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    AbstractRuntime,
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionResponse,
    CloseResponse,
    CloseSessionRequest,
    Command,
    CommandResponse,
    CreateBashSessionResponse,
    CreateSessionRequest,
    IsAliveResponse,
    ReadFileRequest,
    ReadFileResponse,
    UploadRequest,
    UploadResponse,
    WriteFileRequest,
    WriteFileResponse,
)
from swerex.utils.log import get_logger

from skerry import AsyncSandbox, AsyncSession, Conflict, Result, SkerryError
from skerry.client.create_options import CreateOptions
from skerry.integrations.lifetime import delete
from skerry.integrations.output import FullOutput, exit_code

if TYPE_CHECKING:
    from skerry.client._async.processes import AsyncRun


class SkerrySweRuntime(AbstractRuntime):
    """The commands, sessions and files of one sandbox. A session keeps its directory and variables; interactive
    programs such as gdb are not supported."""

    def __init__(self, sandbox: AsyncSandbox, logger: logging.Logger) -> None:
        self.sandbox = sandbox
        self.logger = logger
        self._sessions: dict[str, AsyncSession] = {}
        self._running: dict[str, AsyncRun] = {}

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        try:
            state = (await self.sandbox.info()).state
        except SkerryError as error:
            return IsAliveResponse(is_alive=False, message=str(error))
        return IsAliveResponse(is_alive=state == "running", message="" if state == "running" else f"it is {state}")

    async def create_session(self, request: CreateSessionRequest) -> CreateBashSessionResponse:
        if request.session in self._sessions:
            raise SessionExistsError(f"session {request.session!r} already exists")
        session = self._sessions[request.session] = await self.sandbox.session(request.session)
        output = FullOutput()
        for file in request.startup_source:
            await session.run(f". {file}", timeout=max(request.startup_timeout, 10), on_output=output.add)
        return CreateBashSessionResponse(output=output.text)

    def _session(self, name: str) -> AsyncSession:
        if name not in self._sessions:
            raise SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._sessions[name]

    async def run_in_session(self, action: BashAction | BashInterruptAction) -> BashObservation:
        session = self._session(action.session)
        if isinstance(action, BashInterruptAction):
            return await self._interrupt(action.session)
        if action.is_interactive_command or action.expect:
            raise NotImplementedError("interactive commands are not supported")
        output = FullOutput()
        try:
            result = await session.run(
                action.command,
                timeout=action.timeout,
                on_output=output.add,
                on_start=lambda run: self._running.__setitem__(action.session, run),
            )
        finally:
            self._running.pop(action.session, None)
        if result.timed_out:
            raise CommandTimeoutError(f"the command was ended after {action.timeout} s: {action.command!r}")
        code = exit_code(result)
        if action.check == "raise" and code != 0:
            raise NonZeroExitCodeError(f"{action.error_msg or action.command!r}: exit code {code}: {output.text!r}")
        return BashObservation(output=output.text, exit_code=None if action.check == "ignore" else code)

    async def _interrupt(self, session: str) -> BashObservation:
        """Interrupt the running command of a session. One that has ended needs no interrupt."""
        running = self._running.get(session)
        if running is not None:
            with contextlib.suppress(Conflict):
                await running.signal("INT")
        return BashObservation(output="", exit_code=0)

    async def close_session(self, request: CloseSessionRequest) -> CloseBashSessionResponse:
        await self._session(request.session).close()
        del self._sessions[request.session]
        return CloseBashSessionResponse()

    async def execute(self, command: Command) -> CommandResponse:
        if command.shell is not isinstance(command.command, str):
            raise ValueError("a string needs shell=True, and a list of arguments shell=False")
        output = FullOutput()
        result = await self.sandbox.run(
            command.command, timeout=command.timeout, env=command.env or {}, cwd=command.cwd, on_output=output.add
        )
        self._check(command, result, output)
        if command.merge_output_streams:
            return CommandResponse(stdout=output.text, stderr="", exit_code=exit_code(result))
        return CommandResponse(stdout=output.stdout, stderr=output.stderr, exit_code=exit_code(result))

    def _check(self, command: Command, result: Result, output: FullOutput) -> None:
        if result.timed_out:
            raise CommandTimeoutError(f"the command was ended after {command.timeout} s: {command.command!r}")
        if command.check and not result.ok:
            prefix = command.error_msg or repr(command.command)
            raise NonZeroExitCodeError(f"{prefix}: exit code {exit_code(result)}: {output.text!r}")

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        encoding, errors = request.encoding or "utf-8", request.errors or "strict"
        return ReadFileResponse(
            content=await self.sandbox.files.read_text(request.path, encoding=encoding, errors=errors)
        )

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        await self.sandbox.files.write(request.path, request.content)
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        await self.sandbox.files.upload(request.source_path, request.target_path)
        return UploadResponse()

    async def close(self) -> CloseResponse:
        await self.sandbox.aclose()
        return CloseResponse()


class SkerryDeployment(AbstractDeployment):
    """A sandbox from `start()` to `stop()`. The keyword arguments are those of `skerry.AsyncSandbox`."""

    def __init__(self, *, logger: logging.Logger | None = None, **creation: Unpack[CreateOptions]) -> None:
        self.logger = logger or get_logger("rex-deploy")
        self._creation = creation
        self._hooks = CombinedDeploymentHook()
        self._runtime: SkerrySweRuntime | None = None

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        if self._runtime is None:
            return IsAliveResponse(is_alive=False, message="the deployment has not been started")
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        if self._runtime is None:
            self._hooks.on_custom_step("Creating a sandbox")
            self._runtime = SkerrySweRuntime(await AsyncSandbox(**self._creation).start(), self.logger)

    async def stop(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await delete(runtime.sandbox)

    @property
    def runtime(self) -> SkerrySweRuntime:
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime
