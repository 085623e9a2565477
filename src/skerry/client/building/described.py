"""An image that is only described: every method gives another description, and nothing is done."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from skerry.client.building import installing, sources
from skerry.client.building.dockerfile import Context, read_dockerfile
from skerry.client.building.steps import Copy, Env, Install, Local, Manager, Recipe, Run, Start, Step, User, Where
from skerry.client.building.steps import Workdir as WorkdirStep
from skerry.client.description import Words, texts, words
from skerry.errors import InvalidRequest
from skerry.types import Network, check_env, check_path, check_text, check_user

HostPath = str | os.PathLike[str]
_TITLE = 100


class Description:
    """Steps on a base. The same description can be built, or go on in several ways."""

    def __init__(self, recipe: Recipe = Recipe()) -> None:  # noqa: B008  (frozen)
        self.recipe = recipe
        self.notices: tuple[str, ...] = ()  # what was left out on the way to it
        self.network: Network | None = None  # what its file says a build may reach
        self._where: Where | None = None
        self._directory: str | None = None

    @classmethod
    def of(cls, base: str) -> Self:
        check_text("image", base)
        if not base:
            raise InvalidRequest("image: '' is none")
        return cls(Recipe(base))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.recipe.base}, {len(self.recipe.steps)} steps>"

    def at(self, where: Where, directory: str) -> Self:
        """The steps that follow stand there, and mean files below that directory."""
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
        """Debian packages, with what they depend on and no more. The step can reach what this machine's apt can."""
        return self._install("apt", packages)

    def pip(self, *packages: str, requirements: HostPath | None = None) -> Self:
        """Python packages for the whole system; `requirements`: a file of this machine that lists them."""
        content = self._content(requirements) if requirements is not None else None
        return self._install("pip", packages, content)

    def npm(self, *packages: str) -> Self:
        """npm packages, globally."""
        return self._install("npm", packages)

    def _install(self, manager: Manager, packages: Sequence[str], requirements: bytes | None = None) -> Self:
        named = installing.check_packages(manager, packages)
        if not named and requirements is None:
            raise InvalidRequest(f"{manager}: no package is named")
        title = _short(" ".join((manager, *named, *(("requirements",) if requirements is not None else ()))))
        return self._and(Install(title=title, manager=manager, packages=named, requirements=requirements))

    def _content(self, path: HostPath) -> bytes:
        (match, *others) = sources.found(self._local(path))
        if others or match.is_directory:
            raise InvalidRequest(f"requirements: {os.fspath(path)!r} is not one file")
        with sources.open_match(match) as file:
            return file.read()

    def run(self, cmd: Words) -> Self:
        """A command: a text is a shell line, a list an argv. As the user, and in the directory, that stand by then."""
        made = words(cmd)
        check_text("run", *([made] if isinstance(made, str) else made))
        if not made:
            raise InvalidRequest("run: there is no command")
        title = f"run {made if isinstance(made, str) else shlex.join(made)}"
        return self._and(Run(title=_short(title), cmd=made if isinstance(made, str) else tuple(made)))

    def copy(self, *paths: HostPath, owner: str | None = None, mode: int | str | None = None) -> Self:
        """Files of this machine, the last path is where they go inside: a directory's content, files by their names,
        also by patterns. They are root's unless `owner` says otherwise, with their own modes unless `mode` does."""
        if len(paths) < 2:
            raise InvalidRequest("copy: needs what and where to", hint='copy("src", "/app")')
        *given, target = (os.fspath(path) for path in paths)
        if len(given) > 1 and not target.endswith("/"):
            raise InvalidRequest(f"copy: several into {target!r}, which does not end with a slash")
        check_path("copy", target)
        if owner is not None:
            check_user(owner.partition(":")[0])
        step = Copy(
            title=_short(" ".join(("copy", *given, target))), sources=tuple(self._local(path) for path in given),
            target=target, owner=owner, mode=_mode(mode),
        )  # fmt: skip
        return self._and(step)

    def _local(self, path: HostPath) -> Local:
        """A file's steps mean what lies beside it, and nothing else: whose file it is, is not known."""
        if self._directory is None:
            return sources.local(path)
        return Local(self._directory, os.fspath(path), contained=True)

    def env(self, **variables: str) -> Self:
        """Variables of the image, and of the steps that follow."""
        found = texts(variables, "env")
        check_env(dict(found))
        title = _short(" ".join(("env", *(f"{name}={value}" for name, value in found.items()))))
        return self._and(Env(title=title, pairs=tuple(found.items())))

    def user(self, name: str) -> Self:
        """Who runs the steps that follow, and commands in a sandbox of it."""
        check_user(name)
        return self._and(User(title=f"user {name}", name=name))

    def workdir(self, path: str) -> Self:
        """Where steps that follow, and commands in a sandbox of it, run. Made if it is missing."""
        check_path("workdir", path)
        return self._and(WorkdirStep(title=f"workdir {path}", path=path))

    def entrypoint(self, *words: str) -> Self:
        """What runs in a sandbox of it where nobody names a command; `cmd` are then its arguments."""
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
        """From a Dockerfile's common instructions. `context` is what COPY takes from: the file's own directory, if no
        other is named. `arguments` are values for its ARGs, `target` the stage to stop at."""
        text = text_of(path)
        directory = os.path.abspath(context if context is not None else os.path.dirname(os.path.abspath(path)))
        where = Context(os.fspath(path), directory, _ignored(path, directory))
        read = read_dockerfile(text, where, arguments=texts(arguments or {}, "arguments"), target=target)
        made = cls(read.recipe)
        made.notices = tuple(read.notices)
        return made


def _ignored(path: HostPath, directory: str) -> tuple[str, ...]:
    """The file's own list, or that of the context."""
    for name in (f"{os.fspath(path)}.dockerignore", os.path.join(directory, ".dockerignore")):
        if os.path.isfile(name):
            return tuple(text_of(name).splitlines())
    return ()


def text_of(path: HostPath) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise InvalidRequest(f"{os.fspath(path)}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"{os.fspath(path)}: it is not text") from None


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
