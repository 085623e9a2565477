"""The doors of all sandboxes: made when they start, taken up by a new server, shut when they end; and the talk with the
one worker that serves them. While there is no worker the doors stand, and nothing gets out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from skerry.config import Settings, instance_of
from skerry.engine.attempts import Attempts, Lie
from skerry.engine.live import Live
from skerry.engine.questions import Answered
from skerry.engine.reach import Reach
from skerry.engine.rows import Row, Spec
from skerry.errors import HostUnsupported, QuotaExceeded, SkerryError
from skerry.network import door as doors
from skerry.network.checks import checks
from skerry.network.door import Door
from skerry.network.messages import (
    Ask,
    Authority,
    Brokered,
    Change,
    Close,
    Counted,
    Dial,
    Dialled,
    FromServer,
    FromWorker,
    Open,
    Rules,
    Told,
    Tried,
    Used,
)
from skerry.network.netns import Namespaces
from skerry.network.supervisor import Supervisor
from skerry.runtimes import ranges
from skerry.types import SANDBOX_ID, Attempt, NetworkInfo, Preset, parse_size, parse_span

log = logging.getLogger("skerry.engine")
WORKER: Final = "worker"  # its entry in the register of uid ranges
CHANGE_S: Final = 10.0
PATIENCE_S: Final = 3.0
DENIED_S: Final = 0.1
DENIED_MOST: Final = 100  # in one result
DIALS_MOST: Final = 128  # of one sandbox at once: a port that never answers must not keep others from theirs
ASKS_MOST: Final = 256
Secrets = tuple[tuple[Brokered, ...], Authority | None]


@dataclass(eq=False)
class _Opened:
    live: Live
    door: Door
    told: int = 0  # the worker that knows it, by how many were started
    connections: int = 0


class Doors:
    """`spawn` does work beside. What others plug in: `ask` answers what no rule names, `secrets` gives what a sandbox's
    requests get on their way, `shared` says whether a port is shown outside, `used` is called when somebody looks at
    it, and `renew` when a new worker has to be told everything."""

    def __init__(
        self,
        settings: Settings,
        lives: Mapping[str, Live],
        reach: Reach,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._settings = settings
        self._lives = lives
        self._reach = reach
        self._spawn = spawn
        self._instance = instance_of(settings.state_dir)
        self._names = settings.state_dir / "names"
        self._open: dict[str, _Opened] = {}
        self._dials: Counter[str] = Counter()
        self._asks: Counter[str] = Counter()
        self._lies = 0
        self.ask: Callable[[Live, str, int | None, str | None], Awaitable[Answered]] | None = None
        self.secrets: Callable[[Row], Secrets] = lambda row: ((), None)
        self.shared: Callable[[str, int], Live | None] = lambda sandbox, port: None
        self.used: Callable[[str], None] = lambda sandbox: None
        self.renew: Callable[[], None] = lambda: None
        self.worker: Supervisor | None = None

    def begin(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._names.mkdir(mode=0o700, exist_ok=True)
        self.namespaces = Namespaces()
        try:
            self._uid: int | None = ranges.held(self._instance).get(WORKER) or ranges.take(self._instance, WORKER)
        except QuotaExceeded as error:
            log.error("there is no network: no uid is left for its worker", extra={"error": error.message})
            self._uid = None
            return
        self.worker = Supervisor(self._uid, self._heard, self._renew)
        self.worker.start()
        self._spawn(self._refuse_meanwhile(self.worker))
        self._spawn(_try_out())

    async def close(self) -> None:
        """No worker, no sockets: nothing gets out until the next server is there."""
        if self.worker is not None:
            await self.worker.close()
        for opened in self._open.values():
            opened.door.close()
        self._open.clear()
        await asyncio.to_thread(self.namespaces.close)
        if self._uid is not None:
            ranges.release(self._instance, WORKER, self._uid)
        self._attempts.close()

    @property
    def state(self) -> str:
        """Of the worker: starting, ready, down, closed."""
        return self.worker.state if self.worker is not None else "down"

    # -- a sandbox's life ---------------------------------------------------------------------------------------------

    async def open(self, live: Live, pidfd: int) -> None:
        """A door for the sandbox of that first process; it takes the place of an earlier one. Where this host can't
        make doors a sandbox is as closed as its policy wants it, or it does not start."""
        try:
            door = await doors.make(self.namespaces, pidfd)
        except (OSError, SkerryError) as error:
            if not live.row.spec.network.closed or live.row.spec.secrets:
                if isinstance(error, SkerryError):  # it has ended while it started
                    raise
                raise HostUnsupported(
                    f"this host can't open a sandbox's network: {error}", hint="`skerry doctor` tells what is missing"
                ) from error
            log.warning("no door", extra={"sandbox": live.row.id, "error": str(error)})
            return
        self.shut(live.row.id)
        live.tries, live.denied = self._attempts.of(live.row.id), partial(self._denied_by, live.row.id)
        self._open[live.row.id] = opened = _Opened(live, door)
        self._introduce(opened)

    async def reopen(self, live: Live) -> None:
        """Of one that has become another's: returns when its row's rules and name hold. None of them does if the worker
        can't be told."""
        opened, worker = self._open.get(live.row.id), self.worker
        if opened is None or worker is None or worker.state != "ready":
            return
        started = worker.starts
        self.tell(Close(sandbox=live.row.id))
        self._introduce(opened)
        self._replace_unless(await worker.sync(CHANGE_S, live.row.id), started, live)

    def stands(self, sandbox: str) -> bool:
        return sandbox in self._open

    def shut(self, sandbox: str) -> None:
        """Idempotent."""
        opened = self._open.pop(sandbox, None)
        if opened is not None:
            opened.door.close()
            self.tell(Close(sandbox=sandbox))

    def forget(self, sandbox: str) -> None:
        """It is deleted: so is what was known of it. The file last: by it the next server's sweep finds the rest."""
        self._attempts.forget(sandbox)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._names / sandbox)

    def sweep(self, known: set[str]) -> None:
        for name in os.listdir(self._names):
            if name not in known and SANDBOX_ID.fullmatch(name):
                self.forget(name)

    async def changed(self, live: Live) -> None:
        """Returns when the rules of its row hold. A worker that does not say so in time is replaced."""
        if live.row.id not in self._open or self.worker is None or self.worker.state != "ready":
            return  # the next worker hears of no others
        try:
            rules = rules_of(live.row.spec, self._settings, *self.secrets(live.row))
        except BaseException:  # the old ones must not hold any longer, and the new ones can't be told
            self.tell(Close(sandbox=live.row.id))
            raise
        started = self.worker.starts
        done = await self.worker.change(
            lambda number: Change(sandbox=live.row.id, rules=rules, number=number), CHANGE_S
        )
        self._replace_unless(done, started, live)

    def _replace_unless(self, done: bool, started: int, live: Live) -> None:
        if not done and self.worker is not None and self.worker.starts == started:
            log.warning("the network worker did not take a change", extra={"sandbox": live.row.id})
            self.worker.replace()

    def info(self, live: Live) -> NetworkInfo:
        opened = self._open.get(live.row.id)
        sent, received = self._attempts.traffic(live.row.id)
        return NetworkInfo(
            network=live.row.spec.network, secrets=live.row.spec.secrets, sent=sent, received=received,
            ready=opened is not None and self.worker is not None and self.worker.state == "ready",
            open_connections=opened.connections if opened is not None else 0,
        )  # fmt: skip

    def attempts(self, sandbox: str, since: int, follow: bool, denied: bool) -> AsyncGenerator[list[Attempt], None]:
        return self._attempts.read(sandbox, since, follow, denied)

    # -- whose it was -------------------------------------------------------------------------------------------------

    async def contacted(self, sandbox: str, processes: Collection[str], before: int) -> tuple[str, ...]:
        """Whom these processes of a sandbox reached, as far as that is kept. `before`: how many tries were told before
        the first of them began."""
        tries = self._attempts.of(sandbox)
        if self.worker is None or not (self.worker.unread or tries.heard > before):
            return ()
        await self.worker.sync(DENIED_S, sandbox)
        return self._attempts.contacted(sandbox, processes)

    async def _denied_by(self, sandbox: str, process: str, before: int) -> tuple[Attempt, ...]:
        """What a command that has ended was refused, then what it could not reach. `before`: how many tries were told
        before it began. Whatever it tried is on its way to us by now; only if there is anything is the worker waited
        for."""
        tries = self._attempts.of(sandbox)
        if self.worker is None or not (self.worker.unread or tries.heard > before):
            return self._attempts.denied_to(sandbox, process, DENIED_MOST) if not tries.heard else ()
        await self.worker.sync(DENIED_S, sandbox)
        return (*tries.denied_by(process), *tries.unreached_by(process))[:DENIED_MOST]

    # -- saying -------------------------------------------------------------------------------------------------------

    def _introduce(self, opened: _Opened) -> None:
        """To the worker that there is; otherwise the next is told of it. What fails here leaves a door that nobody
        serves: nothing gets out."""
        if self.worker is None or self.worker.state != "ready":
            return
        try:
            self._describe(opened, self.worker)
        except (OSError, SkerryError) as error:
            log.error("not told to the worker", extra={"sandbox": opened.live.row.id, "error": str(error)})

    def _describe(self, opened: _Opened, worker: Supervisor) -> None:
        row = opened.live.row
        sent, received = self._attempts.traffic(row.id)
        rules = rules_of(row.spec, self._settings, *self.secrets(row))
        message = Open(sandbox=row.id, rules=rules, hostname=row.name or row.id, sent=sent, received=received)
        book = _book(self._names / row.id)
        try:
            opened.told = worker.starts
            worker.send(message, [one.fileno() for one in opened.door.sockets] + [book])
        finally:
            os.close(book)

    def tell(self, message: FromServer, fds: Sequence[int] = ()) -> None:
        """Nobody hears it if there is no worker just now: the next is told everything."""
        if self.worker is not None:
            self.worker.send(message, fds)

    def _renew(self) -> None:
        self.renew()
        self._spawn(self._tell_all())

    async def _tell_all(self) -> None:
        """A new worker hears of every door; as fast as it reads."""
        if self.worker is None:
            return
        for opened in list(self._open.values()):
            if not await self.worker.room():
                return
            still = self._open.get(opened.live.row.id) is opened
            if still and opened.told != self.worker.starts:
                self._introduce(opened)

    async def _refuse_meanwhile(self, worker: Supervisor) -> None:
        """Who knocks while a worker is on its way waits for it; if none comes, they are refused."""
        while True:
            await asyncio.sleep(PATIENCE_S / 4)
            if worker.missing_s > PATIENCE_S:
                for opened in list(self._open.values()):
                    opened.door.refuse()

    # -- hearing ------------------------------------------------------------------------------------------------------

    def _heard(self, message: FromWorker) -> None:
        """Whatever it says, it says of a sandbox whose door it was given, or it is not listened to."""
        try:
            match message:
                case Tried():
                    self._known(message.sandbox)
                    self._attempts.add(message)
                case Counted():
                    opened = self._known(message.sandbox)
                    self._attempts.count(message.sandbox, message.sent, message.received)
                    opened.connections = min(max(message.open, 0), 1 << 20)
                    opened.live.touch()
                case Used():
                    self.used(message.sandbox)
                case Ask():
                    self._asked(message)
                case Dial():
                    self._dialled(message)
                case _:
                    raise Lie("what only a server says")
        except Lie as error:
            self._lies += 1
            if self._lies & (self._lies - 1) == 0:  # 1, 2, 4, 8 …: a liar does not fill the log
                log.warning("the network worker lies", extra={"error": str(error), "times": self._lies})

    def _known(self, sandbox: str) -> _Opened:
        opened = self._open.get(sandbox)
        if opened is None:
            raise Lie(f"it was given no door of {sandbox[:40]!r}")
        return opened

    def _asked(self, message: Ask) -> None:
        live = self._known(message.sandbox).live
        if len(message.question) > 64 or len(message.host) > 300:
            raise Lie("a question that is too long")
        if self.ask is None or self._asks[live.row.id] >= ASKS_MOST:
            self.tell(Told(question=message.question, allow=False, why="nobody could be asked"))
            return
        self._asks[live.row.id] += 1
        self._spawn(self._answer(message, live, self.ask))

    async def _answer(
        self, message: Ask, live: Live, ask: Callable[[Live, str, int | None, str | None], Awaitable[Answered]]
    ) -> None:
        try:
            whose = self._attempts.of(live.row.id).whose
            process = whose.find(message.cgroup, time.time())
            answered = await ask(live, message.host, message.port, process)
            self.tell(Told(question=message.question, allow=answered.allow, why=answered.why))
        finally:
            self._asks[live.row.id] -= 1
            if self._asks[live.row.id] <= 0:
                del self._asks[live.row.id]

    def _dialled(self, message: Dial) -> None:
        if not 1 <= message.port <= 65535:
            raise Lie("a port that can't be")
        live, whose = self._reachable(message), message.peer_of or message.sandbox
        if self._dials[whose] >= DIALS_MOST:
            self.tell(Dialled(number=message.number, error="too many connections are being made"))
        else:
            self._dials[whose] += 1
            self._spawn(self._dial(message, live, whose))

    async def _dial(self, message: Dial, live: Live | None, whose: str) -> None:
        try:
            await self._reach.answer(message, live, self.tell)
        finally:
            self._dials[whose] -= 1
            if self._dials[whose] <= 0:
                del self._dials[whose]

    def _reachable(self, message: Dial) -> Live | None:
        """A preview's port must be shown; a peer must be named by the policy of who wants to reach it, and be of the
        same owner. The worker's word counts for neither."""
        if message.peer_of is None:
            return self.shared(message.sandbox, message.port)
        row, peer = self._known(message.peer_of).live.row, self._lives.get(message.sandbox)
        if peer is None or message.sandbox not in row.spec.network.peers.values() or peer.row.owner != row.owner:
            return None
        return peer


def rules_of(spec: Spec, settings: Settings, secrets: tuple[Brokered, ...], authority: Authority | None) -> Rules:
    """Everything that the worker goes by: the policy, what presets add, what the operator holds it to."""
    network = spec.network
    presets = [preset for preset in network.presets if isinstance(preset, Preset)]
    return Rules(
        allow=(*network.allow, *(rule for preset in presets for rule in preset.allow)),
        deny=tuple(dict.fromkeys((*network.deny, *settings["network.deny"]))),
        ceiling=tuple(settings["max.network"]), inspect=tuple(network.inspect),
        on_unknown=network.on_unknown,
        ask_s=parse_span(network.ask_timeout or settings["network.ask_timeout"]),
        peers=network.peers,
        proxies=tuple((preset.allow, preset.proxy) for preset in presets if preset.proxy is not None),
        certificates="\n".join(preset.certificates for preset in presets if preset.certificates),
        secrets=secrets, authority=authority,
        bandwidth=_least(network.bandwidth, settings["max.bandwidth"]),
        total=_least(network.total, settings["max.traffic"]),
        connections=min(network.connections or settings["max.connections"], settings["max.connections"]),
    )  # fmt: skip


async def _try_out() -> None:
    """A host that can't make doors is told of at once; and one that can has loaded its modules for it by then."""
    for check in await asyncio.to_thread(checks):
        if check.ok is not True:
            log.warning("no sandbox can be given a network", extra={"error": check.detail, "hint": check.fix})


def _least(*sizes: str | int | None) -> int | None:
    return min((parse_size(size) for size in sizes if size is not None), default=None)


def _book(path: Path) -> int:
    """Which name got which address: the worker reads it and adds to it."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
