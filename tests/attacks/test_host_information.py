"""Attacks that read in /proc and /sys what the host and other sandboxes do."""

from __future__ import annotations

import json
import re

import pytest
from support.server import Server

from skerry import Limits, Options, Pty, Sandbox
from skerry.runtimes.spec import MASKED

# Every path but those of processes, which are the sandbox's own
WALK = """
import json, os, sys
found = []
for top in ("/proc", "/sys"):
    for place, directories, files in os.walk(top):
        if place == "/proc":
            directories[:] = [name for name in directories if not name.isdigit()]
        found += [f"{place}/{name}" for name in directories + files]
json.dump(found, sys.stdout)
"""
# The content of every file, of the namespaces of the sandbox too
VALUES = (
    WALK.replace("json.dump(found, sys.stdout)", "").replace(
        "if place ==", "if place in ('/proc/self', '/proc/thread-self') or place =="
    )
    + """
found += [f"/proc/net/{name}" for name in os.listdir("/proc/net")]
values = {}
for path in found:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
            values[path] = file.read(1 << 16).decode("latin-1")
    except OSError:
        pass
with open("/tmp/values", "w") as file:
    json.dump(values, file)
"""
)
# Sums of the whole host, which docs/concepts/isolation.md lists, the sandbox's own values, and those that change anyway
SUMS = re.compile(
    r"/proc/(cgroups|loadavg|locks|meminfo|stat|uptime|vmstat|net/(sockstat6?|protocols))"
    r"|/proc/sys/fs/(file-nr|inode-nr|inode-state|dentry-state|aio-nr)|/proc/sys/kernel/(ns_last_pid|pty/nr|random/.*)|/proc/net/.*|/proc/sysvipc/.*"
    r"|/sys/devices/system/(node|cpu)/.*|/sys/devices/.*/power/.*|/sys/devices/.*/hwmon/.*|/sys/class/thermal/.*"
    r"|/sys/devices/virtual/thermal/.*|/sys/devices/.*/statistics/.*|/sys/fs/cgroup/.*|/sys/kernel/mm/.*"
)
OWN_GROUPS = re.compile(r"/sys/fs/cgroup/c\d+(/|$)")  # of its commands, on cgroup v2
READ = """
import os, sys
for path in sys.argv[1:]:
    try:
        data = os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(100)
    except FileNotFoundError:
        continue
    except OSError:
        data = None
    if data:
        print(path, data)
"""


def paths(box: Sandbox) -> set[str]:
    found = json.loads(box.run(["python3", "-c", WALK], user="root", check=True, timeout=60).stdout)
    return {path for path in found if not path.split("/")[-1].isdigit() and not OWN_GROUPS.match(path)}


def test_another_sandbox_adds_no_path(server: Server) -> None:
    """Such as /sys/fs/btrfs/<id>/qgroups/0_257, with its disk use."""
    with Sandbox(server=server.address, limits=Limits(memory="256M")) as box:
        before = paths(box)
        with Sandbox(server=server.address, limits=Limits(memory="256M")) as other:
            other.run("dd if=/dev/zero of=/var/tmp/file bs=1M count=8 && sync", check=True)
            during = paths(box)
        assert sorted(during ^ before) == []
        assert sorted(paths(box) ^ before) == []


@pytest.mark.parametrize("user", ["user", "root"])
def test_masked_paths_are_empty(server: Server, user: str) -> None:
    with Sandbox(server=server.address, limits=Limits(memory="256M")) as box:
        assert box.run(["python3", "-c", READ, *MASKED], user=user, check=True).stdout == ""


def values(box: Sandbox) -> dict[str, str]:
    box.run(["python3", "-c", VALUES], user="root", check=True, timeout=120)
    found: dict[str, str] = json.loads(box.files.read_text("/tmp/values"))
    return found


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def test_another_sandbox_changes_no_value(server: Server) -> None:
    """Only sums of the whole host. A value that also changes without another sandbox, or not each time, is not about
    it."""
    found: set[str] | None = None
    with Sandbox(server=server.address, limits=Limits(memory="256M")) as box:
        for _ in range(2):
            first, before = values(box), values(box)
            with Sandbox(server=server.address, limits=Limits(memory="256M"), options=Options(use_pool=False)) as other:
                other.spawn(["sleep", "1000"], pty=Pty())
                other.run("dd if=/dev/zero of=/var/tmp/file bs=1M count=8 && sync", check=True)
                new = changed(before, values(box)) - changed(first, before)
            found = new if found is None else found & new
        assert len(before) > 1000
    assert sorted(path for path in found or () if not SUMS.fullmatch(path)) == []
