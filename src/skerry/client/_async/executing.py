"""`execute_code`: code in a language, in a sandbox of its own or one that is kept, and an answer for other systems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from skerry.client._async.client import AsyncClient
from skerry.client._async.code import AsyncCodeFile
from skerry.client._async.oneshot import Content, bring_in, check_once
from skerry.client._async.sandbox import AsyncSandbox
from skerry.client.code_outcome import Brought, hint_alone, mark_of
from skerry.client.code_requests import Input, code_request
from skerry.client.content import check_contents
from skerry.client.description import Creation
from skerry.client.execute_outcome import (
    CONTENT_FILES_MOST,
    CONTENT_MOST,
    CONTENTS_MOST,
    OUTPUT_CHARS,
    ExecutedFile,
    ExecuteResult,
    LimitsApplied,
    check_chars,
    executed,
    limits_of,
    not_set_up,
)
from skerry.errors import (
    Conflict,
    FileFailure,
    HostUnsupported,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    RegistryFailed,
    SetupFailed,
)
from skerry.types import check_name, find_language, image_of

# What says that the code was not run, and why. A server that is not there, or a sandbox that fails, is no answer.
_SETUP = (SetupFailed, InvalidRequest, NotFound, Conflict, QuotaExceeded, HostUnsupported, RegistryFailed, FileFailure)


async def execute_code(
    language: str,
    code: str,
    stdin: Input | None = None,
    timeout: float | None = 30,
    session_id: str | None = None,
    files: Mapping[str, Content] = {},
    *,
    max_output_chars: int = OUTPUT_CHARS,
    **creation: Unpack[Creation],
) -> ExecuteResult:
    """Run code, and tell all about it: `stdout stderr exit_code execution_time status error_message resource_usage
    limits_applied files`. What the code does is never an exception; what can't be asked for is, and a server or a
    sandbox that fails.

    `language` may name a version (`python@3.12`), which chooses the image unless `image` does. `session_id` names a
    sandbox that is kept, made if there is none, in which the language's memory and the files last; without one, all is
    gone afterwards. `files` maps places inside, relative to /workspace, to content, or to a `Path` of this host.
    `max_output_chars` is for stdout and for stderr. The arguments of `Sandbox(...)` are for a sandbox that is made.
    """
    # What is wrong is said before a sandbox is made.
    code_request(code, language, stdin, timeout)
    check_name(session_id, "session_id")
    check_chars(max_output_chars)
    if session_id is None:
        check_once(files, creation)
    else:
        check_contents(files.values())
    limits = LimitsApplied(time_limit_seconds=timeout, max_output_chars=max_output_chars)
    given = creation.get("server")
    client = given if isinstance(given, AsyncClient) else AsyncClient(given)
    creation["server"] = client
    try:
        await choose_image(client, language, creation)
        async with await _sandbox(session_id, creation) as sandbox:
            limits = limits_of(sandbox.known, limits)
            brought = await bring_in(sandbox.files, files)
            result = await sandbox.code.run(code, language, stdin=stdin, timeout=timeout)
            notice = hint_alone(result) if session_id is None else result.hint
            return executed(result, limits, await _contents(made_of(result.files, brought)), notice)
    except _SETUP as error:
        return not_set_up(error, limits)
    finally:
        if client is not given:
            await client.aclose()


async def choose_image(client: AsyncClient, language: str, creation: Creation) -> None:
    """The image that has the version which is asked for, by the server's table, unless one is named."""
    if "@" in language and "image" not in creation:
        found, version = find_language(await client.languages(), language)
        if version is not None:
            creation["image"] = image_of(found, version)


async def _sandbox(session: str | None, creation: Creation) -> AsyncSandbox:
    if session is not None:
        return await AsyncSandbox.get_or_create(session, **creation)
    return await AsyncSandbox(**creation).create()


def made_of(files: tuple[AsyncCodeFile, ...], brought: Brought) -> tuple[AsyncCodeFile, ...]:
    return tuple(file for file in files if mark_of(file) not in brought)


async def _contents(files: tuple[AsyncCodeFile, ...]) -> tuple[ExecutedFile, ...]:
    told, left = [], CONTENTS_MOST
    for number, file in enumerate(files):
        content = None
        if number < CONTENT_FILES_MOST and file.size <= min(left, CONTENT_MOST):
            try:
                content = await file.read_bytes(length=file.size)
                left -= len(content)
            except FileFailure:
                content = None
        told.append(ExecutedFile(path=file.path, size=file.size, media_type=file.media_type, content=content))
    return tuple(told)
