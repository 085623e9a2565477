"""From a request to a plan: defaults filled in, maxima held, nonsense refused. Values in, values out."""

from __future__ import annotations

import base64
import os
import secrets
from typing import Any

from msgspec import json
from msgspec.structs import replace

from skerry.config import Settings
from skerry.engine import egress
from skerry.engine.furnishing import GIVEN
from skerry.engine.rows import Spec
from skerry.errors import InvalidRequest, QuotaExceeded
from skerry.network.rules import check_secret_hosts
from skerry.runtimes.guarantees import GUARANTEES
from skerry.types import (
    CreateRequest,
    ImageInfo,
    Lifecycle,
    Limits,
    Options,
    SecretForm,
    SecretValue,
    UpdateRequest,
    check_env,
    format_size,
    parse_size,
    parse_span,
)

WAIVABLE = (*GUARANTEES, "disk_limit")
SPEC_MOST = 768 << 10  # a policy of ten thousand hosts fits


def new_id(prefix: str) -> str:
    """`sb-` or `p-` and ten base32 characters."""
    return prefix + base64.b32encode(secrets.token_bytes(7)).decode().lower()[:10]


def host_maxima() -> Limits:
    """What the host itself has: no limit can promise more."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Limits(cpus=float(os.cpu_count() or 1), memory=memory)


def resolve_limits(asked: Limits, settings: Settings, host: Limits) -> Limits:
    """The caller's wish over the operator's default, held against the operator's maximum and the host."""
    default = settings.limits
    chosen: dict[str, Any] = {}
    for field in Limits.__struct_fields__:
        wish = getattr(asked, field)
        value = getattr(default, field) if wish is None else wish
        ceiling = settings[f"max.{field}"] or getattr(host, field)
        if ceiling is not None and _number(field, value) > _number(field, ceiling):
            if wish is not None:
                name = f"max.{field} allows" if settings[f"max.{field}"] else "this host has"
                raise QuotaExceeded(
                    f"limits.{field}: {_shown(field, value)} is more than {name} ({_shown(field, ceiling)})",
                    hint=f"ask for at most {_shown(field, ceiling)}",
                    details={"limit": field, "maximum": ceiling},
                )
            value = ceiling
        chosen[field] = format_size(parse_size(value)) if field in ("memory", "disk") else value
    return Limits(**chosen)


def changed_limits(now: Limits, asked: Limits, settings: Settings, host: Limits) -> Limits:
    """What was asked for, held against the maxima; what was not stays, also if a maximum was lowered since."""
    resolved = resolve_limits(asked, settings, host)
    wished = {field: getattr(resolved, field) for field in asked.__struct_fields__ if getattr(asked, field) is not None}
    return replace(now, **wished)


def lesser(one: Limits, other: Limits) -> Limits:
    """The less of each."""
    chosen = {
        field: min(getattr(one, field), getattr(other, field), key=lambda value, field=field: _number(field, value))  # type: ignore[misc]
        for field in one.__struct_fields__
    }
    return Limits(**chosen)


def _number(field: str, value: Any) -> float:
    return parse_size(value) if field in ("memory", "disk") else float(value)


def _shown(field: str, value: Any) -> str:
    return format_size(parse_size(value)) if field in ("memory", "disk") else f"{value:g}"


def resolve_lifecycle(asked: Lifecycle, default: Lifecycle, settings: Settings, name: str | None) -> Lifecycle:
    """The caller's wish over what holds without it: the operator's defaults, or what was there before an update."""
    if name is not None and asked.on_idle == "delete":
        raise InvalidRequest(
            "lifecycle.on_idle: a named sandbox is never deleted by itself", hint='use "stop" or "pause", or no name'
        )
    life = asked.life if asked.life is not None else default.life
    longest = settings["max.life"]
    if longest is not None and life is not None and parse_span(life) > parse_span(longest):
        if asked.life is not None:
            raise QuotaExceeded(
                f"lifecycle.life: {life} is more than max.life allows ({longest})", hint=f"ask for at most {longest}"
            )
        life = longest
    return Lifecycle(
        idle=asked.idle if asked.idle is not None else default.idle,
        life=life,
        on_idle=asked.on_idle or default.on_idle or ("stop" if name else "delete"),
        wake=default.wake if asked.wake is None else asked.wake,
    )


def resolve(
    request: CreateRequest, image: ImageInfo, settings: Settings, host: Limits, peer: egress.Peer = egress.no_peer
) -> Spec:
    if request.options.reproducible:
        raise InvalidRequest("options.reproducible: this version does not have it")
    for name in request.options.waive:
        if name not in WAIVABLE:
            raise InvalidRequest(
                f"options.waive: there is no guarantee {name[:80]!r}", hint=f"one of {', '.join(WAIVABLE)}"
            )
    spec = Spec(
        image=image.name, image_digest=image.digest, layers=image.layers,
        user=image.user, cwd=image.cwd, image_env=image.env, entrypoint=image.entrypoint, cmd=image.cmd,
        env=_needed(request.env, image.env), labels=request.labels,
        limits=resolve_limits(request.limits, settings, host),
        lifecycle=resolve_lifecycle(request.lifecycle, settings.lifecycle, settings, request.name),
        network=egress.of_new(request.network, settings, peer), options=_signed(request.options, settings),
        secrets=_forms(request.secrets),
    )  # fmt: skip
    _check_apart(spec)
    return bounded(spec)


def _signed(options: Options, settings: Settings) -> Options:
    """With the operator's identity for git where the caller gave none."""
    name, email = options.git_name or settings["git.name"], options.git_email or settings["git.email"]
    return replace(options, git_name=name, git_email=email)


def changed(spec: Spec, request: UpdateRequest, settings: Settings, host: Limits, name: str | None) -> Spec:
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
    return bounded(spec)


def _forms(secrets: tuple[SecretValue, ...]) -> tuple[SecretForm, ...]:
    """Secrets as a row may hold them."""
    for secret in secrets:
        check_secret_hosts(secret.name, secret.hosts)
    return tuple(secret.form for secret in secrets)


def _check_apart(spec: Spec) -> None:
    for secret in spec.secrets:
        if spec.env.get(secret.name) is not None:
            raise InvalidRequest(
                f"{secret.name} is among the secrets and in env",
                hint="leave it out of env: inside, the variable holds the secret's placeholder",
            )


def _needed(env: dict[str, str | None], image: dict[str, str]) -> dict[str, str | None]:
    """Without what unsets a variable that nobody has set."""
    return {name: value for name, value in env.items() if value is not None or name in image or name in GIVEN}


def bounded(spec: Spec) -> Spec:
    """The server holds every sandbox's spec, and lists them all in one answer."""
    if len(json.encode(spec)) > SPEC_MOST:
        raise InvalidRequest(f"the sandbox's description is longer than {SPEC_MOST >> 10} KiB")
    return spec
