"""A backend for LangChain's deepagents: `create_deep_agent(backend=SkerryBackend(sandbox))`."""

from __future__ import annotations

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from skerry import FileNotFound, FilePermissionDenied, InvalidRequest, Sandbox
from skerry.errors import FileError, FileIsDirectory, FileNotDirectory
from skerry.integrations.output import FullOutput, exit_code

MAX_SHOWN = 1 << 20  # bytes of a command's output
_ERRORS: tuple[tuple[type[FileError], str], ...] = (
    (FileNotFound, "file_not_found"),
    (FilePermissionDenied, "permission_denied"),
    (FileIsDirectory, "is_directory"),
    (FileNotDirectory, "invalid_path"),
)


class SkerryBackend(BaseSandbox):
    """Runs the shell and file tools of a deep agent in a sandbox. The caller creates and deletes the sandbox.

    `timeout`: seconds of a command, unless the agent asks for another."""

    def __init__(self, sandbox: Sandbox, *, timeout: float = 120) -> None:
        self.sandbox = sandbox
        self._timeout = timeout

    @property
    def id(self) -> str:
        return self.sandbox.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        output = FullOutput(MAX_SHOWN)
        seconds = self._timeout if timeout is None else timeout or None  # 0: no limit
        result = self.sandbox.run(command, timeout=seconds, on_output=output.add)
        text = output.text
        if result.timed_out:
            text += f"\nthe command was ended after {seconds:g} s"
        return ExecuteResponse(output=text, exit_code=exit_code(result), truncated=output.exceeded)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path=path, error=self._upload(path, content)) for path, content in files]

    def _upload(self, path: str, content: bytes) -> str | None:
        try:
            if not path.startswith("/"):
                return "invalid_path"
            self.sandbox.files.write(path, content)
        except (FileError, InvalidRequest) as error:
            return _code(error)
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        try:
            if not path.startswith("/"):
                return FileDownloadResponse(path=path, content=None, error="invalid_path")
            return FileDownloadResponse(path=path, content=self.sandbox.files.read_bytes(path), error=None)
        except (FileError, InvalidRequest) as error:
            return FileDownloadResponse(path=path, content=None, error=_code(error))


def _code(error: FileError | InvalidRequest) -> str:
    """Return the error in the framework's words."""
    return next((code for kind, code in _ERRORS if isinstance(error, kind)), "invalid_path")
