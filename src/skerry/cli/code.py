"""run -l, exec -l: code in a language, what it prints, gives, draws and makes."""

from __future__ import annotations

import os
import re
import select
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from skerry.cli import denials, talk
from skerry.cli.session import Session, known_languages
from skerry.errors import InvalidRequest
from skerry.types import CODE_MOST, STDIN_MOST, WORKSPACE, CodeError

if TYPE_CHECKING:
    from skerry.client._sync.code import CodeEvent, CodeResult
    from skerry.client._sync.sandbox import Sandbox
    from skerry.client.code_outcome import CodeValue

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT = "python"
_EXITS = ("SystemExit", "ExitStatus")
_ONLY_A_STATUS = re.compile(r"Error: exit code [0-9]+")
_PLACE = re.compile(rb"[^\s'\"(]*/skerry-code-[0-9a-f]{16}/")  # where a file of code was put, and is no longer
_SEEN = 128 << 10  # bytes of stderr
_PATIENCE = 2.0  # seconds of silence after which we say what is waited for


class LanguageName(click.ParamType[str]):
    """A language, perhaps with a version; the shell completes those that the server knows."""

    name = "language"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        names = known_languages(Session(server=ctx.find_root().params.get("server")))
        return [click.shell_completion.CompletionItem(name) for name in names if name.startswith(incomplete)]


_OPTIONS = (
    click.option(
        "-l", "--language", type=LanguageName(), metavar="LANGUAGE",
        help="Run code: a FILE of it, or - for stdin. Like python, or python@3.12.",
    ),
    click.option("--code", metavar="TEXT", help="Run this code; python unless -l names another language."),
)  # fmt: skip
_CONTEXT = (
    click.option("--context", metavar="NAME", help="With -l: in that context, and not in its language's default one."),
    click.option("--fresh", is_flag=True, help="With -l: without a memory of what ran before."),
    click.option("--out", metavar="DIR", help="With -l: a new or empty directory for what the code makes and draws."),
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
class Wanted:
    """Code to run, and what it can read from stdin. Without a language it is its context's, or python."""

    language: str | None
    code: str
    stdin: bytes | None


def wanted(given: dict[str, Any], command: tuple[str, ...]) -> Wanted | None:
    """The code that is asked for, if any. Its options are taken out of `given`."""
    language, code = given.pop("language"), given.pop("code")
    words = command[1:] if command[:1] == ("--",) else command
    if language is None and code is None:
        if given.get("context") or given.get("fresh") or ("context" in given and given["out"]):
            raise click.UsageError("--context, --fresh and --out go with -l")
        return None
    if any(given.get(name) for name in ("tty", "detach", "interactive", "shell", "journal")):
        raise click.UsageError("-l goes without -d, -i, -t, --session and --journal")
    if code is not None:
        if words:
            raise click.UsageError("--code goes without a FILE")
        return Wanted(language, code, _stdin())
    if len(words) != 1:
        raise click.UsageError("-l takes one FILE of code after all options, - for stdin, or --code TEXT")
    if words[0] == "-":
        return Wanted(language, _decoded(b"".join(_pieces("-", CODE_MOST)), "-"), None)
    return Wanted(language, _read(words[0]), _stdin())


def without_default_image(wish: dict[str, Any], wanted: Wanted, named: str | None) -> dict[str, Any]:
    """A version that is asked for chooses the image, unless somebody named one."""
    if "@" in (wanted.language or "") and named is None and wish["image"] == "base":
        return {name: value for name, value in wish.items() if name != "image"}
    return wish


def _read(name: str) -> str:
    try:
        with open(name, "rb") as file:
            data = file.read(CODE_MOST + 1)
        if len(data) > CODE_MOST:
            raise InvalidRequest(f"{name}: more than {CODE_MOST >> 20} MiB", hint="put data into a file of its own")
        return _decoded(data, name)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"{name}: {getattr(error, 'strerror', None) or error}", hint="--code TEXT takes the code itself"
        ) from error


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name}: the code is not UTF-8: {error.reason} at byte {error.start}") from error


def _stdin() -> bytes | None:
    """All of our stdin, if it is a file or a pipe. Code gets it whole: it is read to its end first."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return None
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return None
    return b"".join(_pieces("stdin", STDIN_MOST))


def _pieces(what: str, most: int) -> list[bytes]:
    pieces, size = [], 0
    if not select.select([0], [], [], _PATIENCE)[0]:
        talk.say("the code is read from stdin" if what == "-" else "stdin is read to its end; </dev/null gives none")
    while piece := os.read(0, 256 << 10):
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise InvalidRequest(f"{what}: more than {most >> 20} MiB", hint="--file brings a file in")
    return pieces


class Shown:
    """Events as a person or a pipe reads them: what is printed, values as text, errors on stderr."""

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
        if error.name in _EXITS:  # it left by itself: with a status, or with something to say
            if not error.message.isdecimal():
                self._line("stderr", error.message)
            return
        said = f"{error.name}: {error.message}" if error.message else error.name
        words = error.traceback.rstrip("\n")
        if self._was_shown(words):
            words = "" if error.message in words else said
        elif not words and not _ONLY_A_STATUS.fullmatch(said):
            words = said
        if words:
            self._line("stderr", words)

    def _was_shown(self, words: str) -> bool:
        """Of bash, and of what is compiled, an error is made of what it wrote to stderr."""
        seen = _PLACE.sub(b"", self._seen).decode("utf-8", "replace").rstrip()
        return bool(words.strip()) and seen.endswith(words.rstrip())

    def _value(self, value: CodeValue) -> None:
        drawn = [form for form in value.data if form.startswith("image/")]
        self.pictures += len(drawn)
        if value.text is not None and (value.main or not drawn):
            self._line("stdout", value.text)
        for form in value.cut:
            talk.say(f"note: a result's {form} " + ("is shortened" if form in value.data else "is too large"))

    def _line(self, stream: str, text: str) -> None:
        begin = b"\n" if self._open[stream] else b""
        self._show(stream, begin + text.encode("utf-8", "replace") + b"\n")

    def _show(self, stream: str, data: bytes) -> None:
        self._open[stream] = not data.endswith(b"\n")
        if stream == "stderr":
            self._seen = (self._seen + data)[-_SEEN:]
        talk.show(stream, data)


def run_once(
    session: Session,
    wanted: Wanted,
    wish: dict[str, Any],
    files: Mapping[str, Path],
    as_json: bool,
    given: dict[str, Any],
) -> int:
    """In a new sandbox that is gone afterwards."""
    from skerry.client._sync.oneshot_code import run_code

    shown, out = Shown(), given["out"]
    result = run_code(
        wanted.code, wanted.language or DEFAULT, stdin=wanted.stdin, files=files, out=out, cwd=given["cwd"],
        user=given["user"], timeout=talk.seconds(given["timeout"], "--timeout"),
        on_event=None if as_json else shown.event, tell=talk.say, saved=_told(session, out), server=session.client(),
        **wish,
    )  # fmt: skip
    return _finish(session, result, shown, as_json, out)


def run_there(
    session: Session, sandbox: Sandbox, wanted: Wanted, as_json: bool, given: dict[str, Any], options: dict[str, Any]
) -> int:
    """In a sandbox that exists, in its language's default context or the one that is named."""
    from skerry.client._sync.oneshot_code import followed, keep
    from skerry.client.landing import Landing

    shown, out = Shown(), given["out"]
    events = sandbox.code.stream(
        wanted.code, wanted.language, stdin=wanted.stdin, context=given["context"], fresh=given["fresh"], **options
    )
    landing = Landing(out) if out is not None else None
    try:
        result = followed(events, None if as_json else shown.event)
        if landing is not None:
            keep(result, landing, result.cwd or options["cwd"] or WORKSPACE, talk.say, _told(session, out))
    finally:
        if landing is not None:
            landing.close()
    return _finish(session, result, shown, as_json, out, sandbox.name or sandbox.id)


def _told(session: Session, out: str | None) -> Callable[[str], None]:
    def saved(place: str) -> None:
        if not session.quiet:
            talk.say(f"saved: {out}/{place}")

    return saved


def _finish(
    session: Session, result: CodeResult, shown: Shown, as_json: bool, out: str | None, sandbox: str | None = None
) -> int:
    if as_json:
        talk.give_json({**talk.result_as_data(result), "text": result.text})
    if not session.quiet:
        for line in _notes(result, shown, out, sandbox):
            talk.say(line)
    return talk.code_of_result(result)


def _notes(result: CodeResult, shown: Shown, out: str | None, sandbox: str | None) -> Iterator[str]:
    if shown.pictures and out is None:
        yield f"note: {shown.pictures} picture{'s' * (shown.pictures > 1)} drawn; --out DIR saves what is drawn"
    if result.lost:
        yield f"note: the context began anew: {result.lost}"
    told = denials.hints(result.denied, sandbox)
    if result.hint is not None and (not told or result.timed_out or result.oom_killed):
        told = [*told, result.hint]
    yield from (f"hint: {line}" for line in told)
