# Generated from client/_async/execute_code.py by scripts/generate_sync.py. Do not edit.
"""`execute_code` and its relatives: run code in a new or a kept sandbox and return one flat result."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Unpack

from msgspec import structs

from skerry.client._sync.client import Client
from skerry.client._sync.code import CodeResult, CodeRun, ReadableFile
from skerry.client._sync.run_once import (
    Content,
    check_temporary,
    choose_image,
    new_files,
    opened_client,
    upload_files,
)
from skerry.client._sync.sandbox import Sandbox
from skerry.client.create_options import CreateOptions, check_creation
from skerry.client.host.archive_files import Watcher
from skerry.client.host.content import check_files
from skerry.client.results.code import check_code, fields_of, hint_without_context
from skerry.client.results.execute import (
    DEFAULT_OUTPUT_CHARS,
    DEFAULT_TIMEOUT,
    MAX_CONTENT_BYTES,
    MAX_CONTENT_FILES,
    MAX_TOTAL_CONTENT_BYTES,
    ExecuteResult,
    LimitsApplied,
    Stage,
    check_chars,
    check_timeout,
    execute_result,
    failed_result,
    limits_of,
    session_name,
    timeout_in_force,
)
from skerry.client.transport.connection import NotConnected
from skerry.client.transport.requests.code import Input, code_request, languages
from skerry.errors import FileError, InvalidRequest, SkerryError
from skerry.types import MAX_CODE, LanguageList, Limits, OutputFile, find_language, language_of_file


def execute_code(
    language: str,
    code: str,
    stdin: Input | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
    session_id: str | None = None,
    files: Mapping[str, Content] = {},
    *,
    check: bool = False,
    max_output_chars: int = DEFAULT_OUTPUT_CHARS,
    on_progress: Watcher | None = None,
    **creation: Unpack[CreateOptions],
) -> ExecuteResult:
    """Run code and return `status stdout stderr exit_code execution_time error_message resource_usage limits_applied
    files text results denied truncated notice`, in every case: invalid arguments, failing code and a failing sandbox
    are a status, not an exception. With `check=True` they raise: CommandTimeout, OutOfMemory, NetworkDenied, another
    CommandFailed, or the error of the set-up, such as QuotaExceeded.

    `language` may name a version (`python@3.12`), which selects the image unless `image` is given. The tools of a
    language that `base` lacks are installed once, into an image, with progress on stderr, or with calls of
    `on_progress`. `timeout`: from 1 second to the server's `max.timeout`; None is the default of 30, or that maximum.
    `session_id` names a sandbox that is kept, and created if missing, in which the language's memory and the files
    last; without it everything is deleted afterwards. `files` maps paths inside, relative to /workspace, to contents,
    or to a `Path` of this host. `max_output_chars` applies to stdout and to stderr. The arguments of `Sandbox(...)`
    apply to a new sandbox.
    """
    execution = _Execution(
        language, code, stdin, timeout, session_id, files, max_output_chars, creation, on_progress
    )  # fmt: skip
    try:
        return execution.run(check)
    except Exception as error:  # also those of the caller's own objects, such as a generator in `files`
        if check:
            raise
        return failed_result(error, execution.limits, execution.stage)


def execute_file(
    path: str | os.PathLike[str], language: str | None = None, *, check: bool = False, **options: Any
) -> ExecuteResult:
    """Run the code of a file on this host, as `execute_code(language, code, check=check, **options)` does. Without a
    language, the suffix of the file's name selects it."""
    try:
        code = _read_code(path)
        language = language_of_file(os.fsdecode(path)) if language is None else language
    except SkerryError as error:
        if check:
            raise
        return failed_result(error, LimitsApplied())
    return execute_code(language, code, check=check, **options)


def execute_with_limits(language: str, code: str, limits: Limits, **options: Any) -> ExecuteResult:
    """Run code within these limits, as `execute_code(language, code, limits=limits, **options)` does."""
    return execute_code(language, code, limits=limits, **options)


def supported_languages(server: str | Client | None = None) -> list[str]:
    """Return the names of the languages that `execute_code` accepts."""
    with opened_client(server) as client:
        return [language.name for language in client.languages()]


def validate_language(language: str, server: str | Client | None = None) -> str:
    """Return the language's own name (`py` is `python`). Raise InvalidRequest for an unknown language."""
    with opened_client(server) as client:
        return find_language(client.languages(), language)[0].name


_Ended = tuple[CodeResult, LimitsApplied, tuple[OutputFile, ...], str | None]  # the last: the hint


class _Execution:
    """The arguments of a call, checked in `run`. `limits`: those that are known so far. `problems`: failures after
    the end of the code, which do not discard its result."""

    def __init__(
        self, language: str, code: str, stdin: Input | None, timeout: float | None, session_id: str | None,
        files: Mapping[str, Content], max_output_chars: int, creation: CreateOptions, on_progress: Watcher | None,
    ) -> None:  # fmt: skip
        self.language, self.code, self.stdin, self.timeout = language, code, stdin, timeout
        self.session_id, self.files, self.creation = session_id, files, creation
        self.max_output_chars, self.on_progress = max_output_chars, on_progress
        self.limits = LimitsApplied()
        self.stage: Stage = "setup"
        self.problems: list[str] = []

    def run(self, check: bool) -> ExecuteResult:
        self._check()  # before a sandbox is created
        ended: _Ended | None = None
        try:
            with opened_client(self.creation.get("server")) as client:
                self.creation["server"] = client
                self._prepare(client)
                with self._sandbox() as sandbox:
                    self.limits = limits_of(sandbox.cached_info, self.limits)
                    ended = self._run_in(sandbox, check)
        except Exception as error:
            if ended is None:
                raise
            self.problems.append(f"the sandbox could not be deleted: {getattr(error, 'message', error)}")
        return execute_result(*ended, self.problems)

    def _run_in(self, sandbox: Sandbox, check: bool) -> _Ended:
        brought = upload_files(sandbox.files, self.files)
        limit, self.stage = self.limits.time_limit_seconds, "requested"
        try:
            result = sandbox.code.run(
                self.code, self.language, stdin=self.stdin, timeout=limit, on_start=self._started
            )
        except NotConnected:
            self.stage = "setup"
            raise
        notice = hint_without_context(result) if self.session_id is None else result.hint
        if check:
            check_code(result)
        files, problem = _contents(new_files(result.files, brought))
        self.problems += problem
        return result, self.limits, files, notice

    def _started(self, _: CodeRun) -> None:
        self.stage = "started"

    def _check(self) -> None:
        if not isinstance(self.language, str):
            raise InvalidRequest(f"language: {self.language!r} is not a str", hint='like "python"')
        check_chars(self.max_output_chars)
        limit = check_timeout(self.timeout)
        self.limits = LimitsApplied(time_limit_seconds=limit, max_output_chars=self.max_output_chars)
        code_request(self.code, self.language, self.stdin, limit)
        if not self.code.strip():
            raise InvalidRequest("the code is empty", hint="give a program")
        if self.creation.get("limits", self) is None:
            del self.creation["limits"]  # the default
        if self.session_id is None:
            check_temporary(self.files, self.creation)
        else:
            session_name(self.session_id)
            check_files(self.files)
        check_creation(self.creation)

    def _prepare(self, client: Client) -> None:
        """Apply the server's maximum and select the image."""
        rules = client.request_json(languages(None), LanguageList)
        limit = timeout_in_force(check_timeout(self.timeout), rules.max_timeout)
        self.limits = structs.replace(self.limits, time_limit_seconds=limit)
        session = None if self.session_id is None else session_name(self.session_id)
        choose_image(client, self.language, self.creation, session, rules.languages, self.on_progress)

    def _sandbox(self) -> Sandbox:
        if self.session_id is not None:
            return Sandbox.get_or_create(session_name(self.session_id), **self.creation)
        return Sandbox(**self.creation).start()


def _read_code(path: str | os.PathLike[str]) -> str:
    if not isinstance(path, str | os.PathLike):
        raise InvalidRequest(f"path: {path!r} is not a path", hint="give the path of a file")
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_CODE + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidRequest(f"{os.fspath(path)}: {why}", hint="give the path of a file") from error
    if len(data) > MAX_CODE:
        raise InvalidRequest(f"{os.fspath(path)}: more than {MAX_CODE >> 20} MiB", hint="code is text")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{os.fspath(path)}: not UTF-8", hint="code is text") from None


def _contents(files: tuple[ReadableFile, ...]) -> tuple[tuple[OutputFile, ...], list[str]]:
    """Return the files with their contents, and the problem that ended the reading, if any."""
    listed, left, problem = [], MAX_TOTAL_CONTENT_BYTES, list[str]()
    for number, file in enumerate(files):
        content = None
        if not problem and number < MAX_CONTENT_FILES and file.size <= min(left, MAX_CONTENT_BYTES):
            try:
                content = file.read_bytes(length=file.size)
                left -= len(content)
            except FileError:
                content = None
            except SkerryError as error:
                problem.append(f"the files could not be read: {error.message}")
        listed.append(OutputFile(**fields_of(file) | {"content": content}))
    return tuple(listed), problem
