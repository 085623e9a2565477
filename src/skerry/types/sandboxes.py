"""A sandbox: what is asked for, and what came of it."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from skerry.errors import InvalidRequest
from skerry.types.network import SECRETS_MOST, Network, SecretForm, SecretValue
from skerry.types.values import (
    Answer,
    Value,
    check_env,
    check_labels,
    check_line,
    check_name,
    parse_size,
    parse_span,
)

State = Literal["creating", "running", "paused", "stopped", "failed"]
STATES: tuple[str, ...] = get_args(State)


class Limits(Value, frozen=True, kw_only=True):
    """What a sandbox may use. Left out: 1 CPU, 2 GiB of memory, 5 GiB of disk, 512 processes, 65,536 open files,
    unless the operator set other defaults."""

    cpus: float | None = None
    memory: str | int | None = None
    disk: str | int | None = None
    pids: int | None = None
    open_files: int | None = None

    def __post_init__(self) -> None:
        if self.cpus is not None and not (math.isfinite(self.cpus) and 0.01 <= self.cpus <= 4096):
            raise InvalidRequest(f"limits.cpus: {self.cpus!r} is out of range", hint="between 0.01 and 4096")
        if self.memory is not None and parse_size(self.memory, "limits.memory") < 16 << 20:
            raise InvalidRequest(f"limits.memory: {self.memory!r} is too little", hint="at least 16M")
        if self.disk is not None and parse_size(self.disk, "limits.disk") < 1 << 20:
            raise InvalidRequest(f"limits.disk: {self.disk!r} is too little", hint="at least 1M")
        if self.pids is not None and not 64 <= self.pids <= 1 << 22:  # the keeper's own threads are among them
            raise InvalidRequest(f"limits.pids: {self.pids!r} is out of range", hint="between 64 and 4194304")
        if self.open_files is not None and not 64 <= self.open_files <= 1 << 30:
            raise InvalidRequest(f"limits.open_files: {self.open_files!r} is out of range", hint="at least 64")

    @classmethod
    def size(cls, name: str) -> Limits:
        """A named size: "small" (½ CPU, 512M), "medium" (1 CPU, 2G), "large" (4 CPUs, 8G)."""
        if name not in SIZES:
            raise InvalidRequest(f"there is no size {name!r}", hint=f"one of {', '.join(SIZES)}")
        return SIZES[name]

    @property
    def memory_bytes(self) -> int:
        return parse_size(self.memory or DEFAULT_LIMITS.memory or 0, "limits.memory")

    @property
    def disk_bytes(self) -> int:
        return parse_size(self.disk or DEFAULT_LIMITS.disk or 0, "limits.disk")


DEFAULT_LIMITS = Limits(cpus=1, memory="2G", disk="5G", pids=512, open_files=65536)
SIZES = {
    "small": Limits(cpus=0.5, memory="512M", disk="2G", pids=256),
    "medium": Limits(cpus=1, memory="2G", disk="5G", pids=512),
    "large": Limits(cpus=4, memory="8G", disk="20G", pids=2048),
}


class Lifecycle(Value, frozen=True, kw_only=True):
    """When a sandbox ends by itself. Idle: no call, no running process, no terminal, no traffic."""

    idle: str | int | float | None = None
    life: str | int | float | None = None
    on_idle: Literal["pause", "stop", "delete"] | None = None
    wake: bool | None = None

    def __post_init__(self) -> None:
        if self.idle is not None:
            parse_span(self.idle, "lifecycle.idle")
        if self.life is not None:
            parse_span(self.life, "lifecycle.life")


class Options(Value, frozen=True, kw_only=True):
    """Rarely needed switches. `waive` names guarantees that this host may lack; `isolation` then shows them.
    `git_name`, `git_email`: whose name is on commits made inside; what a user inside configures stands above it."""

    runtime: str | None = None
    pool: bool = True
    reproducible: bool = False
    auto_snapshot: bool = False
    sudo: bool = True
    waive: tuple[str, ...] = ()
    git_name: str | None = None
    git_email: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("options.git_name", self.git_name), ("options.git_email", self.git_email)):
            if value is not None:
                check_line(name, value)


class CreateRequest(Value, frozen=True, kw_only=True):
    """POST /v1/sandboxes. In `env`, null unsets a variable of the image's. Without `network`, what the operator lets
    new sandboxes reach: nothing, unless that was set."""

    image: str = "base"
    name: str | None = None
    env: dict[str, str | None] = {}
    labels: dict[str, str] = {}
    limits: Limits = Limits()
    network: Network | None = None
    secrets: tuple[SecretValue, ...] = ()
    lifecycle: Lifecycle = Lifecycle()
    options: Options = Options()

    def __post_init__(self) -> None:
        check_name(self.name)
        _check_secrets(self.secrets)
        check_env(self.env)
        check_labels(self.labels)


class UpdateRequest(Value, frozen=True, kw_only=True):
    """PATCH /v1/sandboxes/{id}: what is given replaces what was, in `env`, `limits` and `lifecycle` one by one; in
    `env`, null unsets a variable, also the image's."""

    limits: Limits | None = None
    env: dict[str, str | None] | None = None
    labels: dict[str, str] | None = None
    lifecycle: Lifecycle | None = None
    secrets: tuple[SecretValue, ...] | None = None

    def __post_init__(self) -> None:
        check_env(self.env or {})
        check_labels(self.labels or {})
        _check_secrets(self.secrets or ())


def _check_secrets(secrets: tuple[SecretValue, ...]) -> None:
    names = [secret.name for secret in secrets]
    if len(names) > SECRETS_MOST:
        raise InvalidRequest(f"secrets: more than {SECRETS_MOST}")
    if len(set(names)) < len(names):
        raise InvalidRequest("secrets: a name is given twice")


class Isolation(Answer, frozen=True, kw_only=True):
    """What stands between a sandbox and the host, and what was waived."""

    runtime: str
    runtime_version: str
    guarantees: tuple[str, ...]
    waived: tuple[str, ...] = ()
    details: dict[str, Any] = {}


class SandboxInfo(Answer, frozen=True, kw_only=True):
    """One sandbox as the API shows it."""

    id: str
    state: State
    image: str
    limits: Limits
    lifecycle: Lifecycle
    created_at: float
    name: str | None = None
    reason: str | None = None
    owner: str = "local"
    env: dict[str, str | None] = {}
    labels: dict[str, str] = {}
    network: Network = Network()
    secrets: tuple[SecretForm, ...] = ()
    options: Options = Options()
    isolation: Isolation | None = None
    image_digest: str | None = None
    started_at: float | None = None
    ends_at: float | None = None


class Usage(Answer, frozen=True, kw_only=True):
    """What a command, or a sandbox, used."""

    cpu_s: float = 0.0
    memory_peak: int | None = None
    disk: int | None = None
    pids_peak: int | None = None
