"""Walls built by an OCI runtime, crun or runc. We write the spec and call them; we don't write a container runtime."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import resource
import shutil
import signal
import socket
from pathlib import Path
from typing import Any, Literal

from skerry.errors import Conflict, HostUnsupported, SandboxUnavailable
from skerry.runtimes import bpf, guarantees, launch, posture, processes, seccomp, shm, spawn, spec, uts
from skerry.runtimes.cgroups import Cgroups
from skerry.runtimes.overlay import Overlays
from skerry.runtimes.runtime import Init, Wall
from skerry.runtimes.userns import UserNamespaces
from skerry.types import SANDBOX_ID, Isolation, Limits, Usage

_BACKLOG = 256
_START_LIMIT_S = 30.0
_END_LIMIT_S = 10.0
_SHOWN = 2000  # characters of a runtime's own error
_CAP_SYS_RESOURCE = 24
_FOR_PID_1 = 2  # fds: the keeper's door and its cgroup; the runtime itself may get more
_SO_PASSRIGHTS = 83  # since Linux 6.16


class OciRuntime:
    """One instance's sandboxes under one OCI runtime.

    Every resource is named by the sandbox's id, so that `ids` and `clear` work from what the host shows alone:
    `run_dir`/k/<id> the keeper's socket, m/<id> the root, b/<id> the bundle, oci/<runtime>/<id> the runtime's state,
    and the cgroup `<root>/<id>` in every hierarchy.
    """

    def __init__(self, name: str, binary: Path, version: str, run_dir: Path, cgroups: Cgroups) -> None:
        self.name = name
        self.run_dir = run_dir
        self.cgroups = cgroups
        self.cgroup_root = f"/{cgroups.root}"
        self.overlays = Overlays(run_dir / "m")
        self._binary = binary
        self._null = spawn.sealed_null()
        self._version = version
        self._host = _host(name, cgroups)
        # runc sets PID 1's limits from outside, which takes root's ownership of the namespace or CAP_SYS_RESOURCE
        self._owned = UserNamespaces(owned=True) if name == "crun" else None
        self._whole: set[str] = set()  # started by this process to the end: no runtime is still at work on them
        self._prepare()

    def version(self) -> str:
        return self._version

    async def start(self, wall: Wall) -> Init:
        """Builds the wall and waits until PID 1 runs. On failure nothing is cleared: `clear` does that."""
        if not SANDBOX_ID.fullmatch(wall.id) or wall.run_dir != self.run_dir or wall.cgroup_root != self.cgroup_root:
            raise ValueError(f"{wall.id}: the wall was drawn for another runtime")
        guarantees.check(wall, self._host)
        try:
            init = await self._start(wall)
        except OSError as error:
            raise SandboxUnavailable(f"{wall.id} could not be started: {error}") from error
        self._whole.add(wall.id)
        return init

    async def _start(self, wall: Wall) -> Init:
        with contextlib.ExitStack() as stack:
            group = self.cgroups.create(wall.id, wall.uid_base)
            stack.callback(os.close, group)
            self.overlays.mount(wall.id, wall.layers, wall.unit, wall.uid_base)
            door = stack.enter_context(self._listen(wall.id))
            fds = [door.fileno(), group]
            if self._owned is not None:
                fds.append(self._owned.fd(wall.uid_base))
                stack.callback(os.close, fds[-1])
            bundle = self._write_bundle(wall)
            await self._run(wall.id, bundle, fds)
        init = processes.identify(int((bundle / "pid").read_text()))
        await posture.check(wall, init.pid)
        processes.prefer(init)
        self.cgroups.set_cpu(wall.id, wall.limits.cpus)
        return init

    async def connect(self, sandbox: str) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            _refuse_fds(connection)
            with _short(self.run_dir / "k") as near:
                await _connect(connection, f"{near}/{sandbox}")
        except OSError as error:
            connection.close()
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):  # this host's failure, not the sandbox's
                raise
            raise SandboxUnavailable(f"{sandbox} does not answer: {error.strerror or error}") from error
        except BaseException:
            connection.close()
            raise
        return connection

    def alive(self, init: Init) -> bool:
        return processes.alive(init)

    def pidfd(self, init: Init) -> int:
        return processes.pidfd(init)

    async def kill(self, sandbox: str, init: Init | None) -> None:
        """Ends every process and waits until PID 1 is gone."""
        self.cgroups.kill(sandbox)
        if init is None:
            await self._emptied(sandbox)
            return
        pidfd = processes.handle(init)
        if pidfd is None:
            return
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            async with asyncio.timeout(_END_LIMIT_S):
                await spawn.readable(pidfd)
        except TimeoutError:
            raise SandboxUnavailable(f"{sandbox}: PID 1 could not be killed within {_END_LIMIT_S:.0f} s") from None
        finally:
            os.close(pidfd)

    async def clear(self, sandbox: str) -> None:
        """Takes away whatever there is of a sandbox, at whatever step it was left. Order matters: the runtime that may
        still be building, then what runs, then what that kept busy."""
        if not SANDBOX_ID.fullmatch(sandbox):
            raise ValueError(f"{sandbox!r} is no sandbox's id")
        if sandbox not in self._whole:
            await asyncio.to_thread(processes.end_by_arguments, ("--bundle", str(self.run_dir / "b" / sandbox)))
        self.cgroups.kill(sandbox)
        await self._emptied(sandbox)
        self._whole.discard(sandbox)
        await asyncio.to_thread(self._remove, sandbox)

    def ids(self) -> set[str]:
        places = [self.run_dir / "k", self.run_dir / "m", self.run_dir / "b", *self._states()]
        found = {entry for place in places for entry in _entries(place)}
        return {sandbox for sandbox in found | self.cgroups.ids() if SANDBOX_ID.fullmatch(sandbox)}

    def set_limits(self, sandbox: str, init: Init, limits: Limits) -> None:
        try:
            self.cgroups.check_pids(sandbox, limits.pids)
            _check_open_files(sandbox, init, self.open_files(limits))
            shm.set_size(init, shm.size_for(limits.memory_bytes))
            self.cgroups.set_limits(sandbox, limits)
        except FileNotFoundError:
            raise SandboxUnavailable(f"{sandbox} is not running") from None

    def open_files(self, limits: Limits) -> int:
        return spec.open_files(limits, self._host)

    def set_hostname(self, init: Init, name: str) -> None:
        uts.set_hostname(init, name)

    def usage(self, sandbox: str) -> Usage:
        return self.cgroups.usage(sandbox)

    def oom_kills(self, sandbox: str) -> int | None:
        return self.cgroups.oom_kills(sandbox)

    def freeze(self, sandbox: str) -> None:
        self.cgroups.freeze(sandbox)

    def thaw(self, sandbox: str) -> None:
        self.cgroups.thaw(sandbox)

    def isolation(self, wall: Wall) -> Isolation:
        return guarantees.isolation(wall, self._host, self.name, self._version, self.cgroups.mode)

    def close(self) -> None:
        os.close(self._null)
        if self._owned is not None:
            self._owned.close()
        self.overlays.close()
        self.cgroups.remove_root()

    def spec(self, wall: Wall) -> dict[str, Any]:
        return spec.build(wall, self._host, f"/proc/self/fd/{3 + _FOR_PID_1}" if self._owned is not None else None)

    def _prepare(self) -> None:
        os.makedirs(self.run_dir, 0o711, exist_ok=True)
        for name, mode in (("k", 0o700), ("m", 0o711), ("b", 0o700), ("oci", 0o700), (f"oci/{self.name}", 0o700)):
            os.makedirs(self.run_dir / name, exist_ok=True)
            os.chmod(self.run_dir / name, mode)
        try:
            self.cgroups.prepare()
        except OSError as error:
            hint = "see `skerry doctor`; in a container, the host has to delegate its cgroups"
            raise HostUnsupported(f"cgroups can't be made: {error}", hint=hint) from error

    def _states(self) -> list[Path]:
        """Of every runtime that ever worked here: a forced one may have been another."""
        return [self.run_dir / "oci" / name for name in _entries(self.run_dir / "oci")]

    def _listen(self, sandbox: str) -> socket.socket:
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            with _short(self.run_dir / "k") as near:
                door.bind(f"{near}/{sandbox}")
                os.chmod(f"{near}/{sandbox}", 0o600)
            door.listen(_BACKLOG)
        except BaseException:
            door.close()
            raise
        return door

    def _write_bundle(self, wall: Wall) -> Path:
        bundle = self.run_dir / "b" / wall.id
        os.mkdir(bundle, 0o700)
        (bundle / "config.json").write_text(json.dumps(self.spec(wall)))
        return bundle

    async def _run(self, sandbox: str, bundle: Path, fds: list[int]) -> None:
        argv = launch.runtime_argv(self._binary, self.run_dir / "oci" / self.name, bundle, sandbox, _FOR_PID_1)
        argv = launch.command(self.name, self.cgroups, sandbox, argv)
        try:
            code = await spawn.run(argv, (self._null, self._null, self._null, *fds), _START_LIMIT_S)
        except TimeoutError:
            raise SandboxUnavailable(f"{self.name} did not start {sandbox} within {_START_LIMIT_S:.0f} s") from None
        if code != 0:
            raise SandboxUnavailable(
                f"{self.name} could not start {sandbox} (exit code {code}): {_last_words(bundle / 'log')}"
            )

    async def _emptied(self, sandbox: str) -> None:
        """Until no process is left in its cgroups. What never came into v2 is killed one by one."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _END_LIMIT_S
        while strays := self.cgroups.strays(sandbox):
            for pid in strays:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if loop.time() > end:
                raise SandboxUnavailable(f"{sandbox}: {len(strays)} processes could not be killed")
            await asyncio.sleep(0.001)

    def _remove(self, sandbox: str) -> None:
        for state in self._states():
            shutil.rmtree(state / sandbox, ignore_errors=True)
        self.overlays.unmount(sandbox)
        self.cgroups.destroy(sandbox)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.run_dir / "k" / sandbox)
        shutil.rmtree(self.run_dir / "b" / sandbox, ignore_errors=True)


def _host(name: str, cgroups: Cgroups) -> spec.Host:
    machine = os.uname().machine
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    linger = _fds_can_be_refused()
    program = bpf.compiled(seccomp.profile(machine, linger=linger)) if name == "crun" else None
    files = hard if hard > 0 else 1 << 20
    return spec.Host(machine, files, cgroups.swap, _oom_score(), program, core=_core(), linger=linger)


def _check_open_files(sandbox: str, init: Init, wanted: int) -> None:
    """What PID 1 began with is the most that it can hand on."""
    most = processes.open_files(init)
    if wanted > most:
        raise Conflict(
            f"{sandbox} began with a limit of {most} open files, which can't be raised while it runs",
            hint="stop it first; it begins with the new limit when it wakes",
            details={"limit": "open_files", "maximum": most},
        )


def _core() -> Literal[0, 1]:
    """sudo leaves a hard limit of 0, which the runtime, in a user namespace by then, can't raise any more."""
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != 0:
        return 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except (ValueError, OSError) as error:  # no CAP_SYS_RESOURCE
        if Path("/proc/sys/kernel/core_pattern").read_text().startswith("|"):
            raise HostUnsupported(
                "core dumps of a sandbox would go to the host's own handler: the hard limit of cores is 0 here",
                hint="start the server with a higher one (ulimit -Hc; in sudoers: Defaults rlimit_core=default)",
            ) from error
        return 0
    return 1


def _oom_score() -> int:
    """PID 1's. Set with CAP_SYS_RESOURCE it is a floor for all that run inside. Set without, the others inside could go
    below it, and the first process would be the one that the kernel kills; so there it stays what the server's is."""
    own = int(Path("/proc/self/oom_score_adj").read_text())
    status = Path("/proc/self/status").read_text()
    effective = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff")), 16)
    return max(100, own) if effective >> _CAP_SYS_RESOURCE & 1 else own


def _refuse_fds(connection: socket.socket) -> None:
    """Whoever reads from a unix socket and takes no fds closes those that came along, and the close of a socket with
    SO_LINGER may last for hours: a lying keeper would stop the whole server with it. Where the kernel can't refuse
    them, the sandbox's sockets don't linger."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)


def _fds_can_be_refused() -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
        except OSError:
            return False
    return True


async def _connect(connection: socket.socket, path: str) -> None:
    """A full backlog is EAGAIN on a unix socket, and no event tells when there is room again."""
    for pause in (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0):
        try:
            connection.connect(path)
        except BlockingIOError:
            await asyncio.sleep(pause)
        else:
            return
    raise TimeoutError(errno.ETIMEDOUT, "its keeper takes no connections")


@contextlib.contextmanager
def _short(directory: Path) -> Any:
    """A path to it of any length fits in the 108 bytes of a socket's address."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _last_words(log: Path) -> str:
    with contextlib.suppress(OSError):
        text = log.read_bytes()[-_SHOWN:].decode("utf-8", "replace")
        messages = re.findall(r'msg="((?:[^"\\]|\\.)*)"', text)
        return "; ".join(messages) or text.strip() or "no reason given"
    return "no reason given"


def _entries(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
