"""Reproducible sandboxes: the same values in each, also in forks, and a fixed clock."""

from __future__ import annotations

from support.server import Server

from skerry import Options, Sandbox

CLOCK, MOMENT = "2024-02-29T05:06:07Z", 1709183167
# Values that differ from sandbox to sandbox otherwise, and a commit, whose hash covers its dates.
LOOKS = """
hostname; cat /etc/machine-id; locale 2>/dev/null | sort; env | grep -v '^SKERRY' | sort
python3 -c 'print(hash("skerry"), list({"a", "b", "c"}))'
cd "$(mktemp -d)" && git init -q . && echo text > file && git add file && git commit -qm one && git rev-parse HEAD
"""


def looks(sandbox: Sandbox) -> str:
    return sandbox.run(["bash", "-c", LOOKS], check=True).stdout


def test_reproducible_sandboxes_look_the_same(server: Server) -> None:
    options = Options(reproducible=True, git_name="Ada", git_email="ada@example.test")
    with (
        Sandbox(server=server.address, name="first", options=options) as first,
        Sandbox(server=server.address, options=options) as second,
        Sandbox(server=server.address, options=Options(git_name="Ada", git_email="ada@example.test")) as other,
    ):
        seen = looks(first)
        assert seen.startswith("skerry\n5ce44e5a9d0b4d6f8f1c2a7b3e60d914\n")
        assert "TZ=UTC\n" in seen
        assert "SOURCE_DATE_EPOCH=1767225600\n" in seen
        assert looks(second) == seen
        assert looks(other) != seen
        first.rename("renamed")
        assert first.run(["hostname"]).stdout == "skerry\n"
        [fork] = first.fork()
        with fork:
            assert looks(fork) == seen
        first.stop()
        first.resume()
        assert looks(first) == seen


def test_variables_of_the_caller_have_precedence(server: Server) -> None:
    env = {"TZ": "Asia/Tokyo", "GIT_AUTHOR_DATE": None}
    with Sandbox(server=server.address, env=env, options=Options(reproducible=True)) as sandbox:
        said = sandbox.run('echo "$TZ" "${GIT_AUTHOR_DATE-unset}" "$PYTHONHASHSEED"', check=True).stdout
        assert said == "Asia/Tokyo unset 0\n"


# Each waits a moment by another way, and prints the time before and after.
WAITS = """
import asyncio, queue, subprocess, threading, time
def empty():
    try:
        queue.Queue().get(timeout=0.01)
    except queue.Empty:
        pass
def ended():
    try:
        subprocess.run(["sleep", "60"], timeout=0.01)
    except subprocess.TimeoutExpired:
        pass
waits = [lambda: time.sleep(0.01), lambda: threading.Event().wait(0.01), empty, ended,
         lambda: asyncio.run(asyncio.sleep(0.01))]
for wait in waits:
    began, real = time.monotonic(), time.time()
    wait()
    print(int(real), time.time() - real, time.monotonic() > began)
"""


def test_clock_stands_still_and_timeouts_run(server: Server) -> None:
    options = Options(reproducible=True, clock=CLOCK)
    with Sandbox(server=server.address, options=options) as sandbox:
        said = sandbox.run("date -u +%FT%TZ; date +%s; echo $SOURCE_DATE_EPOCH; perl -e 'print time'", check=True)
        assert said.stdout.split() == [CLOCK, *[str(MOMENT)] * 3]
        assert said.stderr == ""
        waited = sandbox.run(["python3", "-c", WAITS], check=True).stdout.splitlines()
        assert waited == [f"{MOMENT} 0.0 True"] * 5
        assert sandbox.run(["sleep", "60"], timeout=0.2).timed_out
        stamp = sandbox.run(
            "git init -q /tmp/x && cd /tmp/x && git commit -q --allow-empty -m x && git log --format=%at,%ct"
        )
        assert stamp.stdout == f"{MOMENT},{MOMENT}\n"
        assert sandbox.code.run("import time; print(int(time.time()))").stdout == f"{MOMENT}\n"
        [fork] = sandbox.fork()
        with fork:
            assert fork.run(["date", "+%s"]).stdout == f"{MOMENT}\n"


def test_library_of_the_clock_follows_the_calling_convention(server: Server) -> None:
    """Null pointers, other clocks and invalid clocks, called as C would."""
    call = """
import ctypes, time
libc = ctypes.CDLL(None)
class Spec(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("more", ctypes.c_long)]
spec = Spec(7, 7)
libc.time.restype = ctypes.c_long
print(libc.time(None), libc.time(ctypes.byref(spec)), spec.sec)
print(libc.gettimeofday(None, None), libc.gettimeofday(ctypes.byref(spec), ctypes.byref(Spec())), spec.sec, spec.more)
print(*(libc.clock_gettime(clock, ctypes.byref(spec)) or (spec.sec, spec.more) for clock in (0, 5, 11)))
print(libc.clock_gettime(1, ctypes.byref(spec)), 0 <= spec.sec <= time.monotonic(), libc.clock_gettime(99, None))
print(libc.timespec_get(ctypes.byref(spec), 1), spec.sec, spec.more)
"""
    with Sandbox(server=server.address, options=Options(reproducible=True, clock=CLOCK)) as sandbox:
        said = sandbox.run(["python3", "-c", call], check=True).stdout.splitlines()
        fixed = f"({MOMENT}, 0)"
        assert said == [
            f"{MOMENT} {MOMENT} {MOMENT}", f"0 0 {MOMENT} 0", f"{fixed} {fixed} {fixed}", "0 True -1", f"1 {MOMENT} 0",
        ]  # fmt: skip
        stack = sandbox.run("grep -c 'rwx' /proc/self/maps").stdout
        assert stack == "0\n", "the library makes no memory both writable and executable"
