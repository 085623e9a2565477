"""Runs inside a sandbox: each function marked `attack` is an attack. It returns its gain; an OSError is
a failure. Only Python's standard library, because it runs with the sandbox's Python."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

FACTS: dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
LIMIT_S = 8
_ATTACKS: list[tuple[str, Callable[[], object]]] = []
# The calls younger than 2019 have one number everywhere; these do not.
_NUMBERS = {
    "x86_64": {"mount": 165, "umount2": 166, "pivot_root": 155, "unshare": 272, "setns": 308, "socket": 41},
    "aarch64": {"mount": 40, "umount2": 39, "pivot_root": 41, "unshare": 97, "setns": 268, "socket": 198},
}
NUMBER = _NUMBERS[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


class Refused(Exception):
    """The attack failed without an errno."""


def attack(
    control: str | None, by: tuple[str, ...] = ("user", "root")
) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """control: where the same attack succeeds, so that its failure means something. "host": as root on the host;
    "namespace": as root with every capability in throw-away namespaces; None: nowhere that a test may try it.
    by: users that must not succeed. (Root inside may damage its sandbox.)"""

    def mark(function: Callable[[], object]) -> Callable[[], object]:
        _ATTACKS.append((function.__name__, function))
        return function

    return mark


def call(number: int, *arguments: object) -> int:
    """A raw system call that raises."""
    result = libc.syscall(ctypes.c_long(number), *(_c(argument) for argument in arguments))
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


def _c(argument: object) -> object:
    return ctypes.c_long(argument) if isinstance(argument, int) else argument


def first_gain(*ways: Callable[[], object]) -> object:
    """Tries them all; the first that works is the gain, else the last failure is raised."""
    failure: OSError | Refused = Refused("no way was tried")
    for way in ways:
        try:
            return way()
        except (OSError, Refused) as error:
            failure = error
    raise failure


def main() -> None:
    wanted = set(sys.argv[2:])
    chosen = [(name, function) for name, function in _ATTACKS if not wanted or name in wanted]
    print(json.dumps({name: _apart(function) for name, function in chosen}))  # noqa: T201


def _apart(function: Callable[[], object]) -> dict[str, str]:
    """In a child: an attack may be killed, or change its process."""
    near, far = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(near)
        signal.alarm(LIMIT_S)
        os.write(far, json.dumps(_outcome(function)).encode()[:60000])
        os._exit(0)
    os.close(far)
    with os.fdopen(near, "rb") as pipe:
        said = pipe.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return {"killed": signal.Signals(os.WTERMSIG(status)).name}
    return json.loads(said) if said else {"broken": "it said nothing"}


def _outcome(function: Callable[[], object]) -> dict[str, str]:
    try:
        return {"gained": repr(function())[:2000]}
    except Refused as refusal:
        return {"failed": str(refusal)}
    except OSError as error:
        return {"failed": errno.errorcode.get(error.errno or 0, str(error))}
    except BaseException:
        return {"broken": traceback.format_exc()[-2000:]}
