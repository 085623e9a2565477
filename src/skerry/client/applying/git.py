"""git on this host: for the user's own repository, and for work beside any."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from skerry.client.harmless import harmless
from skerry.errors import InvalidRequest, SkerryError

PATIENCE: Final = 600.0
_HARMLESS: Final = (
    "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=false",
    "-c", "protocol.allow=never", "-c", "submodule.recurse=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false",
    "-c", "core.quotePath=false", "--literal-pathspecs", "--no-pager",
)  # fmt: skip
_SAID = 2000
_WHO = ("GIT_AUTHOR_", "GIT_COMMITTER_")


class GitFailed(SkerryError):
    """It ended with a code that was not expected; `said` is its own words."""

    def __init__(self, verb: str, code: int, said: bytes) -> None:
        self.said = said
        text = harmless(said[-_SAID:].decode("utf-8", "replace").strip(), lines=True)
        super().__init__(f"git {verb}: {text or f'exit code {code}'}")


def git(
    where: Path | str,
    *words: str | bytes,
    stdin: bytes | Path = b"",
    expect: tuple[int, ...] = (0,),
    env: Mapping[str, str] = {},
) -> tuple[int, bytes]:
    """In a directory of the user's: with their own identity and settings, without hooks and connections."""
    return _call([*_HARMLESS, "-C", str(where), *words], stdin, expect, {**_environment(), **env}, None)


def git_alone(
    directory: Path | str,
    *words: str | bytes,
    stdin: bytes | Path = b"",
    expect: tuple[int, ...] = (0,),
    env: Mapping[str, str] = {},
) -> tuple[int, bytes]:
    """In a directory of ours: nobody's settings count, and no repository around it."""
    alone = {
        **_environment(), **env, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": os.path.dirname(os.path.realpath(directory)), "HOME": "/nonexistent",
    }  # fmt: skip
    return _call([*_HARMLESS, "-c", "core.attributesFile=/dev/null", *words], stdin, expect, alone, str(directory))


def _call(
    words: list[str | bytes],
    stdin: bytes | Path,
    expect: tuple[int, ...],
    env: Mapping[str, str],
    directory: str | None,
) -> tuple[int, bytes]:
    verb = _verb([os.fsdecode(word) for word in words])
    with _opened(stdin) as source:
        given: dict[str, Any] = {"input": source} if isinstance(source, bytes) else {"stdin": source}
        done = _run(["git", *words], verb, env=env, cwd=directory, **given)
    if done.returncode not in expect:
        raise GitFailed(verb, done.returncode, done.stderr)
    return done.returncode, done.stdout


def _run(argv: list[str | bytes], verb: str, **how: Any) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(argv, **how, capture_output=True, timeout=PATIENCE, check=False)
    except FileNotFoundError as error:
        raise InvalidRequest(
            "there is no git on this host", hint="install git: it merges and knows your tree"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise GitFailed(verb, -1, b"it did not end") from error


@contextmanager
def _opened(stdin: bytes | Path) -> Iterator[bytes | BinaryIO]:
    if isinstance(stdin, bytes):
        yield stdin
        return
    with stdin.open("rb") as file:
        yield file


def _verb(words: list[str]) -> str:
    skip = False
    for word in words:
        if skip or word in ("-c", "-C"):
            skip = not skip
        elif not word.startswith("-"):
            return word
    return ""


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith(_WHO)}
    return {
        **kept, "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "",
        "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C",
    }  # fmt: skip
