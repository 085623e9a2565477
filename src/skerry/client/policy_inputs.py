"""The parts of a policy that only this machine knows: the configuration of its programs (presets), and values of
secrets."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from msgspec.structs import replace

from skerry.client.secrets import Secret
from skerry.errors import InvalidRequest
from skerry.types import CreateRequest, Network, SecretForm, SecretValue

MAX_LEARNED_SHOWN = 50
_SECRETS_LIKE = 'like secrets=[Secret.from_env("TOKEN", hosts=["api.example.com"])]'


def resolve_presets(network: Network) -> tuple[Network, tuple[SecretValue, ...]]:
    """Resolve presets on this machine; return the network and the secrets that they need. Blocks: it runs programs."""
    if not network.presets:
        return network, ()
    from skerry.client.presets import read_presets  # 20 ms, only if a preset is named

    presets, secrets = read_presets(network.presets)
    return replace(network, presets=presets), secrets


def secret_values(secrets: Sequence[object]) -> tuple[SecretValue, ...]:
    """Read the values now: from the environment, a file or a command."""
    if not isinstance(secrets, Sequence) or isinstance(secrets, str):
        raise InvalidRequest(f"secrets: a {type(secrets).__name__} is not a list of them", hint=_SECRETS_LIKE)
    return tuple(map(_value, secrets))


def _value(secret: object) -> SecretValue:
    if isinstance(secret, Secret):
        return secret.read()
    if isinstance(secret, SecretValue):
        return secret
    raise InvalidRequest(f"secrets: a {type(secret).__name__} is not a Secret", hint=_SECRETS_LIKE)


def resolve_create_request(payload: CreateRequest, secrets: Sequence[object]) -> CreateRequest:
    """Return the complete create request. Blocks: it reads files, and may run commands of this host."""
    network, carried = resolve_presets(payload.network) if payload.network is not None else (None, ())
    given = secret_values(secrets)
    names = {secret.name for secret in given}
    return replace(payload, network=network, secrets=(*given, *(one for one in carried if one.name not in names)))


def check_secrets_exist(secrets: Sequence[SecretValue], there: Sequence[SecretForm]) -> None:
    """Check that the secrets of presets exist: a policy change cannot send them."""
    missing = {secret.name for secret in secrets} - {secret.name for secret in there}
    if missing:
        raise InvalidRequest(
            f"network.presets: their configuration contains a password ({', '.join(sorted(missing))})",
            hint="name these presets when the sandbox is created: their passwords are then sent as secrets",
        )


def describe_learned(network: Network) -> str:
    """Return the learned policy as flags or rules for the next sandbox."""
    if not network.allow:
        return "learned: no network access that a rule could allow"
    shown = " ".join(f"--allow {shlex.quote(rule)}" for rule in network.allow[:MAX_LEARNED_SHOWN])
    more = len(network.allow) - MAX_LEARNED_SHOWN
    return f"learned: {shown}" + (f" and {more:,} more" if more > 0 else "")
