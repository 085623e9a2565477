"""Runtimes: how a wall is built around a sandbox.

Wall: what it is built from. Init: the sandbox's PID 1 as the host knows it. Runtime: builds a wall, reaches the keeper
behind it, takes it away.
"""

from __future__ import annotations

from skerry.runtimes.checks import checks
from skerry.runtimes.pick import pick_runtime
from skerry.runtimes.runtime import Init, Runtime, Wall

__all__ = ["Init", "Runtime", "Wall", "checks", "pick_runtime"]
