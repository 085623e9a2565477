"""The command line against a real server."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.calling import SKERRY, environment, skerry
from serving import Server, wait_until

from skerry import Sandbox


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address) as sandbox:
        yield sandbox


def labelled(server: Server, label: str) -> list[Sandbox]:
    return Sandbox.list(labels={"test": label}, server=server.address)


def test_one_command_and_nothing_left(server: Server) -> None:
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
def test_exit_codes_are_the_commands(box: Sandbox, server: Server, command: list[str], code: int) -> None:
    assert skerry("exec", box.id, "--", *command, server=server.address).returncode == code


def test_a_time_out_is_124_with_a_hint(box: Sandbox, server: Server) -> None:
    done = skerry("exec", "--timeout", "300ms", box.id, "--", "sleep", "600", server=server.address)
    assert done.returncode == 124
    assert b"--timeout" in done.stderr


def test_one_word_with_spaces_is_told_to_be_one_word(box: Sandbox, server: Server) -> None:
    done = skerry("exec", box.id, "echo hi", server=server.address)
    assert done.returncode == 127
    assert b"bash -lc" in done.stderr


def test_a_file_of_code_as_a_command_is_told_of_the_language_option(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("6 * 7")
    for word, code in (("a.py", 127), ("./a.py", 126)):
        done = skerry("run", word, server=server.address, cwd=tmp_path)
        assert (done.returncode, b"hint: -l python runs a file of code\n" in done.stderr) == (code, True)


def test_an_option_behind_the_sandbox_is_told_where_to_go(box: Sandbox, server: Server) -> None:
    done = skerry("exec", box.id, "-l", "python", "a.py", server=server.address)
    assert (done.returncode, b"hint: options go before SANDBOX\n" in done.stderr) == (127, True)


def test_stdin_goes_in(box: Sandbox, server: Server) -> None:
    done = skerry("exec", box.id, "--", "wc", "-c", server=server.address, stdin=b"\xff" * 3_000_000)
    assert done.stdout.strip() == b"3000000"


def test_files_in_and_new_files_back(server: Server, tmp_path: Path) -> None:
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


def test_files_that_the_command_names_come_along(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1\n2\n3\n")
    (tmp_path / "analyse.py").write_text("open('sum', 'w').write(str(sum(map(int, open('data.csv')))))")
    command = ["run", "--file", "data.csv", "--out", "results", "--", "python3", "analyse.py"]
    done = skerry(*command, server=server.address, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert b"brought in: analyse.py" in done.stderr
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["sum"]
    assert (tmp_path / "results" / "sum").read_text() == "6"
    left = skerry("run", "--no-bring", "--", "python3", "analyse.py", server=server.address, cwd=tmp_path)
    assert left.returncode == 2


def test_a_long_script_as_a_word_is_no_file_s_name(server: Server, tmp_path: Path) -> None:
    script = "import sys; print(42) #" + "x" * 300
    done = skerry("run", "--", "python3", "-c", script, server=server.address, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"42\n"), done.stderr


def test_nothing_above_elsewhere_or_behind_a_link_comes_along(server: Server, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    here = tmp_path / "here"
    here.mkdir()
    (here / "link").symlink_to("../secret")
    (here / "way").symlink_to("..")
    words = ["../secret", str(tmp_path / "secret"), "link", "way/secret", "."]
    done = skerry("run", "--", "sh", "-c", "ls -A /workspace", *words, server=server.address, cwd=here)
    assert (done.returncode, done.stdout) == (0, b"")


def test_a_sandbox_that_stays(server: Server, tmp_path: Path) -> None:
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
    assert b"guarantees" in skerry("show", "cli-dev", server=server.address).stdout
    words = ("--memory", "300M", "--pids", "90", "-e", "MORE=1", "--unset", "MODE", "--label", "a=b", "--idle", "1h")
    changed = json.loads(skerry("update", *words, "--json", "cli-dev", server=server.address).stdout)
    assert (changed["limits"]["memory"], changed["limits"]["pids"], changed["limits"]["cpus"]) == ("300M", 90, 1)
    assert (changed["env"], changed["labels"], changed["lifecycle"]["idle"]) == ({"MORE": "1"}, {"a": "b"}, "1h")
    refused = skerry("update", "--pids", "40000", "--unlabel", "a", "cli-dev", server=server.address)
    assert (refused.returncode, b"max.pids" in refused.stderr) == (125, True)
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
def test_an_interrupted_run_ends_its_command_and_its_sandbox(server: Server, number: signal.Signals, code: int) -> None:
    label = f"ctrl-{number}"
    process = started(server, "run", "--label", f"test={label}", "--", "sh", "-c", "echo on; sleep 600")
    assert process.stdout is not None
    assert process.stdout.readline() == b"on\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (code, b"")
    assert b"Traceback" not in err
    assert labelled(server, label) == []


def test_ctrl_c_on_exec_ends_the_command_and_leaves_the_sandbox(server: Server, box: Sandbox) -> None:
    process = started(server, "exec", box.id, "--", "sh", "-c", "setsid sleep 7171 & echo on; sleep 600")
    assert process.stdout is not None
    assert process.stdout.readline() == b"on\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    wait_until(lambda: not box.run(["pgrep", "-f", "sleep 7171"]).ok, "the tree to be gone")
    assert box.info().state == "running"


def test_a_command_line_killed_outright_takes_its_command_with_it(server: Server, box: Sandbox) -> None:
    process = started(server, "exec", box.id, "--", "sh", "-c", "echo on; exec sleep 7272")
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.communicate(timeout=30)
    wait_until(lambda: not box.run(["pgrep", "-f", "sleep 7272"]).ok, "the command to be gone")


def test_an_open_pipe_as_stdin_does_not_keep_it_from_leaving(server: Server, box: Sandbox) -> None:
    read_end, write_end = os.pipe()
    done = subprocess.run(
        [*SKERRY, "exec", box.id, "--", "true"], stdin=read_end, capture_output=True, timeout=60, check=False,
        env=environment(SKERRY_SERVER=server.address),
    )  # fmt: skip
    os.close(read_end)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_terminal_as_stdin_is_not_passed_on(server: Server, box: Sandbox) -> None:
    leader, follower = pty.openpty()
    done = subprocess.run(
        [*SKERRY, "exec", box.id, "--", "cat"], stdin=follower, capture_output=True, timeout=60, check=False,
        env=environment(SKERRY_SERVER=server.address),
    )  # fmt: skip
    os.close(leader)
    os.close(follower)
    assert (done.returncode, done.stdout) == (0, b"")


def test_ps_and_kill(server: Server, box: Sandbox) -> None:
    process = started(server, "exec", box.id, "--", "sh", "-c", "echo on; sleep 600")
    assert process.stdout is not None
    process.stdout.readline()
    listed = json.loads(skerry("ps", box.id, "--json", server=server.address).stdout)
    (ident,) = [p["id"] for p in listed if p["state"] == "running"]
    assert ident.encode() in skerry("ps", box.id, server=server.address).stdout
    assert skerry("kill", "-s", "KILL", box.id, ident, server=server.address).returncode == 0
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
    listed = skerry("token", "ls", server=own_server.address).stdout.decode()
    assert made["id"] in listed
    assert made["secret"] not in listed
    assert skerry("token", "rm", made["id"], server=own_server.address).returncode == 0
    assert skerry("ls", server=address, SKERRY_TOKEN=made["secret"]).returncode == 2


def test_an_image_that_is_there_is_built_without_a_word(server: Server) -> None:
    done = skerry("image", "build", "base", server=server.address)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"base sha256:")


def test_images_and_the_server_show_themselves(server: Server) -> None:
    assert b"base" in skerry("image", "ls", server=server.address).stdout
    assert json.loads(skerry("image", "show", "base", "--json", server=server.address).stdout)["user"] == "user"
    assert b"uptime" in skerry("server", "status", server=server.address).stdout
    report = json.loads(skerry("doctor", "--json", server=server.address).stdout)
    assert report["checks"]


def test_events_tell_what_happened(server: Server) -> None:
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


def test_whoever_reads_events_may_leave(server: Server) -> None:
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


def test_a_detached_command_is_listed_read_and_waited_for(server: Server, box: Sandbox) -> None:
    words = ["exec", "-d", "-e", "A=1", box.id, "--", "sh", "-c", "echo out $A; sleep 0.2; echo err >&2; exit 3"]
    made = skerry(*words, server=server.address)
    assert (made.returncode, made.stderr) == (0, b"")
    process = made.stdout.decode().strip()
    waited = skerry("wait", box.id, process, "--json", server=server.address)
    assert (waited.returncode, json.loads(waited.stdout)["stdout"]) == (3, "out 1\n")
    logs = skerry("logs", box.id, process, server=server.address)
    assert (logs.returncode, logs.stdout, logs.stderr) == (0, b"out 1\n", b"err\n")
    assert skerry("logs", "--stdout", box.id, process, server=server.address).stderr == b""
    assert skerry("logs", "--stderr", box.id, process, server=server.address).stdout == b""
    assert skerry("logs", "--stdout", "--since", "4", box.id, process, server=server.address).stdout == b"1\n"
    tail = skerry("logs", "-f", "-n", "3", box.id, process, server=server.address)
    assert (tail.stdout, tail.stderr) == (b"", b"rr\n")
    assert process in skerry("ps", "-q", box.id, server=server.address).stdout.decode().split()
    assert b"exit 3" in skerry("ps", box.id, server=server.address).stdout
    assert skerry("kill", box.id, process, server=server.address).returncode == 2
    pruned = json.loads(skerry("ps", "--prune", "--json", box.id, server=server.address).stdout)
    assert process in pruned["removed"]
    assert skerry("logs", box.id, process, server=server.address).returncode == 2


def test_logs_follow_to_the_end_and_minus_nine_ends(server: Server, box: Sandbox) -> None:
    process = box.spawn("echo on; setsid sleep 7373 & sleep 600")
    following = started(server, "logs", "-f", box.id, process.id)
    assert following.stdout is not None
    assert following.stdout.readline() == b"on\n"
    assert skerry("wait", "--timeout", "100ms", box.id, process.id, server=server.address).returncode == 124
    assert skerry("kill", "-9", box.id, process.id, server=server.address).returncode == 0
    following.communicate(timeout=30)
    assert following.returncode == 0
    assert skerry("wait", box.id, process.id, server=server.address).returncode == 137
    wait_until(lambda: not box.run(["pgrep", "-f", "sleep 7373"]).ok, "the tree to be gone")


def test_logs_tell_what_is_gone(server: Server, box: Sandbox) -> None:
    made = skerry("exec", "-d", "--journal", "1M", box.id, "--", "seq", "1000000", server=server.address)
    process = made.stdout.decode().strip()
    assert skerry("wait", box.id, process, server=server.address).returncode == 0
    logs = skerry("logs", box.id, process, server=server.address)
    assert b"bytes are gone here" in logs.stderr
    assert logs.stdout.endswith(b"\n1000000\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["logs", "--since", "1", "-n", "1", "BOX", "p-aaaaaaaaaa"], b"exclude"),
        (["logs", "--since", "-1", "BOX", "p-aaaaaaaaaa"], b"--since"),
        (["logs", "BOX", "p-aaaaaaaaaa"], b"p-aaaaaaaaaa"),
        (["wait", "BOX", "../x"], b"no process"),
        (["kill", "-s", "NONSENSE", "BOX", "p-aaaaaaaaaa"], b"p-aaaaaaaaaa"),
        (["exec", "--journal", "1M", "BOX", "--", "true"], b"-d"),
        (["exec", "-d", "--journal", "much", "BOX", "--", "true"], b"journal"),
    ],
)
def test_what_makes_no_sense_is_said(server: Server, box: Sandbox, words: list[str], said: bytes) -> None:
    done = skerry(*(box.id if word == "BOX" else word for word in words), server=server.address)
    assert done.returncode == 2
    assert said in done.stderr
    assert b"Traceback" not in done.stderr


def test_the_shell_completes_processes_of_the_sandbox(server: Server, box: Sandbox) -> None:
    process = box.spawn("sleep 600")
    words = f"skerry kill {box.id} p-"
    done = subprocess.run(
        [*SKERRY], capture_output=True, check=False, timeout=60,
        env=environment(
            SKERRY_SERVER=server.address, _SKERRY_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD="3"
        ),
    )  # fmt: skip
    assert process.id in done.stdout.decode()
    process.kill()


def test_the_shell_completes_images_and_snapshots(server: Server, box: Sandbox) -> None:
    def completed(words: str) -> list[str]:
        done = subprocess.run(
            [*SKERRY], capture_output=True, check=False, timeout=60,
            env=environment(
                SKERRY_SERVER=server.address, _SKERRY_COMPLETE="bash_complete", COMP_WORDS=words,
                COMP_CWORD=str(len(words.split()) - 1),
            ),
        )  # fmt: skip
        return [line.partition(",")[2] for line in done.stdout.decode().splitlines()]

    snapshot = box.snapshot("to-complete")
    assert completed("skerry image show bas") == ["base"]
    assert completed("skerry run --image to-c") == completed("skerry snapshot show to-c") == ["to-complete"]
    assert completed(f"skerry rollback {box.id} to-c") == ["to-complete"]
    snapshot.delete()


def test_a_session_lasts_between_commands(server: Server, box: Sandbox) -> None:
    def say(*words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[bytes]:
        return skerry("exec", *options, "--session", "cli", box.id, "--", *words, server=server.address)

    assert say("cd /usr && A=1; exit 3").returncode == 3
    shown = say("echo $? $A; pwd")
    assert (shown.returncode, shown.stdout) == (0, b"3 1\n/usr\n")
    told = say("A=2; kill -9 $$")
    assert (told.returncode, b"as it was before" in told.stderr) == (137, True)
    words = json.loads(say("printf", "%s|", "a b", "$A", options=("--json",)).stdout)
    assert (words["stdout"], words["cwd"]) == ("a b|$A|", "/usr")
    assert say("x", options=("-d",)).returncode == 2
    assert say("x", options=("--user", "root")).returncode == 2
