"""Presets: how this machine's own pip, npm, apt and git are set up to reach what they need, so that a sandbox can.

No host is written down here: the clients themselves are asked, and their files are read. A `Machine` is where that
happens; a `Finding` is what one client needs: rules, variables, certificates, a proxy, and the passwords that stood in
its set-up, which travel as secrets and are taken out of everything that goes inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from skerry.client.presets import apt, git, npm, pip
from skerry.client.presets.finding import Finding
from skerry.client.presets.machine import Machine
from skerry.errors import InvalidRequest
from skerry.types import Preset, SecretValue

_READERS: Final[Mapping[str, Callable[[Machine], Finding]]] = {
    "pip": pip.read, "npm": npm.read, "apt": apt.read, "git": git.read,
}  # fmt: skip
KNOWN: Final = tuple(_READERS)

__all__ = ["KNOWN", "Machine", "read_presets"]


def read_presets(
    names: Iterable[str | Preset], machine: Machine | None = None
) -> tuple[tuple[Preset, ...], tuple[SecretValue, ...]]:
    """What the named clients need on this machine; what was read before stays as it is. Blocks: programs are asked."""
    wanted = tuple(dict.fromkeys(name if isinstance(name, str) else name.name for name in names))
    given = {preset.name: preset for preset in names if isinstance(preset, Preset)}
    for name in wanted:
        if name not in _READERS and name not in given:
            more = "; each is named by itself" if "," in name else ""
            hint = f"there are {', '.join(KNOWN)}{more}"
            raise InvalidRequest(f"network.presets: there is no {name[:60]!r}", hint=hint)
    machine = machine or Machine.this()
    unread = [name for name in wanted if name not in given]
    with ThreadPoolExecutor(max(1, len(unread))) as pool:
        found = dict(zip(unread, pool.map(lambda name: _READERS[name](machine), unread), strict=True))
    presets = tuple(p for name in wanted for p in ((given[name],) if name in given else found[name].presets(name)))
    return presets, tuple(secret for name in unread for secret in found[name].secrets)
