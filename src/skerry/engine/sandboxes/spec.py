"""From a request to a plan: defaults filled in, maxima held, nonsense refused. Values in, values out."""

from __future__ import annotations

import base64
import os
import secrets
from typing import Any

from msgspec import json
from msgspec.structs import replace

from skerry.config import Settings
from skerry.engine.network import policy_resolution
from skerry.engine.sandboxes.guest_files import PROVIDED_VARIABLES
from skerry.engine.sandboxes.record import SandboxSpec
from skerry.errors import InvalidRequest, QuotaExceeded
from skerry.network.policy.rules import check_secret_hosts
from skerry.runtimes.guarantees import GUARANTEES
from skerry.types import (
    CreateRequest,
    ImageInfo,
    Lifecycle,
    Limits,
    Options,
    Scope,
    SecretForm,
    SecretValue,
    UpdateRequest,
    check_env,
    format_size,
    normal_budget,
    parse_lifetime,
    parse_size,
    parse_span,
    readable_size,
)

WAIVABLE = (*GUARANTEES, "disk_limit")
MAX_SPEC = 768 << 10  # a policy of ten thousand hosts fits


def new_id(prefix: str) -> str:
    """`sb-` or `p-` and ten base32 characters."""
    return prefix + base64.b32encode(secrets.token_bytes(7)).decode().lower()[:10]


def host_maxima(storage: int) -> Limits:
    """Return the host's capacity: no limit can be higher. `storage` is the capacity of the storage driver in bytes."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    unit = 30 if storage >> 32 else 20  # a readable number in messages and as a default
    return Limits(cpus=float(os.cpu_count() or 1), memory=memory, disk=max(storage >> unit << unit, 1 << 20))


def resolve_limits(asked: Limits, settings: Settings, host: Limits) -> Limits:
    """Return the requested limits over the operator's defaults, checked against the operator's maxima and the host."""
    default = settings.limits
    values: dict[str, Any] = {}
    for field in Limits.__struct_fields__:
        requested = getattr(asked, field)
        value = getattr(default, field) if requested is None else requested
        ceiling, source = _ceiling(field, settings, host)
        if ceiling is not None and _number(field, value) > _number(field, ceiling):
            if requested is not None:
                raise QuotaExceeded(
                    f"limits.{field}: {_shown(field, value)} is more than {source} ({_shown(field, ceiling)})",
                    hint=f"ask for at most {_shown(field, ceiling)}",
                    details={"limit": field, "maximum": ceiling},
                )
            value = ceiling
        values[field] = format_size(parse_size(value)) if field in ("memory", "disk") else value
    return Limits(**values)


def _ceiling(field: str, settings: Settings, host: Limits) -> tuple[Any, str]:
    """Return the maximum of a limit and its source. The operator may promise more CPUs and memory than the host has,
    but no disk beyond the storage: a program would find out in the middle of its work."""
    operator, capacity = settings[f"max.{field}"], getattr(host, field)
    if field == "disk" and capacity is not None and (operator is None or parse_size(operator) > parse_size(capacity)):
        return capacity, "the storage of this host has"
    return (capacity, "this host has") if operator is None else (operator, f"max.{field} allows")


def changed_limits(now: Limits, asked: Limits, settings: Settings, host: Limits) -> Limits:
    """Return the requested limits, checked against the maxima. Other limits stay, also if a maximum was lowered
    since."""
    resolved = resolve_limits(asked, settings, host)
    requested_fields = {
        field: getattr(resolved, field) for field in asked.__struct_fields__ if getattr(asked, field) is not None
    }
    return replace(now, **requested_fields)


def min_limits(one: Limits, other: Limits) -> Limits:
    """The less of each."""
    values = {
        field: min(getattr(one, field), getattr(other, field), key=lambda value, field=field: _number(field, value))  # type: ignore[misc]
        for field in one.__struct_fields__
    }
    return Limits(**values)


def _number(field: str, value: Any) -> float:
    return parse_size(value) if field in ("memory", "disk") else float(value)


def _shown(field: str, value: Any) -> str:
    return readable_size(parse_size(value)) if field in ("memory", "disk") else f"{value:g}"


def resolve_lifecycle(asked: Lifecycle, default: Lifecycle, settings: Settings, name: str | None) -> Lifecycle:
    """Return the requested lifecycle over the defaults: the operator's, or those from before an update."""
    if name is not None and asked.on_idle == "delete":
        raise InvalidRequest(
            "lifecycle.on_idle: a named sandbox is never deleted by itself", hint='use "stop" or "pause", or no name'
        )
    life = asked.max_lifetime if asked.max_lifetime is not None else default.max_lifetime
    longest = settings["max.lifetime"]
    if longest is not None and life is not None and parse_lifetime(life) > parse_span(longest):
        if asked.max_lifetime is not None:
            raise QuotaExceeded(
                f"lifecycle.max_lifetime: {life} is more than max.lifetime allows ({longest})",
                hint=f"ask for at most {longest}",
                details={"limit": "max_lifetime", "maximum": longest},
            )
        life = longest
    return Lifecycle(
        idle_timeout=asked.idle_timeout if asked.idle_timeout is not None else default.idle_timeout,
        max_lifetime=life,
        on_idle=asked.on_idle or default.on_idle or ("stop" if name else "delete"),
        auto_resume=default.auto_resume if asked.auto_resume is None else asked.auto_resume,
        on_start=default.on_start if asked.on_start is None else asked.on_start or None,
        ready=default.ready if asked.ready is None else asked.ready or None,
        ready_timeout=default.ready_timeout if asked.ready_timeout is None else asked.ready_timeout,
    )


def resolve_spec(
    request: CreateRequest,
    image: ImageInfo,
    settings: Settings,
    host: Limits,
    peer: policy_resolution.Peer = policy_resolution.no_peer,
    scope: Scope = "use",
) -> SandboxSpec:
    for name in request.options.waive_guarantees:
        if name not in WAIVABLE:
            raise InvalidRequest(
                f"options.waive_guarantees: unknown guarantee {name[:80]!r}", hint=f"one of {', '.join(WAIVABLE)}"
            )
    spec = SandboxSpec(
        image=image.name, image_digest=image.digest, layers=image.layers,
        user=image.user, cwd=image.cwd, image_env=image.env, entrypoint=image.entrypoint, cmd=image.cmd,
        env=_needed(request.env, image.env), labels=request.labels,
        limits=resolve_limits(request.limits, settings, host),
        lifecycle=resolve_lifecycle(request.lifecycle, settings.lifecycle, settings, request.name),
        network=policy_resolution.resolve_new(request.network, settings, peer),
        options=_signed(request.options, settings),
        secrets=_forms(request.secrets), budget=normal_budget(request.budget), budget_set_by=scope,
    )  # fmt: skip
    _check_apart(spec)
    return check_spec_size(spec)


def _signed(options: Options, settings: Settings) -> Options:
    """With the operator's identity for git where the caller gave none."""
    name, email = options.git_name or settings["git.name"], options.git_email or settings["git.email"]
    return replace(options, git_name=name, git_email=email)


def update_spec(
    spec: SandboxSpec, request: UpdateRequest, settings: Settings, host: Limits, name: str | None
) -> SandboxSpec:
    """A sandbox's spec after an update."""
    if request.limits is not None:
        spec = replace(spec, limits=changed_limits(spec.limits, request.limits, settings, host))
    spec = replace(spec, env=_needed({**spec.env, **(request.env or {})}, spec.image_env))
    check_env(spec.env)
    if request.secrets is not None:
        spec = replace(spec, secrets=_forms(request.secrets))
    _check_apart(spec)
    if request.labels is not None:
        spec = replace(spec, labels=request.labels)
    if request.lifecycle is not None:
        spec = replace(spec, lifecycle=resolve_lifecycle(request.lifecycle, spec.lifecycle, settings, name))
    return check_spec_size(spec)


def _forms(secrets: tuple[SecretValue, ...]) -> tuple[SecretForm, ...]:
    """Return secrets without their values, as a record may hold them."""
    for secret in secrets:
        check_secret_hosts(secret.name, secret.hosts)
    return tuple(secret.form for secret in secrets)


def _check_apart(spec: SandboxSpec) -> None:
    for secret in spec.secrets:
        if spec.env.get(secret.name) is not None:
            raise InvalidRequest(
                f"{secret.name} is among the secrets and in env",
                hint="leave it out of env: inside, the variable holds the secret's placeholder",
            )


def _needed(env: dict[str, str | None], image: dict[str, str]) -> dict[str, str | None]:
    """Drop entries that unset a variable which is not set."""
    return {
        name: value for name, value in env.items() if value is not None or name in image or name in PROVIDED_VARIABLES
    }


def check_spec_size(spec: SandboxSpec) -> SandboxSpec:
    """The server holds every sandbox's spec, and lists them all in one answer."""
    if len(json.encode(spec)) > MAX_SPEC:
        raise InvalidRequest(f"the sandbox's description is longer than {MAX_SPEC >> 10} KiB")
    return spec
