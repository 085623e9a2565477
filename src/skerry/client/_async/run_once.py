"""`run` and `run_code`: a sandbox for one command or one piece of code."""

from __future__ import annotations

import dataclasses
import os
import posixpath
import warnings
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Unpack

from msgspec import structs

from skerry.client._async.client import AsyncClient
from skerry.client._async.code import AsyncCodeEvent, AsyncCodeResult, AsyncCodeRun, AsyncReadableFile, events
from skerry.client._async.files import AsyncFiles
from skerry.client._async.processes import AsyncRun
from skerry.client._async.sandbox import AsyncSandbox
from skerry.client.create_options import Command, CreateOptions, run_request
from skerry.client.host.archive_files import Watcher
from skerry.client.host.cassette_file import check_cassette, save_cassette
from skerry.client.host.content import check_files, open_host_file
from skerry.client.host.output_dir import (
    MAX_DEPTH,
    MAX_FILES,
    FileRejected,
    OutputDir,
    TransferLimit,
    changed,
    check_part,
)
from skerry.client.policy_inputs import describe_learned
from skerry.client.repository.source import repo_of
from skerry.client.results.code import UploadedFiles, file_mark, hint_without_context, pictures, relative_place
from skerry.client.results.command import Output, check_result, with_files
from skerry.client.transport import backend_async as backend
from skerry.client.transport.requests.code import Input, code_request
from skerry.errors import FileError, FileNotFound, InvalidRequest, NotFound, SandboxUnavailable, SkerryError
from skerry.types import FileInfo, LanguageInfo, Result, find_language, image_of, parse_size

WORKSPACE = "/workspace"
Content = backend.AnySource | os.PathLike[str]
OnEvent = backend.Callback[AsyncCodeEvent]
OnWarning = Callable[[str], None]


async def run(
    cmd: Command | None = None,
    *,
    files: Mapping[str, Content] = {},
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    max_size: str | int | None = None,
    cwd: str | None = None,
    user: str | None = None,
    stdin: backend.AnySource | None = None,
    timeout: float | None = 300,
    check: bool = False,
    on_output: backend.Callback[Output] | None = None,
    on_start: backend.Callback[AsyncRun] | None = None,
    setup: Sequence[str] = (),
    on_warning: Callable[[str], None] = warnings.warn,
    cassette: str | os.PathLike[str] | None = None,
    **creation: Unpack[CreateOptions],
) -> Result:
    """Run one command in a new sandbox that is deleted afterwards; the same as `skerry run`.

    `files` maps paths inside, relative to /workspace, to contents, or to a `Path` of this host. `out` is a new or empty
    directory that receives the new and changed files of /workspace; the result's `files` lists them. With `overwrite`,
    it may have content, and files of the same path are replaced. `max_size` is their maximum size, holes included; the
    default is the sandbox's disk limit for the data, and 8 GiB with the holes if that is more. `setup` are shell lines
    that must succeed first. `on_start` is as in `sandbox.run`. `on_warning` is called for each file that could not be
    copied back, if the sandbox could not be deleted and, with a network that learns, with the rules that would have
    allowed the attempts. `cassette`: a file that receives the exchanges of a `Network(cassette="record")`, or that a
    `Network(cassette="replay")` serves.
    """
    # Reject invalid arguments before a sandbox is created.
    words = run_request(cmd, {}, cwd, user, timeout).cmd
    saving = Saving(out, overwrite, max_size, cassette)
    async with run_sandbox(files, saving, setup, on_warning, creation) as sandbox:
        result = await sandbox.run(
            words, cwd=cwd, user=user, stdin=stdin, timeout=timeout, on_output=on_output, on_start=on_start
        )
    if out is not None:
        result = with_files(result, tuple(saving.saved))
    return check_result(result, words) if check else result


@dataclasses.dataclass
class Saving:
    """Where the new and changed files of /workspace go; `saved` lists them afterwards. `cassette`: the file of the
    network's exchanges."""

    out: str | os.PathLike[str] | None = None
    overwrite: bool = False
    max_size: str | int | None = None
    cassette: str | os.PathLike[str] | None = None
    saved: list[FileInfo] = dataclasses.field(default_factory=list)


@asynccontextmanager
async def run_sandbox(
    files: Mapping[str, Content], saving: Saving, setup: Sequence[str], on_warning: OnWarning, creation: CreateOptions
) -> AsyncIterator[AsyncSandbox]:
    """Yield a temporary sandbox; after the block, save its new and changed files and delete it."""
    check_temporary(files, creation, saving.max_size)
    landing = OutputDir(saving.out, overwrite=saving.overwrite) if saving.out is not None else None
    try:
        async with temporary_sandbox(files, setup, on_warning, creation, saving.cassette) as (sandbox, _):
            before = await _list_workspace(sandbox.files, lambda _: None) if landing is not None else {}
            yield sandbox
            if landing is not None:
                limit = output_limit(sandbox, saving.max_size)
                saving.saved += await _download_changed(sandbox.files, before, landing, limit, on_warning)
    finally:
        if landing is not None:
            landing.close()


def check_temporary(files: Mapping[str, Content], creation: CreateOptions, max_size: str | int | None = None) -> None:
    """Check the arguments of a sandbox that is deleted afterwards."""
    check_files(files)
    if max_size is not None:
        parse_size(max_size, "max_size")
    if "name" in creation:
        raise InvalidRequest("name: a sandbox for one command cannot have a name", hint="use Sandbox(name=…)")
    if (repo := repo_of(creation.get("repo"))) is not None:
        creation["repo"] = dataclasses.replace(repo, review=False)  # it cannot be reviewed later


@asynccontextmanager
async def temporary_sandbox(
    files: Mapping[str, Content],
    setup: Sequence[str],
    on_warning: Callable[[str], None],
    creation: CreateOptions,
    cassette: str | os.PathLike[str] | None = None,
) -> AsyncIterator[tuple[AsyncSandbox, UploadedFiles]]:
    """Yield a sandbox with these files, after its setup; after the block, report its learned network policy and delete
    it."""
    recorded = check_cassette(creation.get("network"), cassette)
    done = False
    try:
        async with AsyncSandbox(**creation) as sandbox:
            if recorded is not None:
                await sandbox.network.load_cassette(recorded)
            brought = await upload_files(sandbox.files, files)
            for line in setup:
                await sandbox.run(line, timeout=None, check=True)
            yield sandbox, brought
            if cassette is not None and recorded is None:
                save_cassette(cassette, await sandbox.network.cassette())
            if sandbox.cached_info.network.on_unknown == "learn":
                on_warning(describe_learned(await sandbox.network.suggest()))
            done = True
    except SkerryError as error:  # the deletion failed: the result is worth more
        if not done:
            raise
        on_warning(f"the sandbox could not be deleted: {error.message}")


async def upload_files(files: AsyncFiles, wanted: Mapping[str, Content]) -> UploadedFiles:
    brought = []
    for place, content in wanted.items():
        target = place if place.startswith("/") else f"{WORKSPACE}/{place}"
        if not isinstance(content, os.PathLike):
            brought.append(await files.write(target, content))
            continue
        source, mode = open_host_file(content)
        with source:
            brought.append(await files.write(target, source, mode=mode))
    return frozenset(map(file_mark, brought))


async def _list_workspace(files: AsyncFiles, on_warning: Callable[[str], None]) -> dict[str, FileInfo]:
    """Return everything below /workspace by relative path. Links are not followed; counts and depth are bounded."""
    found: dict[str, FileInfo] = {}
    pending = [""]
    while pending:
        above = pending.pop()
        try:
            entries = await files.list(f"{WORKSPACE}/{above}", user="root")
        except FileNotFound:
            continue
        for info in entries:
            # The path is built here, from checked names: the `path` in the response is not used.
            relative = f"{above}/{info.name}" if above else info.name
            try:
                check_part(info.name)
                if len(found) >= MAX_FILES:
                    raise FileRejected(f"more than {MAX_FILES} files")
            except FileRejected as refused:
                on_warning(f"{relative!r} was not copied back: {refused}")
                if len(found) >= MAX_FILES:
                    return found
                continue
            found[relative] = info
            if info.type == "directory" and relative.count("/") < MAX_DEPTH:
                pending.append(relative)
    return found


async def _download_changed(
    files: AsyncFiles, before: dict[str, FileInfo], landing: OutputDir, limit: TransferLimit, on_warning: OnWarning
) -> tuple[FileInfo, ...]:
    after = await _list_workspace(files, on_warning)
    landed = []
    for relative in changed(before, after):
        try:
            with landing.file(relative, limit, after[relative]) as file:
                async for piece in files.stream(f"{WORKSPACE}/{relative}", user="root"):
                    file.write(piece)
        except (FileRejected, FileError) as why:
            on_warning(f"{relative!r} was not copied back: {why}")
        else:
            landed.append(after[relative])
    for relative, info in after.items():
        if info.type not in ("file", "directory") and relative not in before:
            on_warning(f"{relative!r} was not copied back: it is a {info.type}")
    return tuple(landed)


async def run_code(
    code: str,
    language: str = "python",
    *,
    files: Mapping[str, Content] = {},
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    max_size: str | int | None = None,
    cwd: str | None = None,
    user: str | None = None,
    stdin: Input | None = None,
    timeout: float | None = 300,
    on_event: OnEvent | None = None,
    on_start: backend.Callback[AsyncCodeRun] | None = None,
    setup: Sequence[str] = (),
    on_warning: OnWarning = warnings.warn,
    cassette: str | os.PathLike[str] | None = None,
    saved: OnWarning = lambda _: None,
    **creation: Unpack[CreateOptions],
) -> AsyncCodeResult:
    """Run code in a new sandbox that is deleted afterwards; the same as `skerry run -l`.

    The tools of a language that `base` lacks are installed once, into an image, with progress on stderr. `out` is a new
    or empty directory that receives the files that the code created, and its pictures; `saved` is called
    for each. The rest, also `overwrite` and `on_start`, is as in `run` and `sandbox.code.stream`.
    """
    # Reject invalid arguments before a sandbox is created.
    fresh = cwd is not None or user is not None  # a default context has its own
    payload = code_request(code, language, stdin, timeout, cwd=cwd, user=user, fresh=fresh)
    check_temporary(files, creation, max_size)
    landing = OutputDir(out, overwrite=overwrite) if out is not None else None
    try:
        async with opened_client(creation.get("server")) as client:
            creation["server"] = client
            await choose_image(client, language, creation)
            async with temporary_sandbox(files, setup, on_warning, creation, cassette) as (sandbox, brought):
                result = await consume_events(events(sandbox, payload, on_start), on_event)
                made, hint = new_files(result.files, brought), hint_without_context(result)
                result = structs.replace(result, files=made, hint=hint)
                if landing is not None:
                    limit = output_limit(sandbox, max_size)
                    place = posixpath.normpath(posixpath.join(WORKSPACE, cwd or ""))
                    await save_outputs(result, landing, limit, place, on_warning, saved)
                return result
    finally:
        if landing is not None:
            landing.close()


@asynccontextmanager
async def opened_client(server: str | AsyncClient | None) -> AsyncIterator[AsyncClient]:
    """Yield the given client, or a new one that is closed afterwards."""
    client = server if isinstance(server, AsyncClient) else AsyncClient(server)
    try:
        yield client
    finally:
        if client is not server:
            await client.aclose()


async def consume_events(coming: AsyncIterator[AsyncCodeEvent], on_event: OnEvent | None) -> AsyncCodeResult:
    """Return the result, with `on_event` called for each event."""
    result: AsyncCodeResult | None = None
    async for event in coming:
        result = event.end
        if on_event is not None:
            await backend.deliver(on_event, event)
    if result is None:
        raise SandboxUnavailable("the output ended before the code did", hint="`skerry show` shows its state")
    return result


def output_limit(sandbox: AsyncSandbox, max_size: str | int | None) -> TransferLimit:
    """Return the limit for the files that are copied to `out`."""
    return TransferLimit(sandbox.cached_info.limits.disk_bytes, max_size, "max_size")


async def save_outputs(
    result: AsyncCodeResult, landing: OutputDir, limit: TransferLimit, cwd: str, on_warning: OnWarning, saved: OnWarning
) -> None:
    """Copy the files and pictures of the code to this host. Names from inside are hostile."""
    for file in result.files:
        place = relative_place(file.path, cwd)
        try:
            with landing.file(place, limit, file) as target:
                async for piece in file.stream():
                    target.write(piece)
        except (FileRejected, FileError) as why:
            on_warning(f"{place!r} was not copied back: {why}")
        else:
            saved(place)
    for place, picture in pictures(result):
        try:
            with landing.file(place, limit) as target:
                target.write(picture)
        except FileRejected as why:
            on_warning(f"{place!r} was not saved: {why}")
        else:
            saved(place)
    if result.files_cut:
        on_warning(f"the code made more files than the {len(result.files)} that were copied back")


async def choose_image(
    client: AsyncClient,
    language: str,
    creation: CreateOptions,
    session: str | None = None,
    known: Sequence[LanguageInfo] | None = None,
    on_progress: Watcher | None = None,
) -> None:
    """Select the image with the requested version, or with the tools of the language, from the server's table, unless
    one is named. Missing tools are installed once, into an image; not for a `session` that exists already."""
    if "image" in creation:
        return
    try:
        found, version = find_language(await client.languages() if known is None else known, language)
    except InvalidRequest:
        if "@" in language:
            raise
        return  # unknown or not allowed: the server explains it
    if version is not None:
        creation["image"] = image_of(found, version)
    elif found.image is not None:
        if not found.installed and not (session is not None and await _exists(client, session)):
            await client.images.install(found.name, on_progress=on_progress)
        creation["image"] = found.image


async def _exists(client: AsyncClient, name: str) -> bool:
    try:
        await AsyncSandbox.get(name, server=client)
    except NotFound:
        return False
    return True


def new_files(files: tuple[AsyncReadableFile, ...], brought: UploadedFiles) -> tuple[AsyncReadableFile, ...]:
    return tuple(file for file in files if file_mark(file) not in brought)
