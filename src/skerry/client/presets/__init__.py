"""Presets: the hosts, variables and credentials that pip, npm, apt, git, cargo, go, maven and gem use on this machine,
for use in a sandbox.

No host is hard-coded here: the programs are queried and their files are read. A `Machine` gives access to them; a
`Finding` collects the needs of one program: rules, variables, certificates, a proxy, and the passwords in its
configuration, which are sent as secrets and removed from everything that goes inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from skerry.client.presets import apt, git, npm, pip, toolchains
from skerry.client.presets.machine import Machine
from skerry.client.presets.preset import PresetBuilder
from skerry.errors import InvalidRequest
from skerry.types import Preset, SecretValue

_READERS: Final[Mapping[str, Callable[[Machine], PresetBuilder]]] = {
    "pip": pip.read, "npm": npm.read, "apt": apt.read, "git": git.read, "cargo": toolchains.read_cargo,
    "go": toolchains.read_go, "maven": toolchains.read_maven, "gem": toolchains.read_gem,
}  # fmt: skip
KNOWN: Final = tuple(_READERS)

__all__ = ["KNOWN", "Machine", "read_presets"]


def read_presets(
    names: Iterable[str | Preset], machine: Machine | None = None
) -> tuple[tuple[Preset, ...], tuple[SecretValue, ...]]:
    """Return the presets of the named programs on this machine; a `Preset` is kept unchanged. Blocks: it runs
    programs."""
    wanted = tuple(dict.fromkeys(name if isinstance(name, str) else name.name for name in names))
    given = {preset.name: preset for preset in names if isinstance(preset, Preset)}
    for name in wanted:
        if name not in _READERS and name not in given:
            more = "; each is named by itself" if "," in name else ""
            hint = f"known presets: {', '.join(KNOWN)}{more}"
            raise InvalidRequest(f"network.presets: {name[:60]!r} not found", hint=hint)
    machine = machine or Machine.this()
    unread = [name for name in wanted if name not in given]
    with ThreadPoolExecutor(max(1, len(unread))) as pool:
        found = dict(zip(unread, pool.map(lambda name: _READERS[name](machine), unread), strict=True))
    presets = tuple(p for name in wanted for p in ((given[name],) if name in given else found[name].presets(name)))
    return presets, tuple(secret for name in unread for secret in found[name].secrets)
