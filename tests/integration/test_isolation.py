"""`isolation` tells the truth about what a sandbox has, and about what was waived."""

from __future__ import annotations

import pytest
from serving import Server

from skerry import Options, Sandbox
from skerry.errors import HostUnsupported


def test_a_sandbox_tells_what_isolates_it(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        assert sandbox.isolation is not None
        assert {"user_namespace", "seccomp", "memory_limit", "disk_limit", "egress_policy"} <= set(
            sandbox.isolation.guarantees
        )
        assert sandbox.isolation.waived == ()


def test_a_guarantee_that_the_host_lacks_must_be_waived_by_name_and_is_shown(own_server: Server) -> None:
    own_server.start(SKERRY_STORAGE_DRIVER="plain")
    with pytest.raises(HostUnsupported, match="disk limit"):
        Sandbox.create(server=own_server.address)
    with Sandbox(server=own_server.address, options=Options(waive=("disk_limit",))) as sandbox:
        assert sandbox.isolation is not None
        assert sandbox.isolation.waived == ("disk_limit",)
        assert "disk_limit" not in sandbox.isolation.guarantees
    own_server.end()


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_a_runtime_can_be_forced(server: Server, runtime: str) -> None:
    with Sandbox(server=server.address, options=Options(runtime=runtime)) as sandbox:
        assert sandbox.isolation is not None
        assert sandbox.isolation.runtime == runtime
        assert sandbox.run(["echo", "hi"]).stdout == "hi\n"
