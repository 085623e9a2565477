# Generated from client/_async/building.py by scripts/generate_sync.py. Do not edit.
"""A build: a recipe's steps in one sandbox, a snapshot after each that changes files; none that is known runs again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from skerry.client import backend_sync as backend
from skerry.client import snapshot_requests
from skerry.client._sync.stepping import Stepping
from skerry.client.building.options import BuildOptions, BuildStep
from skerry.client.building.plan import Plan, State, planned
from skerry.client.building.presets import Presets, read_presets_of
from skerry.client.building.sources import digest
from skerry.client.building.steps import Local, Recipe
from skerry.client.description import UNSAID
from skerry.client.snapshot_requests import SnapshotList
from skerry.errors import Conflict, Denied, InvalidRequest, NotFound, RegistryFailed
from skerry.types import ImageInfo, Lifecycle, SnapshotInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skerry.client._sync.client import Client
    from skerry.client._sync.sandbox import Sandbox

TRIES = 3
# One whose builder was killed goes by itself; a running step is never idle.
LIFECYCLE = Lifecycle(idle="5m", on_idle="delete")


class Moved(Exception):
    """What the plan was made for is gone, or is another by now."""


class Builder:
    """`make` is the class of sandboxes: one that is described by an image has to build first, so they meet here."""

    def __init__(self, client: Client, make: type[Sandbox], options: BuildOptions) -> None:
        self.client = client
        self.make = make
        self.options = options
        self._presets: Presets = {}
        self._depth = 0  # of stages that copy from stages

    def build(self, recipe: Recipe) -> SnapshotInfo:
        """Find what is done already, do the rest."""
        for _ in range(TRIES):
            bases = {name: self._base(name) for name in sorted(recipe.bases)}
            plan = backend.in_thread(planned, recipe, bases, _digest)
            try:
                return self.made(plan)
            except Moved:
                continue
        raise Conflict(f"image {recipe.base} changes while it is built on", hint="try again once it has settled")

    def _base(self, name: str) -> State:
        found = self._found(name)
        return State(found.digest, found.env, found.user, found.cwd, found.entrypoint, found.cmd)

    def _found(self, name: str) -> SnapshotInfo | ImageInfo:
        """As a create finds it: a snapshot of the caller's, then an image. One that is not there is fetched, as docker
        does; `base` is made."""
        try:
            return self.client.value(snapshot_requests.get(name), SnapshotInfo)
        except NotFound:
            pass
        try:
            return self.client.images.get(name)
        except NotFound as error:
            if error.details.get("build") is True and self.client.address.local:
                return self.client.images.build(name)
            if error.details.get("build") is True or not self.options.pull:
                raise
            return self._pulled(name, error)

    def _pulled(self, name: str, missing: NotFound) -> ImageInfo:
        try:
            return self.client.images.pull(name)
        except Denied:  # an admin's to do
            raise missing from None
        except (NotFound, InvalidRequest, RegistryFailed) as why:
            raise NotFound(f"{missing.message}, and it can't be pulled: {why.message}", hint=why.hint) from why

    def made(self, plan: Plan) -> SnapshotInfo:
        """What the plan leads to."""
        self._depth += 1
        try:
            return self._made(plan)
        finally:
            self._depth -= 1

    def _made(self, plan: Plan) -> SnapshotInfo:
        done, found = self._cached(plan) if self.options.cache else (-1, None)
        replace = not self.options.cache
        if found is not None and self._too_old(found):
            done, found, replace = -1, None, True
        for number in range(done + 1):
            self.tell(plan, number, cached=True)
        if found is not None and done == len(plan.tasks) - 1:
            return found
        left = {task.preset for task in plan.tasks[done + 1 :] if task.preset is not None}
        self._presets |= backend.in_thread(read_presets_of, left - self._presets.keys(), self.options)
        sandbox, begun = self._sandbox(plan, found), False
        try:
            with sandbox:
                begun = True
                self._check(sandbox, plan.digest if found is None else found.digest)
                return Stepping(self, plan, sandbox, self._presets, replace=replace).all(done + 1)
        except NotFound as error:
            if begun:
                raise
            raise Moved from error

    def _too_old(self, found: SnapshotInfo) -> bool:
        most = self.options.most_age
        return most is not None and time.time() - found.created_at > most

    def _cached(self, plan: Plan) -> tuple[int, SnapshotInfo | None]:
        """The furthest step whose result is there."""
        for at in reversed(plan.marks):
            request = snapshot_requests.list_all(None, plan.tasks[at].key)
            for info in (self.client.value(request, SnapshotList)).snapshots:
                return at, info
        return -1, None

    def _sandbox(self, plan: Plan, found: SnapshotInfo | None) -> Sandbox:
        options = self.options
        return self.make(
            plan.base if found is None else found.id, env=options.env, limits=options.limits, options=options.options,
            network=UNSAID if options.network is None else options.network, secrets=options.secrets,
            on_unknown=options.on_unknown, lifecycle=LIFECYCLE, labels=label(plan), server=self.client,
        )  # fmt: skip

    def _check(self, sandbox: Sandbox, digest: str) -> None:
        """It stands on what the plan's keys were made from."""
        if sandbox.known.image_digest != digest:
            raise Moved

    def of_stage(self, plan: Plan, made: SnapshotInfo) -> Sandbox:
        """To copy from."""
        return self.make(made.id, lifecycle=LIFECYCLE, labels=label(plan), server=self.client)

    def tell(self, plan: Plan, at: int, *, cached: bool = False) -> None:
        if self.options.on_step is not None:
            step = plan.tasks[at].step
            where = str(step.where) if step.where else None
            told = BuildStep(at + 1, len(plan.tasks), step.title, where, cached, self._depth > 1)
            backend.deliver(self.options.on_step, told)


def label(plan: Plan) -> dict[str, str]:
    return {"skerry.build": plan.key[:12]}


def _digest(files: Sequence[Local], parents: bool) -> str:
    return digest(files, parents=parents)
