"""The real privileges of processes inside, including PID 1."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from support.containers import BASE, Container

from skerry.errors import SandboxUnavailable
from skerry.runtimes import BindMount, posture, spec
from skerry.runtimes.security_modules import profile_of


def fields(text: str) -> dict[str, str]:
    return {line.split(":")[0]: line.split(":", 1)[1].strip() for line in text.splitlines() if ":" in line}


async def test_pid_1_and_a_guest_process_have_no_more_than_the_spec_says(container: Container) -> None:
    for text in (await container.read("/proc/1/status"), await container.run("cat", "/proc/self/status")):
        status = fields(text)
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        assert status["CapInh"] == status["CapAmb"] == f"{0:016x}"
        for name in ("CapPrm", "CapEff", "CapBnd"):
            assert int(status[name], 16) == posture.MASK


async def test_mount_that_lacks_a_property_is_found(container: Container) -> None:
    for target, missing in (("/data", "idmapped, nodev, nosuid, rw"), ("/sys", "idmapped, rw"), ("/", "idmapped")):
        with pytest.raises(SandboxUnavailable, match=f"is not {missing}"):
            posture.check_mounts(container.init.pid, [BindMount(Path("/srv"), target)])


async def test_another_user_inside_has_no_capability_at_all(container: Container) -> None:
    status = fields(await container.run("cat", "/proc/self/status", uid=1000))
    assert status["Uid"].split() == ["1000"] * 4
    for name in ("CapPrm", "CapEff", "CapInh", "CapAmb"):
        assert int(status[name], 16) == 0


async def test_root_inside_is_nobody_on_the_host(container: Container) -> None:
    for which in ("uid_map", "gid_map"):
        assert (await container.read(f"/proc/1/{which}")).split() == ["0", str(BASE), "65536"]
    status = fields(Path(f"/proc/{container.init.pid}/status").read_text())
    assert status["Uid"].split() == [str(BASE)] * 4


async def test_every_namespace_is_private(container: Container) -> None:
    for name in ("user", "mnt", "pid", "ipc", "uts", "cgroup", "net"):
        inside = os.readlink(f"/proc/{container.init.pid}/ns/{name}")
        assert inside != os.readlink(f"/proc/self/ns/{name}")


async def test_pid_1_holds_only_null_stdio_its_socket_and_its_cgroup(container: Container) -> None:
    await container.read("/etc/hello")  # it answers: its execve, with which the runtime's own fds go, is over
    fds = f"/proc/{container.init.pid}/fd"
    links = {}
    for name in os.listdir(fds):
        with contextlib.suppress(FileNotFoundError):  # the connection that was just closed
            links[int(name)] = os.readlink(f"{fds}/{name}")
    for fd in (0, 1, 2):
        assert os.stat(f"{fds}/{fd}").st_rdev == os.makedev(1, 3)
    assert links[3].startswith("socket:")
    assert links[4] == "/"
    rest = {fd: link for fd, link in links.items() if fd > 4}
    assert all(link.startswith(("socket:", "anon_inode:")) for link in rest.values()), rest


async def test_the_hosts_null_device_is_unchanged(container: Container) -> None:
    status = os.stat("/dev/null")
    assert (status.st_uid, status.st_gid) == (0, 0)
    assert await container.run("chmod", "/dev/null") == "operation not permitted\n"


async def test_the_root_is_mounted_nosuid_and_nodev_and_not_on_the_host(container: Container) -> None:
    inside = [line.split() for line in (await container.read("/proc/1/mounts")).splitlines()]
    (options,) = [options for _, point, kind, options, *_ in inside if (point, kind) == ("/", "overlay")]
    assert {"nosuid", "nodev"} <= set(options.split(","))
    assert container.config.id not in Path("/proc/self/mounts").read_text()


async def test_mounts_match_the_spec(container: Container) -> None:
    lines = [line.split() for line in (await container.read("/proc/1/mounts")).splitlines()]
    options = {line[1]: set(line[3].split(",")) for line in lines}
    assert "ro" in options["/sys"]
    assert "ro" in options["/proc/sys"]
    assert "ro" in options[spec.KEEPER]
    assert {"nosuid", "nodev", "noexec"} <= options["/dev/shm"]
    assert f"size={(256 << 20) // 2 // 1024}k" in options["/dev/shm"]
    assert not any("cgroup" in line[2] and "rw" in line[3].split(",") for line in lines)
    assert not any(container.config.run_dir.name in " ".join(line) for line in lines)


async def test_masked_paths_show_nothing(container: Container) -> None:
    for path in spec.MASKED:
        if not os.path.exists(path):
            continue
        answer = await container.run("look", path)
        denied = answer == "permission denied\n" and profile_of(container.init.pid) is not None
        assert denied or answer in ("0 bytes\n", "0 entries\n"), (path, answer)


async def test_kernel_settings_cannot_be_changed(container: Container) -> None:
    for path in ("kernel/core_pattern", "net/ipv4/ip_forward", "vm/drop_caches", "kernel/hostname"):
        assert await container.run("write", f"/proc/sys/{path}") in ("read-only file system\n", "permission denied\n")
    for path in ("/proc/sysrq-trigger", "/proc/kcore", "/sys/kernel/uevent_helper", "/sys/power/state"):
        answer = await container.run("write", path)
        assert answer in (
            *("read-only file system\n", "permission denied\n", "operation not permitted\n"),
            *("no such file or directory\n", "written to null\n"),
        )


async def test_only_standard_devices_exist(container: Container) -> None:
    names = set((await container.ask(list="/dev"))["links"])
    assert names <= {
        *("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "mqueue"),
        *("fd", "stdin", "stdout", "stderr", "core", "console"),
    }


async def test_the_network_is_only_a_loopback(container: Container) -> None:
    assert (await container.ask(list="/sys/class/net"))["links"].keys() == {"lo"}
    assert int(await container.read("/sys/class/net/lo/flags"), 16) & 1
    assert (await container.read("/proc/net/route")).count("\n") == 1
    assert await container.run("serve", "80", uid=1000) == "hello\n"


async def test_hostname_and_working_directory(container: Container) -> None:
    assert (await container.read("/proc/sys/kernel/hostname")).strip() == "island"
    assert os.readlink(f"/proc/{container.init.pid}/cwd") == "/"


async def test_no_core_dump_reaches_the_host_and_the_limit_stays(container: Container) -> None:
    limits = (await container.read("/proc/1/limits")).splitlines()
    (core,) = [line.split() for line in limits if line.startswith("Max core file size")]
    (limit,) = [
        at for at in container.runtime.spec(container.config)["process"]["rlimits"] if at["type"] == "RLIMIT_CORE"
    ]
    assert core[4:6] == [str(limit["soft"]), str(limit["hard"])]
    assert await container.run("cores") == f"set: <nil>, still {limit['soft']} {limit['hard']}\n"


async def test_pid_1_is_killed_before_host_processes_on_oom(container: Container) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    effective = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    floor = int(effective.split()[1], 16) >> 24 & 1  # with CAP_SYS_RESOURCE nothing inside can go below it
    assert int(Path(f"/proc/{container.init.pid}/oom_score_adj").read_text()) == (max(100, own) if floor else own)
