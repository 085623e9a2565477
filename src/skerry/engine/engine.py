"""The engine: constructs every service once, in dependency order."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from skerry._version import __version__
from skerry.code.kernels import KERNELS
from skerry.config import Settings
from skerry.engine.code.context_table import ContextTable
from skerry.engine.code.contexts import ContextBackend, ContextService, ContextStore
from skerry.engine.code.kernels import Kernels
from skerry.engine.code.languages import LanguageService
from skerry.engine.code.service import CodeService
from skerry.engine.code.shell_contexts import ShellContexts
from skerry.engine.database import Database, check_schema
from skerry.engine.events import Events
from skerry.engine.files.service import FileService
from skerry.engine.hooks import Hooks
from skerry.engine.host import Host
from skerry.engine.images.archives import ArchiveService
from skerry.engine.images.layer_users import LayerUsers
from skerry.engine.images.service import ImageService
from skerry.engine.network import policy_resolution
from skerry.engine.network.attempts import AttemptLog
from skerry.engine.network.dial import PortDialer
from skerry.engine.network.gateway import GatewayManager
from skerry.engine.network.handlers import HandlerService
from skerry.engine.network.policies import PolicyService
from skerry.engine.network.preview_listener import PreviewListener
from skerry.engine.network.previews import PreviewService
from skerry.engine.pool.pool import Pool
from skerry.engine.processes.keeper_events import KeeperEvents
from skerry.engine.processes.ports import PortService
from skerry.engine.processes.service import ProcessService
from skerry.engine.processes.sessions import SessionService
from skerry.engine.processes.startup import StartupService
from skerry.engine.processes.terminals import TerminalService
from skerry.engine.records.audit.index import AuditIndex
from skerry.engine.records.audit.keys import KeyStore, key_directory
from skerry.engine.records.audit.segments import AuditLog
from skerry.engine.records.audit.service import AuditService
from skerry.engine.records.limits import LimitEvents
from skerry.engine.records.trace.service import TraceService
from skerry.engine.records.usage.budget_accounts import BudgetTable
from skerry.engine.records.usage.budgets import BudgetService
from skerry.engine.records.usage.meter import Meter
from skerry.engine.records.usage.store import UsageStore
from skerry.engine.repair.quarantine import Quarantine
from skerry.engine.repair.rebuild import open_database
from skerry.engine.review.git_remote import GitRemoteService
from skerry.engine.review.pull import PullService
from skerry.engine.review.service import ReviewService
from skerry.engine.review.undelete import UndeleteService
from skerry.engine.sandboxes.adoption import Adoption
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.reaper import Reaper
from skerry.engine.sandboxes.record import SandboxTable
from skerry.engine.sandboxes.recovery import recover
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.service import SandboxService
from skerry.engine.sandboxes.transitions import Transitions
from skerry.engine.snapshots.fork import ForkService
from skerry.engine.snapshots.rollback import RollbackService
from skerry.engine.snapshots.service import SnapshotService
from skerry.engine.snapshots.table import SnapshotTable
from skerry.engine.state_dir import StateDir
from skerry.engine.tasks import Tasks
from skerry.engine.tokens import Tokens
from skerry.engine.volumes.service import VolumeService, VolumeTable
from skerry.engine.webhooks.alerts import Alerts, rules_of
from skerry.engine.webhooks.queue import WebhookQueue, targets_of
from skerry.engine.webhooks.service import WebhookService, read_secrets
from skerry.errors import HostUnsupported, QuotaExceeded
from skerry.keeper import build_id
from skerry.types import parse_span


class Engine:
    """Owns one state directory. Every effect on a sandbox goes through one of its services. Sandboxes outlive it."""

    @classmethod
    async def open(cls, settings: Settings) -> Engine:
        """Lock the state directory, construct the services, and repair what an earlier server left half done."""
        if os.geteuid() != 0:
            raise HostUnsupported("the server must run as root", hint="sudo skerry setup makes it a service")
        policy_resolution.check_settings(settings)
        for form in settings["webhooks"].values():
            read_secrets(form.secret_file)
        state = StateDir.acquire(settings.state_dir)
        try:
            check_schema(state.database)
            host = await Host.open(settings)
        except BaseException:
            state.release()
            raise
        try:
            database = await asyncio.to_thread(open_database, state.database, host)
        except BaseException:
            host.close()
            state.release()
            raise
        try:
            webhooks = WebhookQueue(database, targets_of(settings))
            audit = await asyncio.to_thread(open_audit, settings, webhooks)
        except BaseException:
            database.close()
            host.close()
            state.release()
            raise
        try:
            usage = await asyncio.to_thread(UsageStore, settings.state_dir / "usage.db")
        except BaseException:
            await audit.close()
            database.close()
            host.close()
            state.release()
            raise
        engine = cls(settings, state, database, host, webhooks, audit, usage)
        await engine._recover()
        return engine

    def __init__(
        self,
        settings: Settings,
        state: StateDir,
        database: Database,
        host: Host,
        webhooks: WebhookQueue,
        audit: AuditService,
        usage: UsageStore,
    ) -> None:
        self.settings, self.host = settings, host
        self._state, self._database = state, database
        self._opened_at = time.time()
        self._tasks = tasks = Tasks()
        hooks, layer_users = Hooks(), LayerUsers()
        self._quarantine = quarantine = Quarantine(host, database)
        self.audit = audit
        self.traces = traces = TraceService(settings, host.secrets, host.cassettes)
        alerts = Alerts(rules_of(settings))
        self.tokens, self.events = Tokens(database), Events(database, audit, webhooks, traces, alerts)
        self.webhooks = WebhookService(webhooks, tasks)

        self.registry = registry = SandboxRegistry(settings, SandboxTable(database, self.events))
        self.attempts = AttemptLog(database, audit, traces, self.events)
        self.meter = Meter(settings, usage, host, registry, self.attempts, tasks)
        self.gateways = gateways = GatewayManager(settings, host.secrets, host.cassettes, self.attempts, tasks)
        self._transitions = transitions = Transitions(host, registry.table, gateways, quarantine, hooks, tasks)
        self.images = ImageService(settings, host.layers, layer_users)
        self.pool = Pool(settings, transitions, registry, self.images, hooks, tasks)
        lifecycle = Lifecycle(transitions, registry, self.pool, hooks, tasks)
        self._reaper = Reaper(registry, lifecycle, tasks)
        self.budgets = BudgetService(BudgetTable(database), self.meter, self.events, registry, lifecycle, tasks)

        self.snapshots = SnapshotService(transitions, registry, self.images, self.pool, SnapshotTable(database), tasks)
        self.archives = ArchiveService(self.snapshots, tasks)
        self.volumes = VolumeService(
            settings, VolumeTable(database), host, quarantine, registry, self.snapshots.slots, tasks
        )
        self.network = PolicyService(settings, gateways, host.cassettes, registry, lifecycle, tasks)
        self.handlers = HandlerService(gateways, registry, tasks)
        self.previews = PreviewService(PreviewListener(settings), database, gateways, registry, lifecycle, tasks)
        reach = PortDialer(gateways, registry, lifecycle, self.previews, tasks)
        self.reviews = ReviewService(
            settings, database, self.events, traces, gateways, quarantine, registry, lifecycle, tasks
        )
        self.decisions, self.remotes = self.reviews.decisions, GitRemoteService(self.reviews)
        self.pulls = PullService(self.reviews, lifecycle, tasks)
        self.adoption = Adoption(transitions, registry, lifecycle, self.reviews, tasks)
        self.processes = ProcessService(settings, registry, lifecycle, traces, hooks, tasks)
        startups = StartupService(self.processes, lifecycle, registry, tasks)
        self.forks = ForkService(self.snapshots, self.reviews, traces, transitions, registry, lifecycle, tasks)
        self.rollbacks = RollbackService(self.snapshots, self.reviews, transitions, registry, lifecycle, hooks, tasks)
        self.sandboxes = SandboxService(
            settings, transitions, registry, lifecycle, self.pool, self.snapshots, self.network, self.reviews,
            self.budgets, traces, startups, self.volumes, tasks,
        )  # fmt: skip
        self.undeletes = UndeleteService(self.reviews, self.sandboxes, lifecycle, tasks)

        limits = LimitEvents(self.events, audit, traces)
        keeper_events = KeeperEvents(self.events, limits, traces, lifecycle, tasks)
        self.files = FileService(registry, lifecycle, self.reviews, traces)
        self.terminals = TerminalService(self.processes)
        self.sessions = SessionService(lifecycle, self.processes, tasks)
        self.ports = PortService(registry, lifecycle, reach)

        self.languages = LanguageService(settings, lifecycle, self.images)
        contexts = ContextStore(settings, ContextTable(database))
        backends: dict[str, ContextBackend] = {
            **dict.fromkeys(KERNELS, Kernels(contexts, lifecycle, limits, hooks, tasks)),
            "shell": ShellContexts(contexts, self.sessions, self.languages),
        }
        self.contexts = ContextService(settings, contexts, backends, registry, lifecycle, self.languages, tasks)
        self.code = CodeService(contexts, backends, lifecycle, self.languages, self.processes, traces, tasks)

        hooks.add(
            lifecycle, traces, limits, keeper_events, self.previews, self.network, self.handlers, contexts,
            self.snapshots, self.reviews, self.pool, self.budgets, self.meter, startups,
            self.volumes,
        )  # fmt: skip
        self.meter.add(self.budgets, limits)
        layer_users.add(self.pool, self.snapshots, quarantine)
        gateways.add(self.previews, self.network, self.handlers, reach)

    async def _recover(self) -> None:
        """Repair the state that an earlier server left, and start background work, such as the adoption of its
        sandboxes. Sandboxes come first: everything else is kept or removed by whether its sandbox exists."""
        self.gateways.start()
        self.events.reconcile()
        self.registry.add(await recover(self._transitions))
        await self.meter.start()
        await self.reviews.open()
        await self.snapshots.sweep()
        await self.volumes.recover()
        await self.images.recover()
        await self.archives.recover()
        await self.previews.open()
        self.pool.start()
        self.contexts.start()
        await self.adoption.begin()
        self.webhooks.start()
        self._tasks.spawn(self._reaper.watch())
        self._tasks.spawn(self._quarantine.watch())
        self._tasks.spawn(self.snapshots.watch())
        self._tasks.spawn(self.reviews.deleted.watch())
        self._tasks.spawn(self.traces.watch(self.registry))

    async def close(self) -> None:
        """Let go of everything. Every sandbox keeps running."""
        await self._tasks.close()
        await self.reviews.close()
        await self.pool.close()
        await self.meter.close()
        await self.images.close()
        for sandbox in self.registry:
            await sandbox.detach()
        await self.gateways.close()
        self.host.close()
        self.previews.close()
        self.events.close()
        await self.traces.close()
        await self.audit.close()
        self._database.close()
        await self.host.release()  # after the last record files are written, which are in the storage too
        self._state.release()

    def status(self) -> dict[str, Any]:
        return {
            "version": __version__, "build": build_id(), "pid": os.getpid(), "started_at": self._opened_at,
            "uptime_s": time.time() - self._opened_at, "state_dir": str(self.settings.state_dir),
            "runtime": self.host.runtime(None).name, "storage": self.host.driver.name,
            "sandboxes": len(self.registry), "network": self.gateways.state,
        }  # fmt: skip

    async def problems(self) -> AsyncIterator[str]:
        """Yield the reasons why no sandbox can be created now."""
        try:
            self.host.driver.check_space()
        except QuotaExceeded:
            yield "disk"
        if not await self.audit.probe():
            yield "audit"
        if self.gateways.state == "down":
            yield "network"
        if self.registry.live_count >= self.settings["max.sandboxes"]:
            yield "full"

    @property
    def empty(self) -> bool:
        """Return whether no sandbox takes up this host and no image is being made: a background server may exit."""
        return not self.images.busy and not self.registry.live_count


def open_audit(settings: Settings, webhooks: WebhookQueue) -> AuditService:
    """Open the audit log of a state directory. Its key is in a directory outside of it."""
    state, keep = settings.state_dir, parse_span(settings["audit.keep"])
    sinks = [Path(sink) for sink in settings["audit.checkpoints"] if "://" not in sink]
    keys = KeyStore(key_directory(settings), state)
    records = AuditLog(state / "audit", keys, keep_s=keep, sinks=sinks, webhooks=webhooks)
    return AuditService(keys, records, AuditIndex(state / "audit" / "index.db"), settings["audit.sync"])
