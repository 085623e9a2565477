"""Nonsense and faults: each gives a clear typed error or a truthful result, and the sandbox is none the worse."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from serving import Server

from skerry import Lifecycle, Limits, Options, Sandbox
from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded, SkerryError

HEADROOM = "1G"


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, limits=Limits(memory="512M", disk="256M", pids=128)) as sandbox:
        yield sandbox


def test_an_unknown_image_is_not_found_and_named(server: Server) -> None:
    with pytest.raises(NotFound, match="no-such-image"):
        Sandbox.create("no-such-image", server=server.address)


def test_an_unknown_runtime_is_refused_and_the_known_ones_are_named(server: Server) -> None:
    with pytest.raises(SkerryError, match="warp") as caught:
        Sandbox.create(options=Options(runtime="warp"), server=server.address)
    assert "runc" in str(caught.value)


def test_an_unknown_sandbox_is_not_found(server: Server) -> None:
    with pytest.raises(NotFound, match="sb-aaaaaaaaaa"):
        Sandbox.get("sb-aaaaaaaaaa", server=server.address)


def test_an_unknown_user_is_refused(box: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match="nemo"):
        box.run(["true"], user="nemo")


def test_a_name_that_is_taken_is_a_conflict_and_the_first_one_lives(server: Server) -> None:
    first = Sandbox.create(name="taken", server=server.address)
    try:
        with pytest.raises(Conflict, match="taken"):
            Sandbox.create(name="taken", server=server.address)
        assert Sandbox.get_or_create("taken", server=server.address).id == first.id
        assert first.run(["true"]).ok
    finally:
        first.delete()


@pytest.mark.parametrize("name", ["", "a b", "UPPER", "../x", "a\0b", "x" * 64, "-x", "sb-aaaaaaaaaa", "\x1b[31m"])
def test_a_name_that_can_not_be_used_is_refused(server: Server, name: str) -> None:
    with pytest.raises(InvalidRequest, match="name"):
        Sandbox.create(name=name, server=server.address)


@pytest.mark.parametrize(
    "limits",
    [
        {"cpus": 0}, {"cpus": -1}, {"cpus": float("nan")}, {"memory": 0}, {"memory": "-1G"}, {"memory": "lots"},
        {"memory": "1K"}, {"disk": "0"}, {"pids": 0}, {"pids": -5}, {"open_files": 0}, {"disk": "9" * 50},
    ],
)  # fmt: skip
def test_limits_that_make_no_sense_are_refused_by_name(limits: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=rf"limits\.{next(iter(limits))}"):
        Limits(**limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("limits", [{"cpus": 4000}, {"memory": "900T"}, {"pids": 4_000_000}])
def test_limits_beyond_a_maximum_are_refused_and_the_maximum_is_named(
    server: Server, limits: dict[str, object]
) -> None:
    with pytest.raises(QuotaExceeded, match=r"max\.|this host"):
        Sandbox.create(limits=Limits(**limits), server=server.address)  # type: ignore[arg-type]


@pytest.mark.parametrize("body", [{"cpus": "two"}, {"memory": [1]}, {"cpu": 1}])
def test_limits_of_a_wrong_type_or_name_are_refused_over_http(server: Server, body: dict[str, object]) -> None:
    with server.http() as http:
        answer = http.post("/v1/sandboxes", json={"limits": body})
    assert answer.status_code == 400
    assert next(iter(body)) in answer.json()["error"]["message"]


def test_a_named_sandbox_can_not_ask_to_be_deleted_by_itself(server: Server) -> None:
    with pytest.raises(InvalidRequest, match="on_idle"):
        Sandbox.create(name="keepme", lifecycle=Lifecycle(on_idle="delete"), server=server.address)


@pytest.mark.parametrize("cmd", ["", "   ", [], [""], ["a\0b"], "echo \0"])
def test_an_empty_command_or_a_nul_byte_is_refused(box: Sandbox, cmd: object) -> None:
    with pytest.raises(InvalidRequest):
        box.run(cmd)  # type: ignore[arg-type]


def test_a_cwd_that_does_not_exist_is_the_callers_mistake(box: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match="/nowhere"):
        box.run(["pwd"], cwd="/nowhere")


@pytest.mark.parametrize("far", [{"cwd": "/" + "x" * 100_000}, {"user": "x" * 100_000}, {"user": ""}, {"cwd": ""}])
def test_a_name_longer_than_any_is_the_callers_mistake_and_the_sandbox_lives(
    box: Sandbox, server: Server, far: dict[str, str]
) -> None:
    with server.http() as http:
        answer = http.post(f"/v1/sandboxes/{box.id}/processes?wait=true", json={"cmd": ["true"], **far})
    assert answer.status_code == 400
    assert box.info().state == "running"


@pytest.mark.parametrize("name", ["A=B", "", "A\0"])
def test_a_variable_with_an_impossible_name_is_refused(box: Sandbox, name: str) -> None:
    with pytest.raises(InvalidRequest):
        box.run(["env"], env={name: "x"})


def test_a_command_that_is_not_there_ends_with_127_and_says_so(box: Sandbox) -> None:
    result = box.run(["/no/such/program"])
    assert result.exit_code == 127
    assert "/no/such/program" in result.stderr


def test_a_file_that_is_not_executable_ends_with_126(box: Sandbox) -> None:
    assert box.run(["/etc/passwd"]).exit_code == 126


def test_ten_mebibytes_without_a_newline_are_kept_at_both_ends_and_marked(box: Sandbox) -> None:
    pieces: list[int] = []
    code = "import sys; sys.stdout.write('a'*5 + 'x'*(10*1024*1024-10) + 'b'*5)"
    result = box.run(["python3", "-c", code], on_output=lambda output: pieces.append(len(output.data)))
    assert result.ok
    assert result.truncated
    assert sum(pieces) == 10 * 1024 * 1024
    assert result.stdout.startswith("aaaaax")
    assert result.stdout.endswith("xbbbbb")
    assert len(result.stdout_bytes) < (1 << 20) + 200
    assert re.search(r"\d+ bytes left out", result.stdout)


def test_binary_output_comes_back_byte_for_byte(box: Sandbox) -> None:
    result = box.run(["python3", "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)))"])
    assert result.stdout_bytes == bytes(range(256))


def test_a_program_that_closes_its_stdin_early_is_no_error(box: Sandbox) -> None:
    for _ in range(60):  # the end comes at some other moment of the sending each time
        result = box.run(["head", "-c", "3"], stdin=b"abc" + b"x" * (4 << 20))
        assert result.stdout == "abc"
        assert result.ok


def test_stdin_reaches_the_program_whole(box: Sandbox) -> None:
    assert box.run(["wc", "-c"], stdin=b"x" * (3 << 20)).stdout.strip() == str(3 << 20)
    assert box.run(["cat"], stdin="grüße").stdout == "grüße"


def test_a_fork_bomb_hits_the_limit_of_processes_and_the_sandbox_lives(box: Sandbox) -> None:
    result = box.run("bomb() { bomb | bomb & }; bomb; sleep 30", timeout=2)
    assert result.timed_out
    assert "Resource temporarily unavailable" in result.stderr
    assert box.run(["echo", "still here"], timeout=60).stdout == "still here\n"


def test_memory_beyond_the_limit_is_told_as_such_and_the_sandbox_lives(box: Sandbox) -> None:
    result = box.run(["python3", "-c", "x = bytearray(900 * 1024 * 1024)"])
    assert not result.ok
    assert result.oom_killed is True
    assert result.hint is not None
    assert "--memory" in result.hint
    assert box.run(["echo", "alive"]).stdout == "alive\n"


def test_a_full_disk_is_enospc_inside_and_the_sandbox_lives(box: Sandbox) -> None:
    result = box.run("dd if=/dev/zero of=/workspace/big bs=1M count=400 2>&1")
    assert not result.ok
    assert re.search("No space left|quota exceeded", result.stdout, re.IGNORECASE)
    assert box.run(["rm", "/workspace/big"]).ok
    assert box.run("echo ok > /workspace/small && cat /workspace/small").stdout == "ok\n"


def test_the_first_process_can_not_be_killed_from_inside(box: Sandbox) -> None:
    box.run("kill -9 1; kill -TERM 1; kill -INT 1", user="user")
    assert box.run(["echo", "alive"]).stdout == "alive\n"


def test_root_inside_can_not_kill_the_first_process_by_force(box: Sandbox) -> None:
    box.run("kill -9 1; kill -SEGV 1; kill -STOP 1", user="root")
    assert box.run(["echo", "alive"]).stdout == "alive\n"
