"""The command line as a process: its streams, its exit codes, its refusals. The server says what the test needs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from cli.calling import SKERRY, environment, skerry
from client.lying import SANDBOX, Asked, Said, lying, refused, said

from skerry.cli.app import skerry as group
from skerry.cli.setup import unit_file
from skerry.client.frames import EXIT, MEDIA_TYPE, STARTED, STDERR, STDOUT, encode

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
def test_every_command_has_help_that_says_something(path: tuple[str, ...]) -> None:
    command: click.Command = group
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.name}"


def test_output_passes_untouched_and_the_exit_code_is_the_commands(tmp_path: Path) -> None:
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
def test_how_it_ended_shows_in_the_exit_code_and_the_hint(
    tmp_path: Path, how: dict[str, object], code: int, hint: bytes
) -> None:
    with lying(tmp_path, running(BEGIN + end(**how))) as server:
        done = skerry("run", "--", "x", server=server.address)
    assert done.returncode == code
    assert hint in done.stderr
    assert done.stdout == b""


def test_json_gives_the_whole_result_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    wire = BEGIN + encode(STDOUT, b"\xff\x00") + encode(STDERR, b"ok") + end(exit_code=3)
    with lying(tmp_path, running(wire)) as server:
        done = skerry("run", "--json", "--", "x", server=server.address)
    result = json.loads(done.stdout)
    assert done.returncode == 3
    assert (result["ok"], result["exit_code"], result["stdout_base64"], result["stderr"]) == (False, 3, "/wA=", "ok")
    assert result["stderr_base64"] is None
    assert result["oom_killed"] is False


def test_options_after_the_command_are_the_commands(tmp_path: Path) -> None:
    with lying(tmp_path, running(BEGIN + end())) as server:
        done = skerry("run", "--memory", "64M", "ls", "--memory", "-la", server=server.address)
    assert done.returncode == 0
    create, ask = [json.loads(a.body) for a in server.asked if a.body]
    assert create["limits"] == {"memory": "64M"}
    assert ask["cmd"] == ["ls", "--memory", "-la"]


def test_flags_make_the_request(tmp_path: Path) -> None:
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
        "--waive",
        "cgroup",
        "--idle",
        "5m",
    ]
    with lying(tmp_path, lambda _: said({**SANDBOX, "name": "dev"}, 201)) as server:
        done = skerry(*words, server=server.address, HERE="there")
    assert (done.returncode, done.stdout) == (0, b"sb-aaaaaaaaaa\n")
    assert wish(server.asked[0]) == {
        "image": "i", "name": "dev", "env": {"A": "b=c", "HERE": "there"}, "labels": {"k": "v"},
        "limits": {"cpus": 0.5, "memory": "1G", "disk": "2G", "pids": 99},
        "lifecycle": {"idle": "5m"}, "options": {"runtime": "runc", "sudo": False, "waive": ["cgroup"]},
    }  # fmt: skip


def test_the_projects_file_counts_below_environment_and_flags(tmp_path: Path) -> None:
    (tmp_path / "skerry.toml").write_text('image = "mine"\nenv = {A = "file"}\n[limits]\nmemory = "1G"\npids = 100\n')
    with lying(tmp_path, lambda _: said(SANDBOX, 201)) as server:
        skerry("create", "--pids", "200", server=server.address, cwd=tmp_path, SKERRY_LIMITS_MEMORY="3G")
    assert wish(server.asked[0]) == {
        "image": "mine", "env": {"A": "file"}, "limits": {"memory": "3G", "pids": 200},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "--", ""], "the command is empty"),
        (["run", "--memory", "x", "--", "a"], "limits.memory: 'x' is not a size"),
        (["run", "--memory", "-1", "--", "a"], "limits.memory"),
        (["run", "--cpus", "0", "--", "a"], "limits.cpus"),
        (["run", "--pids", "many", "--", "a"], "--pids"),
        (["run", "-e", "=x", "--", "a"], "is not NAME=VALUE"),
        (["run", "-e", "NOT_SET_HERE", "--", "a"], "is not set here"),
        (["run", "--timeout", "soon", "--", "a"], "--timeout: 'soon' is not a time"),
        (["run", "--file", "/nonexistent", "--", "a"], "No such file"),
        (["run", "--file", "/etc", "--", "a"], "etc"),
        (["run", "--out", "/etc", "--", "a"], "is not empty"),
        (["create", "--name", "No Good"], "name: 'No Good' can't be used"),
        (["exec", "../x", "--", "a"], "there is no sandbox"),
        (["cp", "a", "b"], "one of the two must be inside"),
        (["cp", "a:/x", "b:/y"], "one of the two must be inside"),
        (["--server", "nonsense", "ls"], "is not an address"),
        (["nonsense"], "No such command"),
        (["completion"], "Choose from: bash, zsh, fish"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_can_not_be_is_refused_with_2_and_a_reason(tmp_path: Path, words: list[str], says: str) -> None:
    with lying(tmp_path, lambda _: said(SANDBOX, 201)) as server:
        done = skerry(*words, server=server.address)
    assert done.returncode == 2
    assert done.stdout == b""
    assert says in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert server.asked == [], "refused before anything was asked of the server"


def test_a_server_that_is_not_there_is_our_failure(tmp_path: Path) -> None:
    done = skerry("run", "--", "true", server=f"unix://{tmp_path}/none")
    assert done.returncode == 125
    assert done.stderr.decode().splitlines()[0].startswith("error: no server at unix://")
    assert done.stderr.decode().splitlines()[1].startswith("hint: ")


def test_escape_codes_of_a_servers_words_are_made_harmless(tmp_path: Path) -> None:
    evil = {**SANDBOX, "labels": {"k": "\x1b]52;c;x\x07"}, "state": "failed", "reason": "\x1b[2Jgone"}
    with lying(tmp_path, lambda _: refused(404, "not_found", "no \x1b[2J", hint="\x9b1m")) as server:
        done = skerry("show", "x", server=server.address)
        assert (done.returncode, done.stderr) == (2, b"error: no \\x1b[2J\nhint: \\x9b1m\n")
    (tmp_path / "two").mkdir()
    with lying(tmp_path / "two", lambda _: said({"sandboxes": [evil]})) as server:
        listed = skerry("ls", server=server.address)
        data = skerry("ls", "--json", server=server.address)
    assert b"\x1b" not in listed.stdout + data.stdout
    assert b"\\x1b[2Jgone" in listed.stdout
    assert json.loads(data.stdout)[0]["labels"]["k"] == "\x1b]52;c;x\x07"


def test_a_reader_that_leaves_is_no_traceback(tmp_path: Path) -> None:
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


def test_stdin_is_passed_on_when_it_is_no_terminal(tmp_path: Path) -> None:
    with lying(tmp_path, running(BEGIN + end())) as server:
        skerry("run", "--", "cat", server=server.address, stdin=b"some \xff input")
    ask = next(json.loads(a.body) for a in server.asked if a.path.endswith("/processes"))
    assert ask["stdin_stream"] is True


def test_files_go_in_under_their_own_or_another_name(tmp_path: Path) -> None:
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


def test_prune_asks_and_takes_only_what_does_not_run(tmp_path: Path) -> None:
    boxes = [{**SANDBOX, "id": f"sb-{letter * 10}", "state": state}
             for letter, state in zip("abcd", ("running", "stopped", "failed", "paused"), strict=True)]  # fmt: skip

    def answer(asked: Asked) -> Said:
        return Said(204) if asked.method == "DELETE" else said({"sandboxes": boxes})

    with lying(tmp_path, answer) as server:
        assert skerry("prune", server=server.address).returncode == 2, "nobody can be asked here"
        assert [a.method for a in server.asked] == ["GET"]
        done = skerry("prune", "--yes", "--json", server=server.address)
    assert json.loads(done.stdout) == {"deleted": ["sb-bbbbbbbbbb", "sb-cccccccccc"]}


def test_one_that_fails_does_not_keep_the_others(tmp_path: Path) -> None:
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


def test_config_show_says_where_each_value_came_from(tmp_path: Path) -> None:
    (tmp_path / "skerry.toml").write_text('image = "mine"\n')
    done = skerry("config", "show", "--json", cwd=tmp_path, SKERRY_TOKEN="skt_secret", SKERRY_CONFIG="/nonexistent")
    shown = json.loads(done.stdout)
    assert shown["image"] == {"value": "mine", "source": f"project's file ({tmp_path}/skerry.toml)"}
    assert shown["token"] == {"value": "(set)", "source": "environment (SKERRY_TOKEN)"}
    assert shown["max.pids"]["source"] == "built-in"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_given(shell: str) -> None:
    done = skerry("completion", shell)
    assert done.returncode == 0
    assert b"_SKERRY_COMPLETE" in done.stdout


def test_a_group_alone_shows_its_help_once() -> None:
    done = skerry("snapshot")
    assert (done.returncode, done.stderr.count(b"Usage:"), b"error" in done.stderr) == (2, 1, False)


def test_the_shell_completes_names_that_exist(tmp_path: Path) -> None:
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


def test_status_of_no_server_says_so_and_starts_none(tmp_path: Path) -> None:
    done = skerry("server", "status", "--json", SKERRY_STATE_DIR=str(tmp_path))
    assert (done.returncode, json.loads(done.stdout)) == (1, {"running": False})
    assert list(tmp_path.iterdir()) == []


def test_setup_can_show_what_it_would_do() -> None:
    done = skerry("setup", "--print")
    text = done.stdout.decode()
    assert done.returncode == 0
    assert "Delegate=yes\n" in text
    assert "KillMode=process\n" in text
    assert "systemctl enable --now skerry.service" in text


def test_a_file_comes_out_whole_or_not_at_all(tmp_path: Path) -> None:
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


def test_closed_streams_never_become_the_connection(tmp_path: Path) -> None:
    wire = BEGIN + encode(STDOUT, b"DELETE /v1/sandboxes/x HTTP/1.1\r\n\r\n") + end(exit_code=5)
    with lying(tmp_path, running(wire)) as server:
        done = subprocess.run(
            ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "-", *SKERRY, "run", "--", "x"],
            env=environment(SKERRY_SERVER=server.address), timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 5
    assert [a.method for a in server.asked if "stdin" not in a.path] == ["POST", "POST", "DELETE"]
    assert all(a.path.startswith("/v1/sandboxes") and "/x" not in a.path for a in server.asked)


def test_a_unit_survives_odd_characters_in_a_path() -> None:
    text = unit_file(['/opt/a b/100%/py"thon', "-m", "skerry"])
    assert 'ExecStart="/opt/a b/100%%/py\\"thon" "-m" "skerry"' in text


@pytest.mark.skipif(Path("/run/systemd/system").is_dir(), reason="this host runs systemd; the test is for one without")
def test_without_systemd_setup_says_what_to_run_instead() -> None:
    done = skerry("setup", "--yes")
    assert done.returncode == 125
    assert b"does not run systemd" in done.stderr
    assert b"serve --group skerry" in done.stderr
