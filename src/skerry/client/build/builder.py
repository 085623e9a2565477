"""An image description: every method returns a new description and runs nothing."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from skerry.client.build import sources
from skerry.client.build.dockerfile import DockerfileContext, lines_of, read_dockerfile
from skerry.client.build.steps import (
    Copy,
    Env,
    Install,
    Local,
    Manager,
    Recipe,
    RunStep,
    Start,
    Step,
    StepLocation,
    User,
    check_packages,
)
from skerry.client.build.steps import Workdir as WorkdirStep
from skerry.client.create_options import Command, check_command, texts
from skerry.errors import InvalidRequest
from skerry.types import Network, check_env, check_path, check_text, check_user

HostPath = str | os.PathLike[str]
_TITLE = 100


class ImageDescription:
    """Steps on a base. One description can be built, or extended in several ways."""

    def __init__(self, recipe: Recipe = Recipe()) -> None:  # noqa: B008  (frozen)
        self.recipe = recipe
        self.notices: tuple[str, ...] = ()  # instructions that were left out, as text
        self.network: Network | None = None  # the network that its file allows a build
        self._where: StepLocation | None = None
        self._directory: str | None = None

    @classmethod
    def of(cls, base: str) -> Self:
        check_text("image", base)
        if not base:
            raise InvalidRequest("image: the name is empty")
        return cls(Recipe(base))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.recipe.base}, {len(self.recipe.steps)} steps>"

    def at(self, where: StepLocation, directory: str) -> Self:
        """Return a copy: its next steps belong to that line, their paths are relative to `directory`."""
        made = self._with(self.recipe)
        made._where, made._directory = where, directory
        return made

    def _with(self, recipe: Recipe) -> Self:
        made = type(self)(recipe)
        made.notices, made.network = self.notices, self.network
        made._where, made._directory = self._where, self._directory
        return made

    def _and(self, step: Step) -> Self:
        step = replace(step, where=self._where)
        return self._with(replace(self.recipe, steps=(*self.recipe.steps, step)))

    def apt(self, *packages: str) -> Self:
        """Install Debian packages with their dependencies, without recommended packages. The step can reach the hosts
        of this machine's apt configuration."""
        return self._install("apt", packages)

    def pip(self, *packages: str, requirements: HostPath | None = None) -> Self:
        """Install Python packages system-wide. `requirements`: a requirements file of this machine."""
        content = self._content(requirements) if requirements is not None else None
        return self._install("pip", packages, content)

    def npm(self, *packages: str) -> Self:
        """Install npm packages globally."""
        return self._install("npm", packages)

    def _install(self, manager: Manager, packages: Sequence[str], requirements: bytes | None = None) -> Self:
        named = check_packages(manager, packages)
        if not named and requirements is None:
            raise InvalidRequest(f"{manager}: no package is named")
        title = _short(" ".join((manager, *named, *(("requirements",) if requirements is not None else ()))))
        return self._and(Install(title=title, manager=manager, packages=named, requirements=requirements))

    def _content(self, path: HostPath) -> bytes:
        (match, *others) = sources.find_matches(self._local(path))
        if others or match.is_directory:
            raise InvalidRequest(f"requirements: {os.fspath(path)!r} is not one file")
        with sources.open_match(match) as file:
            return file.read()

    def run(self, cmd: Command) -> Self:
        """Run a command: a string is a shell line, a list an argv. It runs as the current user in the current
        directory."""
        made = check_command(cmd)
        check_text("run", *([made] if isinstance(made, str) else made))
        if not made:
            raise InvalidRequest("run: the command is empty")
        title = f"run {made if isinstance(made, str) else shlex.join(made)}"
        return self._and(RunStep(title=_short(title), cmd=made if isinstance(made, str) else tuple(made)))

    def copy(self, *paths: HostPath, owner: str | None = None, mode: int | str | None = None) -> Self:
        """Copy files of this machine. The last path is the target inside: it receives a directory's content, or files
        by their names; patterns are allowed. They belong to root unless `owner` is given, and keep their modes unless
        `mode` is."""
        if len(paths) < 2:
            raise InvalidRequest("copy: needs a source and a target", hint='copy("src", "/app")')
        *given, target = (os.fspath(path) for path in paths)
        if len(given) > 1 and not target.endswith("/"):
            raise InvalidRequest(f"copy: several sources into {target!r}, which does not end with a slash")
        check_path("copy", target)
        if owner is not None:
            check_user(owner.partition(":")[0])
        step = Copy(
            title=_short(" ".join(("copy", *given, target))), sources=tuple(self._local(path) for path in given),
            target=target, owner=owner, mode=_mode(mode),
        )  # fmt: skip
        return self._and(step)

    def _local(self, path: HostPath) -> Local:
        """Return the source of a path. Steps of a file may use only files beside it, because its author is unknown."""
        if self._directory is None:
            return sources.local_source(path)
        return Local(self._directory, os.fspath(path), contained=True)

    def env(self, **variables: str) -> Self:
        """Set variables for the image and the following steps."""
        found = texts(variables, "env")
        check_env(dict(found))
        title = _short(" ".join(("env", *(f"{name}={value}" for name, value in found.items()))))
        return self._and(Env(title=title, pairs=tuple(found.items())))

    def user(self, name: str) -> Self:
        """Set the user that runs the following steps, and commands in a sandbox of the image."""
        check_user(name)
        return self._and(User(title=f"user {name}", name=name))

    def workdir(self, path: str) -> Self:
        """Set the working directory of the following steps, and of commands in a sandbox. It is created if missing."""
        check_path("workdir", path)
        return self._and(WorkdirStep(title=f"workdir {path}", path=path))

    def entrypoint(self, *words: str) -> Self:
        """Set the program that a sandbox runs if no command is given; `cmd` then holds its arguments."""
        check_text("entrypoint", *words)
        return self._and(Start(title=_short(f"entrypoint {shlex.join(words)}"), entrypoint=words))

    def cmd(self, *words: str) -> Self:
        check_text("cmd", *words)
        return self._and(Start(title=_short(f"cmd {shlex.join(words)}"), cmd=words))

    @classmethod
    def dockerfile(
        cls,
        path: HostPath = "Dockerfile",
        *,
        context: HostPath | None = None,
        arguments: dict[str, str] | None = None,
        target: str | None = None,
    ) -> Self:
        """Read the common instructions of a Dockerfile. `context`: the directory that COPY reads from, by default that
        of the file. `arguments`: values for its ARGs. `target`: the stage to stop at."""
        text = text_of(path)
        directory = os.path.abspath(context if context is not None else os.path.dirname(os.path.abspath(path)))
        where = DockerfileContext(os.fspath(path), directory, _ignored(path, directory))
        read = read_dockerfile(text, where, arguments=texts(arguments or {}, "arguments"), target=target)
        made = cls(read.recipe)
        made.notices = tuple(read.notices)
        return made


def _ignored(path: HostPath, directory: str) -> tuple[str, ...]:
    """Return the lines of the file's .dockerignore, or of the context's."""
    for name in (f"{os.fspath(path)}.dockerignore", os.path.join(directory, ".dockerignore")):
        if os.path.isfile(name):
            return tuple(lines_of(text_of(name)))
    return ()


def text_of(path: HostPath) -> str:
    try:
        with open(path, encoding="utf-8", newline="") as file:  # a lone CR is not the end of a line
            return file.read()
    except OSError as error:
        raise InvalidRequest(f"{os.fspath(path)}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"{os.fspath(path)}: not a text file") from None


def _mode(mode: int | str | None) -> int | None:
    if mode is None or (isinstance(mode, int) and not isinstance(mode, bool) and 0 <= mode <= 0o7777):
        return mode
    try:
        return int(str(mode), 8) & 0o7777
    except ValueError:
        raise InvalidRequest(f"mode: {mode!r} is not a mode", hint='like 0o755 or "755"') from None


def _short(title: str) -> str:
    line = " ".join(title.split())
    return line if len(line) <= _TITLE else line[: _TITLE - 1] + "…"
