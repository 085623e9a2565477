"""Code that is run for its values: languages, contexts that keep variables, results."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from skerry.errors import InvalidRequest
from skerry.types.files import FileInfo
from skerry.types.processes import RunResult, check_cwd
from skerry.types.values import Answer, Value, check_env, check_name, check_text, check_user

MAX_CODE = 8 << 20  # bytes
MAX_STDIN = 16 << 20
MAX_TEXT = 1 << 20  # bytes of a text result: plain, HTML, JSON …
MAX_PICTURE = 8 << 20
MAX_RESULTS = 64  # per run
MAX_RESULTS_BYTES = 32 << 20
MAX_OUTPUT = 16 << 20  # bytes of one result as JSON
MAX_OUTPUT_FILES = 1000  # files that one result lists
TEXTS = (
    "text/plain", "text/html", "text/markdown", "text/latex", "image/svg+xml", "application/json",
    "application/javascript", "application/vnd.skerry.chart+json",
)  # fmt: skip
PICTURES = ("image/png", "image/jpeg")

KernelName = Literal["python", "javascript", "typescript", "shell"]
LANGUAGE = re.compile(r"[a-z0-9](?:[a-z0-9+#._-]{0,30}[a-z0-9+#])?")
VERSION = re.compile(r"[0-9]+(?:\.[0-9a-z]+)*")
SUFFIXES = {
    ".py": "python", ".js": "javascript", ".mjs": "javascript", ".cjs": "javascript", ".ts": "typescript",
    ".mts": "typescript", ".sh": "bash", ".bash": "bash", ".c": "c", ".cpp": "cpp", ".cc": "cpp", ".cxx": "cpp",
    ".go": "go", ".rs": "rust", ".java": "java", ".rb": "ruby", ".php": "php", ".r": "r", ".pl": "perl",
}  # fmt: skip
_PLACES = re.compile(r"\{[a-z]+\}")
_ARGV = ("version", "compile", "run", "context")


# -- languages by name and version ----------------------------------------------------------------------------------


class ImageLanguage(Value, frozen=True, kw_only=True):
    """The differences of a language, in general or in one image. None: unchanged; an empty list: removed.

    Words of an argv, and values of `env`, may hold `{file}` (the code), `{out}` (the compiled program) and `{dir}` (the
    directory of both, separate for each run). `errors`: patterns that find the failure in stderr, with the groups
    `name`, `message` and `line`."""

    file: str | None = None
    version: tuple[str, ...] | None = None
    compile: tuple[str, ...] | None = None
    run: tuple[str, ...] | None = None
    context: tuple[str, ...] | None = None
    env: dict[str, str] | None = None
    errors: tuple[str, ...] | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        for name in _ARGV:
            for word in getattr(self, name) or ():
                _check_word(name, word)
        check_env(self.env or {})
        for word in (self.env or {}).values():
            _check_word("env", word)
        if self.file is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", self.file):
            raise InvalidRequest(f"file: {self.file[:80]!r} is not the plain name of a file")
        if self.run == ():
            raise InvalidRequest("run: it is empty", hint='run = ["ruby", "{file}"]')
        check_text("note", self.note or "")
        for pattern in self.errors or ():
            _check_pattern(pattern)


class LanguageForm(ImageLanguage, frozen=True, kw_only=True):
    """A row of the setting `languages`. `packages`: packages of the base image's distribution that install it; `image`:
    an image that has it; `versions`: images by version."""

    aliases: tuple[str, ...] | None = None
    kernel: KernelName | None = None
    packages: tuple[str, ...] | None = None
    image: str | None = None
    versions: dict[str, str] | None = None
    images: dict[str, ImageLanguage] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for alias in self.aliases or ():
            check_known_by(alias, "aliases")
        for version in self.versions or {}:
            if not VERSION.fullmatch(version):
                raise InvalidRequest(f"versions: {version[:40]!r} is not a version", hint='like "3.12"')


class Listed(Protocol):
    """A language in a list of them."""

    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...
    @property
    def versions(self) -> Mapping[str, str]: ...


L = TypeVar("L", bound=Listed)


def find_language(known: Iterable[L], text: str) -> tuple[L, str | None]:
    """Find a language by name or alias, ignoring case; return it with the requested version."""
    known = list(known)
    name, at, version = text.strip().lower().partition("@")
    for language in known:
        if name in (language.name, *language.aliases):
            if at and not (len(version) <= 40 and VERSION.fullmatch(version)):
                raise InvalidRequest(
                    f"language: {version[:40]!r} is not a version of {language.name}", hint=_versions(language)
                )
            return language, version or None
    names = ", ".join(language.name for language in known)
    raise InvalidRequest(f"language: {name[:64]!r} is not known", hint=f"known: {names}")


def language_of_file(path: str) -> str:
    """Return the language of a file by the suffix of its name."""
    suffix = path[path.rfind(".") :].lower() if "." in path.rpartition("/")[2] else ""
    if suffix not in SUFFIXES:
        raise InvalidRequest(f"{path[-80:]}: no language is known for this file's name", hint="name the language")
    return SUFFIXES[suffix]


def image_of(language: Listed, version: str) -> str:
    """Return the image that has a version: of several matches, the newest."""
    fitting = [known for known in language.versions if is_version(version, known)]
    if not fitting:
        raise InvalidRequest(f"language: no image is known for {language.name} {version}", hint=_versions(language))
    return language.versions[max(fitting, key=_order)]


def is_version(asked: str, found: str) -> bool:
    """Return whether a version matches a request: 3 and 3.12 match 3.12, 3.1 does not."""
    return f"{found}.".startswith(f"{asked}.")


def check_known_by(name: str, what: str = "language") -> None:
    if not LANGUAGE.fullmatch(name):
        raise InvalidRequest(f"{what}: {name[:40]!r} can't be a language's name", hint="lower-case letters and digits")


def _versions(language: Listed) -> str:
    known = ", ".join(language.versions)
    return f"{language.name}@ and one of: {known}" if known else f"{language.name} has no versions to choose from"


def _order(version: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in version.split("."))


def _check_word(what: str, word: str) -> None:
    check_text(what, word)
    for place in _PLACES.findall(word):
        if place not in ("{file}", "{out}", "{dir}"):
            raise InvalidRequest(f"{what}: unknown placeholder {place}", hint="use {file}, {out} or {dir}")


def _check_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groupindex
    except re.error as problem:
        raise InvalidRequest(f"errors: {problem}") from None
    if stray := groups.keys() - {"name", "message", "line"}:
        raise InvalidRequest(f"errors: the group {sorted(stray)[0]!r} means nothing", hint="name, message, line")


# -- runs, contexts and results --------------------------------------------------------------------------------------


class LanguageInfo(Answer, frozen=True, kw_only=True):
    """A language as …/languages shows it. `version`: the version found in this sandbox; None: its toolchain is missing,
    and `missing` names the way to install it. `how`: the argv that runs a file, for display. `versions`: the versions
    that can be requested (`python@3.12`), each with its image. `image`: an image with the tools of a language that
    `base` lacks, for code in a new sandbox whose image is not named; `installed`: it has been built."""

    name: str
    aliases: tuple[str, ...] = ()
    version: str | None = None
    how: str = ""
    contexts: bool = False
    compiled: bool = False
    missing: str | None = None
    versions: dict[str, str] = {}
    image: str | None = None
    installed: bool = False


class LanguageList(Answer, frozen=True, kw_only=True):
    """`max_timeout`: the operator's maximum run time in seconds; None: unlimited."""

    languages: list[LanguageInfo]
    max_timeout: float | None = None


class ContextRequest(Value, frozen=True, kw_only=True):
    """POST …/contexts: create a context for a language. An existing name is a conflict; without a name, one is
    generated."""

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
    """`state`: `new` has run nothing yet, or starts again with the next run; `lost` is the reason why its variables are
    gone. `default`: runs code that names no context. `process`: its current process."""

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


class ContextList(Answer, frozen=True, kw_only=True):
    contexts: list[ContextInfo]


class CodeRequest(Value, frozen=True, kw_only=True):
    """POST …/code. `context`: the context to run in; None: the default context of the language, created if necessary.
    `fresh`: a temporary context, deleted afterwards. `cwd`, `env`, `user` apply to `fresh` runs and to languages
    without contexts; a context has its own. `files`: list the files created below its cwd."""

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
        if len(self.code.encode("utf-8", "surrogatepass")) > MAX_CODE:
            raise InvalidRequest(f"code: more than {MAX_CODE >> 20} MiB", hint="put data into a file")
        if self.context is not None and self.fresh:
            raise InvalidRequest("context and fresh exclude each other")
        if self.timeout is not None and not (math.isfinite(self.timeout) and 0 < self.timeout <= 1e8):
            raise InvalidRequest(f"timeout: {self.timeout!r} is out of range", hint="seconds above 0, or none")
        if self.stdin is not None and self.stdin_base64 is not None:
            raise InvalidRequest("stdin and stdin_base64 exclude each other")
        if len(self.input or b"") > MAX_STDIN:
            raise InvalidRequest(f"stdin: more than {MAX_STDIN >> 20} MiB", hint="put it into a file")

    @property
    def input(self) -> bytes | None:
        return self.stdin.encode("utf-8", "surrogateescape") if self.stdin is not None else self.stdin_base64


class Series(Value, frozen=True, kw_only=True):
    """One plotted series: its name and points. For a histogram, x has the edges: one more than bars. `z` has a third
    coordinate, or the rows of a heat map. A box plot has one series for each box: y has the ends of the whiskers, the
    quartiles and the median in ascending order, and z the outliers. `cut`: the number of omitted points."""

    label: str | None = None
    kind: str = "line"
    x: list[Any] = []
    y: list[Any] = []
    z: list[Any] = []
    cut: int = 0


class Axes(Value, frozen=True, kw_only=True):
    """One coordinate system of a chart, with its series."""

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
    """The data of a figure."""

    title: str | None = None
    axes: list[Axes] = []


class CodeOutput(Answer, frozen=True, kw_only=True):
    """A value or a picture in each of its formats, by MIME type: text as text, pictures as base64. `main`: the value of
    the last expression. `cut`: the formats that were shortened, or omitted for their size (those are not in `data`)."""

    data: dict[str, str] = {}
    main: bool = False
    cut: tuple[str, ...] = ()


class CodeError(Answer, frozen=True, kw_only=True):
    """The error of the code, in the words of its language. `line`: the line in the given code, if known. `properties`:
    further properties of a JavaScript error: its code, a path, a status."""

    name: str
    message: str = ""
    traceback: str = ""
    line: int | None = None
    properties: dict[str, Any] = {}


class OutputFile(FileInfo, frozen=True, kw_only=True):
    """A file that code created or changed. `media_type`: derived from its name. `content`: set by `execute_code()`;
    None for a large file (over 1 MiB, or beyond 8 MiB in all) and for a file that was removed meanwhile."""

    media_type: str = "application/octet-stream"
    content: bytes | None = None


class CodeEnd(RunResult, frozen=True, kw_only=True):
    """The end of a code run, on the wire. `context`: the context it ran in; `lost`: the reason why the context started
    without its variables (never set for the first run). `after`: whether the context's variables are kept or were
    replaced; None: without a context. `results` is set only in a single JSON response."""

    language: str
    version: str | None = None
    context: str | None = None
    lost: str | None = None
    after: Literal["kept", "replaced"] | None = None
    error: CodeError | None = None
    results: tuple[CodeOutput, ...] = ()
    files: tuple[OutputFile, ...] = ()
    files_cut: bool = False


def check_language(language: str, what: str = "language") -> None:
    """Check the form of a language's name; only the server knows the languages."""
    check_text(what, language)
    if not language or len(language) > 64 or not language.isprintable() or language != language.strip():
        raise InvalidRequest(
            f"{what}: {language[:64]!r} is not a language's name", hint="`skerry languages` lists them"
        )


chart_json = msgspec.json.Decoder(Chart)
