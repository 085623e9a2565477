# mypy: ignore-errors
"""A program for the published Python SDK of E2B, any release since 2.20. The tests run it with another interpreter."""

from __future__ import annotations

import sys
import time
import urllib.request

import e2b
from e2b import Sandbox


def check(condition, what):
    if not condition:
        sys.exit(f"failed: {what}")


def commands(sandbox):
    done = sandbox.commands.run("echo hi; echo err >&2; echo $FOO; pwd; id -un")
    check((done.stdout, done.stderr) == ("hi\nbar\n/home/user\nuser\n", "err\n"), done)
    try:
        sandbox.commands.run("exit 3")
        sys.exit("a failed command raised nothing")
    except e2b.CommandExitException as error:
        check(error.exit_code == 3, error)
    started = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.send_stdin(started.pid, "typed\n")
    check(any(one.pid == started.pid for one in sandbox.commands.list()), "the list of processes")
    check(sandbox.commands.kill(started.pid) and not sandbox.commands.kill(999_999), "kill")


def files(sandbox):
    sandbox.files.write("x/y.txt", "content")
    check(sandbox.files.read("x/y.txt") == "content", "read")
    check(sandbox.files.read("x/y.txt", format="bytes") == b"content", "read bytes")
    sandbox.files.write_files([{"path": "m/1", "data": "1"}, {"path": "/opt/m/2", "data": b"2"}])
    check(sandbox.files.read("/opt/m/2") == "2", "several files")
    check([entry.name for entry in sandbox.files.list("x")] == ["y.txt"], "list")
    info = sandbox.files.get_info("x/y.txt")
    check((info.size, info.owner) == (7, "user"), info)
    check(sandbox.files.make_dir("d1/d2") and not sandbox.files.make_dir("d1/d2"), "make_dir")
    sandbox.files.rename("x/y.txt", "x/z.txt")
    sandbox.files.remove("x/z.txt")
    check(not sandbox.files.exists("x/z.txt"), "remove")
    url = sandbox.download_url("m/1", use_signature_expiration=60)
    check(urllib.request.urlopen(url).read() == b"1", "signed URL")


def watch(sandbox):
    handle = sandbox.files.watch_dir("d1", recursive=True)
    sandbox.files.write("d1/new.txt", "1")
    for _ in range(600):
        if any(event.name == "new.txt" for event in handle.get_new_events()):
            break
        time.sleep(0.1)
    else:
        sys.exit("no event of the file system")
    handle.stop()


def terminal(sandbox):
    shown = []
    handle = sandbox.pty.create(e2b.PtySize(rows=24, cols=80))
    sandbox.pty.send_stdin(handle.pid, b"echo pty-$((40+2))\nexit\n")
    handle.wait(on_pty=shown.append)
    check(b"pty-42" in b"".join(shown), shown)


def control(sandbox):
    check(sandbox.get_info().metadata == {"a": "b"}, "metadata")
    check(any(one.sandbox_id == sandbox.sandbox_id for one in Sandbox.list().next_items()), "list of sandboxes")
    sandbox.set_timeout(300)
    (sandbox.pause if hasattr(sandbox, "pause") else sandbox.beta_pause)()
    again = Sandbox.connect(sandbox.sandbox_id)
    check(again.commands.run("echo again").stdout == "again\n", "connect")
    check(again.get_metrics()[0].mem_total > 0, "metrics")


def errors(sandbox):
    """Errors of streams, which arrive before their first message."""
    calls = {
        "an unknown process": (e2b.NotFoundException, lambda: sandbox.commands.connect(999_999)),
        "a missing directory": (e2b.NotFoundException, lambda: sandbox.files.watch_dir("/no")),
        "a directory to start in": (e2b.InvalidArgumentException, lambda: sandbox.commands.run("true", cwd="/no")),
        "a user": (e2b.AuthenticationException, lambda: sandbox.commands.run("true", user="nobody-here")),
    }
    for name, (kind, call) in calls.items():
        try:
            call()
            sys.exit(f"{name}: no error")
        except kind:
            pass


def main():
    began = time.monotonic()
    sandbox = Sandbox.create(timeout=120, metadata={"a": "b"}, envs={"FOO": "bar"})
    try:
        sandbox.commands.run("true")
        sys.stdout.write(f"create and first command: {time.monotonic() - began:.3f} s\n")
        for part in (commands, files, watch, terminal, errors, control):
            part(sandbox)
    finally:
        sandbox.kill()
    check(not sandbox.is_running(), "is_running after kill")
    try:
        sandbox.commands.run("true")
        sys.exit("a command in a killed sandbox")
    except (e2b.TimeoutException, e2b.NotFoundException):
        pass


main()
