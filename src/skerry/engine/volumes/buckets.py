"""Buckets of object storage as directories of sandboxes, by rclone.

The server makes the FUSE mount, and hands its descriptor to a process of rclone outside of the sandbox: credentials are
never inside. That process has no privileges and the last uid of the sandbox's range. It is in the sandbox's cgroup, so
that its memory, CPU time and threads count towards the sandbox's limits, and it ends with the sandbox: when the last
mount is gone, or with the cgroup. A restarted server has nothing to adopt.

Only the operator names servers: with an address of the caller's choice, the process could reach the host's network."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skerry import linux
from skerry.errors import HostUnsupported, InvalidRequest, NotFound, SandboxUnavailable
from skerry.runtimes import DEFAULT_USER, BindMount, Init, Runtime
from skerry.runtimes.runtime import RANGE_SIZE
from skerry.types import BucketForm, EndpointForm, VolumeMount, parse_span

if TYPE_CHECKING:  # `skerry doctor` of a client has no `cryptography`, which the store of secrets needs
    from skerry.engine.network.secrets import SecretStore
    from skerry.engine.sandboxes.record import SandboxRecord

log = logging.getLogger("skerry.engine")
PROGRAM: Final = "rclone"
REMOTE: Final = "bucket"
CHECK_TIMEOUTS: Final = 3  # the library of rclone tries again by itself
MOUNT_TIMEOUT_S: Final = 15.0
_FUSE_FD: Final = 3
_PASSED: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_LIMITS: Final = (  # retries, and how much memory is used for each open file
    "--retries=1", "--low-level-retries=1", "--buffer-size=2M",
    "--s3-chunk-size=5M", "--s3-upload-concurrency=1", "--use-server-modtime",
)  # fmt: skip
_DIRECTORY_CACHE_S: Final = 5


def find_endpoint(endpoints: Mapping[str, EndpointForm], bucket: BucketForm) -> EndpointForm:
    """Return the server of a bucket: the one that it names, or the only one."""
    if bucket.endpoint is not None and bucket.endpoint in endpoints:
        return endpoints[bucket.endpoint]
    if bucket.endpoint is None and len(endpoints) == 1:
        return next(iter(endpoints.values()))
    known = ", ".join(sorted(endpoints)) or "none"
    raise NotFound(
        f"the server of bucket {bucket.bucket} not found: {bucket.endpoint or 'no name was given'}",
        hint=f"the operator lists servers: [buckets.NAME] url = … (now: {known})",
    )


def find_program() -> str:
    if (program := shutil.which(PROGRAM)) is None or not os.path.exists("/dev/fuse"):
        missing = PROGRAM if program is None else "/dev/fuse"
        raise HostUnsupported(f"buckets can't be mounted: this host has no {missing}", hint="apt-get install rclone")
    return program


def environment(endpoint: EndpointForm, credentials: str | None) -> dict[str, str]:
    """Return the configuration of rclone as variables: its arguments are visible to other users of the host."""
    given = {
        "TYPE": "s3", "PROVIDER": endpoint.provider, "ENDPOINT": endpoint.url or "", "REGION": endpoint.region or "",
        "NO_CHECK_BUCKET": "true", "ENV_AUTH": "false",
    }  # fmt: skip
    if credentials is not None:
        key, colon, secret = credentials.partition(":")
        if not (key and colon and secret):
            raise InvalidRequest("volumes: the secret of a bucket is not KEY_ID:KEY")
        given |= {"ACCESS_KEY_ID": key, "SECRET_ACCESS_KEY": secret}
    inherited = {name: os.environ[name] for name in _PASSED if name in os.environ}
    variables = {f"RCLONE_CONFIG_{REMOTE.upper()}_{name}": value for name, value in given.items() if value}
    return {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "GOMEMLIMIT": "100MiB", **inherited, **variables}


class BucketMounter:
    def __init__(self, endpoints: Mapping[str, EndpointForm], secrets: SecretStore) -> None:
        self._endpoints, self._secrets = endpoints, secrets

    async def mount(self, runtime: Runtime, init: Init, base: int, record: SandboxRecord) -> None:
        """Mount the buckets of a sandbox, before any command has run in it."""
        for one in record.spec.volumes:
            if one.bucket is not None:
                await self._mount(runtime, init, base, record, one, one.bucket)

    async def _mount(
        self, runtime: Runtime, init: Init, base: int, record: SandboxRecord, mount: VolumeMount, bucket: BucketForm
    ) -> None:
        daemon = BucketDaemon(bucket, find_endpoint(self._endpoints, bucket), self._credentials(record, bucket), base)
        await daemon.check(runtime, record.id)
        tree, pid = await daemon.start(mount.read_only)
        _reap_at_exit(pid, record.id, bucket.bucket)
        try:
            await asyncio.to_thread(runtime.add_process, record.id, pid)
            await daemon.answered(tree)
            given = BindMount(Path("/"), mount.path, mount.read_only, tree=tree)
            await asyncio.to_thread(runtime.mount, init, base, [given])
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            raise
        finally:
            os.close(tree)
        log.info("mounted a bucket", extra={"sandbox": record.id, "bucket": bucket.bucket})

    def _credentials(self, record: SandboxRecord, bucket: BucketForm) -> str | None:
        if bucket.secret is None:
            return None
        value = self._secrets.value(record, bucket.secret)
        if value is None:
            raise SandboxUnavailable(
                f"the secret {bucket.secret} of bucket {bucket.bucket} is missing",
                hint="sandbox.update(secrets=…) sets it",
            )
        return value


class BucketDaemon:
    """One process of rclone and its mount."""

    def __init__(self, bucket: BucketForm, endpoint: EndpointForm, credentials: str | None, base: int) -> None:
        self._bucket, self._base = bucket, base
        self._timeout_s = parse_span(endpoint.timeout)
        self._environment = environment(endpoint, credentials)
        self._place = f"{REMOTE}:{bucket.bucket}{'/' * bool(bucket.prefix)}{bucket.prefix}"

    def _argv(self, verb: str, *arguments: str) -> list[str]:
        """`setpriv` drops every privilege before rclone starts."""
        user = str(self._base + RANGE_SIZE - 1)
        return [
            shutil.which("setpriv") or "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups",
            "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--",
            find_program(), verb, self._place, *arguments, "--config=", "--log-level=ERROR",
            f"--timeout={self._timeout_s}s", f"--contimeout={self._timeout_s}s", *_LIMITS,
        ]  # fmt: skip

    async def check(self, runtime: Runtime, sandbox: str) -> None:
        """List the bucket once: wrong credentials or a silent server fail the start with a reason. The process is in
        the sandbox's cgroup: it holds the whole list in its memory."""
        process = await asyncio.create_subprocess_exec(
            *self._argv("lsf", "--max-depth=1"), env=self._environment, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd="/", limit=1 << 16,
        )  # fmt: skip
        assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 -- pipes
        try:
            await asyncio.to_thread(runtime.add_process, sandbox, process.pid)
            async with asyncio.timeout(CHECK_TIMEOUTS * self._timeout_s):
                if await process.stdout.read(1):  # one name is enough; the bucket may hold millions
                    return
                words = await process.stderr.read(1 << 16)
                if await process.wait() == 0:
                    return
            reason = self._reason(words)
        except TimeoutError:
            reason = f"no answer within {CHECK_TIMEOUTS * self._timeout_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        raise SandboxUnavailable(
            f"bucket {self._bucket.bucket} can't be listed: {reason}",
            hint="check its name, the secret (KEY_ID:KEY) and the operator's [buckets.NAME]",
        )

    def _reason(self, words: bytes) -> str:
        lines = words.decode("utf-8", "replace").strip().splitlines() or ["unknown"]
        text = "".join(c if c.isprintable() else " " for c in lines[-1].partition(": ")[2] or lines[-1])[:300]
        for value in self._environment.values():  # the endpoint may repeat a key
            text = text.replace(value, "…") if len(value) >= 8 and value in text and "/" not in value else text
        return text

    async def start(self, read_only: bool) -> tuple[int, int]:
        """Return a detached mount, and the pid of the process that serves it."""
        fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        try:
            tree = await asyncio.to_thread(_fuse_mount, fuse, read_only)
            try:
                owner = str(self._base + DEFAULT_USER)
                argv = self._argv(
                    "mount2", f"/dev/fd/{_FUSE_FD}", f"--uid={owner}", f"--gid={owner}", "--file-perms=0644",
                    "--dir-perms=0755", "--allow-non-empty", "--vfs-cache-mode=off", "--vfs-read-chunk-size=4M",
                    "--poll-interval=0", f"--dir-cache-time={_DIRECTORY_CACHE_S}s",
                    *(["--read-only"] if read_only else []),
                )  # fmt: skip
                return tree, _spawn(argv, self._environment, fuse)
            except BaseException:
                os.close(tree)
                raise
        finally:
            os.close(fuse)

    async def answered(self, tree: int) -> None:
        """Wait for the first answer. If the process ends before, the kernel answers with an error."""
        try:
            async with asyncio.timeout(MOUNT_TIMEOUT_S):
                await asyncio.to_thread(os.statvfs, f"/proc/self/fd/{tree}")
        except (OSError, TimeoutError) as error:
            raise SandboxUnavailable(f"bucket {self._bucket.bucket} could not be mounted: {error}") from error


def _fuse_mount(fuse: int, read_only: bool) -> int:
    context = linux.fsopen("fuse")
    try:
        options = {"source": "skerry-bucket", "fd": str(fuse), "rootmode": "40000", "user_id": "0", "group_id": "0"}
        for name, value in options.items():
            linux.fsconfig_string(context, name, value)
        for flag in ("allow_other", "default_permissions"):
            linux.fsconfig_flag(context, flag)
        linux.fsconfig_create(context)
        attributes = linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV
        return linux.fsmount(context, attributes | (linux.MOUNT_ATTR_RDONLY if read_only else 0))
    finally:
        os.close(context)


def _reap_at_exit(pid: int, sandbox: str, bucket: str) -> None:
    """Reap a daemon of this server when it ends: a process that is not reaped keeps the sandbox's cgroup busy."""
    loop, pidfd = asyncio.get_running_loop(), os.pidfd_open(pid)

    def reap() -> None:
        loop.remove_reader(pidfd)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
        os.close(pidfd)
        log.info("the process of a bucket ended", extra={"sandbox": sandbox, "bucket": bucket})

    loop.add_reader(pidfd, reap)


def _spawn(argv: list[str], env: Mapping[str, str], fuse: int) -> int:
    """Start a process that outlives this one; its only other descriptor is that of the mount."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in range(3)]
        return os.posix_spawn(
            argv[0], argv, env, file_actions=[*actions, (os.POSIX_SPAWN_DUP2, fuse, _FUSE_FD)], setsid=True,
            setsigmask=(), setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
        )  # fmt: skip
    finally:
        os.close(null)
