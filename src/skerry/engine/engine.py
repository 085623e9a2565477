"""The engine: the one place through which every effect on a sandbox passes."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from skerry._version import __version__
from skerry.config import RUN_BASE, Settings, run_dir
from skerry.engine import lifecycle, plan, recovery, runs
from skerry.engine.database import Database
from skerry.engine.files import Files
from skerry.engine.images import Images
from skerry.engine.live import Live
from skerry.engine.reaper import Reaper
from skerry.engine.rows import Row, Rows
from skerry.engine.runs import Run
from skerry.engine.tokens import Tokens
from skerry.errors import (
    Conflict,
    HostUnsupported,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    SandboxUnavailable,
)
from skerry.keeper import Keeper, ProcessSpec, build_id
from skerry.storage import ImageStore, LayerStore, pick_driver
from skerry.types import (
    Caller,
    CreateRequest,
    ProcessInfo,
    RunRequest,
    RunResult,
    SandboxInfo,
    UpdateRequest,
    Usage,
    parse_size,
    parse_span,
)

log = logging.getLogger("skerry.engine")


class Engine:
    """Owns a state directory while it is open. Sandboxes outlive it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._locks: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._lives: dict[str, Live] = {}
        self._starts = asyncio.Semaphore((os.cpu_count() or 1) + 2)
        self._maxima = plan.host_maxima()
        self._opened_at = time.time()

    # -- opening and closing ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Lock the state directory, find the host's parts, repair what an earlier server left."""
        if os.geteuid() != 0:
            raise HostUnsupported("the server must run as root", hint="sudo skerry setup makes it a service")
        state = self.settings.state_dir
        self._make_directories(state)
        self._lock(state / "lock")
        self._lock(run_dir(state) / "lock")
        self.database = Database(state / "state.db")
        self.tokens = Tokens(self.database)
        layers = LayerStore(state / "layers")
        self.images = Images(ImageStore(state / "images", layers), layers, state / "cache", self._layers_in_use)
        driver = await asyncio.to_thread(
            pick_driver,
            state,
            self.settings["storage.driver"],
            pool_size=parse_size(self.settings["storage.pool_size"]),
            reserve=parse_size(self.settings["storage.reserve"]),
        )
        await asyncio.to_thread(driver.prepare)
        self.host = lifecycle.Host(self.settings, Rows(self.database), layers, driver, self._first_process_ended)
        self._lives = await recovery.recover(self.host)
        self._reaper = Reaper(self._lives, self._end_life, self._end_idle)
        self._spawn(self._reaper.watch())

    async def close(self) -> None:
        """Let go of everything; every sandbox lives on."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for live in self._lives.values():
            await live.detach()
        with contextlib.suppress(OSError):  # busy while sandboxes live; adopted by the next server
            await asyncio.to_thread(self.host.driver.close)
        self.database.close()
        for fd in self._locks:
            os.close(fd)

    def _make_directories(self, state: Path) -> None:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(state, 0o700)
        for path, mode in (
            (RUN_BASE, 0o711), (run_dir(state), 0o711), (run_dir(state) / "m", 0o711),
            (run_dir(state) / "k", 0o700), (run_dir(state) / "b", 0o700),
        ):  # fmt: skip
            path.mkdir(mode=mode, exist_ok=True)
            os.chmod(path, mode)

    def _lock(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._locks.append(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(fd, 32).decode("ascii", "replace").strip()
            raise Conflict(
                f"another server (pid {owner}) works on {self.settings.state_dir}",
                hint="talk to that one, or give this one another SKERRY_STATE_DIR",
            ) from error
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())

    # -- sandboxes ----------------------------------------------------------------------------------------------------

    async def create(self, caller: Caller, request: CreateRequest, key: str | None = None) -> SandboxInfo:
        known = self.host.rows.remembered(caller.owner, key, request) if key is not None else None
        if known is not None and known in self._lives:
            live = self._lives[known]
            async with live.lock:  # its create may still be under way
                if known in self._lives:
                    return live.row.info()
        spec = plan.resolve(request, self.images.get(request.image), self.settings, self._maxima)
        self._check_room(caller.owner)
        live = Live(
            Row(
                id=known or plan.new_id("sb-"), owner=caller.owner, name=request.name, state="creating",
                spec=spec, created_at=time.time(),
            )
        )  # fmt: skip
        self._lives[live.row.id] = live
        try:
            async with live.lock, self._starts:
                await lifecycle.create(self.host, live, request, key)
        except BaseException:
            self._lives.pop(live.row.id, None)
            raise
        log.info("created", extra={"sandbox": live.row.id, "owner": caller.owner})
        return live.row.info()

    def get(self, caller: Caller, ref: str) -> SandboxInfo:
        return self._find(caller, ref).row.info()

    def list(self, caller: Caller, labels: dict[str, str], state: str | None) -> builtins.list[SandboxInfo]:
        """The caller's own; an admin sees everyone's."""
        found = []
        for live in self._lives.values():
            info = live.row.info()
            if caller.scope != "admin" and info.owner != caller.owner:
                continue
            if labels.items() <= info.labels.items() and state in (None, info.state):
                found.append(info)
        return sorted(found, key=lambda info: info.created_at)

    async def update(self, caller: Caller, ref: str, request: UpdateRequest) -> SandboxInfo:
        live = self._find(caller, ref)
        async with live.lock:
            row, spec = live.row, live.row.spec
            if request.env is not None:
                merged = {**spec.env, **request.env}
                spec = replace(spec, env={name: value for name, value in merged.items() if value is not None})
            if request.labels is not None:
                spec = replace(spec, labels=request.labels)
            if request.lifecycle is not None:
                spec = replace(spec, lifecycle=plan.resolve_lifecycle(request.lifecycle, self.settings, row.name))
            life = spec.lifecycle.life
            ends_at = row.started_at + parse_span(life) if row.started_at and life else None
            live.row = self.host.rows.update(row, spec=spec, ends_at=ends_at)
            if live.keeper is not None and row.state == "running":
                await lifecycle.configure(live.keeper, live.row)
        return live.row.info()

    async def delete(self, caller: Caller, ref: str) -> None:
        await self._delete(self._find(caller, ref))

    async def _delete(self, live: Live) -> None:
        async def whole() -> None:
            async with live.lock:
                if live.row.id in self._lives:
                    await lifecycle.delete(self.host, live)
                    del self._lives[live.row.id]
                    log.info("deleted", extra={"sandbox": live.row.id})

        await asyncio.shield(whole())  # a caller that leaves must not leave half of it

    async def stop(self, caller: Caller, ref: str) -> SandboxInfo:
        live = self._find(caller, ref)
        await self._stop(live, "asked for")
        return live.row.info()

    async def _stop(self, live: Live, reason: str, state: str = "stopped") -> None:
        async def whole() -> None:
            async with live.lock:
                if live.row.state == "paused" and live.runtime is not None:
                    await asyncio.to_thread(live.runtime.thaw, live.row.id)
                if live.row.state in ("running", "paused"):
                    await lifecycle.stop(self.host, live, state, reason)
                    log.info("stopped", extra={"sandbox": live.row.id, "reason": reason})

        await asyncio.shield(whole())

    async def pause(self, caller: Caller, ref: str) -> SandboxInfo:
        live = self._find(caller, ref)
        await self._pause(live, "asked for")
        return live.row.info()

    async def _pause(self, live: Live, reason: str) -> None:
        async with live.lock:
            if live.row.state == "running" and live.runtime is not None:
                await asyncio.to_thread(live.runtime.freeze, live.row.id)
                live.row = self.host.rows.update(live.row, state="paused", reason=reason)
            elif live.row.state != "paused":
                raise Conflict(f"{live.row.id} is {live.row.info().state}: only a running sandbox can be paused")

    async def resume(self, caller: Caller, ref: str) -> SandboxInfo:
        live = self._find(caller, ref)
        await self._awake(live, asked=True)
        return live.row.info()

    async def usage(self, caller: Caller, ref: str) -> Usage:
        live = self._find(caller, ref)
        disk = await asyncio.to_thread(self.host.driver.usage, live.row.id)
        used = live.runtime.usage(live.row.id) if live.runtime is not None and live.keeper is not None else Usage()
        return replace(used, disk=disk)

    # -- what runs inside ---------------------------------------------------------------------------------------------

    async def run(self, caller: Caller, ref: str, request: RunRequest) -> Run:
        async with self._use(caller, ref) as (live, keeper):
            kills = live.runtime.oom_kills(live.row.id) if live.runtime is not None else None
            process = plan.new_id("p-")
            stdin = request.stdin.encode() if request.stdin is not None else request.stdin_base64
            stream = await keeper.start(
                ProcessSpec(
                    id=process, env=request.env, cwd=request.cwd, user=request.user, timeout_s=request.timeout,
                    shell=request.cmd if isinstance(request.cmd, str) else None,
                    argv=request.cmd if not isinstance(request.cmd, str) else None,
                    stdin="pipe" if request.stdin_stream or stdin is not None else "none",
                )
            )  # fmt: skip
            run = Run(live, process, stream, kills, self._fail)
            if stdin is not None:
                self._spawn(self._feed(run, stdin))
            if request.stdin_stream:
                live.inputs[process] = run
            return run

    async def collect(self, run: Run) -> RunResult:
        return await runs.collect(run)

    @staticmethod
    async def _feed(run: Run, data: bytes) -> None:
        """A program that closes its stdin early is no error."""
        with contextlib.suppress(SandboxUnavailable, OSError):
            for start in range(0, len(data), 1 << 18):
                await run.send_stdin(data[start : start + (1 << 18)])
            await run.close_stdin()

    async def send_stdin(
        self, caller: Caller, ref: str, process: str, chunks: AsyncIterator[bytes], close: bool
    ) -> None:
        live = self._find(caller, ref)
        run = live.inputs.get(process)
        if run is None:
            raise NotFound(f"no process {process!r} is waiting for input", details={"process": process})
        with contextlib.suppress(SandboxUnavailable, OSError):
            async for chunk in chunks:
                for start in range(0, len(chunk), 1 << 18):
                    await run.send_stdin(chunk[start : start + (1 << 18)])
            if close:
                await run.close_stdin()

    async def processes(self, caller: Caller, ref: str) -> builtins.list[ProcessInfo]:
        async with self._use(caller, ref) as (_, keeper):
            return [runs.process_info(process) for process in await keeper.processes()]

    async def process(self, caller: Caller, ref: str, process: str) -> ProcessInfo:
        async with self._use(caller, ref) as (_, keeper):
            return runs.process_info(await keeper.process(process))

    async def signal_process(self, caller: Caller, ref: str, process: str, name: str) -> None:
        async with self._use(caller, ref) as (_, keeper):
            await keeper.signal(process, name)

    async def remove_process(self, caller: Caller, ref: str, process: str) -> None:
        async with self._use(caller, ref) as (_, keeper):
            await keeper.remove(process)

    async def files(self, caller: Caller, ref: str) -> Files:
        """The sandbox's files; each operation on it is a call of its own."""
        self._find(caller, ref)
        return Files(lambda: self._use(caller, ref))

    # -- the host -----------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        return {
            "version": __version__, "build": build_id(), "pid": os.getpid(), "started_at": self._opened_at,
            "uptime_s": time.time() - self._opened_at, "state_dir": str(self.settings.state_dir),
            "runtime": self.host.runtime(None).name, "storage": self.host.driver.name, "sandboxes": len(self._lives),
        }  # fmt: skip

    @property
    def empty(self) -> bool:
        """No sandbox takes up this host and no image is being made: a background server may leave."""
        return not self.images.busy and not any(
            live.row.state in ("creating", "running", "paused") for live in self._lives.values()
        )

    # -- inner workings -----------------------------------------------------------------------------------------------

    def _find(self, caller: Caller, ref: str) -> Live:
        row = self.host.rows.find(caller, ref)
        if row is None or row.id not in self._lives:
            raise NotFound(f"there is no sandbox {ref!r}", hint="`skerry ls` lists yours", details={"sandbox": ref})
        return self._lives[row.id]

    @asynccontextmanager
    async def _use(self, caller: Caller, ref: str) -> AsyncIterator[tuple[Live, Keeper]]:
        """A running sandbox for one call: woken if need be, not idle meanwhile, failed if its keeper lies."""
        live = self._find(caller, ref)
        with live.in_use():
            await self._awake(live)
            keeper = live.keeper
            if keeper is None:
                raise SandboxUnavailable(f"{live.row.id} has just ended", details={"state": live.row.info().state})
            try:
                yield live, keeper
            except SandboxUnavailable as error:
                await self._fail(live, error)
                raise

    async def _awake(self, live: Live, asked: bool = False) -> None:
        if live.row.state == "running" and live.keeper is not None:
            return
        async with live.lock:
            row = live.row
            if row.state == "running":
                return
            if row.id not in self._lives:
                raise NotFound(f"there is no sandbox {row.id!r}")
            if row.state == "failed" and not asked:
                raise SandboxUnavailable(
                    f"{row.id} has failed: {row.reason}",
                    hint=f"its files are kept: `skerry resume {row.name or row.id}` starts it again",
                    details={"state": "failed", "reason": row.reason},
                )
            if not (asked or row.spec.lifecycle.wake):
                raise SandboxUnavailable(
                    f"{row.id} is {row.info().state}",
                    hint=f"skerry resume {row.name or row.id}",
                    details={"state": row.info().state},
                )
            if row.state == "paused" and live.runtime is not None:
                await asyncio.to_thread(live.runtime.thaw, row.id)
                live.row = self.host.rows.update(row, state="running", reason=None)
                live.touch()
                return
            self._check_room(row.owner)
            async with self._starts:
                await lifecycle.start(self.host, live)

    def _check_room(self, owner: str) -> None:
        rows, settings = self.host.rows, self.settings
        for count, name in ((rows.live(), "max.sandboxes"), (rows.live(owner), "max.sandboxes_per_owner")):
            if count >= settings[name]:
                raise QuotaExceeded(
                    f"{count} sandboxes are live, and {name} allows {settings[name]}",
                    hint="delete some (`skerry ls`, `skerry rm`), or have the operator raise it",
                    details={"maximum": settings[name], "setting": name},
                )

    async def _fail(self, live: Live, error: SandboxUnavailable) -> None:
        """Its keeper lied or fell silent: the sandbox is ended, nothing else is touched."""
        if live.row.state != "running":  # not its fault: somebody ended it in the middle of a call
            raise SandboxUnavailable(f"{live.row.id} was ended meanwhile: {live.row.reason}") from error
        log.warning("failed", extra={"sandbox": live.row.id, "error": error.message})
        await self._stop(live, error.message, state="failed")

    def _first_process_ended(self, live: Live) -> None:
        """From the event loop: a sandbox's first process is gone."""
        live.unwatch()
        self._spawn(self._bury(live))

    async def _bury(self, live: Live) -> None:
        if live.life_over:
            await self._end_life(live)
        else:
            await self._stop(live, "its first process ended unexpectedly", state="failed")

    async def _end_life(self, live: Live) -> None:
        if live.row.name is None:
            await self._delete(live)
        else:
            await self._stop(live, "its life was over")

    async def _end_idle(self, live: Live) -> None:
        action = live.row.spec.lifecycle.on_idle
        if action == "delete":
            await self._delete(live)
        elif action == "pause":
            with contextlib.suppress(Conflict):
                await self._pause(live, "idle")
        else:
            await self._stop(live, "idle")

    def _layers_in_use(self) -> set[str]:
        return {digest for live in self._lives.values() for digest in live.row.spec.layers}

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work failed", exc_info=task.exception())


def check_key(key: str | None) -> str | None:
    """An Idempotency-Key is opaque, but bounded."""
    if key is not None and not (0 < len(key) <= 200 and key.isprintable()):
        raise InvalidRequest("Idempotency-Key: 1 to 200 printable characters")
    return key
