"""Skerry: isolated Linux machines for AI agents.

    from skerry import Sandbox

    with Sandbox() as sandbox:
        print(sandbox.run("uname -a").stdout)

A name is loaded when it is first used, so that `import skerry` stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skerry._version import __version__

if TYPE_CHECKING:
    from skerry.client._async.client import AsyncClient
    from skerry.client._async.code import AsyncCodeEvent, AsyncCodeFile, AsyncCodeResult, AsyncContext
    from skerry.client._async.executing import execute_code as async_execute_code
    from skerry.client._async.forward import AsyncForward
    from skerry.client._async.image import AsyncImage
    from skerry.client._async.oneshot import run as async_run
    from skerry.client._async.previews import AsyncPreview
    from skerry.client._async.process import AsyncProcess
    from skerry.client._async.sandbox import AsyncSandbox
    from skerry.client._async.sessions import AsyncSession
    from skerry.client._async.snapshots import AsyncSnapshot
    from skerry.client._async.terminal import AsyncTerminal
    from skerry.client._sync.client import Client
    from skerry.client._sync.code import CodeEvent, CodeFile, CodeResult, Context
    from skerry.client._sync.executing import execute_code
    from skerry.client._sync.forward import Forward
    from skerry.client._sync.image import Image
    from skerry.client._sync.oneshot import run
    from skerry.client._sync.previews import Preview
    from skerry.client._sync.process import Process
    from skerry.client._sync.sandbox import Sandbox
    from skerry.client._sync.sessions import Session
    from skerry.client._sync.snapshots import Snapshot
    from skerry.client._sync.terminal import Terminal
    from skerry.client.building.options import BuildStep
    from skerry.client.code_outcome import CodeValue
    from skerry.client.execute_outcome import ExecutedFile, ExecuteResult, LimitsApplied, ResourceUsage
    from skerry.client.listing import FileList
    from skerry.client.outcome import Output
    from skerry.client.repository.source import Imported, Repo
    from skerry.client.secrets import Secret
    from skerry.errors import (
        CommandFailed,
        CommandTimeout,
        Conflict,
        Denied,
        FileFailure,
        HostUnsupported,
        InvalidRequest,
        NotFound,
        QuotaExceeded,
        RegistryFailed,
        SandboxUnavailable,
        ServerUnreachable,
        SetupFailed,
        SkerryError,
    )
    from skerry.types import (
        Applied,
        Attempt,
        Change,
        Changes,
        Chart,
        CodeError,
        Comparison,
        ContextInfo,
        Credentials,
        Decided,
        DecideRequest,
        DiffStat,
        Event,
        FileChange,
        FileEvent,
        FileInfo,
        History,
        Hunk,
        ImageInfo,
        Isolation,
        LanguageInfo,
        LedgerEntry,
        Lifecycle,
        Limits,
        Lines,
        Match,
        Matches,
        Network,
        NetworkInfo,
        Options,
        Patched,
        Preset,
        ProcessInfo,
        Pruned,
        Pty,
        Question,
        Replaced,
        Reply,
        Result,
        Review,
        ReviewEvent,
        SandboxInfo,
        SessionInfo,
        SnapshotInfo,
        Transfer,
        Usage,
        Verified,
        Why,
    )

__all__ = [
    "Applied",
    "AsyncClient",
    "AsyncCodeEvent",
    "AsyncCodeFile",
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
    "Attempt",
    "BuildStep",
    "Change",
    "Changes",
    "Chart",
    "Client",
    "CodeError",
    "CodeEvent",
    "CodeFile",
    "CodeResult",
    "CodeValue",
    "CommandFailed",
    "CommandTimeout",
    "Comparison",
    "Conflict",
    "Context",
    "ContextInfo",
    "Credentials",
    "DecideRequest",
    "Decided",
    "Denied",
    "DiffStat",
    "Event",
    "ExecuteResult",
    "ExecutedFile",
    "FileChange",
    "FileEvent",
    "FileFailure",
    "FileInfo",
    "FileList",
    "Forward",
    "History",
    "HostUnsupported",
    "Hunk",
    "Image",
    "ImageInfo",
    "Imported",
    "InvalidRequest",
    "Isolation",
    "LanguageInfo",
    "LedgerEntry",
    "Lifecycle",
    "Limits",
    "LimitsApplied",
    "Lines",
    "Match",
    "Matches",
    "Network",
    "NetworkInfo",
    "NotFound",
    "Options",
    "Output",
    "Patched",
    "Preset",
    "Preview",
    "Process",
    "ProcessInfo",
    "Pruned",
    "Pty",
    "Question",
    "QuotaExceeded",
    "RegistryFailed",
    "Replaced",
    "Reply",
    "Repo",
    "ResourceUsage",
    "Result",
    "Review",
    "ReviewEvent",
    "Sandbox",
    "SandboxInfo",
    "SandboxUnavailable",
    "Secret",
    "ServerUnreachable",
    "Session",
    "SessionInfo",
    "SetupFailed",
    "SkerryError",
    "Snapshot",
    "SnapshotInfo",
    "Terminal",
    "Transfer",
    "Usage",
    "Verified",
    "Why",
    "__version__",
    "async_execute_code",
    "async_run",
    "execute_code",
    "run",
]

_ELSEWHERE = {
    "AsyncClient": ("skerry.client._async.client", "AsyncClient"),
    "AsyncCodeEvent": ("skerry.client._async.code", "AsyncCodeEvent"),
    "AsyncCodeFile": ("skerry.client._async.code", "AsyncCodeFile"),
    "AsyncCodeResult": ("skerry.client._async.code", "AsyncCodeResult"),
    "AsyncContext": ("skerry.client._async.code", "AsyncContext"),
    "AsyncForward": ("skerry.client._async.forward", "AsyncForward"),
    "AsyncImage": ("skerry.client._async.image", "AsyncImage"),
    "AsyncPreview": ("skerry.client._async.previews", "AsyncPreview"),
    "AsyncProcess": ("skerry.client._async.process", "AsyncProcess"),
    "AsyncSandbox": ("skerry.client._async.sandbox", "AsyncSandbox"),
    "AsyncSession": ("skerry.client._async.sessions", "AsyncSession"),
    "AsyncSnapshot": ("skerry.client._async.snapshots", "AsyncSnapshot"),
    "AsyncTerminal": ("skerry.client._async.terminal", "AsyncTerminal"),
    "BuildStep": ("skerry.client.building.options", "BuildStep"),
    "Client": ("skerry.client._sync.client", "Client"),
    "CodeEvent": ("skerry.client._sync.code", "CodeEvent"),
    "CodeFile": ("skerry.client._sync.code", "CodeFile"),
    "CodeResult": ("skerry.client._sync.code", "CodeResult"),
    "CodeValue": ("skerry.client.code_outcome", "CodeValue"),
    "Context": ("skerry.client._sync.code", "Context"),
    "ExecuteResult": ("skerry.client.execute_outcome", "ExecuteResult"),
    "ExecutedFile": ("skerry.client.execute_outcome", "ExecutedFile"),
    "FileList": ("skerry.client.listing", "FileList"),
    "Forward": ("skerry.client._sync.forward", "Forward"),
    "Image": ("skerry.client._sync.image", "Image"),
    "Imported": ("skerry.client.repository.source", "Imported"),
    "LimitsApplied": ("skerry.client.execute_outcome", "LimitsApplied"),
    "Output": ("skerry.client.outcome", "Output"),
    "Preview": ("skerry.client._sync.previews", "Preview"),
    "Process": ("skerry.client._sync.process", "Process"),
    "Repo": ("skerry.client.repository.source", "Repo"),
    "ResourceUsage": ("skerry.client.execute_outcome", "ResourceUsage"),
    "Sandbox": ("skerry.client._sync.sandbox", "Sandbox"),
    "Secret": ("skerry.client.secrets", "Secret"),
    "Session": ("skerry.client._sync.sessions", "Session"),
    "Snapshot": ("skerry.client._sync.snapshots", "Snapshot"),
    "Terminal": ("skerry.client._sync.terminal", "Terminal"),
    "async_execute_code": ("skerry.client._async.executing", "execute_code"),
    "async_run": ("skerry.client._async.oneshot", "run"),
    "execute_code": ("skerry.client._sync.executing", "execute_code"),
    "run": ("skerry.client._sync.oneshot", "run"),
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
