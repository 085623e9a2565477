"""`make test-vm`: the isolation, limits and kill tests on a pure cgroup v2 machine with Debian's 6.1 cloud kernel.

The machine is QEMU by software emulation: no KVM. Its kernel and disks live in the cache and are not installed here.
"""

import argparse
import fcntl
import os
import platform
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import disks
import machine

TIMED_OUT, DIED = 124, 125
SCRIPT = """export PYTHONPATH=/project/src:/opt/site PYTHONDONTWRITEBYTECODE=1 SKERRY_STATE_DIR=/srv/skerry
echo "kernel $(uname -r), cgroups: $(stat -fc %T /sys/fs/cgroup)"
crun --version | head -n1; runc --version | head -n1
{commands}
"""
# One run of the tests for each runtime. Emulation is ten times slower: so is the time that a test may take.
TESTS = """code=0
test() {{ python3 -m pytest -p no:cacheprovider --color=no --timeout=900 {args} "$@" || code=$?; }}
echo "== containers of each runtime: posture, limits, kills, cut-off starts"
test tests/runtimes
for runtime in {runtimes}; do
    echo "== whole sandboxes with $runtime: runs, life, limits"
    SKERRY_RUNTIME=$runtime; export SKERRY_RUNTIME
    test tests/integration/test_run.py tests/integration/test_lifecycle.py tests/attacks/test_limits.py \\
        tests/engine/sandboxes/test_limits.py
done
echo "== attacks from inside"
unset SKERRY_RUNTIME
test {attacks}
exit $code
"""
# Attacks on the kernel. The ordinary host runs the controls, which show that each attack succeeds without isolation.
ATTACKS = [
    *("-k", "not without_isolation and not on_the_host"),
    *(
        f"tests/attacks/test_{name}.py"
        for name in (
            *("capabilities", "devices", "first_process", "host_files", "host_information", "host_processes"),
            *("kernel_memory", "kernel_switches", "mounts", "network", "security_modules", "shared_inodes"),
            *("sudo_socket", "system_calls"),
        )
    ),
]


def main() -> int:
    options = parse()
    if platform.machine() != "x86_64":
        sys.exit("make test-vm: the test machine is x86-64 and its root disk is made here: this needs an x86-64 host")
    if os.geteuid() != 0:
        sys.exit("make test-vm: the root disk is made as root\nhint: sudo make test-vm")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    deadline = time.monotonic() + options.minutes * 60
    cache = Path(options.cache)
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(cache, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    say("kernel and root disk")
    system = disks.system(cache, options.rebuild)
    say("base image's disk")
    state = disks.state_disk(cache, Path(options.state))
    work, nonce = Path(tempfile.mkdtemp(prefix="run-", dir=cache)), secrets.token_hex(8)
    try:
        disks.project_disk(work / "project.img", script(options), nonce)
        say(f"booting ({options.memory} of memory, at most {options.minutes:g} minutes in all)")
        all_disks = machine.Disks(system, work / "project.img", state)
        code = machine.boot(all_disks, nonce, options.memory, deadline - time.monotonic())
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say({0: "passed", TIMED_OUT: "out of time", DIED: "the machine ended early"}.get(code, f"failed with {code}"))
    return code


def script(options: argparse.Namespace) -> str:
    args = shlex.join(options.args[1:] if options.args[:1] == ["--"] else options.args)
    tests = TESTS.format(runtimes=shlex.join(options.runtimes.split(",")), args=args, attacks=shlex.join(ATTACKS))
    return SCRIPT.format(commands=options.command or tests)


def parse() -> argparse.Namespace:
    default_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skerry/vm"
    parser = argparse.ArgumentParser(prog="scripts/vm", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cache", default=str(default_cache), help="directory for the disks (%(default)s)")
    parser.add_argument("--state", default=os.environ.get("SKERRY_STATE_DIR") or "/var/lib/skerry",
                        help="state directory with the base image (%(default)s)")  # fmt: skip
    parser.add_argument("--minutes", type=float, default=40.0, help="time limit in minutes, building included")
    parser.add_argument("--memory", default="3G", help="the machine's memory")
    parser.add_argument("--runtimes", default="crun,runc", help="run the tests once with each")
    parser.add_argument("--rebuild", action="store_true", help="rebuild the kernel and root disk")
    parser.add_argument("--command", help="run this shell line instead of the tests")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="more arguments for pytest, after --")
    return parser.parse_args()


def say(text: str) -> None:
    sys.stderr.write(f"vm: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
