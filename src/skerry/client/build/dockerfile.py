"""A Dockerfile as a recipe: the common instructions. An instruction that is not supported is an error with its line;
none is skipped silently.

The parser is part of this package because the one on PyPI (dockerfile-parse 2.0.1) reads the lines of a here-document
as instructions and misreads `${a:-b}`; and a client should have few dependencies.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from skerry.client.build.shell_words import ShellWordError, expand, pairs, split
from skerry.client.build.steps import (
    Arg,
    Copy,
    Env,
    Inline,
    Local,
    Recipe,
    RunStep,
    Scope,
    Start,
    Step,
    StepLocation,
    User,
)
from skerry.client.build.steps import Workdir as WorkdirStep
from skerry.errors import InvalidRequest

_DIRECTIVE: Final = re.compile(r"#\s*([A-Za-z]+)\s*=\s*(.*?)\s*")
_WITH_HEREDOCS: Final = ("RUN", "COPY", "ADD")
_HEREDOC: Final = re.compile(r"\d*<<(-?)(['\"]?)([A-Za-z_][A-Za-z0-9_.-]*)\2")
_FLAG: Final = re.compile(r"--([a-z-]+)(?:=(\S*))?(?:\s+|$)")
_MAX_SIZE: Final = 1 << 20


class BadLine(ShellWordError):
    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


@dataclass(frozen=True)
class Heredoc:
    """`literal`: its delimiter was quoted, so that variables are not expanded."""

    name: str
    text: str
    literal: bool


@dataclass(frozen=True)
class Instruction:
    """`text`: the part after the name and its flags; `raw`: the same with here-documents, for a shell."""

    line: int
    name: str
    text: str
    flags: tuple[tuple[str, str], ...] = ()
    heredocs: tuple[Heredoc, ...] = ()
    raw: str = ""
    escape: str = "\\"

    @property
    def title(self) -> str:
        flags = (f"--{name}={value}" if value else f"--{name}" for name, value in self.flags)
        shown = " ".join([self.name, *flags, *self.text.split()])
        return shown if len(shown) <= 100 else shown[:99] + "…"


def instructions(text: str) -> Iterator[Instruction]:
    """Return the instructions in order, each with its first line number."""
    if len(text) > _MAX_SIZE:
        raise BadLine(1, "it is larger than 1 MiB")
    lines = lines_of(text.removeprefix("\ufeff"))
    escape = _escape(lines)
    at = 0
    while at < len(lines):
        if not lines[at].strip() or lines[at].lstrip().startswith("#"):
            at += 1
            continue
        first = at
        joined, at = _joined(lines, at, escape)
        try:
            found, at = _instruction(joined, lines, first, at, escape)
        except BadLine:
            raise
        except ShellWordError as why:
            raise BadLine(first + 1, str(why)) from None
        yield found


def lines_of(text: str) -> list[str]:
    """Return the lines. Only LF or CR LF ends a line; `splitlines` would accept ten other characters."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _escape(lines: list[str]) -> str:
    """Return the escape character. A directive precedes everything else."""
    for line in lines:
        match = _DIRECTIVE.fullmatch(line.strip())
        if match is None:
            break
        if match[1].lower() == "escape":
            if match[2] not in ("\\", "`"):
                raise BadLine(lines.index(line) + 1, f"escape={match[2]} is neither \\ nor `")
            return match[2]
    return "\\"


def _joined(lines: list[str], at: int, escape: str) -> tuple[str, int]:
    """Return a line joined with its continuation lines; comments and empty lines between them are skipped."""
    joined, goes_on = "", True
    while goes_on and at < len(lines):
        line = lines[at]
        at += 1
        if joined and (line.lstrip().startswith("#") or not line.strip()):
            continue
        stripped = line.rstrip()
        goes_on = stripped.endswith(escape)
        joined += stripped[:-1] if goes_on else line
    return joined, at


def _instruction(joined: str, lines: list[str], first: int, at: int, escape: str) -> tuple[Instruction, int]:
    name, _, text = re.sub(r"\s", " ", joined.strip(), count=1).partition(" ")
    name, text = name.upper(), text.strip()
    flags = []
    while match := _FLAG.match(text):
        flags.append((match[1], match[2] or ""))
        text = text[match.end() :]
    heredocs, raw = [], text
    if name in _WITH_HEREDOCS and "<<" in text:
        for dash, quote, word in _opened(text, escape):
            body, at = _body(lines, at, first, word, bool(dash))
            heredocs.append(Heredoc(word, "".join(body), bool(quote)))
            raw += "\n" + "".join(body) + word
        raw += "\n" if heredocs else ""
    return Instruction(first + 1, name, text, tuple(flags), tuple(heredocs), raw, escape), at


def _opened(text: str, escape: str) -> list[tuple[str, str, str]]:
    matches = (_HEREDOC.fullmatch(word) for word in split(text, escape=escape))
    return [(match[1], match[2], match[3]) for match in matches if match is not None]


def _body(lines: list[str], at: int, first: int, word: str, dash: bool) -> tuple[list[str], int]:
    body: list[str] = []
    while at < len(lines):
        line = lines[at].lstrip("\t") if dash else lines[at]
        at += 1
        if line == word:
            return body, at
        body.append(line + "\n")
    raise BadLine(first + 1, f"the here-document {word} is not terminated")


_SHELL: Final = ("/bin/sh", "-c")
_IGNORED: Final = ("LABEL", "EXPOSE", "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "MAINTAINER")
_REMOTE: Final = re.compile(r"(?:https?|ftp|git|ssh)://|git@", re.IGNORECASE)
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_INLINE: Final = re.compile(r"\d*<<-?['\"]?([A-Za-z_][A-Za-z0-9_.-]*)['\"]?")


@dataclass(frozen=True)
class DockerfileContext:
    """The surroundings of a Dockerfile: its displayed name, the directory that COPY reads from, its .dockerignore."""

    file: str
    directory: str
    ignore: tuple[str, ...] = ()


@dataclass
class DockerfileResult:
    """A recipe, and the instructions that were left out, as text."""

    recipe: Recipe
    notices: list[str]


@dataclass
class _Stage:
    recipe: Recipe
    name: str | None
    shell: tuple[str, ...] = _SHELL
    has_cmd: bool = False
    steps: list[Step] = field(default_factory=list)

    @property
    def whole(self) -> Recipe:
        return replace(self.recipe, steps=(*self.recipe.steps, *self.steps))


def read_dockerfile(
    text: str, context: DockerfileContext, *, arguments: Mapping[str, str] | None = None, target: str | None = None
) -> DockerfileResult:
    return _DockerfileReader(context, dict(arguments or {})).read(text, target)


class _DockerfileReader:
    def __init__(self, context: DockerfileContext, given: dict[str, str]) -> None:
        self._context = context
        self._given = given
        self._globals = _platform()
        self._stages: list[_Stage] = []
        self._notices: list[str] = []
        self._declared: set[str] = set()
        self._takers: Mapping[str, Callable[[Instruction], None]] = {
            "FROM": self._from, "ARG": self._arg, "RUN": self._run, "COPY": self._copy, "ADD": self._copy,
            "ENV": self._env, "WORKDIR": self._workdir, "USER": self._user, "SHELL": self._set_shell,
            "ENTRYPOINT": self._start, "CMD": self._start,
        }  # fmt: skip

    def read(self, text: str, target: str | None) -> DockerfileResult:
        try:
            for instruction in instructions(text):
                self._take(instruction)
        except BadLine as bad:
            raise self._refused(bad.line, str(bad)) from None
        if not self._stages:
            raise InvalidRequest(f"{self._context.file}: FROM is missing")
        stage = self._stages[-1] if target is None else self._stage(target)
        if stage is None:
            raise InvalidRequest(f"{self._context.file}: stage {target!r} not found")
        for name in sorted(self._given.keys() - self._declared):
            self._notices.append(f"{self._context.file}: it declares no ARG {name}")
        return DockerfileResult(stage.whole, self._notices)

    def _take(self, one: Instruction) -> None:
        if one.name in _IGNORED:
            self._notices.append(f"{self._context.file}:{one.line}: {one.name} is ignored: it has no effect here")
            return
        taker = self._takers.get(one.name)
        if taker is None:
            why = "ONBUILD is not supported" if one.name == "ONBUILD" else f"unknown instruction {one.name[:40]!r}"
            raise self._refused(one.line, why)
        if not self._stages and one.name not in ("FROM", "ARG"):
            raise self._refused(one.line, f"{one.name} before the first FROM")
        if not one.text:
            raise self._refused(one.line, f"{one.name} has no arguments")
        try:
            taker(one)
        except (ShellWordError, json.JSONDecodeError) as why:
            raise self._refused(one.line, f"{one.name}: {why}") from None

    def _refused(self, line: int, why: str, hint: str | None = None) -> InvalidRequest:
        details = {"file": self._context.file, "line": line}
        return InvalidRequest(f"{self._context.file}:{line}: {why}", hint=hint, details=details)

    def _flags(self, one: Instruction, *known: str) -> dict[str, str]:
        for name, _ in one.flags:
            if name not in known:
                raise self._refused(one.line, f"{one.name} --{name} is not supported")
        return dict(one.flags)

    def _add(self, one: Instruction, kind: type[Step], **fields: Any) -> None:
        where = StepLocation(self._context.file, one.line)
        self._stages[-1].steps.append(kind(title=one.title, where=where, escape=one.escape, **fields))

    def _stage(self, name: str) -> _Stage | None:
        for stage in reversed(self._stages):
            if stage.name == name.lower():
                return stage
        return self._stages[int(name)] if name.isdecimal() and int(name) < len(self._stages) else None

    def _from(self, one: Instruction) -> None:
        flags = self._flags(one, "platform")
        wanted = expand(flags.get("platform", ""), self._globals)
        if wanted not in ("", self._globals["TARGETPLATFORM"]):
            raise self._refused(one.line, f"FROM --platform={wanted}: this machine has another platform")
        words = [expand(word, self._globals) for word in split(one.text, escape=one.escape)]
        if len(words) not in (1, 3) or (len(words) == 3 and words[1].lower() != "as") or not words[0]:
            raise self._refused(one.line, f"FROM {one.text[:80]}: not an image, or `image AS name`")
        name = words[2].lower() if len(words) == 3 else None
        if words[0] == "scratch":
            raise self._refused(one.line, "FROM scratch: steps run in a sandbox, which needs a system")
        earlier = next((stage for stage in reversed(self._stages) if stage.name == words[0].lower()), None)
        if earlier is None:
            self._stages.append(_Stage(Recipe(words[0], arguments=self._given), name))
            return
        self._stages.append(_Stage(earlier.whole, name, earlier.shell, earlier.has_cmd))
        self._add(one, Scope)

    def _arg(self, one: Instruction) -> None:
        self._flags(one)
        for word in split(one.text, escape=one.escape):
            name, equals, default = word.partition("=")
            self._declared.add(name)
            if not self._stages:
                value = expand(default, self._globals, escape=one.escape) if equals else None
                if name in self._given or value is not None:
                    self._globals[name] = self._given.get(name, value or "")
                continue
            known = self._globals.get(name) if not equals else default
            literal = known if equals or known is None else _quoted(known)
            self._add(one, Arg, name=name, default=literal)

    def _run(self, one: Instruction) -> None:
        for name, value in one.flags:
            self._run_flag(one, name, value)
        shell = self._stages[-1].shell
        words = _exec_form(one.text)
        if words is not None:
            self._add(one, RunStep, cmd=words)
            return
        script = one.raw
        if one.heredocs and _INLINE.fullmatch(one.text):
            script = one.heredocs[0].text
            if script.startswith("#!"):
                raise self._refused(
                    one.line, "RUN: a here-document with its own interpreter", "write `RUN program <<EOF`"
                )
        self._add(one, RunStep, cmd=script, shell=shell)

    def _run_flag(self, one: Instruction, name: str, value: str) -> None:
        if name == "mount" and "type=cache" in value.split(","):
            self._notices.append(f"{self._context.file}:{one.line}: --mount={value} is ignored: steps are cached whole")
        elif name != "network" or value != "default":
            hint = "set the network of the whole build with --allow or --preset" if name == "network" else None
            raise self._refused(one.line, f"RUN --{name}{'=' + value if value else ''} is not supported", hint)

    def _copy(self, one: Instruction) -> None:
        known = ("from", "chown", "chmod", "link", "parents") if one.name == "COPY" else ("chown", "chmod", "link")
        flags = self._flags(one, *known)
        words = _exec_form(one.text) or tuple(split(one.text, escape=one.escape))
        if len(words) < 2:
            raise self._refused(one.line, f"{one.name} needs a source and a target")
        *sources, target = words
        if len(sources) > 1 and not target.rstrip("\"'").endswith("/") and target not in (".", ".."):
            raise self._refused(
                one.line, f"{one.name}: several sources into {target!r}, which does not end with a slash"
            )
        stage = self._source_stage(one, flags["from"]) if "from" in flags else None
        if "chmod" in flags and not re.fullmatch("[0-7]{3,4}", flags["chmod"]):
            raise self._refused(one.line, f"{one.name} --chmod={flags['chmod']}: not a number like 755")
        self._add(
            one, Copy, sources=tuple(self._source(one, word, stage) for word in sources), target=target,
            owner=flags.get("chown"), mode=int(flags["chmod"], 8) if "chmod" in flags else None, stage=stage,
            parents="parents" in flags, unpack=one.name == "ADD",
        )  # fmt: skip

    def _source(self, one: Instruction, word: str, stage: Recipe | None) -> Local | Inline | str:
        match = _INLINE.fullmatch(word)
        if match is not None and one.heredocs:
            document = next(document for document in one.heredocs if document.name == match[1])
            return Inline(document.name, document.text, document.literal)
        if stage is not None:
            return word
        if _REMOTE.match(word):
            raise self._refused(one.line, f"{one.name} {word[:80]}: only files of this machine", "fetch it with RUN")
        return Local(self._context.directory, word, contained=True, ignore=self._context.ignore)

    def _source_stage(self, one: Instruction, name: str) -> Recipe:
        """Return an earlier stage, by name or number, or an image."""
        name = expand(name, self._globals)
        earlier = self._stage(name)
        if earlier is self._stages[-1]:
            raise self._refused(one.line, f"COPY --from={name}: that is this stage itself")
        if earlier is not None:
            return earlier.whole
        if name.isdecimal() or not name:
            raise self._refused(one.line, f"COPY --from={name}: no earlier stage has that name")
        return Recipe(name)

    def _env(self, one: Instruction) -> None:
        self._flags(one)
        self._add(one, Env, pairs=tuple(pairs(one.text, escape=one.escape)))

    def _workdir(self, one: Instruction) -> None:
        self._flags(one)
        self._add(one, WorkdirStep, path=one.text)

    def _user(self, one: Instruction) -> None:
        self._flags(one)
        self._add(one, User, name=one.text)

    def _set_shell(self, one: Instruction) -> None:
        words = _exec_form(one.text)
        if not words:
            raise self._refused(one.line, 'SHELL: not a list like ["/bin/bash", "-c"]')
        self._stages[-1].shell = words

    def _start(self, one: Instruction) -> None:
        stage = self._stages[-1]
        exec_form = _exec_form(one.text)
        words = (*stage.shell, one.text) if exec_form is None else exec_form
        if one.name == "CMD":
            stage.has_cmd = True
            self._add(one, Start, cmd=words)
        else:  # a CMD of the base was for another entrypoint
            self._add(one, Start, entrypoint=words, cmd=None if stage.has_cmd else ())


def _exec_form(text: str) -> tuple[str, ...] | None:
    """Return a JSON list of strings; None if the text is a shell line, also if it only resembles a list, as in
    docker."""
    if not text.startswith("["):
        return None
    try:
        words = json.loads(text)
    except json.JSONDecodeError:
        return None
    return tuple(words) if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def _quoted(value: str) -> str:
    """Quote a value so that expanding it returns the same value."""
    return re.sub(r"([\\\"'$])", r"\\\1", value)


def _platform() -> dict[str, str]:
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    facts = {"PLATFORM": f"linux/{architecture}", "OS": "linux", "ARCH": architecture}
    return {f"{side}{name}": value for side in ("TARGET", "BUILD") for name, value in facts.items()}
