"""A session's shell as text: its command line, its first state, its final report. No effects.

`session.bash` is the other half, inside."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final, NamedTuple

from skerry.errors import InvalidRequest

IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_LAST: Final = 8 << 10
_MAX_ARGUMENT: Final = 100_000  # Linux takes 128 KiB in one argument
_PREFIX: Final = "SKERRY_SESSION_"


@cache
def script() -> bytes:
    return (resources.files("skerry.engine.processes") / "session.bash").read_bytes()


def check_names(env: Mapping[str, str | None]) -> None:
    """A variable of a session has to be one that a shell can hold."""
    for name in env:
        if not IDENTIFIER.fullmatch(name) or name.startswith(("__skerry", _PREFIX)):
            raise InvalidRequest(f"env: {name[:80]!r} can't be a shell's variable", hint="letters, digits and _")


def first_state(cwd: str, env: Mapping[str, str | None]) -> bytes:
    lines = ["# skerry-session 1 0 new", f"__skerry_cwd={shlex.quote(cwd)}"]
    for name, value in env.items():
        lines.append(f"__skerry_gone+=({name})" if value is None else f"export -- {name}={shlex.quote(value)}")
    return "\n".join([*lines, "__skerry_whole=0", ""]).encode()


def is_long(cmd: str) -> bool:
    return len(cmd.encode()) > _MAX_ARGUMENT


def argv(bash: str, cmd: str | list[str]) -> list[str]:
    """`--` is needed because a command line may begin with a dash. A list is resolved like the words of a line: it may
    name a function."""
    if isinstance(cmd, str):
        return [bash, "--norc", "-c", "--", cmd]
    return [bash, "--norc", "-c", "--", '"$@"', "bash", *cmd]


def environment(
    place: str, run: str, home: str, start: str | None, given: Mapping[str, str | None], sandbox_id: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the variables of the process. Variables for this command get other names, so that the shell still sees
    those of the sandbox; a name that no shell can hold is passed unchanged, past the shell. `run`: the mark of the
    command; if empty, the state is not saved."""
    env: dict[str, str | None] = {"BASH_ENV": f"{place}/shell"}
    names: list[str] = []

    def give(name: str, value: str | None) -> None:
        if value is not None:
            env[f"{_PREFIX}{len(names)}"] = value
        names.append(name if value is not None else f"!{name}")

    for name, value in given.items():
        if not IDENTIFIER.fullmatch(name):
            env[name] = value
        elif name != "BASH_ENV":
            give(name, value)
    if "POSIXLY_CORRECT" in sandbox_id:  # with it, bash would not read our file
        env["POSIXLY_CORRECT"] = None
        if "POSIXLY_CORRECT" not in given:
            give("POSIXLY_CORRECT", sandbox_id["POSIXLY_CORRECT"])
    bash_env = given["BASH_ENV"] if "BASH_ENV" in given else sandbox_id.get("BASH_ENV")
    if bash_env is not None:
        env[f"{_PREFIX}BASH_ENV"] = bash_env
    facts = {"RUN": run, "ONCE": "" if run else "y", "HOME": home, "START": start or "", "GIVEN": " ".join(names)}
    return env | {f"{_PREFIX}{name}": value for name, value in facts.items()}


class Left(NamedTuple):
    """The report of a shell in `last`: the command it ran, notices for the caller, and the session's directory."""

    run: str
    words: frozenset[str]
    cwd: str


def decode_last(data: bytes) -> Left | None:
    """Return None for invalid content: programs inside can write anything there."""
    parts = data.partition(b"\0")[0].split(b"\n", 2)
    if len(parts) != 3 or not parts[2].startswith(b"/"):
        return None
    run, words, cwd = (part.decode("utf-8", "backslashreplace") for part in parts)
    return Left(run[:64], frozenset(words[:200].split()), cwd[:4096])


def encode_last(cwd: str) -> bytes:
    """Before the first command."""
    return f"-\nkept\n{cwd}".encode()


def hint(run: str, killed: bool, left: Left | None, full: bool = False) -> str | None:
    """Return the notice for the caller about the session after a command. `full`: the sandbox's disk is full."""
    if left is None or left.run != run:
        if full:
            return "the disk is full: the session is as it was before this command, until space is freed"
        if killed:
            return "the session is as it was before this command"
        return "its shell ended without saving (exec, or a trap of its own on EXIT): the session is as it was before"
    notices = []
    if "kept" not in left.words:
        notices.append("the session is as it was before: its state is more than 4 MiB, or the disk is full")
    if "moved" in left.words:
        notices.append("the session's directory was gone: it began in the sandbox's own")
    if "damaged" in left.words:
        notices.append("the session's state was damaged: variables and functions may be missing")
    return "; ".join(notices) or None
