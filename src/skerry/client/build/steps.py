"""The steps of a recipe, the commands that install packages, and a project's setup as a recipe. Pure.

The texts of a Dockerfile's steps still contain their variables. Packages are installed system-wide, as root, and
leave nothing else behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from skerry.config import PROJECT_FILE
from skerry.errors import InvalidRequest

Manager = Literal["apt", "pip", "npm"]
Pairs = tuple[tuple[str, str], ...]
_APT: Final = """\
apt-get update -q -o Acquire::Languages=none -o APT::Update::Error-Mode=any
apt-get install -q -y --no-install-recommends -o Dpkg::Use-Pty=0 -- "$@"
apt-get clean
rm -rf /var/lib/apt/lists/*
"""
_PIP: Final = """\
PYTHON=$(command -v python3 || command -v python)
exec "$PYTHON" -m pip install --no-cache-dir --no-input --root-user-action=ignore --disable-pip-version-check "$@"
"""
_NPM: Final = """\
npm install -g --no-fund --no-audit --no-update-notifier --cache /tmp/.skerry-npm -- "$@"
rm -rf /tmp/.skerry-npm
"""
# Overrides the marker that protects a distribution's Python: a system-wide installation is intended here.
_PIP_ENV: Final = {"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_NO_INPUT": "1"}
_PACKAGE: Final = re.compile(r"[^\s\0-][^\s\0]*(?: ?[^\s\0-][^\s\0]*)*")
_MAX_PACKAGES: Final = 1000
_EXAMPLES: Final[Mapping[Manager, str]] = {"apt": "'ffmpeg'", "pip": "'numpy>=2'", "npm": "'typescript@5'"}


@dataclass(frozen=True)
class StepLocation:
    """The file of a step, and its line if known."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Step:
    """`title`: its displayed text. `escape`: the escape character of texts with `$variables`; None: texts without
    variables."""

    title: str
    where: StepLocation | None = None
    escape: str | None = None

    @property
    def named(self) -> str:
        return f"{self.where}: {self.title}" if self.where else self.title

    @property
    def place(self) -> dict[str, str | int | None]:
        """Return the location for an error's details."""
        return {"file": self.where.file, "line": self.where.line} if self.where else {}


@dataclass(frozen=True, kw_only=True)
class Install(Step):
    """Install packages system-wide, as root. `requirements`: the content of a pip requirements file."""

    manager: Manager
    packages: tuple[str, ...] = ()
    requirements: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class RunStep(Step):
    """Run a shell line or an argv as the current user in the current directory. `shell`: the argv that receives the
    line; None: the shell of `sandbox.run`."""

    cmd: str | tuple[str, ...]
    shell: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Local:
    """Files of this host: a path or pattern below a directory. `contained`: matches outside of it are an error, also
    through a link. `ignore`: the lines of a .dockerignore."""

    directory: str
    pattern: str
    contained: bool = False
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inline:
    """A file with its content in the recipe. `literal`: without variables."""

    name: str
    content: str
    literal: bool = True


@dataclass(frozen=True, kw_only=True)
class Copy(Step):
    """Copy into `target`: the content of a directory, files by their names. A target that ends with a slash, or is an
    existing directory, receives files; otherwise a single file becomes the target.

    `stage`: copy from that recipe's result, by paths inside it. `parents`: files keep their path from the directory.
    `unpack`: unpack archives, as ADD does. `owner`: None is root, "" the current user.
    """

    sources: tuple[Local | Inline | str, ...]
    target: str
    owner: str | None = None
    mode: int | None = None
    stage: Recipe | None = None
    parents: bool = False
    unpack: bool = False


@dataclass(frozen=True, kw_only=True)
class Env(Step):
    pairs: Pairs


@dataclass(frozen=True, kw_only=True)
class Arg(Step):
    """A variable of the build alone. `default`: None if it has no default."""

    name: str
    default: str | None = None


@dataclass(frozen=True, kw_only=True)
class Scope(Step):
    """Start a new stage on top of an earlier one, without its arguments."""


@dataclass(frozen=True, kw_only=True)
class User(Step):
    name: str


@dataclass(frozen=True, kw_only=True)
class Workdir(Step):
    path: str


@dataclass(frozen=True, kw_only=True)
class Start(Step):
    """Set the command that runs if none is given; None leaves it unchanged."""

    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Recipe:
    """`arguments`: values for `Arg` steps. `inputs`: other inputs of the steps, such as a project's variables."""

    base: str = "base"
    steps: tuple[Step, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    inputs: Pairs = ()

    @property
    def bases(self) -> frozenset[str]:
        """Every image that the recipe needs, those of its stages included."""
        stages = (step.stage for step in self.steps if isinstance(step, Copy) and step.stage is not None)
        return frozenset({self.base}).union(*(stage.bases for stage in stages))


def check_packages(manager: Manager, packages: Iterable[object]) -> tuple[str, ...]:
    """Return package names; reject options."""
    found = []
    for package in packages:
        if not isinstance(package, str) or not _PACKAGE.fullmatch(package.strip()):
            raise InvalidRequest(f"{manager}: {package!r} is not a package", hint=f"names like {_EXAMPLES[manager]}")
        found.append(package.strip())
    if len(found) > _MAX_PACKAGES:
        raise InvalidRequest(f"{manager}: more than {_MAX_PACKAGES} packages in one step")
    return tuple(found)


def install_command(install: Install) -> list[str]:
    if install.manager == "apt":
        return ["/bin/sh", "-ec", _APT, "apt", *install.packages]
    if install.manager == "npm":
        return ["/bin/sh", "-ec", _NPM, "npm", *install.packages]
    return ["/bin/sh", "-ec", _PIP, "pip", *(("-r", "/dev/stdin") if install.requirements else ()), *install.packages]


def install_environment(install: Install) -> dict[str, str]:
    if install.manager == "apt":
        return {"DEBIAN_FRONTEND": "noninteractive"}
    return dict(_PIP_ENV) if install.manager == "pip" else {"NODE_DISABLE_COMPILE_CACHE": "1"}


def setup_recipe(
    image: str, lines: Sequence[str], files: Sequence[str], directory: str, env: Mapping[str, str | None]
) -> Recipe:
    """Return a recipe of a project's files and setup lines. They run as the image's user in the default directory; the
    variables of its sandboxes are part of the key."""
    where = StepLocation(PROJECT_FILE)
    steps: list[Step] = []
    if files:
        sources = tuple(Local(directory, path, contained=True) for path in files)
        title = f"setup_files {' '.join(files)}"
        steps.append(Copy(title=title, where=where, sources=sources, target="./", owner="", parents=True))
    steps += [RunStep(title=line, where=where, cmd=line) for line in lines]
    inputs = tuple(sorted((name, "unset" if value is None else f"={value}") for name, value in env.items()))
    return Recipe(image, tuple(steps), inputs=inputs)
