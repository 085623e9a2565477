"""Gateways of all sandboxes: opened when a sandbox starts, adopted by a new server, closed when it ends; and the
messages to and from the one worker that serves them. Without a worker the gateways stay, and nothing gets out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from skerry.config import Settings, instance_of
from skerry.engine.network.attempts import AttemptLog, WorkerProtocolError
from skerry.engine.network.cassettes import CassetteStore
from skerry.engine.network.secrets import SecretStore
from skerry.engine.sandboxes.record import SandboxSpec
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.tasks import Tasks
from skerry.errors import HostUnsupported, QuotaExceeded, SkerryError
from skerry.network.gateway.checks import checks
from skerry.network.gateway.gateway import Gateway, open_gateway
from skerry.network.gateway.netns import Namespaces
from skerry.network.messages import (
    AttemptMessage,
    CaKeyPair,
    ChangeRules,
    CloseGateway,
    ExchangeMessage,
    FromServer,
    FromWorker,
    InjectedSecret,
    OpenGateway,
    Rules,
    TrafficMessage,
)
from skerry.network.supervisor import Supervisor
from skerry.runtimes import ranges
from skerry.types import SANDBOX_ID, NetworkAttempt, NetworkInfo, Preset, parse_size, parse_span

log = logging.getLogger("skerry.engine")
WORKER: Final = "worker"  # its entry in the register of uid ranges
CHANGE_TIMEOUT_S: Final = 10.0
WORKER_TIMEOUT_S: Final = 3.0
SYNC_TIMEOUT_S: Final = 0.1
MAX_DENIED: Final = 100  # in one result


@dataclass(eq=False)
class _OpenedGateway:
    sandbox: Sandbox
    gateway: Gateway
    announced: int = 0  # the worker that knows it, by how many were started
    connections: int = 0
    cassette: str | None = None  # the mode that the worker knows


class WorkerHandler(Protocol):
    """A service that takes part in the talk with the worker, and that needs gateways itself: it is added after both
    were constructed."""

    def on_worker_start(self) -> None:
        """A new worker has started and knows nothing."""
        return

    def on_worker_message(self, message: FromWorker) -> bool:
        """Handle a message. Return False if it concerns another service; raise WorkerProtocolError for an impossible
        one."""
        return False


class GatewayManager:
    """`engine.gateways`. Other services handle the worker's requests about approvals, previews and connections."""

    def __init__(
        self, settings: Settings, secrets: SecretStore, cassettes: CassetteStore, attempts: AttemptLog, tasks: Tasks
    ) -> None:
        self._settings, self._secrets, self._cassettes = settings, secrets, cassettes
        self._attempts, self._tasks = attempts, tasks
        self._instance = instance_of(settings.state_dir)
        self._names = settings.state_dir / "names"
        self._open: dict[str, _OpenedGateway] = {}
        self._violations = 0
        self._handlers: list[WorkerHandler] = []
        self._uid: int | None = None
        self.namespaces = Namespaces()
        self.worker: Supervisor | None = None

    def add(self, *handlers: WorkerHandler) -> None:
        self._handlers += handlers

    def start(self) -> None:
        """Start the worker. Without a free uid for it the server runs without a network."""
        self._names.mkdir(mode=0o700, exist_ok=True)
        try:
            self._uid = ranges.held(self._instance).get(WORKER) or ranges.take(self._instance, WORKER)
        except QuotaExceeded as error:
            log.error("no network: no free uid range for the worker", extra={"error": error.message})
            return
        self.worker = Supervisor(self._uid, self._handle_message, self._renew, self._interrupted)
        self.worker.start()
        self._tasks.spawn(self._refuse_without_worker(self.worker))
        self._tasks.spawn(_check_host())

    async def close(self) -> None:
        """End the worker and close all sockets. Sandboxes have no network until the next server has started."""
        if self.worker is not None:
            await self.worker.close()
        for opened in self._open.values():
            opened.gateway.close()
        self._open.clear()
        await asyncio.to_thread(self.namespaces.close)
        if self._uid is not None:
            ranges.release(self._instance, WORKER, self._uid)
        self._attempts.close()

    @property
    def state(self) -> str:
        """Of the worker: starting, ready, down, closed."""
        return self.worker.state if self.worker is not None else "down"

    # -- opening and closing ------------------------------------------------------------------------------------------

    async def open(self, sandbox: Sandbox, pidfd: int) -> None:
        """Open a gateway for the sandbox of that first process; it replaces an earlier one. On a host that can't open
        gateways a sandbox without a network starts, and any other fails."""
        try:
            gateway = await open_gateway(self.namespaces, pidfd)
        except (OSError, SkerryError) as error:
            if not sandbox.record.spec.network.closed or sandbox.record.spec.secrets:
                if isinstance(error, SkerryError):  # it has ended while it started
                    raise
                raise HostUnsupported(
                    f"this host can't open a sandbox's network: {error}", hint="`skerry doctor` lists the missing parts"
                ) from error
            log.warning("failed to open a gateway", extra={"sandbox": sandbox.record.id, "error": str(error)})
            return
        self.close_gateway(sandbox.record.id)
        sandbox.attempts, sandbox.denials = self._attempts.of(sandbox.record.id), self
        self._open[sandbox.record.id] = opened = _OpenedGateway(sandbox, gateway)
        self._send_open_safely(opened)

    async def reassign(self, sandbox: Sandbox) -> None:
        """Close all connections of a gateway and open it with the rules, name and cassette of now. Return when they
        hold; none of them holds if the worker can't be reached."""
        opened, worker = self._open.get(sandbox.record.id), self.worker
        if opened is None or worker is None or worker.state != "ready":
            return
        started = worker.starts
        self.send(CloseGateway(sandbox=sandbox.record.id))
        self._send_open_safely(opened)
        self._replace_worker_unless(await worker.sync(CHANGE_TIMEOUT_S, sandbox.record.id), started, sandbox)

    def has_gateway(self, sandbox_id: str) -> bool:
        return sandbox_id in self._open

    def close_gateway(self, sandbox_id: str) -> None:
        """Idempotent."""
        opened = self._open.pop(sandbox_id, None)
        if opened is not None:
            opened.gateway.close()
            self.send(CloseGateway(sandbox=sandbox_id))

    async def settle_traffic(self, sandbox: Sandbox) -> None:
        """Wait until the worker has reported all of the sandbox's traffic, if there was any: once its gateway is
        closed, nothing more is accepted."""
        known = sandbox.record.id in self._open and self.worker is not None and self.worker.state == "ready"
        if known and self.worker is not None and (self.worker.unread or sandbox.attempts.heard):
            await self.worker.sync(SYNC_TIMEOUT_S, sandbox.record.id)

    def forget(self, sandbox_id: str) -> None:
        """Remove the records of a deleted sandbox. The file goes last: by it the next server's sweep finds the rest."""
        self._attempts.forget(sandbox_id)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._names / sandbox_id)

    def sweep(self, known: set[str]) -> None:
        for name in os.listdir(self._names):
            if name not in known and SANDBOX_ID.fullmatch(name):
                self.forget(name)

    async def update_rules(self, sandbox: Sandbox) -> None:
        """Send the worker the rules and the name of the record and return when they hold. A worker that does not
        confirm in time is replaced."""
        if sandbox.record.id not in self._open or self.worker is None or self.worker.state != "ready":
            return  # the next worker gets only the current rules
        if self._open[sandbox.record.id].cassette != sandbox.record.spec.network.cassette:
            await self.reassign(sandbox)
            return
        try:
            rules = rules_of(sandbox.record.spec, self._settings, *self._secrets.brokered(sandbox.record))
        except BaseException:  # the old rules must not hold any longer, and the new ones can't be sent
            self.send(CloseGateway(sandbox=sandbox.record.id))
            raise
        started = self.worker.starts
        done = await self.worker.change(
            lambda number: ChangeRules(
                sandbox=sandbox.record.id, rules=rules, number=number, hostname=sandbox.record.hostname
            ),
            CHANGE_TIMEOUT_S,
        )
        self._replace_worker_unless(done, started, sandbox)

    def _replace_worker_unless(self, done: bool, started: int, sandbox: Sandbox) -> None:
        if not done and self.worker is not None and self.worker.starts == started:
            log.warning("the network worker did not confirm a change", extra={"sandbox": sandbox.record.id})
            self.worker.restart("did not confirm a change")

    def info(self, sandbox: Sandbox) -> NetworkInfo:
        opened = self._open.get(sandbox.record.id)
        sent, received = self._attempts.traffic(sandbox.record.id)
        return NetworkInfo(
            network=sandbox.record.spec.network, secrets=sandbox.record.spec.secrets, sent=sent, received=received,
            ready=opened is not None and self.worker is not None and self.worker.state == "ready",
            open_connections=opened.connections if opened is not None else 0,
        )  # fmt: skip

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Return the bytes that each sandbox has sent and received."""
        return self._attempts.all_traffic()

    def count_served(self, sandbox: Sandbox, sent: int, received: int) -> None:
        """Count bytes of a preview or a forwarded port, as the sandbox sent and received them."""
        self._attempts.count_served(sandbox.record.id, sent, received)

    def attempts(
        self, sandbox_id: str, since: int, follow: bool, denied: bool
    ) -> AsyncGenerator[list[NetworkAttempt], None]:
        return self._attempts.read(sandbox_id, since, follow, denied)

    # -- attribution --------------------------------------------------------------------------------------------------

    async def contacted_hosts(self, sandbox_id: str, processes: Collection[str], before: int) -> tuple[str, ...]:
        """Return the hosts that these processes reached, as far as they are recorded. `before`: the number of attempts
        before the first process started."""
        tries = self._attempts.of(sandbox_id)
        if self.worker is None or not (self.worker.unread or tries.heard > before):
            return ()
        await self.worker.sync(SYNC_TIMEOUT_S, sandbox_id)
        return self._attempts.contacted_hosts(sandbox_id, processes)

    async def settle(self, sandbox_id: str) -> None:
        """Wait until the worker has reported and recorded everything up to now, if it answers in time."""
        if self.worker is not None:
            await self.worker.sync(WORKER_TIMEOUT_S, sandbox_id)

    async def denied_to(self, sandbox_id: str, process: str, before: int) -> tuple[NetworkAttempt, ...]:
        """Return the denied attempts of a process that has ended, then its failed ones. `before`: the number of
        attempts before it started. Messages about all of its attempts are on their way by now; wait for the worker only
        if there are any."""
        tries = self._attempts.of(sandbox_id)
        if self.worker is None or not (self.worker.unread or tries.heard > before):
            return self._attempts.denied_to(sandbox_id, process, MAX_DENIED) if not tries.heard else ()
        await self.worker.sync(SYNC_TIMEOUT_S, sandbox_id)
        return (*tries.denied_by(process), *tries.unreached_by(process))[:MAX_DENIED]

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send_open_safely(self, opened: _OpenedGateway) -> None:
        """Send a gateway to the current worker, or leave it to the next. After a failure here no worker serves the
        gateway: nothing gets out."""
        if self.worker is None or self.worker.state != "ready":
            return
        try:
            self._send_open(opened, self.worker)
        except (OSError, SkerryError) as error:
            log.error(
                "failed to send a gateway to the worker",
                extra={"sandbox": opened.sandbox.record.id, "error": str(error)},
            )

    def _send_open(self, opened: _OpenedGateway, worker: Supervisor) -> None:
        record = opened.sandbox.record
        sent, received = self._attempts.traffic(record.id)
        rules = rules_of(record.spec, self._settings, *self._secrets.brokered(record))
        message = OpenGateway(sandbox=record.id, rules=rules, hostname=record.hostname, sent=sent, received=received)
        files = [_open_fake_ips(self._names / record.id)]
        try:
            if rules.cassette is not None:
                files.append(self._cassettes.open(record.id))
            opened.announced, opened.cassette = worker.starts, rules.cassette
            worker.send(message, [one.fileno() for one in opened.gateway.sockets] + files)
        finally:
            for fd in files:
                os.close(fd)

    def send(self, message: FromServer, fds: Sequence[int] = ()) -> None:
        """Send a message. Without a worker it is lost: the next worker gets everything."""
        if self.worker is not None:
            self.worker.send(message, fds)

    def _renew(self) -> None:
        for handler in self._handlers:
            handler.on_worker_start()
        self._tasks.spawn(self._send_all())

    def _interrupted(self, reason: str) -> None:
        """Note on the connections of an ended worker why they are reset."""
        number = self._attempts.interrupt(
            f"it was disconnected: the network worker {reason} and is replaced; try again"
        )
        for opened in self._open.values():
            opened.connections = 0
        if number:
            log.warning(
                "connections were reset", extra={"connections": number, "reason": f"the network worker {reason}"}
            )

    async def _send_all(self) -> None:
        """Send every gateway to a new worker, as fast as it reads."""
        if self.worker is None:
            return
        for opened in list(self._open.values()):
            if not await self.worker.wait_drained():
                return
            still = self._open.get(opened.sandbox.record.id) is opened
            if still and opened.announced != self.worker.starts:
                self._send_open_safely(opened)

    async def _refuse_without_worker(self, worker: Supervisor) -> None:
        """Connections wait while a worker starts; if none comes, refuse them."""
        while True:
            await asyncio.sleep(WORKER_TIMEOUT_S / 4)
            if worker.down_s > WORKER_TIMEOUT_S:
                for opened in list(self._open.values()):
                    opened.gateway.reset_waiting()

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _handle_message(self, message: FromWorker) -> None:
        """Handle a message from the worker. It may concern only a sandbox with a gateway that the worker was given."""
        try:
            match message:
                case AttemptMessage():
                    self._attempts.add(message, self._known(message.sandbox).sandbox.record.owner)
                case ExchangeMessage():
                    self._known(message.sandbox)
                    self._attempts.add_exchange(message)
                case TrafficMessage():
                    opened = self._known(message.sandbox)
                    self._attempts.count(message.sandbox, message.sent, message.received)
                    opened.connections = min(max(message.open, 0), 1 << 20)
                    opened.sandbox.mark_active()
                case _:
                    if not any(handler.on_worker_message(message) for handler in self._handlers):
                        raise WorkerProtocolError("a message that only a server sends")
        except WorkerProtocolError as error:
            self._violations += 1
            # 1, 2, 4, 8 …: a misbehaving worker does not fill the log
            if self._violations & (self._violations - 1) == 0:
                log.warning(
                    "the network worker violated its protocol", extra={"error": str(error), "times": self._violations}
                )

    def sandbox_of(self, sandbox_id: str) -> Sandbox:
        """Return the sandbox of a gateway that the worker was given; raise WorkerProtocolError for any other."""
        return self._known(sandbox_id).sandbox

    def _known(self, sandbox_id: str) -> _OpenedGateway:
        opened = self._open.get(sandbox_id)
        if opened is None:
            raise WorkerProtocolError(f"no gateway of {sandbox_id[:40]!r} was given to it")
        return opened

    def process_of(self, sandbox_id: str, cgroup: int | None) -> str | None:
        """Return the process that is in that cgroup of the sandbox now."""
        return self._attempts.of(sandbox_id).processes.find(cgroup, time.time())


def rules_of(
    spec: SandboxSpec, settings: Settings, secrets: tuple[InjectedSecret, ...], authority: CaKeyPair | None
) -> Rules:
    """Return the rules that the worker enforces: the policy, the additions of presets, the operator's restrictions."""
    network = spec.network
    presets = [preset for preset in network.presets if isinstance(preset, Preset)]
    anything = ("*",) if network.cassette == "replay" and network.without_rules else ()  # nothing gets out
    return Rules(
        allow=(*network.allow, *(rule for preset in presets for rule in preset.allow), *anything),
        deny=tuple(dict.fromkeys((*network.deny, *settings["network.deny"]))),
        ceiling=tuple(settings["max.network"]), inspect=tuple(network.inspect),
        handlers=tuple(network.handlers), mirror=tuple(network.mirror), on_unknown=network.on_unknown,
        approval_timeout_s=parse_span(network.approval_timeout or settings["network.approval_timeout"]),
        peers=network.peers,
        proxies=tuple((preset.allow, preset.proxy) for preset in presets if preset.proxy is not None),
        certificates="\n".join(preset.certificates for preset in presets if preset.certificates),
        secrets=secrets, ca=authority,
        bytes_per_second=_smallest(network.bytes_per_second, settings["max.bandwidth"]),
        max_bytes=_smallest(network.max_bytes, settings["max.network_bytes"]),
        cassette=network.cassette,
        max_connections=min(network.max_connections or settings["max.connections"], settings["max.connections"]),
    )  # fmt: skip


async def _check_host() -> None:
    """Report at start-up that this host can't open gateways, or has unsafe settings. On other hosts this loads the
    kernel modules in advance."""
    for check in await asyncio.to_thread(checks):
        if check.ok is not True:
            event = "no sandbox can have a network" if check.name == "egress" else "a setting of this host is too high"
            log.warning(event, extra={"error": check.detail, "hint": check.fix})


def _smallest(*sizes: str | int | None) -> int | None:
    return min((parse_size(size) for size in sizes if size is not None), default=None)


def _open_fake_ips(path: Path) -> int:
    """Which name got which address: the worker reads it and adds to it."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
