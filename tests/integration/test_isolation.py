"""`isolation` reports the real guarantees of a sandbox, and the waived ones."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from support.server import Server

from skerry import Options, Sandbox
from skerry.errors import HostUnsupported


def test_sandbox_reports_its_isolation(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        assert sandbox.isolation is not None
        assert {"user_namespace", "seccomp", "memory_limit", "disk_limit", "egress_policy"} <= set(
            sandbox.isolation.guarantees
        )
        assert sandbox.isolation.waived == ()


def test_missing_guarantee_must_be_waived_by_name_and_is_shown(own_server: Server) -> None:
    own_server.start(SKERRY_STORAGE_DRIVER="plain")
    with pytest.raises(HostUnsupported, match="disk limit"):
        Sandbox.create(server=own_server.address)
    with Sandbox(server=own_server.address, options=Options(waive_guarantees=("disk_limit",))) as sandbox:
        assert sandbox.isolation is not None
        assert sandbox.isolation.waived == ("disk_limit",)
        assert "disk_limit" not in sandbox.isolation.guarantees
    own_server.end()


def test_boot_id_is_new_at_each_start_and_cannot_be_changed(server: Server) -> None:
    """The host's would connect the sandboxes of one host. runc allows no mount there."""
    look = ["cat", "/proc/sys/kernel/random/boot_id"]
    options = Options(runtime="crun")
    with (
        Sandbox(server=server.address, options=options) as one,
        Sandbox(server=server.address, options=options) as other,
    ):
        first = one.run(look, check=True).stdout
        attack = "echo x > /proc/sys/kernel/random/boot_id || chmod 666 /proc/sys/kernel/random/boot_id"
        assert not one.run(attack, user="root").ok
        assert not one.run("umount /proc/sys/kernel/random/boot_id", user="root").ok
        one.pause()
        one.resume()
        assert one.run(look, check=True).stdout == first == str(uuid.UUID(first.strip())) + "\n"
        one.stop()
        again = one.run(look, check=True).stdout
        host = Path("/proc/sys/kernel/random/boot_id").read_text()
        assert len({first, again, other.run(look, check=True).stdout, host}) == 4


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_runtime_can_be_chosen(server: Server, runtime: str) -> None:
    with Sandbox(server=server.address, options=Options(runtime=runtime)) as sandbox:
        assert sandbox.isolation is not None
        assert sandbox.isolation.runtime == runtime
        assert sandbox.run(["echo", "hi"]).stdout == "hi\n"
