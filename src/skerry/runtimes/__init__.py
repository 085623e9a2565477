"""Runtimes: isolated containers for sandboxes.

ContainerConfig: the input. Init: the sandbox's PID 1 as the host identifies it. Runtime: starts a container, connects
to its keeper, and clears it.
"""

from __future__ import annotations

from skerry.runtimes.adjust import DEFAULT_USER
from skerry.runtimes.cgroups import Counters
from skerry.runtimes.checks import checks
from skerry.runtimes.pick import pick_runtime
from skerry.runtimes.runtime import BindMount, ContainerConfig, Init, Runtime

__all__ = ["DEFAULT_USER", "BindMount", "ContainerConfig", "Counters", "Init", "Runtime", "checks", "pick_runtime"]
