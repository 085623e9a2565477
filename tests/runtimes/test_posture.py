"""What processes inside really have, PID 1 included."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from runtimes.walls import BASE, Box

from skerry.runtimes import posture, spec


def fields(text: str) -> dict[str, str]:
    return {line.split(":")[0]: line.split(":", 1)[1].strip() for line in text.splitlines() if ":" in line}


async def test_pid_1_and_a_guest_process_have_no_more_than_the_spec_says(box: Box) -> None:
    for text in (await box.read("/proc/1/status"), await box.run("cat", "/proc/self/status")):
        status = fields(text)
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        assert status["CapInh"] == status["CapAmb"] == f"{0:016x}"
        for name in ("CapPrm", "CapEff", "CapBnd"):
            assert int(status[name], 16) == posture.MASK


async def test_another_user_inside_has_no_capability_at_all(box: Box) -> None:
    status = fields(await box.run("cat", "/proc/self/status", uid=1000))
    assert status["Uid"].split() == ["1000"] * 4
    for name in ("CapPrm", "CapEff", "CapInh", "CapAmb"):
        assert int(status[name], 16) == 0


async def test_root_inside_is_nobody_on_the_host(box: Box) -> None:
    for which in ("uid_map", "gid_map"):
        assert (await box.read(f"/proc/1/{which}")).split() == ["0", str(BASE), "65536"]
    status = fields(Path(f"/proc/{box.init.pid}/status").read_text())
    assert status["Uid"].split() == [str(BASE)] * 4


async def test_every_namespace_is_its_own(box: Box) -> None:
    for name in ("user", "mnt", "pid", "ipc", "uts", "cgroup", "net"):
        inside = os.readlink(f"/proc/{box.init.pid}/ns/{name}")
        assert inside != os.readlink(f"/proc/self/ns/{name}")


async def test_pid_1_holds_stdio_on_null_the_door_and_its_cgroup_and_nothing_else(box: Box) -> None:
    await box.read("/etc/hello")  # it answers: its execve, with which the runtime's own fds go, is over
    fds = f"/proc/{box.init.pid}/fd"
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


async def test_the_host_keeps_its_null_device(box: Box) -> None:
    status = os.stat("/dev/null")
    assert (status.st_uid, status.st_gid) == (0, 0)
    assert await box.run("chmod", "/dev/null") == "operation not permitted\n"


async def test_the_root_is_mounted_nosuid_and_nodev_inside_and_on_the_host(box: Box) -> None:
    for text in (await box.read("/proc/1/mounts"), Path("/proc/self/mounts").read_text()):
        point = (
            "/" if text.startswith("none / ") or " / overlay " in text else str(box.runtime.overlays.path(box.wall.id))
        )
        (line,) = [line for line in text.splitlines() if line.split()[1] == point and line.split()[2] == "overlay"]
        options = line.split()[3].split(",")
        assert {"nosuid", "nodev"} <= set(options)


async def test_mounts_inside_are_those_of_the_spec(box: Box) -> None:
    lines = [line.split() for line in (await box.read("/proc/1/mounts")).splitlines()]
    options = {line[1]: set(line[3].split(",")) for line in lines}
    assert "ro" in options["/sys"]
    assert "ro" in options["/proc/sys"]
    assert "ro" in options[spec.KEEPER]
    assert {"nosuid", "nodev", "noexec"} <= options["/dev/shm"]
    assert f"size={(256 << 20) // 2 // 1024}k" in options["/dev/shm"]
    assert not any("cgroup" in line[2] and "rw" in line[3].split(",") for line in lines)
    assert not any(box.wall.run_dir.name in " ".join(line) for line in lines)


async def test_masked_paths_show_nothing(box: Box) -> None:
    for path in spec.MASKED:
        if not os.path.exists(path):
            continue
        answer = await box.run("look", path)
        assert answer in ("0 bytes\n", "0 entries\n"), (path, answer)


async def test_kernel_switches_cannot_be_turned(box: Box) -> None:
    for path in ("kernel/core_pattern", "net/ipv4/ip_forward", "vm/drop_caches", "kernel/hostname"):
        assert await box.run("write", f"/proc/sys/{path}") in ("read-only file system\n", "permission denied\n")
    for path in ("/proc/sysrq-trigger", "/proc/kcore", "/sys/kernel/uevent_helper", "/sys/power/state"):
        answer = await box.run("write", path)
        assert answer in (
            *("read-only file system\n", "permission denied\n", "operation not permitted\n"),
            *("no such file or directory\n", "written to null\n"),
        )


async def test_devices_are_the_usual_few(box: Box) -> None:
    names = set((await box.ask(list="/dev"))["links"])
    assert names <= {
        *("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "mqueue"),
        *("fd", "stdin", "stdout", "stderr", "core", "console"),
    }


async def test_the_network_is_a_loopback_that_is_up_and_no_more(box: Box) -> None:
    assert (await box.ask(list="/sys/class/net"))["links"].keys() == {"lo"}
    assert int(await box.read("/sys/class/net/lo/flags"), 16) & 1
    assert (await box.read("/proc/net/route")).count("\n") == 1
    assert await box.run("serve", "80", uid=1000) == "hello\n"


async def test_hostname_and_working_directory(box: Box) -> None:
    assert (await box.read("/proc/sys/kernel/hostname")).strip() == "island"
    assert os.readlink(f"/proc/{box.init.pid}/cwd") == "/"


async def test_no_core_dump_reaches_the_host_and_the_limit_stays(box: Box) -> None:
    limits = (await box.read("/proc/1/limits")).splitlines()
    (core,) = [line.split() for line in limits if line.startswith("Max core file size")]
    (limit,) = [at for at in box.runtime.spec(box.wall)["process"]["rlimits"] if at["type"] == "RLIMIT_CORE"]
    assert core[4:6] == [str(limit["soft"]), str(limit["hard"])]
    assert await box.run("cores") == f"set: <nil>, still {limit['soft']} {limit['hard']}\n"


async def test_pid_1_goes_before_the_hosts_own_processes_when_memory_runs_out(box: Box) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    effective = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    floor = int(effective.split()[1], 16) >> 24 & 1  # with CAP_SYS_RESOURCE nothing inside can go below it
    assert int(Path(f"/proc/{box.init.pid}/oom_score_adj").read_text()) == (max(100, own) if floor else own)
