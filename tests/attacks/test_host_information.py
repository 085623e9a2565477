"""Attacks that read in /proc and /sys what the host and other sandboxes do."""

from __future__ import annotations

import json

import pytest
from support.server import Server

from skerry import Limits, Sandbox
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
    return {path for path in found if not path.split("/")[-1].isdigit()}


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
