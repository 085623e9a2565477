"""Requests and responses of the control plane. Unknown fields are ignored: they belong to features that a sandbox here
does not have, except those that a caller relies on, which are refused by name."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct, field

from skerry.server.http.responses import JSON, LastPiece, StreamResponse
from skerry.server.wire.e2b.messages import LAST_MOMENT, representable
from skerry.types import SandboxInfo

ENVD_VERSION: Final = "0.6.4"
LABEL: Final = "skerry.e2b"  # the state of a sandbox in the words of E2B; other labels are its metadata
# Labels of sandboxes that are not the caller's: one serves the files of a volume, the other runs a build.
HELPER: Final = "skerry.e2b-volume"
BUILD: Final = "skerry.e2b-build"
RESERVED: Final = (LABEL, HELPER, BUILD)
DEFAULT_TIMEOUT_S: Final = 300
MAX_TIMEOUT_S: Final = 10 * 365 * 86400
Milliseconds = Annotated[int, Meta(ge=0, le=int(LAST_MOMENT) * 1000)]  # a time


class NewMount(Struct, frozen=True, kw_only=True):
    """A volume of the owner at a path."""

    name: str
    path: str


class AutoResume(Struct, frozen=True, kw_only=True):
    enabled: bool = False


class NetworkOptions(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The network options of a sandbox. `allow_internet_access` has its own spelling."""

    allow_public_traffic: bool | None = None
    allow_out: tuple[str, ...] = ()
    deny_out: tuple[str, ...] = ()
    mask_request_host: str | None = None
    egress_proxy: Any = None
    rules: dict[str, Any] = {}
    allow_internet_access: bool | None = field(name="allow_internet_access", default=None)


class NewSandbox(Struct, frozen=True, kw_only=True, rename="camel"):
    """POST /sandboxes and /v2/sandboxes. `secure` is ignored: every sandbox has an access token."""

    template_id: str = field(name="templateID", default="base")
    timeout: int = DEFAULT_TIMEOUT_S
    auto_pause: bool = False
    auto_pause_memory: bool = True
    auto_resume: AutoResume = AutoResume()
    allow_internet_access: bool = field(name="allow_internet_access", default=True)
    network: NetworkOptions = NetworkOptions()
    metadata: dict[str, str] | None = None
    env_vars: dict[str, str] | None = None
    mcp: Any = None
    iam: Any = None
    volume_mounts: tuple[NewMount, ...] = ()


class ConnectRequest(Struct, frozen=True, kw_only=True):
    """POST /sandboxes/{id}/connect, /resume and /timeout."""

    timeout: int = DEFAULT_TIMEOUT_S
    memory: bool = True


class PauseRequest(Struct, frozen=True, kw_only=True):
    memory: bool = True


class RefreshRequest(Struct, frozen=True, kw_only=True):
    duration: int = DEFAULT_TIMEOUT_S


class NewSnapshot(Struct, frozen=True, kw_only=True):
    name: str | None = None


class NewFork(Struct, frozen=True, kw_only=True):
    timeout: int = DEFAULT_TIMEOUT_S
    count: int = 1


class SandboxMark(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a sandbox beyond Skerry's, in a separate label. `end`: the time at which it is paused; 0: it was
    paused. `timeout`: the last one that was requested. `public`: its ports need no access token; `mask`: the Host that
    programs on them see."""

    template: str = ""
    timeout: Annotated[int, Meta(ge=0, le=MAX_TIMEOUT_S)] = DEFAULT_TIMEOUT_S
    pause: bool = False
    memory: bool = True
    end: Annotated[float, Meta(ge=0, le=LAST_MOMENT)] | None = None
    internet: bool = True
    public: bool = False
    mask: str | None = None


def mark_of(info: SandboxInfo) -> SandboxMark:
    try:
        return msgspec.json.decode(info.labels.get(LABEL, "{}"), type=SandboxMark)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):  # labels are the user's
        return SandboxMark()


def marked(labels: Mapping[str, str], mark: SandboxMark) -> dict[str, str]:
    return {**labels, LABEL: msgspec.json.encode(mark).decode()}


def metadata_of(info: SandboxInfo) -> dict[str, str]:
    return {name: value for name, value in info.labels.items() if name != LABEL}


def moment(seconds: float) -> str:
    shown = datetime.fromtimestamp(representable(seconds), UTC).isoformat(timespec="microseconds")
    return f"{shown.partition('+')[0]}Z"


def state_of(info: SandboxInfo) -> str:
    return "running" if info.state in ("running", "creating") else "paused"


def listed(info: SandboxInfo) -> dict[str, Any]:
    """A sandbox as lists show it."""
    mark, limits = mark_of(info), info.limits
    started = info.started_at or info.created_at
    end = mark.end or info.ends_at or (time.time() if state_of(info) == "paused" else started + 10 * 365 * 86400)
    return {
        "templateID": mark.template or info.image, "alias": mark.template or info.image, "sandboxID": info.id,
        "clientID": "skerry", "startedAt": moment(started), "endAt": moment(end), "state": state_of(info),
        "cpuCount": max(1, round(limits.cpus or 1)), "memoryMB": limits.memory_bytes >> 20,
        "diskSizeMB": limits.disk_bytes >> 20, "envdVersion": ENVD_VERSION, "metadata": metadata_of(info),
    }  # fmt: skip


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] = {}) -> StreamResponse:
    data = msgspec.json.encode(value)

    async def whole() -> AsyncGenerator[bytes, None]:
        yield LastPiece(data)

    return StreamResponse(JSON, whole(), length=len(data), status=status, headers=headers)
