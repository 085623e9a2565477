"""What a recipe is made of. Values only; the texts of a Dockerfile's steps still have their variables in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Manager = Literal["apt", "pip", "npm"]
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Where:
    """The file that a step stands in, and its line there, if that is known."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Step:
    """`title` is how it is shown. `escape`: its texts have `$variables`, and this before a character takes it as it is;
    None: they have none."""

    title: str
    where: Where | None = None
    escape: str | None = None

    @property
    def named(self) -> str:
        return f"{self.where}: {self.title}" if self.where else self.title

    @property
    def place(self) -> dict[str, str | int | None]:
        """For an error's details."""
        return {"file": self.where.file, "line": self.where.line} if self.where else {}


@dataclass(frozen=True, kw_only=True)
class Install(Step):
    """Packages for the whole system, as root. `requirements`: the content of a file of pip's."""

    manager: Manager
    packages: tuple[str, ...] = ()
    requirements: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class Run(Step):
    """A shell line or an argv, as the user and in the directory that stand by then. `shell`: what takes the line; None
    is that of `sandbox.run`."""

    cmd: str | tuple[str, ...]
    shell: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Local:
    """Files of this host: a path or pattern below a directory. `contained`: nothing outside of it may be meant, also
    not through a link. `ignore` are the lines of a .dockerignore."""

    directory: str
    pattern: str
    contained: bool = False
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inline:
    """A file whose content stands in the recipe itself. `literal`: without variables."""

    name: str
    content: str
    literal: bool = True


@dataclass(frozen=True, kw_only=True)
class Copy(Step):
    """Into `target`: a directory's content, files by their names. A target with a slash at its end, or one that is a
    directory already, takes files in; else a single file becomes the target.

    `stage`: from that recipe's result, by paths inside it. `parents`: files keep their way from the directory.
    `unpack`: archives are unpacked, as ADD does. `owner`: None is root, "" the user that stands by then."""

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
    """A variable of the build alone. `default` None: none, unless one is given."""

    name: str
    default: str | None = None


@dataclass(frozen=True, kw_only=True)
class Scope(Step):
    """A new stage on top of an earlier one: its arguments are forgotten."""


@dataclass(frozen=True, kw_only=True)
class User(Step):
    name: str


@dataclass(frozen=True, kw_only=True)
class Workdir(Step):
    path: str


@dataclass(frozen=True, kw_only=True)
class Start(Step):
    """What runs where nobody names a command; None leaves it as it is."""

    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Recipe:
    """`arguments`: values given for `Arg` steps. `inputs`: what else the steps go by, as a project's variables."""

    base: str = "base"
    steps: tuple[Step, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    inputs: Pairs = ()

    @property
    def bases(self) -> frozenset[str]:
        """Every image that it stands on, those of its stages too."""
        stages = (step.stage for step in self.steps if isinstance(step, Copy) and step.stage is not None)
        return frozenset({self.base}).union(*(stage.bases for stage in stages))
