"""The languages, as data: how to find the version of each, and how to compile and run code. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from skerry.errors import InvalidRequest
from skerry.types import OWN_IMAGES, ImageLanguage, KernelName, LanguageForm, LanguageInfo, find_language

Table = Mapping[str, "Language"]
MAX_VERSION = 40  # characters
_PLACES = re.compile(r"\{(?:file|out|dir)\}")
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)+(?:(?:a|b|rc)[0-9]+)?|\b[0-9]+\b")


@dataclass(frozen=True, kw_only=True)
class Language:
    """A row of the table. The words of an argv and the values of `env` may hold `{file}`, `{out}` and `{dir}`.

    `file`: the name of the code's file. `version`: the command that prints its version. `context`: the command that
    starts a kernel, if the language has contexts. `errors`: patterns for the lines of stderr that describe the failure.
    `packages` and `image`: ways to install it. `note`: a common pitfall. `images`: differences in an image, by its
    name."""

    name: str
    run: tuple[str, ...]
    file: str
    version: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    compile: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    kernel: KernelName | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    image: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None
    images: Mapping[str, ImageLanguage] = field(default_factory=dict)

    @property
    def needs(self) -> str:
        """The ways to install it, in words."""
        ways = []
        if self.packages:
            words = " ".join(self.packages)
            ways.append(f"`sudo apt-get install {words}`")
        if self.image:
            ways.append(f"the image {self.image}")
        return ", or ".join(ways) or f"an image that has {self.program}"

    @property
    def program(self) -> str:
        """The program that must be installed."""
        return (self.context or self.compile or self.run)[0]

    @property
    def own_image(self) -> str | None:
        """The image of Skerry's own that has its tools, if `base` lacks them."""
        return self.image if self.image in OWN_IMAGES and self.image != "base" else None

    def with_base(self, version: str | None) -> Language:
        """Return the language with the version that the image `base` has, unless the operator named an image for it."""
        built_in = next((row for row in BUILT_IN if row.name == self.name), None)
        if version is None or built_in is None or self.versions.get(version) != built_in.versions.get(version):
            return self
        return replace(self, versions={**self.versions, version: "base"})

    def inside(self, image: str) -> Language:
        """Return the language with the differences of an image."""
        return replace(self, **_said(self.images[image])) if image in self.images else self

    def filled(self, argv: tuple[str, ...], directory: str, near: bool = True) -> list[str]:
        """Insert the real names of this run's files; `near`: relative to their directory."""
        file = self.file if near else f"{directory}/{self.file}"
        names = {"{file}": file, "{out}": f"{directory}/main", "{dir}": directory}
        return [_PLACES.sub(lambda place: names[place[0]], word) for word in argv]

    def environment(self, directory: str) -> dict[str, str]:
        names = list(self.env)
        return dict(zip(names, self.filled(tuple(self.env.values()), directory), strict=True))

    def info(
        self, version: str | None = None, looked: bool = False, *, image: str | None = None, installed: bool = False
    ) -> LanguageInfo:
        """Return the entry for lists. `looked`: a version was searched for."""
        steps = (self.compile, self.run) if self.compile else (self.run,)
        return LanguageInfo(
            name=self.name, aliases=self.aliases, version=version, contexts=bool(self.context),
            how=" && ".join(" ".join(self.filled(step, ".")) for step in steps), compiled=bool(self.compile),
            missing=self.needs if looked and version is None else None, versions=dict(self.versions),
            image=image, installed=installed,
        )  # fmt: skip


def _images(name: str, versions: str) -> dict[str, str]:
    return {version: name.format(version) for version in versions.split()}


BUILT_IN: tuple[Language, ...] = (
    Language(
        name="python", aliases=("py", "python3", "py3"), file="main.py", kernel="python",
        version=("python3", "--version"), run=("python3", "{file}"), context=("python3",),
        packages=("python3",), image="base",
        versions=_images("python:{}-slim", "3.9 3.10 3.11 3.12 3.13 3.14"),
    ),
    Language(
        name="javascript", aliases=("js", "node", "nodejs"), file="main.mjs", kernel="javascript",
        version=("node", "--version"), run=("node", "{file}"), context=("node",),
        packages=("nodejs",), image="base", versions={**_images("node:{}-slim", "20 22 24"), "24": "base"},
    ),
    Language(
        name="typescript", aliases=("ts",), file="main.mts", kernel="typescript",
        version=("node", "-p", "require('node:module').stripTypeScriptTypes ? process.version : ''"),
        run=("node", "--experimental-strip-types", "{file}"), context=("node",),
        image="base", versions={**_images("node:{}-slim", "22 24"), "24": "base"},
        note="its version is that of Node, which strips the types (22.13 or newer)",
    ),
    Language(
        name="bash", aliases=("sh", "shell"), file="main.sh", kernel="shell",
        version=("bash", "--version"), run=("bash", "{file}"), context=("bash",),
        packages=("bash",), image="base",
        errors=(r"^(?:main\.sh|command|\S*bash): line (?P<line>[0-9]+): (?P<message>.*)$",),
    ),
    Language(
        name="c", aliases=("gcc",), file="main.c",
        version=("gcc", "-dumpfullversion", "-dumpversion"), compile=("gcc", "-o", "{out}", "{file}", "-lm"),
        run=("{out}",), packages=("gcc", "libc6-dev"), image="base", versions=_images("gcc:{}", "12 13 14 15"),
    ),
    Language(
        name="cpp", aliases=("c++", "cxx", "cc", "g++"), file="main.cpp",
        version=("g++", "-dumpfullversion", "-dumpversion"), compile=("g++", "-o", "{out}", "{file}"),
        run=("{out}",), packages=("g++",), image="base", versions=_images("gcc:{}", "12 13 14 15"),
        errors=(
            r"^terminate called after throwing an instance of '(?P<name>.*)'$",
            r"^  what\(\):  (?P<message>.*)$",
        ),
    ),
    Language(
        name="go", aliases=("golang",), file="main.go", env={"GO111MODULE": "auto", "GOTOOLCHAIN": "local"},
        version=("go", "version"), compile=("go", "build", "-o", "{out}", "{file}"), run=("{out}",),
        packages=("golang-go",), image="base-go", versions=_images("golang:{}", "1.22 1.23 1.24 1.25"),
        errors=(r"^(?P<name>panic|fatal error): (?P<message>.*)$", r"^\t(?:\./)?main\.go:(?P<line>[0-9]+)"),
        note="the file is a whole one: package main, with func main",
    ),
    Language(
        name="rust", aliases=("rs",), file="main.rs",
        version=("rustc", "--version"), compile=("rustc", "--edition", "2021", "-o", "{out}", "{file}"), run=("{out}",),
        packages=("rustc",), image="base-rust", versions=_images("rust:{}-slim", "1.80 1.85 1.90"),
        errors=(
            r"^thread .* (?P<name>panicked) at main\.rs:(?P<line>[0-9]+):[0-9]+:\n(?P<message>.*)$",
            r"^thread .* (?P<name>panicked) at '(?P<message>.*)', main\.rs:(?P<line>[0-9]+):",  # before 1.73
        ),
    ),
    Language(
        name="java", file="Main.java",
        version=("javac", "-version"), compile=("javac", "-encoding", "UTF-8", "-d", "{dir}", "{file}"),
        run=("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", "{dir}", "Main"),
        packages=("default-jdk-headless",), image="base-java",
        versions=_images("eclipse-temurin:{}", "11 17 21 25"),
        errors=(
            r'^Exception in thread "[^"\n]*" (?P<name>[\w.$]+)(?:: (?P<message>.*))?$',
            r"^\tat (?:\S+/)?Main[.$]\S+\(Main\.java:(?P<line>[0-9]+)\)$",
        ),
        note="the class with its main method is called Main",
    ),
    Language(
        name="ruby", aliases=("rb",), file="main.rb",
        version=("ruby", "--version"), run=("ruby", "{file}"),
        packages=("ruby",), image="base-ruby", versions=_images("ruby:{}-slim", "3.2 3.3 3.4"),
        errors=(
            r"^main\.rb:(?P<line>[0-9]+):(?:in [^:\n]+: )?(?P<message>.*) \((?P<name>[\w:]+)\)$",
            r"^main\.rb:(?P<line>[0-9]+): (?P<name>syntax error), (?P<message>.*)$",
        ),
    ),
    Language(
        name="php", file="main.php", version=("php", "--version"),
        run=("php", "-d", "display_errors=stderr", "-d", "log_errors=0", "-d", "html_errors=0", "{file}"),
        packages=("php-cli",), image="base-php", versions=_images("php:{}-cli", "8.2 8.3 8.4"),
        errors=(
            r"^(?P<name>Fatal error|Parse error): +(?P<message>\S.*) in main\.php(?: on line |:)(?P<line>[0-9]+)$",
            r"^(?P<name>Fatal error|Parse error): +(?P<message>\S.*)$",
        ),
        note="code begins with <?php; what stands before is printed as it is",
    ),
    Language(
        name="r", aliases=("rscript",), file="main.R",
        version=("Rscript", "--version"), run=("Rscript", "{file}"),
        packages=("r-base-core",), image="base-r", versions=_images("rocker/r-ver:{}", "4.3 4.4 4.5"),
        errors=(r"^(?P<name>Error)(?: in [^:\n]*)?: *(?P<message>.*)$",),
    ),
    Language(
        name="perl", aliases=("pl",), file="main.pl",
        version=("perl", "-e", "print $^V"), run=("perl", "{file}"),
        packages=("perl",), image="base", versions=_images("perl:{}-slim", "5.38 5.40"),
        errors=(r"^(?P<message>.*) at main\.pl line (?P<line>[0-9]+)[.,]",),
    ),
)  # fmt: skip


def build(forms: Mapping[str, LanguageForm]) -> Table:
    """The table that is built in, with the operator's rows beside and over it."""
    table = {language.name: language for language in BUILT_IN}
    for name, form in forms.items():
        table[name] = replace(table[name], **_said(form)) if name in table else _new(name, form)
    _check(table)
    return table


def find(table: Table, text: str) -> tuple[Language, str | None]:
    """Parse `python`, `py` or `Python@3.12`: return the language and the requested version."""
    return find_language(table.values(), text)


def read_version(printed: bytes) -> str | None:
    """Return the version in the output of a program inside, which may be anything: a few safe characters, or None."""
    match = _VERSION.search(printed[:4096].decode("ascii", "replace"))
    return match[0][:MAX_VERSION] if match is not None else None


def _said(form: ImageLanguage) -> dict[str, Any]:
    given = {name: getattr(form, name) for name in form.__struct_fields__}
    return {name: value for name, value in given.items() if value is not None}


def _new(name: str, form: LanguageForm) -> Language:
    said = _said(form)
    if "run" not in said:
        raise InvalidRequest(f"languages.{name}: `run` is missing", hint='run = ["lua", "{file}"]')
    return Language(**{"name": name, "file": "main", **said})


def _check(table: Table) -> None:
    """Check that every name and alias belongs to one language."""
    meant: dict[str, str] = {}
    for language in table.values():
        for word in (language.name, *language.aliases):
            if (other := meant.setdefault(word, language.name)) != language.name:
                raise InvalidRequest(
                    f"languages.{language.name}: {word!r} already belongs to {other}",
                    hint=f"aliases of languages.{other}",
                )
        contexts = language.context or any(image.context for image in language.images.values())
        if contexts and language.kernel is None:
            raise InvalidRequest(f"languages.{language.name}: contexts need a kernel", hint='kernel = "python"')
