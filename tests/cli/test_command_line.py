"""The command line as a process, with a scripted server: streams, exit codes and errors."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from support.cli import SKERRY, environment, skerry
from support.lying_server import SANDBOX, Asked, Said, lying, refused, said

from skerry.cli.app import skerry as group
from skerry.cli.commands.setup import unit_file
from skerry.codecs.frames import EXIT, MEDIA_TYPE, STARTED, STDERR, STDOUT, encode

BEGIN = encode(STARTED, b'{"id":"p-1","pid":7}')


def end(**how: object) -> bytes:
    return encode(EXIT, json.dumps({"id": "p-1", "exit_code": 0, "duration_s": 0.1, **how}).encode())


def running(wire: bytes) -> Callable[[Asked], Said]:
    def answer(asked: Asked) -> Said:
        if asked.method == "DELETE" or asked.path.endswith(("/signal", "/stdin")):
            return Said(204)
        return Said(200, wire, MEDIA_TYPE) if asked.path.endswith("/processes") else said(SANDBOX, 201)

    return answer


def wish(asked: Asked) -> dict[str, object]:
    return {name: value for name, value in json.loads(asked.body).items() if value != {}}


def paths_of(command: click.Command, *above: str) -> list[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        return [above]
    return [above, *(path for name, child in command.commands.items() for path in paths_of(child, *above, name))]


@pytest.mark.parametrize("path", paths_of(group), ids=" ".join)
def test_every_command_has_help(path: tuple[str, ...]) -> None:
    command: click.Command = group
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.name}"


def test_output_is_unchanged_and_the_exit_code_is_the_commands(tmp_path: Path) -> None:
    wire = BEGIN + encode(STDOUT, b"\x1b[31m\xff\n") + encode(STDERR, b"bad\x07") + end(exit_code=7)
    with lying(tmp_path, running(wire)) as server:
        done = skerry("run", "--", "x", "-y", server=server.address)
    assert (done.returncode, done.stdout, done.stderr) == (7, b"\x1b[31m\xff\n", b"bad\x07")
    ask = next(json.loads(a.body) for a in server.asked if a.path.endswith("/processes"))
    assert ask["cmd"] == ["x", "-y"]
    assert "timeout" not in ask, "the command line sets no time-out unless asked to"


@pytest.mark.parametrize(
    ("how", "code", "hint"),
    [
        ({"exit_code": None, "signal": "TERM"}, 143, b""),
        ({"exit_code": None, "signal": "KILL", "timed_out": True}, 124, b"--timeout"),
        ({"exit_code": None, "signal": "KILL", "oom_killed": True}, 137, b"--memory"),
    ],
)
def test_exit_code_and_hint_follow_the_result(tmp_path: Path, how: dict[str, object], code: int, hint: bytes) -> None:
    with lying(tmp_path, running(BEGIN + end(**how))) as server:
        done = skerry("run", "--", "x", server=server.address)
    assert done.returncode == code
    assert hint in done.stderr
    assert done.stdout == b""


def test_json_has_the_whole_result_and_invalid_utf8_as_base64(tmp_path: Path) -> None:
    wire = BEGIN + encode(STDOUT, b"\xff\x00") + encode(STDERR, b"ok") + end(exit_code=3)
    with lying(tmp_path, running(wire)) as server:
        done = skerry("run", "--json", "--", "x", server=server.address)
    result = json.loads(done.stdout)
    assert done.returncode == 3
    assert (result["ok"], result["exit_code"], result["stdout_base64"], result["stderr"]) == (False, 3, "/wA=", "ok")
    assert result["stderr_base64"] is None
    assert result["oom_killed"] is False


def test_options_after_the_command_belong_to_the_command(tmp_path: Path) -> None:
    with lying(tmp_path, running(BEGIN + end())) as server:
        done = skerry("run", "--memory", "64M", "ls", "--memory", "-la", server=server.address)
    assert done.returncode == 0
    create, ask = [json.loads(a.body) for a in server.asked if a.body]
    assert create["limits"] == {"memory": "64M"}
    assert ask["cmd"] == ["ls", "--memory", "-la"]


def test_flags_form_the_request(tmp_path: Path) -> None:
    words = [
        "create",
        "--name",
        "dev",
        "--image",
        "i",
        "-e",
        "A=b=c",
        "-e",
        "HERE",
        "--label",
        "k=v",
        "--size",
        "small",
        "--memory",
        "1G",
        "--pids",
        "99",
        "--runtime",
        "runc",
        "--no-sudo",
        "--waive-guarantee",
        "cgroup",
        "--idle-timeout",
        "5m",
    ]
    with lying(tmp_path, lambda _: said({**SANDBOX, "name": "dev"}, 201)) as server:
        done = skerry(*words, server=server.address, HERE="there")
    assert (done.returncode, done.stdout) == (0, b"sb-aaaaaaaaaa\n")
    assert wish(server.asked[0]) == {
        "image": "i", "name": "dev", "env": {"A": "b=c", "HERE": "there"}, "labels": {"k": "v"},
        "limits": {"cpus": 0.5, "memory": "1G", "disk": "2G", "pids": 99},
        "lifecycle": {"idle_timeout": "5m"},
        "options": {"runtime": "runc", "sudo": False, "waive_guarantees": ["cgroup"]},
    }  # fmt: skip


def test_environment_and_flags_override_the_project_file(tmp_path: Path) -> None:
    (tmp_path / "skerry.toml").write_text('image = "mine:1"\nenv = {A = "file"}\n[limits]\nmemory = "1G"\npids = 100\n')
    with lying(tmp_path, lambda _: said(SANDBOX, 201)) as server:
        skerry("create", "--pids", "200", server=server.address, cwd=tmp_path, SKERRY_LIMITS_MEMORY="3G")
    assert wish(server.asked[0]) == {
        "image": "mine:1", "env": {"A": "file"}, "limits": {"memory": "3G", "pids": 200},
    }  # fmt: skip


def test_start_commands_come_from_flags_or_the_project_file(tmp_path: Path) -> None:
    (tmp_path / "skerry.toml").write_text('on_start = ["echo a, b"]\nready = 8000\nready_timeout = "5s"\n')
    with lying(tmp_path, lambda _: said(SANDBOX, 201)) as server:
        for words in ((), ("--on-start", "x", "--on-start", "y", "--ready", "test -e z"), ("--no-on-start",)):
            skerry("create", *words, server=server.address, cwd=tmp_path)
        skerry("update", "sb-aaaaaaaaaa", "--no-on-start", server=server.address, cwd=tmp_path)
        both = skerry("create", "--no-on-start", "--ready", "1", server=server.address, cwd=tmp_path)
    asked = [wish(one) for one in server.asked if one.method in ("POST", "PATCH")]
    assert [one["lifecycle"] for one in asked] == [
        {"on_start": ["echo a, b"], "ready": 8000, "ready_timeout": "5s"},
        {"on_start": ["x", "y"], "ready": "test -e z", "ready_timeout": "5s"},
        {"on_start": [], "ready": ""},
        {"on_start": [], "ready": ""},
    ]
    assert both.returncode == 2
    assert b"--no-on-start" in both.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "--", ""], "the command is empty"),
        (["run", "--memory", "x", "--", "a"], "limits.memory: 'x' is not a size"),
        (["run", "--memory", "-1", "--", "a"], "limits.memory"),
        (["run", "--cpus", "0", "--", "a"], "limits.cpus"),
        (["run", "--pids", "many", "--", "a"], "--pids"),
        (["run", "-e", "=x", "--", "a"], "is not NAME=VALUE"),
        (["run", "-e", "NOT_SET_HERE", "--", "a"], "the variable NOT_SET_HERE is not set"),
        (["run", "--timeout", "soon", "--", "a"], "--timeout: 'soon' is not a time"),
        (["run", "--file", "/nonexistent", "--", "a"], "No such file"),
        (["run", "--file", "/etc", "--", "a"], "etc"),
        (["run", "--out", "/etc", "--", "a"], "is not empty"),
        (["create", "--name", "No Good"], "name: 'No Good' is not allowed"),
        (["exec", "../x", "--", "a"], "not found"),
        (["cp", "a", "b"], "must be in a sandbox"),
        (["cp", "a:/x", "b:/y"], "must be in a sandbox"),
        (["--server", "nonsense", "ls"], "is not an address"),
        (["nonsense"], "No such command"),
        (["completion"], "Choose from: bash, zsh, fish"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_invalid_request_exits_with_2_and_a_reason(tmp_path: Path, words: list[str], says: str) -> None:
    with lying(tmp_path, lambda _: said(SANDBOX, 201)) as server:
        done = skerry(*words, server=server.address)
    assert done.returncode == 2
    assert done.stdout == b""
    assert says in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert server.asked == [], "refused before anything was asked of the server"


def test_unreachable_server_exits_with_125(tmp_path: Path) -> None:
    done = skerry("run", "--", "true", server=f"unix://{tmp_path}/none")
    assert done.returncode == 125
    assert done.stderr.decode().splitlines()[0].startswith("error: no server at unix://")
    assert done.stderr.decode().splitlines()[1].startswith("hint: ")


def test_escape_codes_in_server_messages_are_escaped(tmp_path: Path) -> None:
    evil = {**SANDBOX, "labels": {"k": "\x1b]52;c;x\x07"}, "state": "failed", "reason": "\x1b[2Jgone"}
    with lying(tmp_path, lambda _: refused(404, "not_found", "no \x1b[2J", hint="\x9b1m")) as server:
        done = skerry("show", "x", server=server.address)
        assert (done.returncode, done.stderr) == (2, b"error: no \\x1b[2J\nhint: \\x9b1m\n")
    (tmp_path / "two").mkdir()
    with lying(tmp_path / "two", lambda _: said({"sandboxes": [evil], "budgets": []})) as server:
        listed = skerry("ls", server=server.address)
        data = skerry("ls", "--json", server=server.address)
    assert b"\x1b" not in listed.stdout + data.stdout
    assert b"\\x1b[2Jgone" in listed.stdout
    assert json.loads(data.stdout)[0]["labels"]["k"] == "\x1b]52;c;x\x07"


def test_closed_pipe_prints_no_traceback(tmp_path: Path) -> None:
    wire = BEGIN + encode(STDOUT, b"y\n" * 400_000) + end()
    with lying(tmp_path, running(wire)) as server:
        read_end, write_end = os.pipe()
        os.close(read_end)
        done = subprocess.run(
            [*SKERRY, "run", "--", "yes"], stdin=subprocess.DEVNULL, stdout=write_end, stderr=subprocess.PIPE,
            env=environment(SKERRY_SERVER=server.address), timeout=60, check=False,
        )  # fmt: skip
        os.close(write_end)
    assert done.returncode == 141
    assert done.stderr == b""
    assert [asked.method for asked in server.asked if "stdin" not in asked.path][-1] == "DELETE"


def test_stdin_is_forwarded_unless_it_is_a_terminal(tmp_path: Path) -> None:
    with lying(tmp_path, running(BEGIN + end())) as server:
        skerry("run", "--", "cat", server=server.address, stdin=b"some \xff input")
    ask = next(json.loads(a.body) for a in server.asked if a.path.endswith("/processes"))
    assert ask["stdin_stream"] is True


def test_files_are_uploaded_under_their_own_or_another_name(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(b"1,2")
    (tmp_path / "tool").write_bytes(b"#!")
    (tmp_path / "tool").chmod(0o755)
    info = {"name": "x", "path": "/x", "type": "file", "size": 1, "mode": 420, "uid": 0, "gid": 0, "mtime": 1.0}

    def answer(asked: Asked) -> Said:
        return said(info) if asked.path.endswith("/files") else running(BEGIN + end())(asked)

    with lying(tmp_path, answer) as server:
        skerry("run", "--file", "data.csv", "--file", "tool:bin/t", "--", "x", server=server.address, cwd=tmp_path)
    puts = [(a.query["path"], a.query["mode"], a.body) for a in server.asked if a.method == "PUT"]
    assert puts == [
        (["/workspace/data.csv"], ["0644"], b"1,2"),
        (["/workspace/bin/t"], ["0755"], b"#!"),
    ]


def test_prune_asks_and_deletes_only_stopped_sandboxes(tmp_path: Path) -> None:
    boxes = [{**SANDBOX, "id": f"sb-{letter * 10}", "state": state}
             for letter, state in zip("abcd", ("running", "stopped", "failed", "paused"), strict=True)]  # fmt: skip

    def answer(asked: Asked) -> Said:
        return Said(204) if asked.method == "DELETE" else said({"sandboxes": boxes})

    with lying(tmp_path, answer) as server:
        assert skerry("prune", server=server.address).returncode == 2, "nobody can be asked here"
        assert [a.method for a in server.asked] == ["GET"]
        done = skerry("prune", "--yes", "--json", server=server.address)
    assert json.loads(done.stdout) == {"deleted": ["sb-bbbbbbbbbb", "sb-cccccccccc"]}


def test_failure_for_one_sandbox_does_not_stop_the_others(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Said:
        if asked.method == "DELETE":
            return Said(204)
        return refused(404, "not_found") if asked.path.endswith("/bad") else said({**SANDBOX, "name": "good"})

    with lying(tmp_path, answer) as server:
        done = skerry("rm", "bad", "good", server=server.address)
        forced = skerry("rm", "-f", "bad", "good", server=server.address)
    assert done.returncode == 2
    assert forced.returncode == 0
    assert [a.path for a in server.asked if a.method == "DELETE"] == ["/v1/sandboxes/sb-aaaaaaaaaa"] * 2


def test_config_show_names_the_source_of_each_value(tmp_path: Path) -> None:
    (tmp_path / "skerry.toml").write_text('image = "mine"\n')
    done = skerry("config", "show", "--json", cwd=tmp_path, SKERRY_TOKEN="skt_secret", SKERRY_CONFIG="/nonexistent")
    shown = json.loads(done.stdout)
    assert shown["image"] == {"value": "mine", "source": f"project's file ({tmp_path}/skerry.toml)"}
    assert shown["token"] == {"value": "(set)", "source": "environment (SKERRY_TOKEN)"}
    assert shown["max.pids"]["source"] == "built-in"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str) -> None:
    done = skerry("completion", shell)
    assert done.returncode == 0
    assert b"_SKERRY_COMPLETE" in done.stdout


def test_group_without_a_command_shows_help_once() -> None:
    done = skerry("snapshot")
    assert (done.returncode, done.stderr.count(b"Usage:"), b"error" in done.stderr) == (2, 1, False)


def test_shell_completes_existing_names(tmp_path: Path) -> None:
    boxes = [{**SANDBOX, "name": "dev"}, {**SANDBOX, "name": "demo"}, SANDBOX, {**SANDBOX, "name": "\x1b[2J"}]
    with lying(tmp_path, lambda _: said({"sandboxes": boxes})) as server:
        done = skerry(
            server=server.address, _SKERRY_COMPLETE="bash_complete", COMP_WORDS="skerry exec d", COMP_CWORD="2"
        )
    assert done.stdout.split() == [b"plain,demo", b"plain,dev"]


def test_completion_never_starts_a_server(tmp_path: Path) -> None:
    done = skerry(
        _SKERRY_COMPLETE="bash_complete", COMP_WORDS="skerry exec d", COMP_CWORD="2", SKERRY_STATE_DIR=str(tmp_path)
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\n", b"")
    assert list(tmp_path.iterdir()) == []


def test_status_without_a_server_starts_none(tmp_path: Path) -> None:
    done = skerry("server", "status", "--json", SKERRY_STATE_DIR=str(tmp_path))
    assert (done.returncode, json.loads(done.stdout)) == (1, {"running": False})
    assert list(tmp_path.iterdir()) == []


def test_setup_print_shows_the_planned_changes() -> None:
    done = skerry("setup", "--print")
    text = done.stdout.decode()
    assert done.returncode == 0
    assert "Delegate=yes\n" in text
    assert "KillMode=process\n" in text
    assert "systemctl enable --now skerry.service" in text
    assert text.endswith("# for each user of the server:\nsudo usermod --append --groups skerry USER\n")


def test_file_is_copied_out_completely_or_not_at_all(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Said:
        if asked.path.endswith("/files"):
            return Said(200, b"half", "application/octet-stream", whole=asked.query["path"] == ["/good"])
        if asked.path.endswith("/stat"):
            path = asked.query["path"][0]
            if path.endswith("/."):
                return refused(409, "file_not_directory", path=path)
            return said(
                {
                    "name": path[1:],
                    "path": path,
                    "type": "file",
                    "size": 4,
                    "mode": 0o644,
                    "uid": 0,
                    "gid": 0,
                    "mtime": 1.0,
                }
            )
        return said({**SANDBOX, "name": "dev"})

    with lying(tmp_path, answer) as server:
        good = skerry("cp", "dev:/good", "good", server=server.address, cwd=tmp_path)
        broken = skerry("cp", "dev:/broken", "broken", server=server.address, cwd=tmp_path)
        piped = skerry("cp", "dev:/good", "-", server=server.address)
    assert (good.returncode, (tmp_path / "good").read_bytes()) == (0, b"half")
    assert broken.returncode == 125
    assert piped.stdout == b"half"
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "l.sock") == ["good"]


def test_closed_streams_do_not_become_the_connection(tmp_path: Path) -> None:
    wire = BEGIN + encode(STDOUT, b"DELETE /v1/sandboxes/x HTTP/1.1\r\n\r\n") + end(exit_code=5)
    with lying(tmp_path, running(wire)) as server:
        done = subprocess.run(
            ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "-", *SKERRY, "run", "--", "x"],
            env=environment(SKERRY_SERVER=server.address), timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 5
    assert [a.method for a in server.asked if "stdin" not in a.path] == ["POST", "POST", "DELETE"]
    assert all(a.path.startswith("/v1/sandboxes") and "/x" not in a.path for a in server.asked)


def test_unit_file_quotes_unusual_characters_in_paths() -> None:
    text = unit_file(['/opt/a b/100%/py"thon', "-m", "skerry"])
    assert 'ExecStart="/opt/a b/100%%/py\\"thon" "-m" "skerry"' in text


@pytest.mark.skipif(Path("/run/systemd/system").is_dir(), reason="this host runs systemd; the test is for one without")
def test_setup_without_systemd_names_the_command() -> None:
    done = skerry("setup", "--yes")
    assert done.returncode == 125
    assert b"does not run systemd" in done.stderr
    assert b"serve --group skerry" in done.stderr
    assert done.stderr.endswith(b"for each user of the server: sudo usermod --append --groups skerry USER\n")


@pytest.mark.parametrize(
    "words",
    [
        ["show", "--json", "x"], ["ls", "--bogus", "--json"], ["ls", "--json", "--state", "odd"], ["show", "--json"],
        ["network", "log", "x", "--json"], ["run", "--json", "--memory", "much", "--", "a"],
        ["run", "--json", "--file", "/nonexistent", "--", "a"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_errors_are_json_on_stderr_with_json(tmp_path: Path, words: list[str]) -> None:
    with lying(tmp_path, lambda _: refused(404, "not_found", "no \x1b[2J", hint="look", details={"a": [1]})) as server:
        done = skerry(*words, server=server.address)
    assert (done.returncode, done.stdout) == (2, b"")
    (line,) = done.stderr.splitlines()
    assert b"\x1b" not in line
    error = json.loads(line)["error"]
    assert error.keys() == {"code", "message", "hint", "details"}
    if words[-1] == "x":
        assert error == {"code": "not_found", "message": "no \x1b[2J", "hint": "look", "details": {"a": [1]}}
    else:
        assert error["code"] in ("invalid_request", "not_found")


def test_json_option_of_the_command_in_a_sandbox_is_not_ours(tmp_path: Path) -> None:
    with lying(tmp_path, lambda _: refused(404, "not_found", "no")) as server:
        done = skerry("exec", "x", "--", "tool", "--json", server=server.address)
    assert (done.returncode, done.stderr) == (2, b"error: no\n")
