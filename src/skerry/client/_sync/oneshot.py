# Generated from client/_async/oneshot.py by scripts/generate_sync.py. Do not edit.
"""`run`: a sandbox for one command. Files in, output as it comes, new files back, all gone after."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Iterator, Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Unpack

from skerry.client import backend_sync as backend
from skerry.client._sync.files import Files
from skerry.client._sync.sandbox import Sandbox
from skerry.client.code_outcome import Brought, mark_of
from skerry.client.content import check_contents, open_host_file
from skerry.client.description import Creation, Words, run_request
from skerry.client.egress import learned_in_words
from skerry.client.landing import DEEPEST, MOST_FILES, Landing, Refused, changed, check_part
from skerry.client.outcome import Output, checked, with_files
from skerry.client.repository.source import repo_of
from skerry.errors import FileFailure, FileMissing, InvalidRequest
from skerry.types import FileInfo, Result

WORKSPACE = "/workspace"
Content = backend.AnySource | os.PathLike[str]


def run(
    cmd: Words | None = None,
    *,
    files: Mapping[str, Content] = {},
    out: str | os.PathLike[str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
    stdin: backend.AnySource | None = None,
    timeout: float | None = 300,
    check: bool = False,
    on_output: backend.Callback[Output] | None = None,
    setup: Sequence[str] = (),
    tell: Callable[[str], None] = warnings.warn,
    **creation: Unpack[Creation],
) -> Result:
    """Run one command in a new sandbox that is gone afterwards; the same as `skerry run`.

    `files` maps places inside, relative to /workspace, to content, or to a `Path` of this host. `out` is a new or empty
    directory that receives the files of /workspace that are new or changed; they are listed in the result's `files`.
    `setup` are shell lines that must succeed before it. `tell` is told of each file that could not be brought back
    and, with a network that learns, of the rules that would have allowed what was tried.
    """
    # What is wrong is said before a sandbox is made.
    words = run_request(cmd, {}, cwd, user, timeout).cmd
    check_once(files, creation)
    landing = Landing(out) if out is not None else None
    try:
        with once(files, setup, tell, creation) as (sandbox, _):
            before = _survey(sandbox.files, lambda _: None) if landing is not None else {}
            result = sandbox.run(words, cwd=cwd, user=user, stdin=stdin, timeout=timeout, on_output=on_output)
            if landing is not None:
                result = with_files(result, _bring_back(sandbox.files, before, landing, tell))
    finally:
        if landing is not None:
            landing.close()
    return checked(result, words) if check else result


def check_once(files: Mapping[str, Content], creation: Creation) -> None:
    """What is there to make a sandbox of that is gone afterwards."""
    check_contents(files.values())
    if "name" in creation:
        raise InvalidRequest("name: a sandbox for one command has none", hint="use Sandbox(name=…)")
    if (repo := repo_of(creation.get("repo"))) is not None:
        creation["repo"] = dataclasses.replace(repo, review=False)  # nobody will be there to look at it


@contextmanager
def once(
    files: Mapping[str, Content], setup: Sequence[str], tell: Callable[[str], None], creation: Creation
) -> Iterator[tuple[Sandbox, Brought]]:
    """A sandbox with these files in it, set up; after the block, what its network learned is told, and it is gone."""
    with Sandbox(**creation) as sandbox:
        brought = bring_in(sandbox.files, files)
        for line in setup:
            sandbox.run(line, timeout=None, check=True)
        yield sandbox, brought
        if sandbox.known.network.on_unknown == "learn":
            tell(learned_in_words(sandbox.network.learn()))


def bring_in(files: Files, wanted: Mapping[str, Content]) -> Brought:
    brought = []
    for place, content in wanted.items():
        target = place if place.startswith("/") else f"{WORKSPACE}/{place}"
        if not isinstance(content, os.PathLike):
            brought.append(files.write(target, content))
            continue
        source, mode = open_host_file(content)
        with source:
            brought.append(files.write(target, source, mode=mode))
    return frozenset(map(mark_of, brought))


def _survey(files: Files, tell: Callable[[str], None]) -> dict[str, FileInfo]:
    """All below /workspace by its path from there. Links are not followed; counts and depth are bounded."""
    found: dict[str, FileInfo] = {}
    pending = [""]
    while pending:
        above = pending.pop()
        try:
            entries = files.list(f"{WORKSPACE}/{above}", user="root")
        except FileMissing:
            continue
        for info in entries:
            # The path is put together here, from names that were checked: what the answer calls `path` is not used.
            relative = f"{above}/{info.name}" if above else info.name
            try:
                check_part(info.name)
                if len(found) >= MOST_FILES:
                    raise Refused(f"there are more than {MOST_FILES} files")
            except Refused as refused:
                tell(f"{relative!r} is not brought back: {refused}")
                if len(found) >= MOST_FILES:
                    return found
                continue
            found[relative] = info
            if info.type == "directory" and relative.count("/") < DEEPEST:
                pending.append(relative)
    return found


def _bring_back(
    files: Files, before: dict[str, FileInfo], landing: Landing, tell: Callable[[str], None]
) -> tuple[FileInfo, ...]:
    after = _survey(files, tell)
    landed = []
    for relative in changed(before, after):
        try:
            with landing.file(relative, after[relative]) as file:
                for piece in files.stream(f"{WORKSPACE}/{relative}", user="root"):
                    file.write(piece)
        except (Refused, FileFailure) as why:
            tell(f"{relative!r} is not brought back: {why}")
        else:
            landed.append(after[relative])
    for relative, info in after.items():
        if info.type not in ("file", "directory") and relative not in before:
            tell(f"{relative!r} is not brought back: it is a {info.type}")
    return tuple(landed)
