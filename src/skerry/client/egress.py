"""What of a policy only this machine knows: how its own clients are set up (presets), and secrets' values."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from msgspec.structs import replace

from skerry.client.secrets import Secret
from skerry.errors import InvalidRequest
from skerry.types import CreateRequest, Network, SecretForm, SecretValue

LEARNED_SHOWN = 50
_SECRETS_LIKE = 'like secrets=[Secret.from_env("TOKEN", hosts=["api.example.com"])]'


def on_this_machine(network: Network) -> tuple[Network, tuple[SecretValue, ...]]:
    """Presets looked up here, with the secrets that they carry. Blocks: this machine's own clients are asked."""
    if not network.presets:
        return network, ()
    from skerry.client.presets import read_presets  # 20 ms, which only those pay who name one

    presets, secrets = read_presets(network.presets)
    return replace(network, presets=presets), secrets


def secret_values(secrets: Sequence[object]) -> tuple[SecretValue, ...]:
    """Read here, and now: from the environment, a file or a command."""
    if not isinstance(secrets, Sequence) or isinstance(secrets, str):
        raise InvalidRequest(f"secrets: a {type(secrets).__name__} is not a list of them", hint=_SECRETS_LIKE)
    return tuple(map(_value, secrets))


def _value(secret: object) -> SecretValue:
    if isinstance(secret, Secret):
        return secret.read()
    if isinstance(secret, SecretValue):
        return secret
    raise InvalidRequest(f"secrets: a {type(secret).__name__} is not a Secret", hint=_SECRETS_LIKE)


def with_what_is_here(wish: CreateRequest, secrets: Sequence[object]) -> CreateRequest:
    """A create, complete. Blocks: it reads files, and may run commands of this host."""
    network, carried = on_this_machine(wish.network) if wish.network is not None else (None, ())
    given = secret_values(secrets)
    names = {secret.name for secret in given}
    return replace(wish, network=network, secrets=(*given, *(one for one in carried if one.name not in names)))


def check_carried(secrets: Sequence[SecretValue], there: Sequence[SecretForm]) -> None:
    """A policy alone brings no secret along: those that its presets need have to be there."""
    missing = {secret.name for secret in secrets} - {secret.name for secret in there}
    if missing:
        raise InvalidRequest(
            f"network.presets: what they are set up with has a password ({', '.join(sorted(missing))})",
            hint="name these presets when the sandbox is made: their passwords then travel as secrets",
        )


def learned_in_words(network: Network) -> str:
    """For a sandbox that is gone in a moment: the flags, or rules, of the next one."""
    if not network.allow:
        return "learned: nothing was tried that a rule could allow"
    shown = " ".join(f"--allow {shlex.quote(rule)}" for rule in network.allow[:LEARNED_SHOWN])
    more = len(network.allow) - LEARNED_SHOWN
    return f"learned: {shown}" + (f" and {more:,} more" if more > 0 else "")
