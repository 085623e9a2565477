"""Invalid input and faults: each is a clear typed error or a correct result, and the sandbox survives."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from support.server import Server

from skerry import Lifecycle, Limits, Options, Sandbox
from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded, SkerryError

HEADROOM = "1G"


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, limits=Limits(memory="512M", disk="256M", pids=128)) as sandbox:
        yield sandbox


def test_unknown_image_is_not_found_and_named(server: Server) -> None:
    with pytest.raises(NotFound, match="no-such-image"):
        Sandbox.create("no-such-image", server=server.address)


def test_unknown_runtime_error_lists_the_known_ones(server: Server) -> None:
    with pytest.raises(SkerryError, match="warp") as caught:
        Sandbox.create(options=Options(runtime="warp"), server=server.address)
    assert "runc" in str(caught.value)


def test_unknown_sandbox_is_not_found(server: Server) -> None:
    with pytest.raises(NotFound, match="sb-aaaaaaaaaa"):
        Sandbox.get("sb-aaaaaaaaaa", server=server.address)


def test_unknown_user_is_rejected(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match="nemo"):
        sandbox.run(["true"], user="nemo")


def test_taken_name_is_a_conflict_and_the_first_sandbox_survives(server: Server) -> None:
    first = Sandbox.create(name="taken", server=server.address)
    try:
        with pytest.raises(Conflict, match="taken"):
            Sandbox.create(name="taken", server=server.address)
        assert Sandbox.get_or_create("taken", server=server.address).id == first.id
        assert first.run(["true"]).ok
    finally:
        first.delete()


@pytest.mark.parametrize("name", ["", "a b", "UPPER", "../x", "a\0b", "x" * 64, "-x", "sb-aaaaaaaaaa", "\x1b[31m"])
def test_invalid_name_is_rejected(server: Server, name: str) -> None:
    with pytest.raises(InvalidRequest, match="name"):
        Sandbox.create(name=name, server=server.address)


@pytest.mark.parametrize(
    "limits",
    [
        {"cpus": 0}, {"cpus": -1}, {"cpus": float("nan")}, {"memory": 0}, {"memory": "-1G"}, {"memory": "lots"},
        {"memory": "1K"}, {"disk": "0"}, {"pids": 0}, {"pids": -5}, {"open_files": 0}, {"disk": "9" * 50},
    ],
)  # fmt: skip
def test_invalid_limits_are_rejected_by_name(limits: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=rf"limits\.{next(iter(limits))}"):
        Limits(**limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("limits", [{"cpus": 4000}, {"memory": "900T"}, {"pids": 4_000_000}])
def test_limits_above_a_maximum_are_rejected_with_the_maximum(server: Server, limits: dict[str, object]) -> None:
    with pytest.raises(QuotaExceeded, match=r"max\.|this host"):
        Sandbox.create(limits=Limits(**limits), server=server.address)  # type: ignore[arg-type]


@pytest.mark.parametrize("body", [{"cpus": "two"}, {"memory": [1]}, {"cpu": 1}])
def test_limits_of_a_wrong_type_or_name_are_rejected_over_http(server: Server, body: dict[str, object]) -> None:
    with server.http() as http:
        answer = http.post("/v1/sandboxes", json={"limits": body})
    assert answer.status_code == 400
    assert next(iter(body)) in answer.json()["error"]["message"]


def test_named_sandbox_cannot_be_deleted_on_idle(server: Server) -> None:
    with pytest.raises(InvalidRequest, match="on_idle"):
        Sandbox.create(name="keepme", lifecycle=Lifecycle(on_idle="delete"), server=server.address)


@pytest.mark.parametrize("cmd", ["", "   ", [], [""], ["a\0b"], "echo \0"])
def test_empty_command_or_nul_byte_is_rejected(sandbox: Sandbox, cmd: object) -> None:
    with pytest.raises(InvalidRequest):
        sandbox.run(cmd)  # type: ignore[arg-type]


def test_missing_cwd_is_an_invalid_request(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match="/nowhere"):
        sandbox.run(["pwd"], cwd="/nowhere")


@pytest.mark.parametrize("far", [{"cwd": "/" + "x" * 100_000}, {"user": "x" * 100_000}, {"user": ""}, {"cwd": ""}])
def test_overlong_name_is_an_invalid_request_and_the_sandbox_survives(
    sandbox: Sandbox, server: Server, far: dict[str, str]
) -> None:
    with server.http() as http:
        answer = http.post(f"/v1/sandboxes/{sandbox.id}/processes?wait=true", json={"cmd": ["true"], **far})
    assert answer.status_code == 400
    assert sandbox.info().state == "running"


@pytest.mark.parametrize("name", ["A=B", "", "A\0"])
def test_variable_with_an_invalid_name_is_rejected(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(InvalidRequest):
        sandbox.run(["env"], env={name: "x"})


def test_missing_command_exits_with_127_and_a_message(sandbox: Sandbox) -> None:
    result = sandbox.run(["/no/such/program"])
    assert result.exit_code == 127
    assert "/no/such/program" in result.stderr


def test_file_that_is_not_executable_exits_with_126(sandbox: Sandbox) -> None:
    assert sandbox.run(["/etc/passwd"]).exit_code == 126


def test_ten_mebibytes_without_a_newline_keep_head_and_tail(sandbox: Sandbox) -> None:
    pieces: list[int] = []
    code = "import sys; sys.stdout.write('a'*5 + 'x'*(10*1024*1024-10) + 'b'*5)"
    result = sandbox.run(["python3", "-c", code], on_output=lambda output: pieces.append(len(output.data)))
    assert result.ok
    assert result.truncated
    assert sum(pieces) == 10 * 1024 * 1024
    assert result.stdout.startswith("aaaaax")
    assert result.stdout.endswith("xbbbbb")
    assert len(result.stdout_bytes) < (1 << 20) + 200
    assert re.search(r"\d+ bytes left out", result.stdout)


def test_binary_output_is_preserved(sandbox: Sandbox) -> None:
    result = sandbox.run(["python3", "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)))"])
    assert result.stdout_bytes == bytes(range(256))


def test_program_may_close_its_stdin_early(sandbox: Sandbox) -> None:
    for _ in range(60):  # the end comes at some other moment of the sending each time
        result = sandbox.run(["head", "-c", "3"], stdin=b"abc" + b"x" * (4 << 20))
        assert result.stdout == "abc"
        assert result.ok


def test_stdin_reaches_the_program_completely(sandbox: Sandbox) -> None:
    assert sandbox.run(["wc", "-c"], stdin=b"x" * (3 << 20)).stdout.strip() == str(3 << 20)
    assert sandbox.run(["cat"], stdin="grüße").stdout == "grüße"


def test_fork_bomb_hits_the_process_limit_and_the_sandbox_survives(sandbox: Sandbox) -> None:
    result = sandbox.run("bomb() { bomb | bomb & }; bomb; sleep 30", timeout=2)
    assert result.timed_out
    assert "Resource temporarily unavailable" in result.stderr
    assert sandbox.run(["echo", "still here"], timeout=60).stdout == "still here\n"


def test_out_of_memory_is_reported_and_the_sandbox_survives(sandbox: Sandbox) -> None:
    result = sandbox.run(["python3", "-c", "x = bytearray(900 * 1024 * 1024)"])
    assert not result.ok
    assert result.oom_killed is True
    assert result.hint is not None
    assert "--memory" in result.hint
    assert sandbox.run(["echo", "alive"]).stdout == "alive\n"


def test_full_disk_is_enospc_inside_and_the_sandbox_survives(sandbox: Sandbox) -> None:
    result = sandbox.run("dd if=/dev/zero of=/workspace/big bs=1M count=400 2>&1")
    assert not result.ok
    assert re.search("No space left|quota exceeded", result.stdout, re.IGNORECASE)
    assert sandbox.run(["rm", "/workspace/big"]).ok
    assert sandbox.run("echo ok > /workspace/small && cat /workspace/small").stdout == "ok\n"


def test_first_process_cannot_be_killed_from_inside(sandbox: Sandbox) -> None:
    sandbox.run("kill -9 1; kill -TERM 1; kill -INT 1", user="user")
    assert sandbox.run(["echo", "alive"]).stdout == "alive\n"


def test_root_inside_cannot_kill_the_first_process(sandbox: Sandbox) -> None:
    sandbox.run("kill -9 1; kill -SEGV 1; kill -STOP 1", user="root")
    assert sandbox.run(["echo", "alive"]).stdout == "alive\n"
