"""run -l, exec -l: run code in a language and show its output, values, pictures and files."""

from __future__ import annotations

import os
import posixpath
import re
import select
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from skerry.cli import output
from skerry.cli.context import CliContext, known_languages
from skerry.cli.signals import ForwardedInterrupts
from skerry.client._sync.run_once import consume_events, output_limit, run_code, save_outputs
from skerry.client.host.output_dir import OutputDir
from skerry.errors import InvalidRequest
from skerry.types import MAX_CODE, MAX_STDIN, WORKSPACE, CodeError

if TYPE_CHECKING:
    from skerry.client._sync.code import CodeEvent, CodeResult
    from skerry.client._sync.sandbox import Sandbox
    from skerry.client.results.code import CodeValue

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT = "python"
_EXITS = ("SystemExit", "ExitStatus")
_INTERRUPTED = ("Interrupted", "KeyboardInterrupt")
_ONLY_A_STATUS = re.compile(r"Error: exit code [0-9]+")
_PLACE = re.compile(rb"[^\s'\"(]*/skerry-code-[0-9a-f]{16}/")  # path of the temporary file with the code
_SEEN = 128 << 10  # bytes of stderr
MAX_SIZE_HELP = "Maximum size of the files saved to --out. Default: the sandbox's disk limit."
_STDIN_NOTICE_S = 2.0  # without data on stdin for this long, print that it is being read


class LanguageName(click.ParamType[str]):
    """A language, optionally with a version; the shell completes those of the server."""

    name = "language"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        names = known_languages(CliContext(server=ctx.find_root().params.get("server")))
        return [click.shell_completion.CompletionItem(name) for name in names if name.startswith(incomplete)]


overwrite_option = click.option(
    "--overwrite", is_flag=True, help="With --out: allow a directory with files, and replace those of the same path."
)
_OPTIONS = (
    click.option(
        "-l", "--language", type=LanguageName(), metavar="LANGUAGE",
        help="Run code from FILE, or from stdin with -, in this language: python, python@3.12.",
    ),
    click.option("--code", metavar="TEXT", help="Run this code. Default language: python."),
)  # fmt: skip
_CONTEXT = (
    click.option(
        "--context", metavar="NAME", help="With -l: run in this context. Default: the language's default context."
    ),
    click.option("--no-context", is_flag=True, help="With -l: run without a context, so that no variables are kept."),
    click.option(
        "--out", metavar="DIR", help="With -l: save created files and pictures to this new or empty directory."
    ),
    overwrite_option,
    click.option("--max-size", metavar="SIZE", help=MAX_SIZE_HELP),
)


def code_options(command: F) -> F:
    return _with(command, _OPTIONS)


def context_options(command: F) -> F:
    return _with(command, _CONTEXT)


def _with(command: F, options: tuple[Callable[[F], F], ...]) -> F:
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True)
class CodeRequest:
    """Code to run and its stdin. Default language: that of the context, or python."""

    language: str | None
    code: str
    stdin: bytes | None


def code_request(given: dict[str, Any], command: tuple[str, ...]) -> CodeRequest | None:
    """Remove the code options from `given` and return the requested code, if any."""
    language, code = given.pop("language"), given.pop("code")
    words = command[1:] if command[:1] == ("--",) else command
    if language is None and code is None:
        if given.get("context") or given.get("no_context") or ("context" in given and given["out"]):
            raise click.UsageError("--context, --no-context and --out need -l")
        return None
    if any(given.get(name) for name in ("tty", "detach", "interactive", "shell", "max_log_size")):
        raise click.UsageError("-l cannot be combined with -d, -i, -t, --session or --max-log-size")
    if code is not None:
        if words:
            raise click.UsageError("--code cannot be combined with a FILE")
        return CodeRequest(language, code, _stdin())
    if len(words) != 1:
        raise click.UsageError("-l takes one FILE of code after all options, - for stdin, or --code TEXT")
    if words[0] == "-":
        return CodeRequest(language, _decoded(b"".join(_read_stdin("-", MAX_CODE)), "-"), None)
    return CodeRequest(language, _read(words[0]), _stdin())


def without_default_image(arguments: dict[str, Any], request: CodeRequest, named: str | None) -> dict[str, Any]:
    """Leave the image out if none is named: the language and its version select it."""
    if request.language is not None and named is None and arguments["image"] == "base":
        return {name: value for name, value in arguments.items() if name != "image"}
    return arguments


def _read(name: str) -> str:
    try:
        with open(name, "rb") as file:
            data = file.read(MAX_CODE + 1)
        if len(data) > MAX_CODE:
            raise InvalidRequest(f"{name}: more than {MAX_CODE >> 20} MiB", hint="put data into a separate file")
        return _decoded(data, name)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"{name}: {getattr(error, 'strerror', None) or error}", hint="use --code TEXT to pass the code itself"
        ) from error


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name}: the code is not UTF-8: {error.reason} at byte {error.start}") from error


def _stdin() -> bytes | None:
    """Read all of stdin if it is a file or a pipe: code receives its stdin as one value."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return None
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return None
    return b"".join(_read_stdin("stdin", MAX_STDIN))


def _read_stdin(name: str, limit: int) -> list[bytes]:
    pieces, size = [], 0
    if not select.select([0], [], [], _STDIN_NOTICE_S)[0]:
        output.info("reading the code from stdin" if name == "-" else "reading stdin to its end; </dev/null gives none")
    while piece := os.read(0, 256 << 10):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise InvalidRequest(f"{name}: more than {limit >> 20} MiB", hint="upload a file with --file")
    return pieces


class EventPrinter:
    """Prints events: output unchanged, values as text, errors to stderr."""

    def __init__(self) -> None:
        self._open = {"stdout": False, "stderr": False}  # the last line has not ended
        self._seen = b""  # the end of stderr
        self.pictures = 0

    def event(self, event: CodeEvent) -> None:
        if event.type in ("stdout", "stderr"):
            self._show(event.type, event.data)
        elif event.result is not None:
            self._value(event.result)
        elif event.error is not None:
            self._error(event.error)

    def _error(self, error: CodeError) -> None:
        if error.name in _EXITS:  # the program exited by itself, with a status or a message
            if not error.message.isdecimal():
                self._line("stderr", error.message)
            return
        summary = f"{error.name}: {error.message}" if error.message else error.name
        words = error.traceback.rstrip("\n")
        if self._was_shown(words):
            words = "" if error.message in words else summary
        elif not words and not _ONLY_A_STATUS.fullmatch(summary):
            words = summary
        if words:
            self._line("stderr", words)

    def _was_shown(self, words: str) -> bool:
        """Return whether stderr ended with these words: errors of bash and of compiled languages consist of their
        stderr."""
        seen = _PLACE.sub(b"", self._seen).decode("utf-8", "replace").rstrip()
        return bool(words.strip()) and seen.endswith(words.rstrip())

    def _value(self, value: CodeValue) -> None:
        drawn = [form for form in value.data if form.startswith("image/")]
        self.pictures += len(drawn)
        if value.text is not None and (value.main or not drawn):
            self._line("stdout", value.text)
        for form in value.cut:
            output.info(f"note: a result's {form} " + ("is shortened" if form in value.data else "is too large"))

    def _line(self, stream: str, text: str) -> None:
        begin = b"\n" if self._open[stream] else b""
        self._show(stream, begin + text.encode("utf-8", "replace") + b"\n")

    def _show(self, stream: str, data: bytes) -> None:
        self._open[stream] = not data.endswith(b"\n")
        if stream == "stderr":
            self._seen = (self._seen + data)[-_SEEN:]
        output.write(stream, data)


def run_once(
    cli: CliContext,
    request: CodeRequest,
    arguments: dict[str, Any],
    files: Mapping[str, Path],
    as_json: bool,
    given: dict[str, Any],
) -> int:
    """Run code in a new sandbox and delete the sandbox afterwards."""
    printer, out = EventPrinter(), given["out"]
    with ForwardedInterrupts() as interrupts:
        result = run_code(
            request.code, request.language or DEFAULT, stdin=request.stdin, files=files, out=out,
            overwrite=given["overwrite"], max_size=given["max_size"], cwd=given["cwd"], user=given["user"],
            timeout=output.parse_seconds(given["timeout"], "--timeout"), cassette=given["cassette"],
            on_event=None if as_json else printer.event, on_start=interrupts.started, on_warning=output.info,
            saved=_save_reporter(cli, out), server=cli.client(), **arguments,
        )  # fmt: skip
    return _finish(cli, result, printer, as_json, out, interrupted=interrupts.pressed)


def run_in_sandbox(
    cli: CliContext,
    sandbox: Sandbox,
    request: CodeRequest,
    as_json: bool,
    given: dict[str, Any],
    options: dict[str, Any],
) -> int:
    """Run code in an existing sandbox, in the named context or the default context of its language."""
    printer, out, interrupts = EventPrinter(), given["out"], ForwardedInterrupts()
    events = sandbox.code.stream(
        request.code,
        request.language,
        stdin=request.stdin,
        context=given["context"],
        fresh=given["no_context"],
        on_start=interrupts.started,
        **options,
    )
    landing = OutputDir(out, overwrite=given["overwrite"]) if out is not None else None
    try:
        with interrupts:
            result = consume_events(events, None if as_json else printer.event)
        if landing is not None:
            place = result.cwd or posixpath.normpath(posixpath.join(WORKSPACE, options["cwd"] or ""))
            limit = output_limit(sandbox, given["max_size"])
            save_outputs(result, landing, limit, place, output.info, _save_reporter(cli, out))
    finally:
        if landing is not None:
            landing.close()
    return _finish(cli, result, printer, as_json, out, sandbox.name or sandbox.id, interrupted=interrupts.pressed)


def _save_reporter(cli: CliContext, out: str | None) -> Callable[[str], None]:
    def saved(place: str) -> None:
        if not cli.quiet:
            output.info(f"saved: {out}/{place}")

    return saved


def _finish(
    cli: CliContext,
    result: CodeResult,
    printer: EventPrinter,
    as_json: bool,
    out: str | None,
    sandbox: str | None = None,
    *,
    interrupted: bool,
) -> int:
    if as_json:
        output.json({**output.result_data(result), "text": result.text})
    if not cli.quiet:
        for line in _notes(result, printer, out, sandbox):
            output.info(line)
    if interrupted and result.signal is None and result.error is not None and result.error.name in _INTERRUPTED:
        return output.EXIT_INTERRUPTED  # as of a program that SIGINT ended; a context survives it
    return output.result_exit_code(result)


def _notes(result: CodeResult, printer: EventPrinter, out: str | None, sandbox: str | None) -> Iterator[str]:
    if printer.pictures and out is None:
        yield f"note: {printer.pictures} picture{'s' * (printer.pictures > 1)} drawn; --out DIR saves them"
    if result.lost:
        yield f"note: the context was restarted: {result.lost}"
    hints = output.denial_hints(result.denied, sandbox)
    if result.hint is not None and (not hints or result.timed_out or result.oom_killed):
        hints = [*hints, result.hint]
    yield from (f"hint: {line}" for line in hints)
