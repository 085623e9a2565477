"""Code that is run for its values: languages, the contexts that keep its memory, what came of it."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from skerry.errors import InvalidRequest
from skerry.types.files import FileInfo
from skerry.types.processes import RunResult, check_cwd
from skerry.types.values import Answer, Value, check_env, check_name, check_text, check_user

CODE_MOST = 8 << 20  # bytes
STDIN_MOST = 16 << 20
TEXT_MOST = 1 << 20  # bytes of a result that is text: plain, HTML, JSON …
PICTURE_MOST = 8 << 20
RESULTS_MOST = 64  # of one run
RESULTS_BYTES_MOST = 32 << 20
OUTPUT_MOST = 16 << 20  # bytes of one result as JSON
MADE_MOST = 1000  # files that one result lists
TEXTS = (
    "text/plain", "text/html", "text/markdown", "text/latex", "image/svg+xml", "application/json",
    "application/vnd.skerry.chart+json",
)  # fmt: skip
PICTURES = ("image/png", "image/jpeg")


class LanguageInfo(Answer, frozen=True, kw_only=True):
    """A language as …/languages shows it. `version`: what was found in this sandbox; None: its toolchain is not there,
    and `missing` says what would bring it. `how`: the argv that runs a file, for people to read. `versions`: those that
    can be asked for (`python@3.12`), each with the image that has it."""

    name: str
    aliases: tuple[str, ...] = ()
    version: str | None = None
    how: str = ""
    contexts: bool = False
    compiled: bool = False
    missing: str | None = None
    versions: dict[str, str] = {}


class ContextRequest(Value, frozen=True, kw_only=True):
    """POST …/contexts: a new memory for a language. A name that is taken is a conflict; none: one is made up."""

    language: str = "python"
    name: str | None = None
    cwd: str | None = None
    env: dict[str, str | None] = {}
    user: str | None = None

    def __post_init__(self) -> None:
        check_language(self.language)
        check_name(self.name)
        check_user(self.user)
        check_env(self.env)
        check_cwd(self.cwd)


class ContextInfo(Answer, frozen=True, kw_only=True):
    """`state`: `new` has run nothing yet, or begins anew with the next run; `lost`, if there is one, says why what it
    remembered is gone. `default`: the one that runs what names no context. `process`: where it runs now."""

    name: str
    language: str
    state: Literal["new", "idle", "busy"]
    user: str
    cwd: str
    created_at: float
    used_at: float
    default: bool = False
    version: str | None = None
    process: str | None = None
    pid: int | None = None
    runs: int = 0
    waiting: int = 0
    lost: str | None = None


class CodeRequest(Value, frozen=True, kw_only=True):
    """POST …/code. `context`: whose memory it has; none: the default one of its language, made if need be. `fresh`: a
    memory of its own that is gone afterwards. `cwd`, `env`, `user` are for `fresh` ones and for languages without
    contexts; a context has its own. `files`: list what it made below its cwd."""

    code: str
    language: str | None = None
    context: str | None = None
    fresh: bool = False
    stdin: str | None = None
    stdin_base64: bytes | None = None
    timeout: float | None = None
    cwd: str | None = None
    env: dict[str, str | None] = {}
    user: str | None = None
    files: bool = True

    def __post_init__(self) -> None:
        if self.language is not None:
            check_language(self.language)
        check_name(self.context, "context")
        check_user(self.user)
        check_env(self.env)
        check_cwd(self.cwd)
        check_text("code", self.code)
        if len(self.code.encode("utf-8", "surrogatepass")) > CODE_MOST:
            raise InvalidRequest(f"code: more than {CODE_MOST >> 20} MiB", hint="put data into a file")
        if self.context is not None and self.fresh:
            raise InvalidRequest("context and fresh exclude each other")
        if self.timeout is not None and not (math.isfinite(self.timeout) and 0 < self.timeout <= 1e8):
            raise InvalidRequest(f"timeout: {self.timeout!r} is out of range", hint="seconds above 0, or none")
        if self.stdin is not None and self.stdin_base64 is not None:
            raise InvalidRequest("stdin and stdin_base64 exclude each other")
        if len(self.input or b"") > STDIN_MOST:
            raise InvalidRequest(f"stdin: more than {STDIN_MOST >> 20} MiB", hint="put it into a file")

    @property
    def input(self) -> bytes | None:
        return self.stdin.encode("utf-8", "surrogateescape") if self.stdin is not None else self.stdin_base64


class Series(Value, frozen=True, kw_only=True):
    """What was drawn as one: its name, its points. Of a histogram, x has the edges: one more than there are bars. `z`
    has a third coordinate, or a heat map's rows. `cut`: so many more points were drawn."""

    label: str | None = None
    kind: str = "line"
    x: list[Any] = []
    y: list[Any] = []
    z: list[Any] = []
    cut: int = 0


class Axes(Value, frozen=True, kw_only=True):
    """One coordinate system of a chart, with what was drawn in it."""

    title: str | None = None
    xlabel: str | None = None
    ylabel: str | None = None
    xscale: str = "linear"
    yscale: str = "linear"
    xlim: tuple[Any, Any] | None = None
    ylim: tuple[Any, Any] | None = None
    xticks: list[str] = []
    yticks: list[str] = []
    series: list[Series] = []


class Chart(Value, frozen=True, kw_only=True):
    """What a figure shows, as data."""

    title: str | None = None
    axes: list[Axes] = []


class CodeOutput(Answer, frozen=True, kw_only=True):
    """A value, or a picture, in every form that it has: by MIME type, texts as texts, pictures as base64. `main`: the
    last expression's value. `cut`: the forms that were shortened, or left out for their size (those are not in `data`).
    """

    data: dict[str, str] = {}
    main: bool = False
    cut: tuple[str, ...] = ()


class CodeError(Answer, frozen=True, kw_only=True):
    """How the code failed, in its language's own words. `line`: of the code that was given, where that is known.
    `properties`: what else an error of javascript holds: its code, a path, a status."""

    name: str
    message: str = ""
    traceback: str = ""
    line: int | None = None
    properties: dict[str, Any] = {}


class MadeFile(FileInfo, frozen=True, kw_only=True):
    """A file that a run made or changed; `media_type` by its name."""

    media_type: str = "application/octet-stream"


class CodeEnd(RunResult, frozen=True, kw_only=True):
    """How a run of code ended, on the wire. `context`: whose memory it had; `fresh`: that it began without one because
    of `lost` (the first run of a context has no `lost`). `after`: whether the context's memory is still there, and if
    not, that it was replaced; None: it had none. `results` only where the answer is one JSON."""

    language: str
    version: str | None = None
    context: str | None = None
    lost: str | None = None
    after: Literal["kept", "replaced"] | None = None
    error: CodeError | None = None
    results: tuple[CodeOutput, ...] = ()
    files: tuple[MadeFile, ...] = ()
    files_cut: bool = False


def check_language(language: str, what: str = "language") -> None:
    """Only its form: which ones there are, the server knows."""
    check_text(what, language)
    if not language or len(language) > 64 or not language.isprintable() or language != language.strip():
        raise InvalidRequest(
            f"{what}: {language[:64]!r} is not a language's name", hint="`skerry languages` lists them"
        )


chart_json = msgspec.json.Decoder(Chart)
