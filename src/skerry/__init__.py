"""Skerry: isolated Linux machines for AI agents.

    from skerry import Sandbox

    with Sandbox() as sandbox:
        print(sandbox.run("uname -a").stdout)

Result types are in `skerry.results`. A name is loaded when it is first used, so that `import skerry` stays quick.
"""

from __future__ import annotations

from skerry._version import __version__

TYPE_CHECKING = False  # as in `typing`, which takes a while to import
if TYPE_CHECKING:
    from typing import Any

    from skerry.client._async.build import AsyncImage
    from skerry.client._async.client import AsyncClient
    from skerry.client._async.code import AsyncCodeEvent, AsyncCodeResult, AsyncContext
    from skerry.client._async.execute_code import execute_code as async_execute_code
    from skerry.client._async.execute_code import execute_file as async_execute_file
    from skerry.client._async.execute_code import execute_with_limits as async_execute_with_limits
    from skerry.client._async.execute_code import supported_languages as async_supported_languages
    from skerry.client._async.execute_code import validate_language as async_validate_language
    from skerry.client._async.forward import AsyncForward
    from skerry.client._async.previews import AsyncPreview
    from skerry.client._async.processes import AsyncProcess
    from skerry.client._async.run_once import run as async_run
    from skerry.client._async.sandbox import AsyncSandbox
    from skerry.client._async.sessions import AsyncSession
    from skerry.client._async.snapshots import AsyncSnapshot
    from skerry.client._async.terminal import AsyncTerminal
    from skerry.client._async.volumes.volume import AsyncVolume
    from skerry.client._sync.build import Image
    from skerry.client._sync.client import Client
    from skerry.client._sync.code import CodeEvent, CodeResult, Context
    from skerry.client._sync.execute_code import (
        execute_code,
        execute_file,
        execute_with_limits,
        supported_languages,
        validate_language,
    )
    from skerry.client._sync.forward import Forward
    from skerry.client._sync.previews import Preview
    from skerry.client._sync.processes import Process
    from skerry.client._sync.run_once import run
    from skerry.client._sync.sandbox import Sandbox
    from skerry.client._sync.sessions import Session
    from skerry.client._sync.snapshots import Snapshot
    from skerry.client._sync.terminal import Terminal
    from skerry.client._sync.volumes.volume import Volume
    from skerry.client.buckets import Bucket
    from skerry.client.repository.source import Repo
    from skerry.client.results.command import Output
    from skerry.client.results.execute import ExecuteResult, validate_session_id
    from skerry.client.results.execute import check_timeout as validate_timeout
    from skerry.client.secrets import Secret
    from skerry.errors import (
        AuditUnavailable,
        BudgetExceeded,
        CommandFailed,
        CommandTimeout,
        Conflict,
        FileError,
        FileExists,
        FileNotFound,
        FilePermissionDenied,
        HostUnsupported,
        InvalidRequest,
        NetworkDenied,
        NotFound,
        OutOfMemory,
        PermissionDenied,
        QuotaExceeded,
        RegistryError,
        SandboxUnavailable,
        ServerUnreachable,
        SkerryError,
        ToolchainMissing,
        UnappliedChanges,
    )
    from skerry.types import (
        ApplyResult,
        Approval,
        ApprovalRequest,
        Budget,
        BudgetInfo,
        Credentials,
        DeletedSandbox,
        Event,
        FileInfo,
        Handler,
        HttpRequest,
        HttpResponse,
        Hunk,
        Lifecycle,
        Limits,
        Network,
        Options,
        OutputFile,
        Preset,
        Pty,
        Result,
        SandboxInfo,
        Usage,
    )

__all__ = [
    "ApplyResult",
    "Approval",
    "ApprovalRequest",
    "AsyncClient",
    "AsyncCodeEvent",
    "AsyncCodeResult",
    "AsyncContext",
    "AsyncForward",
    "AsyncImage",
    "AsyncPreview",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSession",
    "AsyncSnapshot",
    "AsyncTerminal",
    "AsyncVolume",
    "AuditUnavailable",
    "Bucket",
    "Budget",
    "BudgetExceeded",
    "BudgetInfo",
    "Client",
    "CodeEvent",
    "CodeResult",
    "CommandFailed",
    "CommandTimeout",
    "Conflict",
    "Context",
    "Credentials",
    "DeletedSandbox",
    "Event",
    "ExecuteResult",
    "FileError",
    "FileExists",
    "FileInfo",
    "FileNotFound",
    "FilePermissionDenied",
    "Forward",
    "Handler",
    "HostUnsupported",
    "HttpRequest",
    "HttpResponse",
    "Hunk",
    "Image",
    "InvalidRequest",
    "Lifecycle",
    "Limits",
    "Network",
    "NetworkDenied",
    "NotFound",
    "Options",
    "OutOfMemory",
    "Output",
    "OutputFile",
    "PermissionDenied",
    "Preset",
    "Preview",
    "Process",
    "Pty",
    "QuotaExceeded",
    "RegistryError",
    "Repo",
    "Result",
    "Sandbox",
    "SandboxInfo",
    "SandboxUnavailable",
    "Secret",
    "ServerUnreachable",
    "Session",
    "SkerryError",
    "Snapshot",
    "Terminal",
    "ToolchainMissing",
    "UnappliedChanges",
    "Usage",
    "Volume",
    "__version__",
    "async_execute_code",
    "async_execute_file",
    "async_execute_with_limits",
    "async_run",
    "async_supported_languages",
    "async_validate_language",
    "execute_code",
    "execute_file",
    "execute_with_limits",
    "run",
    "supported_languages",
    "validate_language",
    "validate_session_id",
    "validate_timeout",
]

_ELSEWHERE = {
    "AsyncClient": ("skerry.client._async.client", "AsyncClient"),
    "AsyncCodeEvent": ("skerry.client._async.code", "AsyncCodeEvent"),
    "AsyncCodeResult": ("skerry.client._async.code", "AsyncCodeResult"),
    "AsyncContext": ("skerry.client._async.code", "AsyncContext"),
    "AsyncForward": ("skerry.client._async.forward", "AsyncForward"),
    "AsyncImage": ("skerry.client._async.build", "AsyncImage"),
    "AsyncPreview": ("skerry.client._async.previews", "AsyncPreview"),
    "AsyncProcess": ("skerry.client._async.processes", "AsyncProcess"),
    "AsyncSandbox": ("skerry.client._async.sandbox", "AsyncSandbox"),
    "AsyncSession": ("skerry.client._async.sessions", "AsyncSession"),
    "AsyncSnapshot": ("skerry.client._async.snapshots", "AsyncSnapshot"),
    "AsyncTerminal": ("skerry.client._async.terminal", "AsyncTerminal"),
    "AsyncVolume": ("skerry.client._async.volumes.volume", "AsyncVolume"),
    "Bucket": ("skerry.client.buckets", "Bucket"),
    "Client": ("skerry.client._sync.client", "Client"),
    "CodeEvent": ("skerry.client._sync.code", "CodeEvent"),
    "CodeResult": ("skerry.client._sync.code", "CodeResult"),
    "Context": ("skerry.client._sync.code", "Context"),
    "ExecuteResult": ("skerry.client.results.execute", "ExecuteResult"),
    "Forward": ("skerry.client._sync.forward", "Forward"),
    "Image": ("skerry.client._sync.build", "Image"),
    "Output": ("skerry.client.results.command", "Output"),
    "Preview": ("skerry.client._sync.previews", "Preview"),
    "Process": ("skerry.client._sync.processes", "Process"),
    "Repo": ("skerry.client.repository.source", "Repo"),
    "Sandbox": ("skerry.client._sync.sandbox", "Sandbox"),
    "Secret": ("skerry.client.secrets", "Secret"),
    "Session": ("skerry.client._sync.sessions", "Session"),
    "Snapshot": ("skerry.client._sync.snapshots", "Snapshot"),
    "Terminal": ("skerry.client._sync.terminal", "Terminal"),
    "Volume": ("skerry.client._sync.volumes.volume", "Volume"),
    "async_execute_code": ("skerry.client._async.execute_code", "execute_code"),
    "async_execute_file": ("skerry.client._async.execute_code", "execute_file"),
    "async_execute_with_limits": ("skerry.client._async.execute_code", "execute_with_limits"),
    "async_supported_languages": ("skerry.client._async.execute_code", "supported_languages"),
    "async_validate_language": ("skerry.client._async.execute_code", "validate_language"),
    "async_run": ("skerry.client._async.run_once", "run"),
    "execute_code": ("skerry.client._sync.execute_code", "execute_code"),
    "execute_file": ("skerry.client._sync.execute_code", "execute_file"),
    "execute_with_limits": ("skerry.client._sync.execute_code", "execute_with_limits"),
    "run": ("skerry.client._sync.run_once", "run"),
    "supported_languages": ("skerry.client._sync.execute_code", "supported_languages"),
    "validate_language": ("skerry.client._sync.execute_code", "validate_language"),
    "validate_session_id": ("skerry.client.results.execute", "validate_session_id"),
    "validate_timeout": ("skerry.client.results.execute", "check_timeout"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'skerry' has no attribute {name!r}")
    module, attribute = _ELSEWHERE.get(name) or (_home(name), name)
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def _home(name: str) -> str:
    from skerry import errors

    return "skerry.errors" if name in errors.__all__ else "skerry.types"


def __dir__() -> list[str]:
    return __all__
