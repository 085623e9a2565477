"""What apt, pip and npm steps may reach: what these programs of this machine are set up to reach."""

from __future__ import annotations

from collections.abc import Iterable

from skerry.client.building.options import BuildOptions
from skerry.client.building.steps import Manager
from skerry.client.egress import on_this_machine
from skerry.errors import InvalidRequest
from skerry.types import Network, Preset, SecretValue

Presets = dict[Manager, tuple[tuple[Preset, ...], tuple[SecretValue, ...]]]


def read_presets_of(managers: Iterable[Manager], options: BuildOptions) -> Presets:
    """Blocks: programs are asked. A machine without such a program has to say what may be reached."""
    found: Presets = {}
    for manager in sorted(managers):
        try:
            network, secrets = on_this_machine(Network(presets=(manager,)))
        except InvalidRequest:
            if options.network is None:
                raise
            found[manager] = ((), ())
        else:
            found[manager] = (tuple(p for p in network.presets if isinstance(p, Preset)), secrets)
    return found
