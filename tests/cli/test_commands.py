"""The command line against a real server."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import pytest
from support.cli import SKERRY, environment, skerry
from support.server import Server, wait_until

from skerry import Sandbox
from skerry.codecs.api_keys import token_of


def labelled(server: Server, label: str) -> list[Sandbox]:
    return Sandbox.list(labels={"test": label}, server=server.address)


def test_run_leaves_no_sandbox(server: Server) -> None:
    done = skerry("run", "--label", "test=one", "--", "python3", "-c", "print(6*7)", server=server.address)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"42\n", b"")
    assert labelled(server, "one") == []


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["sh", "-c", "exit 3"], 3),
        (["sh", "-c", "kill -SEGV $$"], 139),
        (["no-such-thing"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_exit_code_is_that_of_the_command(sandbox: Sandbox, server: Server, command: list[str], code: int) -> None:
    assert skerry("exec", sandbox.id, "--", *command, server=server.address).returncode == code


def test_timeout_exits_with_124_and_a_hint(sandbox: Sandbox, server: Server) -> None:
    done = skerry("exec", "--timeout", "300ms", sandbox.id, "--", "sleep", "600", server=server.address)
    assert done.returncode == 124
    assert b"--timeout" in done.stderr


def test_single_word_with_spaces_gets_a_hint(sandbox: Sandbox, server: Server) -> None:
    done = skerry("exec", sandbox.id, "echo hi", server=server.address)
    assert done.returncode == 127
    assert b"bash -lc" in done.stderr


def test_code_file_as_command_gets_a_language_hint(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("6 * 7")
    for word, code in (("a.py", 127), ("./a.py", 126)):
        done = skerry("run", word, server=server.address, cwd=tmp_path)
        assert (done.returncode, b"hint: -l python runs a code file\n" in done.stderr) == (code, True)


def test_option_after_sandbox_gets_a_hint(sandbox: Sandbox, server: Server) -> None:
    done = skerry("exec", sandbox.id, "-l", "python", "a.py", server=server.address)
    assert (done.returncode, b"hint: write options before SANDBOX\n" in done.stderr) == (127, True)


def test_stdin_is_forwarded(sandbox: Sandbox, server: Server) -> None:
    done = skerry("exec", sandbox.id, "--", "wc", "-c", server=server.address, stdin=b"\xff" * 3_000_000)
    assert done.stdout.strip() == b"3000000"


def test_files_are_uploaded_and_new_files_downloaded(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1\n2\n3\n")
    program = (
        "import os; rows = open('data.csv').read().split(); os.makedirs('plots/deep');"
        "open('plots/deep/sum.txt', 'w').write(str(sum(map(int, rows)))); os.chmod('plots/deep/sum.txt', 0o755);"
        "os.symlink('/etc/shadow', 'secret'); os.mkfifo('pipe'); open('x\\x1b[2J', 'w').write('evil')"
    )
    done = skerry(
        "run", "--file", "data.csv", "--out", "results", "--", "python3", "-c", program,
        server=server.address, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = tmp_path / "results"
    assert sorted(str(p.relative_to(results)) for p in results.rglob("*") if p.is_file()) == ["plots/deep/sum.txt"]
    assert (results / "plots/deep/sum.txt").read_text() == "6"
    assert os.access(results / "plots/deep/sum.txt", os.X_OK)
    assert b"\x1b" not in done.stderr
    for left_out in (b"secret", b"pipe", b"2J"):
        assert left_out in done.stderr


def test_files_named_in_the_command_are_uploaded(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1\n2\n3\n")
    (tmp_path / "analyse.py").write_text("open('sum', 'w').write(str(sum(map(int, open('data.csv')))))")
    command = ["run", "--file", "data.csv", "--out", "results", "--", "python3", "analyse.py"]
    done = skerry(*command, server=server.address, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert b"uploaded: analyse.py" in done.stderr
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["sum"]
    assert (tmp_path / "results" / "sum").read_text() == "6"
    left = skerry("run", "--no-auto-upload", "--", "python3", "analyse.py", server=server.address, cwd=tmp_path)
    assert left.returncode == 2


def test_long_script_as_a_word_is_not_a_file_name(server: Server, tmp_path: Path) -> None:
    script = "import sys; print(42) #" + "x" * 300
    done = skerry("run", "--", "python3", "-c", script, server=server.address, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"42\n"), done.stderr


def test_auto_upload_ignores_links_and_other_directories(server: Server, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    here = tmp_path / "here"
    here.mkdir()
    (here / "link").symlink_to("../secret")
    (here / "way").symlink_to("..")
    words = ["../secret", str(tmp_path / "secret"), "link", "way/secret", "."]
    done = skerry("run", "--", "sh", "-c", "ls -A /workspace", *words, server=server.address, cwd=here)
    assert (done.returncode, done.stdout) == (0, b"")


def test_named_sandbox_is_kept_and_managed(server: Server, tmp_path: Path) -> None:
    made = skerry("create", "--name", "cli-dev", "-e", "MODE=test", "--memory", "256M", server=server.address)
    assert made.returncode == 0, made.stderr
    ident = made.stdout.decode().strip()
    done = skerry("exec", "cli-dev", "--", "bash", "-lc", "echo $MODE; id -un; sudo id -un", server=server.address)
    assert done.stdout == b"test\nuser\nroot\n"
    shown = json.loads(skerry("show", "cli-dev", "--json", server=server.address).stdout)
    assert (shown["id"], shown["name"], shown["state"], shown["limits"]["memory"]) == (
        ident,
        "cli-dev",
        "running",
        "256M",
    )
    shown = dict(
        line.split("  ", 1) for line in skerry("show", "cli-dev", server=server.address).stdout.decode().splitlines()
    )
    in_force = [shown[name].strip() for name in ("cpus", "memory", "disk", "processes")]
    assert in_force == ["1", "256M", "5G", "512 (with threads)"]
    assert shown["open files"].endswith(" per process")
    assert "disk_limit" in shown["guarantees"]
    too_large = skerry("create", "--disk", "900T", server=server.address)
    assert b"limits.disk: 900T is more than the storage of this host has" in too_large.stderr
    assert (too_large.stdout, too_large.stderr.count(b"hint: ask for at most ")) == (b"", 1)
    words = (
        "--memory",
        "300M",
        "--pids",
        "90",
        "-e",
        "MORE=1",
        "--unset",
        "MODE",
        "--label",
        "a=b",
        "--idle-timeout",
        "1h",
    )
    changed = json.loads(skerry("update", *words, "--json", "cli-dev", server=server.address).stdout)
    assert (changed["limits"]["memory"], changed["limits"]["pids"], changed["limits"]["cpus"]) == ("300M", 90, 1)
    assert (changed["env"], changed["labels"], changed["lifecycle"]["idle_timeout"]) == (
        {"MORE": "1"},
        {"a": "b"},
        "1h",
    )
    refused = skerry("update", "--pids", "40000", "--unlabel", "a", "cli-dev", server=server.address)
    assert (refused.returncode, b"max.pids" in refused.stderr) == (2, True)
    assert skerry("update", "cli-dev", server=server.address).returncode == 2
    assert ident in skerry("ls", "-q", server=server.address).stdout.decode().split()
    (tmp_path / "in").write_bytes(b"\x00content")
    assert skerry("cp", "in", "cli-dev:/workspace/", server=server.address, cwd=tmp_path).returncode == 0
    assert skerry("stop", "cli-dev", server=server.address).returncode == 0
    assert skerry("resume", "cli-dev", server=server.address).returncode == 0
    assert skerry("cp", "cli-dev:/workspace/in", "out", server=server.address, cwd=tmp_path).returncode == 0
    assert (tmp_path / "out").read_bytes() == b"\x00content"
    again = skerry("create", "--name", "cli-dev", server=server.address)
    assert again.returncode == 2
    assert b"cli-dev" in again.stderr
    assert skerry("rm", "cli-dev", server=server.address).returncode == 0
    assert skerry("show", "cli-dev", server=server.address).returncode == 2


def started(server: Server, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*SKERRY, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(SKERRY_SERVER=server.address),
    )  # fmt: skip


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_interrupted_run_ends_its_command_and_sandbox(server: Server, number: signal.Signals, code: int) -> None:
    label = f"ctrl-{number}"
    process = started(server, "run", "--label", f"test={label}", "--", "sh", "-c", "echo on; sleep 600")
    assert process.stdout is not None
    assert process.stdout.readline() == b"on\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (code, b"")
    assert b"Traceback" not in err
    assert labelled(server, label) == []


def test_ctrl_c_on_exec_ends_the_command_but_not_the_sandbox(server: Server, sandbox: Sandbox) -> None:
    process = started(server, "exec", sandbox.id, "--", "sh", "-c", "echo on; sleep 7171")
    assert process.stdout is not None
    assert process.stdout.readline() == b"on\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    wait_until(lambda: not sandbox.run(["pgrep", "-f", "sleep 7171"]).ok, "the command to be gone")
    assert sandbox.info().state == "running"


def test_killed_command_line_ends_its_command(server: Server, sandbox: Sandbox) -> None:
    process = started(server, "exec", sandbox.id, "--", "sh", "-c", "echo on; exec sleep 7272")
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.communicate(timeout=30)
    wait_until(lambda: not sandbox.run(["pgrep", "-f", "sleep 7272"]).ok, "the command to be gone")


def test_open_stdin_pipe_does_not_block_exit(server: Server, sandbox: Sandbox) -> None:
    read_end, write_end = os.pipe()
    done = subprocess.run(
        [*SKERRY, "exec", sandbox.id, "--", "true"], stdin=read_end, capture_output=True, timeout=60, check=False,
        env=environment(SKERRY_SERVER=server.address),
    )  # fmt: skip
    os.close(read_end)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


def test_terminal_stdin_is_not_forwarded(server: Server, sandbox: Sandbox) -> None:
    leader, follower = pty.openpty()
    done = subprocess.run(
        [*SKERRY, "exec", sandbox.id, "--", "cat"], stdin=follower, capture_output=True, timeout=60, check=False,
        env=environment(SKERRY_SERVER=server.address),
    )  # fmt: skip
    os.close(leader)
    os.close(follower)
    assert (done.returncode, done.stdout) == (0, b"")


def test_ps_and_kill(server: Server, sandbox: Sandbox) -> None:
    process = started(server, "exec", sandbox.id, "--", "sh", "-c", "echo on; sleep 600")
    assert process.stdout is not None
    process.stdout.readline()
    listed = json.loads(skerry("ps", sandbox.id, "--json", server=server.address).stdout)
    (ident,) = [p["id"] for p in listed if p["state"] == "running"]
    assert ident.encode() in skerry("ps", sandbox.id, server=server.address).stdout
    assert skerry("kill", "-s", "KILL", sandbox.id, ident, server=server.address).returncode == 0
    process.communicate(timeout=30)
    assert process.returncode == 137


def test_tokens_and_tcp(own_server: Server) -> None:
    own_server.start("--listen", "127.0.0.1:0")
    info = json.loads(skerry("server", "status", "--json", server=own_server.address).stdout)
    address = next(a for a in info["addresses"] if a.startswith("http"))
    made = json.loads(
        skerry("token", "create", "--scope", "use", "--note", "t", "--json", server=own_server.address).stdout
    )
    denied = skerry("ls", server=address)
    assert denied.returncode == 2
    assert b"error: " in denied.stderr
    wrong = skerry("ls", server=address, SKERRY_TOKEN="skt_wrong")
    assert wrong.returncode == 2
    done = skerry("run", "--", "echo", "hi", server=address, SKERRY_TOKEN=made["secret"])
    assert (done.returncode, done.stdout) == (0, b"hi\n")
    assert skerry("token", "ls", server=address, SKERRY_TOKEN=made["secret"]).returncode == 2, "not an admin's"
    key = skerry("token", "create", "--e2b", server=own_server.address).stdout.decode().strip()
    assert re.fullmatch("e2b_[0-9a-f]{50}", key)
    done = skerry("run", "--", "echo", "hi", server=address, SKERRY_TOKEN=token_of(key))
    assert (done.returncode, done.stdout) == (0, b"hi\n")
    assert skerry("ls", server=address, SKERRY_TOKEN=key).returncode == 2, "only E2B's protocols accept the key"
    listed = skerry("token", "ls", server=own_server.address).stdout.decode()
    assert made["id"] in listed
    assert made["secret"] not in listed
    assert skerry("token", "rm", made["id"], server=own_server.address).returncode == 0
    assert skerry("ls", server=address, SKERRY_TOKEN=made["secret"]).returncode == 2


def test_building_an_up_to_date_image_prints_no_progress(server: Server) -> None:
    done = skerry("image", "build", "base", server=server.address)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"base sha256:")


def test_images_and_server_are_shown(server: Server) -> None:
    assert b"base" in skerry("image", "ls", server=server.address).stdout
    assert json.loads(skerry("image", "show", "base", "--json", server=server.address).stdout)["user"] == "user"
    assert b"uptime" in skerry("server", "status", server=server.address).stdout
    report = json.loads(skerry("doctor", "--json", server=server.address).stdout)
    assert report["checks"]


def test_events_are_listed(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        pass
    listed = skerry("events", "--sandbox", sandbox.id, "--type", "sandbox", "--json", server=server.address)
    events = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [event["type"] for event in events] == ["sandbox.created", "sandbox.running", "sandbox.deleted"]
    since = str(events[1]["seq"])
    shown = skerry("events", "--since", since, "--sandbox", sandbox.id, "--type", "sandbox", server=server.address)
    assert shown.stdout.decode().split()[2:] == ["sandbox.deleted", sandbox.id]


def test_events_can_be_followed(server: Server) -> None:
    process = started(server, "events", "--follow", "--since", "0", "--json", "--type", "sandbox.deleted")
    assert process.stdout is not None
    with Sandbox(server=server.address) as sandbox:
        pass
    assert any(sandbox.id.encode() in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


def test_reader_of_events_may_close_the_pipe(server: Server) -> None:
    process = subprocess.Popen(
        ["bash", "-c", f"set -o pipefail; {' '.join(SKERRY)} events --follow --since 0 | head -1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(SKERRY_SERVER=server.address),
    )  # fmt: skip

    def ends_at_another_event() -> bool:
        Sandbox.create(server=server.address).delete()
        return process.poll() is not None

    wait_until(ends_at_another_event, "it to find that nobody reads")
    out, err = process.communicate()
    assert (process.returncode, err) == (141, b"")
    assert len(out.splitlines()) == 1


def test_detached_command_is_listed_read_and_waited_for(server: Server, sandbox: Sandbox) -> None:
    words = ["exec", "-d", "-e", "A=1", sandbox.id, "--", "sh", "-c", "echo out $A; sleep 0.2; echo err >&2; exit 3"]
    made = skerry(*words, server=server.address)
    assert (made.returncode, made.stderr) == (0, b"")
    process = made.stdout.decode().strip()
    waited = skerry("wait", sandbox.id, process, "--json", server=server.address)
    assert (waited.returncode, json.loads(waited.stdout)["stdout"]) == (3, "out 1\n")
    logs = skerry("logs", sandbox.id, process, server=server.address)
    assert (logs.returncode, logs.stdout, logs.stderr) == (0, b"out 1\n", b"err\n")
    assert skerry("logs", "--stdout", sandbox.id, process, server=server.address).stderr == b""
    assert skerry("logs", "--stderr", sandbox.id, process, server=server.address).stdout == b""
    assert skerry("logs", "--stdout", "--since", "4", sandbox.id, process, server=server.address).stdout == b"1\n"
    tail = skerry("logs", "-f", "-n", "3", sandbox.id, process, server=server.address)
    assert (tail.stdout, tail.stderr) == (b"", b"rr\n")
    assert process in skerry("ps", "-q", sandbox.id, server=server.address).stdout.decode().split()
    assert b"exit 3" in skerry("ps", sandbox.id, server=server.address).stdout
    assert skerry("kill", sandbox.id, process, server=server.address).returncode == 2
    pruned = json.loads(skerry("ps", "--prune", "--json", sandbox.id, server=server.address).stdout)
    assert process in pruned["removed"]
    assert skerry("logs", sandbox.id, process, server=server.address).returncode == 2


def test_logs_follow_to_the_end_and_kill_9_ends(server: Server, sandbox: Sandbox) -> None:
    process = sandbox.spawn("echo on; setsid sleep 7373 & sleep 600")
    following = started(server, "logs", "-f", sandbox.id, process.id)
    assert following.stdout is not None
    assert following.stdout.readline() == b"on\n"
    assert skerry("wait", "--timeout", "100ms", sandbox.id, process.id, server=server.address).returncode == 124
    assert skerry("kill", "-9", sandbox.id, process.id, server=server.address).returncode == 0
    following.communicate(timeout=30)
    assert following.returncode == 0
    assert skerry("wait", sandbox.id, process.id, server=server.address).returncode == 137
    wait_until(lambda: not sandbox.run(["pgrep", "-f", "sleep 7373"]).ok, "the tree to be gone")


def test_logs_report_missing_bytes(server: Server, sandbox: Sandbox) -> None:
    made = skerry("exec", "-d", "--max-log-size", "1M", sandbox.id, "--", "seq", "1000000", server=server.address)
    process = made.stdout.decode().strip()
    assert skerry("wait", sandbox.id, process, server=server.address).returncode == 0
    logs = skerry("logs", sandbox.id, process, server=server.address)
    assert b"bytes are missing here" in logs.stderr
    assert logs.stdout.endswith(b"\n1000000\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["logs", "--since", "1", "-n", "1", "BOX", "p-aaaaaaaaaa"], b"cannot be combined"),
        (["logs", "--since", "-1", "BOX", "p-aaaaaaaaaa"], b"--since"),
        (["logs", "BOX", "p-aaaaaaaaaa"], b"p-aaaaaaaaaa"),
        (["wait", "BOX", "../x"], b"not found"),
        (["kill", "-s", "NONSENSE", "BOX", "p-aaaaaaaaaa"], b"p-aaaaaaaaaa"),
        (["exec", "--max-log-size", "1M", "BOX", "--", "true"], b"-d"),
        (["exec", "-d", "--max-log-size", "much", "BOX", "--", "true"], b"journal"),
    ],
)
def test_invalid_options_are_reported(server: Server, sandbox: Sandbox, words: list[str], said: bytes) -> None:
    done = skerry(*(sandbox.id if word == "BOX" else word for word in words), server=server.address)
    assert done.returncode == 2
    assert said in done.stderr
    assert b"Traceback" not in done.stderr


def test_shell_completes_processes_of_the_sandbox(server: Server, sandbox: Sandbox) -> None:
    process = sandbox.spawn("sleep 600")
    words = f"skerry kill {sandbox.id} p-"
    done = subprocess.run(
        [*SKERRY], capture_output=True, check=False, timeout=60,
        env=environment(
            SKERRY_SERVER=server.address, _SKERRY_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD="3"
        ),
    )  # fmt: skip
    assert process.id in done.stdout.decode()
    process.kill()


def test_shell_completes_images_and_snapshots(server: Server, sandbox: Sandbox) -> None:
    def completed(words: str) -> list[str]:
        done = subprocess.run(
            [*SKERRY], capture_output=True, check=False, timeout=60,
            env=environment(
                SKERRY_SERVER=server.address, _SKERRY_COMPLETE="bash_complete", COMP_WORDS=words,
                COMP_CWORD=str(len(words.split()) - 1),
            ),
        )  # fmt: skip
        return [line.partition(",")[2] for line in done.stdout.decode().splitlines()]

    snapshot = sandbox.snapshot("to-complete")
    assert completed("skerry image show bas") == ["base"]
    assert completed("skerry run --image to-c") == completed("skerry snapshot show to-c") == ["to-complete"]
    assert completed(f"skerry rollback {sandbox.id} to-c") == ["to-complete"]
    snapshot.delete()


def test_session_is_kept_between_commands(server: Server, sandbox: Sandbox) -> None:
    def say(*words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[bytes]:
        return skerry("exec", *options, "--session", "cli", sandbox.id, "--", *words, server=server.address)

    assert say("cd /usr && A=1; exit 3").returncode == 3
    shown = say("echo $? $A; pwd")
    assert (shown.returncode, shown.stdout) == (0, b"3 1\n/usr\n")
    told = say("A=2; kill -9 $$")
    assert (told.returncode, b"as it was before" in told.stderr) == (137, True)
    words = json.loads(say("printf", "%s|", "a b", "$A", options=("--json",)).stdout)
    assert (words["stdout"], words["cwd"]) == ("a b|$A|", "/usr")
    started = say("true", options=("-d",))
    assert (started.returncode, started.stdout[:2]) == (0, b"p-")
    assert say("x", options=("--user", "root")).returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ["create", "--memory", "900T"], ["create", "--disk", "900T"], ["create", "--cpus", "4000"],
        ["create", "--pids", "4000000"], ["create", "--runtime", "warp"], ["create", "--image", "no-such"],
        ["create", "--waive-guarantee", "all"], ["create", "--peer", "db=no-such"],
        ["run", "--user", "nemo", "--", "true"],
        ["show", "no-such"], ["exec", "no-such", "--", "true"], ["fork", "no-such"], ["rollback", "no-such", "x"],
        ["snapshot", "rm", "no-such"], ["image", "show", "no-such"], ["network", "show", "no-such"],
        ["review", "no-such"], ["logs", "no-such", "p-aaaaaaaaaa"], ["cp", "no-such:/a", "b"], ["rm", "no-such"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_error_of_the_caller_exits_with_2(server: Server, words: list[str]) -> None:
    done = skerry(*words, server=server.address)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(b"error: ")


def test_reached_disk_and_process_limits_are_named(server: Server) -> None:
    made = skerry("create", "--name", "cli-limits", "--disk", "64M", "--pids", "70", server=server.address)
    assert made.returncode == 0, made.stderr
    try:
        script = "import subprocess\nmade = []\ntry:\n  while True: made.append(subprocess.Popen(['sleep', '60']))\n"
        script += "except OSError as error:\n  [(one.kill(), one.wait()) for one in made]; raise"
        forks = skerry("exec", "cli-limits", "--", "python3", "-c", script, server=server.address)
        assert forks.returncode == 1, forks.stderr
        assert forks.stderr.decode().splitlines()[-1].endswith("(--pids)")
        bomb = ("exec", "--user", "root", "cli-limits", "--", "python3", "-c", script)
        forks = skerry(*bomb, server=server.address)
        assert "Limits(pids=…)" in forks.stderr.decode().splitlines()[-1], forks.stderr
        fails = skerry("exec", "cli-limits", "--", "false", server=server.address)
        assert (fails.returncode, fails.stderr) == (1, b""), "another command has nothing to do with it"
        fill = skerry("exec", "cli-limits", "--", "dd", "if=/dev/zero", "of=big", "bs=1M", server=server.address)
        assert fill.stderr.decode().splitlines()[-1] == (
            "hint: it needed more disk than its limit of 64M: --disk, Limits(disk=…)"
        )
        more = ("--code", "open('more', 'wb').write(bytes(1 << 24))", "cli-limits")
        code = skerry("exec", "-l", "python", *more, server=server.address)
        assert b"hint: it needed more disk than its limit of 64M" in code.stderr
    finally:
        skerry("rm", "cli-limits", server=server.address)
