"""Containers run by an OCI runtime, crun or runc. Skerry writes the spec and calls the runtime."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import resource
import shutil
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from skerry.errors import Conflict, HostUnsupported, SandboxUnavailable
from skerry.runtimes import adjust, bpf, guarantees, posture, processes, seccomp, spec
from skerry.runtimes.cgroups import FREEZE_TIMEOUT_S, Cgroups, Counters
from skerry.runtimes.mount_view import ROOTS, Bundle, MountView
from skerry.runtimes.overlay import Overlays, unmount
from skerry.runtimes.runtime import BindMount, ContainerConfig, Init
from skerry.runtimes.security_modules import security_modules
from skerry.runtimes.userns import UserNamespaces
from skerry.types import SANDBOX_ID, Isolation, Limits, Usage

_BACKLOG = 256
_START_LIMIT_S = 30.0
_END_LIMIT_S = 10.0
_QUICK_LOOKS = 100
_SHOWN = 2000  # characters of a runtime's error message
_CAP_SYS_RESOURCE = 24
_FOR_PID_1 = 2  # fds: the keeper's socket and its cgroup; the runtime itself may get more
_SO_PASSRIGHTS = 83  # since Linux 6.16


class OciRuntime:
    """One instance's sandboxes under one OCI runtime.

    Every resource is named by the sandbox's ID, so that `ids` and `clear` need only the state of the host:
    `run_dir`/k/<id> the keeper's socket, and the cgroup `<root>/<id>` in every hierarchy. Earlier versions also made
    m/<id>, the mounted root, b/<id>, the bundle, and oci/<runtime>/<id>, the runtime's state.
    """

    def __init__(self, name: str, binary: Path, version: str, run_dir: Path, cgroups: Cgroups) -> None:
        self.name = name
        self.run_dir = run_dir
        self.cgroups = cgroups
        self.cgroup_root = f"/{cgroups.root}"
        self.overlays = Overlays(ROOTS)
        self._binary = binary
        self._null = processes.sealed_null()
        self._version = version
        self._modules = security_modules(spec.CAPABILITIES)
        self._host = _host(name, cgroups, self._modules.profile)
        # runc sets PID 1's limits from outside, which needs root as owner of the namespace or CAP_SYS_RESOURCE
        self._owned = UserNamespaces(owned=True) if name == "crun" else None
        self._whole: set[str] = set()  # started completely by this process: no runtime is still working on them
        self._prepare()

    def version(self) -> str:
        return self._version

    async def start(self, config: ContainerConfig) -> Init:
        """Start the container and wait until PID 1 runs. After a failure, `clear` removes the remains."""
        if (
            not SANDBOX_ID.fullmatch(config.id)
            or config.run_dir != self.run_dir
            or config.cgroup_root != self.cgroup_root
        ):
            raise ValueError(f"{config.id}: the config was made for another runtime")
        guarantees.check(config, self._host)
        try:
            init = await self._start(config)
        except OSError as error:
            raise SandboxUnavailable(f"{config.id} could not be started: {error}") from error
        self._whole.add(config.id)
        return init

    async def _start(self, config: ContainerConfig) -> Init:
        with contextlib.ExitStack() as stack:
            group = self.cgroups.create(config.id, config.uid_base)
            stack.callback(os.close, group)
            listener = stack.enter_context(self._listen(config.id))
            fds = [listener.fileno(), group]
            if self._owned is not None:
                fds.append(self._owned.fd(config.uid_base))
                stack.callback(os.close, fds[-1])
            bundle = stack.enter_context(contextlib.closing(self._bundle(config)))
            await self._run(config, bundle, fds)
            pid = int(bundle.read("pid"))
        init = processes.identify(pid)
        await posture.check(config, init.pid, self._host.apparmor)
        if config.mounts:
            await asyncio.to_thread(self.mount, init, config.uid_base, config.mounts)
        if config.read_only_root:
            await asyncio.to_thread(adjust.split_root, init, config.uid_base)
        processes.prefer(init)
        self.cgroups.set_socket_memory(config.id, config.limits.memory_bytes)
        self.cgroups.set_cpu(config.id, config.limits.cpus)
        return init

    async def connect(self, sandbox: str) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            _refuse_fds(connection)
            with _short(self.run_dir / "k") as near:
                await _connect(connection, f"{near}/{sandbox}")
        except OSError as error:
            connection.close()
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):  # a failure of this host, not of the sandbox
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
        """End every process and wait until PID 1 is gone."""
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
                await processes.readable(pidfd)
        except TimeoutError:
            raise SandboxUnavailable(f"{sandbox}: PID 1 could not be killed within {_END_LIMIT_S:.0f} s") from None
        finally:
            os.close(pidfd)

    async def clear(self, sandbox: str) -> Counters | None:
        """Remove every resource of a sandbox, at any stage of its start. Order matters: the runtime that may still be
        starting it, then running processes, then the resources that those kept busy."""
        if not SANDBOX_ID.fullmatch(sandbox):
            raise ValueError(f"{sandbox!r} is not a sandbox ID")
        if sandbox not in self._whole:
            await asyncio.to_thread(processes.end_by_arguments, ("--bundle", str(self._place(sandbox))))
        self.cgroups.kill(sandbox)
        await self._emptied(sandbox)
        self._whole.discard(sandbox)
        counters = self.cgroups.counters(sandbox)  # no process can add to them any more
        await asyncio.to_thread(self._remove, sandbox)
        return counters

    def ids(self) -> set[str]:
        places = [self.run_dir / "k", self.run_dir / "m", self.run_dir / "b", *self._states()]
        found = {entry for place in places for entry in _entries(place)}
        return {sandbox for sandbox in found | self.cgroups.ids() if SANDBOX_ID.fullmatch(sandbox)}

    def has_processes(self, sandbox: str) -> bool:
        return bool(self.cgroups.strays(sandbox))

    def set_limits(self, sandbox: str, init: Init, limits: Limits) -> None:
        try:
            self.cgroups.check_pids(sandbox, limits.pids)
            _check_open_files(sandbox, init, self.open_files(limits))
            adjust.set_shm_size(init, adjust.shm_size_for(limits.memory_bytes))
            self.cgroups.set_limits(sandbox, limits)
        except FileNotFoundError:
            raise SandboxUnavailable(f"{sandbox} is not running") from None

    def open_files(self, limits: Limits) -> int:
        return spec.open_files(limits, self._host)

    def set_hostname(self, init: Init, name: str) -> None:
        adjust.set_hostname(init, name)

    def mount(self, init: Init, uid_base: int, mounts: Sequence[BindMount]) -> None:
        adjust.mount(init, uid_base, mounts, self.overlays.namespaces)
        posture.check_mounts(init.pid, mounts)

    def add_process(self, sandbox: str, pid: int) -> None:
        self.cgroups.add(sandbox, pid)

    def seal_root(self, init: Init) -> None:
        adjust.seal_root(init)
        posture.check_read_only(init.pid)

    def usage(self, sandbox: str) -> Usage:
        return self.cgroups.usage(sandbox)

    def counters(self, sandbox: str, *, brief: bool = False) -> Counters | None:
        return self.cgroups.counters(sandbox, brief=brief)

    def unwritten(self, sandbox: str) -> int | None:
        return self.cgroups.unwritten(sandbox)

    def oom_kills(self, sandbox: str) -> int | None:
        return self.cgroups.oom_kills(sandbox)

    def fork_failures(self, sandbox: str) -> int | None:
        return self.cgroups.fork_failures(sandbox)

    def freeze(self, sandbox: str, timeout_s: float = FREEZE_TIMEOUT_S) -> None:
        self.cgroups.freeze(sandbox, timeout_s)

    def thaw(self, sandbox: str) -> None:
        self.cgroups.thaw(sandbox)

    def isolation(self, config: ContainerConfig) -> Isolation:
        return guarantees.isolation(config, self._host, self.name, self._version, self.cgroups.mode, self._modules)

    def close(self) -> None:
        os.close(self._null)
        if self._owned is not None:
            self._owned.close()
        self.overlays.close()
        self.cgroups.remove_root()

    def spec(self, config: ContainerConfig) -> dict[str, Any]:
        return spec.build(config, self._host, f"/proc/self/fd/{3 + _FOR_PID_1}" if self._owned is not None else None)

    def _prepare(self) -> None:
        os.makedirs(self.run_dir, 0o711, exist_ok=True)
        os.makedirs(self.run_dir / "k", exist_ok=True)
        os.chmod(self.run_dir / "k", 0o700)
        try:
            self.cgroups.prepare()
        except OSError as error:
            hint = "see `skerry doctor`; in a container, the host has to delegate its cgroups"
            raise HostUnsupported(f"cgroups cannot be created: {error}", hint=hint) from error

    def _states(self) -> list[Path]:
        """Return the state directories of every runtime that was used here: an earlier sandbox may have requested
        another one."""
        return [self.run_dir / "oci" / name for name in _entries(self.run_dir / "oci")]

    def _listen(self, sandbox: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            with _short(self.run_dir / "k") as near:
                listener.bind(f"{near}/{sandbox}")
                os.chmod(f"{near}/{sandbox}", 0o600)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        return listener

    def _bundle(self, config: ContainerConfig) -> Bundle:
        return Bundle(msgspec.json.encode(self.spec(config)))

    def _place(self, sandbox: str) -> Path:
        """Return where the runtime sees the bundle."""
        return Path(f"/dev/{self.run_dir.name}.{sandbox}")

    async def _run(self, config: ContainerConfig, bundle: Bundle, fds: list[int]) -> None:
        sandbox = config.id
        hidden = self.cgroups.v2_mount if _hides_v2(self.name, self.cgroups) else None
        view = MountView(config, self._binary, self.overlays, bundle, self._place(sandbox), hidden)
        argv = _runtime_argv(view, sandbox, _FOR_PID_1)
        argv = _in_cgroups(self.name, self.cgroups, argv)
        try:
            code = await processes.run(argv, (self._null, self._null, self._null, *fds), _START_LIMIT_S, view)
        except TimeoutError:
            raise SandboxUnavailable(f"{self.name} did not start {sandbox} within {_START_LIMIT_S:.0f} s") from None
        if code != 0:
            raise SandboxUnavailable(f"{self.name} could not start {sandbox} (exit code {code}): {_last_words(bundle)}")

    async def _emptied(self, sandbox: str) -> None:
        """Wait until no process is left in its cgroups. Processes that never entered v2 are killed one by one."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _END_LIMIT_S
        for _ in range(_QUICK_LOOKS):  # killed processes take some milliseconds to end
            if not self.cgroups.populated(sandbox):
                break
            await asyncio.sleep(0.001)
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
        unmount(self.run_dir / "m" / sandbox)
        self.cgroups.destroy(sandbox)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.run_dir / "k" / sandbox)
        shutil.rmtree(self.run_dir / "b" / sandbox, ignore_errors=True)


def _host(name: str, cgroups: Cgroups, profile: str | None) -> spec.HostFeatures:
    machine = os.uname().machine
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    linger = _fds_can_be_refused()
    program = bpf.compiled(seccomp.profile(machine, linger=linger)) if name == "crun" else None
    files = hard if hard > 0 else 1 << 20
    return spec.HostFeatures(
        machine, files, cgroups.swap, _oom_score(), program, core=_core(), boot_id=name == "crun", linger=linger,
        apparmor=profile, disks=_disks(),
    )  # fmt: skip


def _disks() -> tuple[str, ...]:
    """Return the buses in sysfs that have physical disks. Virtual disks are in one directory, which is masked."""
    found = (os.path.realpath(f"/sys/block/{name}") for name in _entries(Path("/sys/block")))
    return tuple(sorted({"/".join(path.split("/")[:4]) for path in found} - {"/sys/devices/virtual"}))


def _check_open_files(sandbox: str, init: Init, wanted: int) -> None:
    """PID 1 can pass on at most the limit that it started with."""
    most = processes.open_files(init)
    if wanted > most:
        raise Conflict(
            f"{sandbox} was started with a limit of {most} open files, which cannot be raised while it runs",
            hint="stop it first; it starts with the new limit",
            details={"limit": "open_files", "maximum": most},
        )


def _core() -> Literal[0, 1]:
    """sudo leaves a hard limit of 0, which the runtime cannot raise later in a user namespace."""
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != 0:
        return 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except (ValueError, OSError) as error:  # no CAP_SYS_RESOURCE
        if Path("/proc/sys/kernel/core_pattern").read_text().startswith("|"):
            raise HostUnsupported(
                "core dumps of a sandbox would go to the host's handler, because the hard core limit is 0",
                hint="start the server with a higher one (ulimit -Hc; in sudoers: Defaults rlimit_core=default)",
            ) from error
        return 0
    return 1


def _oom_score() -> int:
    """Return the OOM score of PID 1. Set with CAP_SYS_RESOURCE, it is a minimum for all processes inside. Without it,
    other processes could go below it, and the kernel would kill PID 1 first; so then it equals the server's score."""
    own = int(Path("/proc/self/oom_score_adj").read_text())
    status = Path("/proc/self/status").read_text()
    effective = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff")), 16)
    return max(100, own) if effective >> _CAP_SYS_RESOURCE & 1 else own


def _refuse_fds(connection: socket.socket) -> None:
    """A reader of a unix socket that accepts no fds closes those that arrive, and closing a socket with SO_LINGER may
    take hours: a misbehaving keeper could stop the whole server with it. If the kernel cannot refuse fds, the sandbox's
    sockets may not linger."""
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
    """A full backlog is EAGAIN on a unix socket, and no event signals that there is space again."""
    for pause in (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0):
        try:
            connection.connect(path)
        except BlockingIOError:
            await asyncio.sleep(pause)
        else:
            return
    raise TimeoutError(errno.ETIMEDOUT, "the keeper accepts no connections")


@contextlib.contextmanager
def _short(directory: Path) -> Any:
    """Yield a short path to a directory, because a socket's address has 108 bytes."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _last_words(bundle: Bundle) -> str:
    with contextlib.suppress(OSError):
        text = bundle.read("log")[-_SHOWN:].decode("utf-8", "replace")
        messages = re.findall(r'msg="((?:[^"\\]|\\.)*)"', text)
        return "; ".join(messages) or text.strip() or "no reason given"
    return "no reason given"


def _entries(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


# Call the runtime so that PID 1 is in all of its cgroups.
#
# runc joins every hierarchy that it finds, crun only pure v2. On a v1 host, crun rejects a v2 mount that still has a
# controller: there the mount is hidden from crun, which so ignores v2. Hierarchies that the runtime ignores are joined
# before it starts, because a child inherits its cgroups. (Also if Skerry made the v2 mount.)

_JOIN: Final = 'echo $$ >/proc/self/fd/4/cgroup.procs && exec "$@"'  # the second fd of PID 1: works if v2 is hidden


def _in_cgroups(name: str, cgroups: Cgroups, argv: list[str]) -> list[str]:
    if cgroups.mode == "v1" or _hides_v2(name, cgroups):
        return ["/bin/sh", "-c", _JOIN, "sh", *argv]
    return argv


def _hides_v2(name: str, cgroups: Cgroups) -> bool:
    return cgroups.mode == "hybrid" and name == "crun"


def _runtime_argv(view: MountView, sandbox: str, fds: int) -> list[str]:
    """--log receives the runtime's messages: its stdio becomes PID 1's, and must not be a pipe or file of the
    server."""
    return [
        *(str(view.program), "--root", f"{view.place}/state", "--log", f"{view.place}/log"),
        *("run", "--detach", "--preserve-fds", str(fds)),
        *("--pid-file", f"{view.place}/pid", "--bundle", str(view.place), sandbox),
    ]
