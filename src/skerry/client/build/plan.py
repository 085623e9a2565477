"""A recipe resolved against an existing base: the commands, their users and directories, and the keys of the results.
Nothing runs here; files are read only to hash them."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from skerry.client.build import steps
from skerry.client.build.shell_words import ShellWordError, expand, substitute
from skerry.client.build.steps import (
    Arg,
    Copy,
    Env,
    Inline,
    Install,
    Local,
    Manager,
    Recipe,
    RunStep,
    Scope,
    Start,
    Step,
    User,
    Workdir,
)
from skerry.errors import InvalidRequest

_FORM: Final = "skerry build 1"  # change it when the effect of a step changes


@dataclass(frozen=True)
class ImageState:
    """The configuration of the image after the steps so far. `added`: variables that steps set, beyond those of the
    base; `args`: variables of the build alone."""

    digest: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = "root"
    cwd: str = "/"
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    added: Mapping[str, str] = field(default_factory=dict)
    args: Mapping[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        return {**self.args, **self.env}

    @property
    def facts(self) -> list[Any]:
        return [sorted(self.env.items()), self.user, self.cwd, self.entrypoint, self.cmd]


@dataclass(frozen=True)
class RunAction:
    cmd: str | list[str]
    user: str
    cwd: str
    env: Mapping[str, str]
    stdin: bytes | None = None
    preset: Manager | None = None


@dataclass(frozen=True)
class CopyAction:
    """Files to copy. `target` is absolute; it ends with a slash if it was given as a directory."""

    sources: tuple[Local | Inline | str, ...]
    target: str
    owner: str | None
    mode: int | None
    content: str  # a digest of the copied files
    stage: BuildPlan | None = None
    parents: bool = False
    unpack: bool = False


@dataclass(frozen=True)
class Task:
    """One resolved step. `directories`: working directories that must exist afterwards."""

    step: Step
    state: ImageState
    key: str
    action: RunAction | CopyAction | None = None
    directories: tuple[str, ...] = ()

    @property
    def preset(self) -> Manager | None:
        return self.action.preset if isinstance(self.action, RunAction) else None


@dataclass(frozen=True)
class BuildPlan:
    """`marks`: the tasks after which a snapshot is taken: each that changes files, and the last. `digest`: of the
    base."""

    base: str
    digest: str
    tasks: tuple[Task, ...]

    @property
    def marks(self) -> list[int]:
        last = len(self.tasks) - 1
        return [at for at, task in enumerate(self.tasks) if task.action is not None or at == last]

    @property
    def key(self) -> str:
        return self.tasks[-1].key


Digest = Callable[[Sequence[Local], bool], str]


def make_plan(recipe: Recipe, bases: Mapping[str, ImageState], digest: Digest) -> BuildPlan:
    """Resolve a recipe. `bases`: the state of each image in `recipe.bases`; `digest` reads files of this host."""
    return _Planner(recipe, bases, digest).plan()


class _Planner:
    def __init__(self, recipe: Recipe, bases: Mapping[str, ImageState], digest: Digest) -> None:
        self._recipe = recipe
        self._bases = bases
        self._digest = digest
        self._state = bases[recipe.base]
        self._key = _hashed(_FORM, self._state.digest, recipe.inputs)
        self._directories: tuple[str, ...] = ()

    def plan(self) -> BuildPlan:
        tasks = [self._task(step) for step in self._recipe.steps]
        if not tasks:
            tasks = [self._task(Scope(title=f"from {self._recipe.base}"))]
        return BuildPlan(self._recipe.base, self._bases[self._recipe.base].digest, tuple(tasks))

    def _task(self, step: Step) -> Task:
        try:
            action = self._action(step)
        except ShellWordError as why:
            raise InvalidRequest(f"{step.named}: {why}", details=step.place) from None
        except InvalidRequest as error:
            raise InvalidRequest(f"{step.named}: {error.message}", hint=error.hint, details=step.place) from None
        key = _hashed(self._key, _facts(action), self._directories, self._state.facts)
        task = Task(step, self._state, key, action, self._directories)
        if action is not None:
            self._key, self._directories = key, ()
        return task

    def _action(self, step: Step) -> RunAction | CopyAction | None:
        match step:
            case Install():
                env = {**self._state.args, **self._state.added, **steps.install_environment(step)}
                return RunAction(steps.install_command(step), "root", "/", env, step.requirements, step.manager)
            case RunStep():
                return self._run(step)
            case Copy():
                return self._copy(step)
            case _:
                self._state = self._state_after(step)
        return None

    def _run(self, step: RunStep) -> RunAction:
        state = self._state
        cmd = step.cmd if isinstance(step.cmd, str) else list(step.cmd)
        if isinstance(cmd, str) and step.shell is not None:
            cmd = [*step.shell, cmd]
        return RunAction(cmd, state.user, state.cwd, {**state.args, **state.added})

    def _copy(self, step: Copy) -> CopyAction:
        stage = make_plan(step.stage, self._bases, self._digest) if step.stage is not None else None
        sources = tuple(self._source(step, source) for source in step.sources)
        files = [source for source in sources if isinstance(source, Local)]
        content = self._digest(files, step.parents) if files else ""
        if stage is not None:
            content = _hashed(content, stage.key)
        target = self._text(step, step.target)
        return CopyAction(
            sources, self._absolute(target) + ("/" if target.endswith(("/", "/.")) or target == "." else ""),
            self._owner(step), step.mode, content, stage, step.parents,
            step.unpack,
        )  # fmt: skip

    def _owner(self, step: Copy) -> str | None:
        if step.owner is None:
            return None
        return self._text(step, step.owner) if step.owner else self._state.user

    def _source(self, step: Copy, source: Local | Inline | str) -> Local | Inline | str:
        if isinstance(source, Inline):
            if source.literal:
                return source
            return replace(source, content=substitute(source.content, self._state.variables), literal=True)
        if isinstance(source, Local):
            return replace(source, pattern=self._text(step, source.pattern))
        return posixpath.normpath("/" + self._text(step, source).lstrip("/"))

    def _state_after(self, step: Step) -> ImageState:
        state = self._state
        match step:
            case Env():
                made = {name: self._text(step, value) for name, value in step.pairs}
                return replace(state, env={**state.env, **made}, added={**state.added, **made})
            case Arg():
                value = self._recipe.arguments.get(step.name)
                if value is None and step.default is not None:
                    value = self._text(step, step.default)
                return state if value is None else replace(state, args={**state.args, step.name: value})
            case User():
                return replace(state, user=self._text(step, step.name))
            case Workdir():
                path = self._absolute(self._text(step, step.path))
                self._directories = (*self._directories, path)
                return replace(state, cwd=path)
            case Start():
                entrypoint = state.entrypoint if step.entrypoint is None else step.entrypoint
                return replace(state, entrypoint=entrypoint, cmd=state.cmd if step.cmd is None else step.cmd)
        return replace(state, args={})

    def _text(self, step: Step, text: str) -> str:
        if step.escape is not None:
            text = expand(text, self._state.variables, escape=step.escape)
        if not text and not isinstance(step, (Env, Arg)):
            raise InvalidRequest("empty after its variables are expanded")
        return text

    def _absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join("/", self._state.cwd, path)).replace("//", "/")


def _facts(action: RunAction | CopyAction | None) -> list[Any]:
    match action:
        case RunAction():
            stdin = hashlib.sha256(action.stdin).hexdigest() if action.stdin is not None else None
            return ["command", action.cmd, action.user, action.cwd, sorted(action.env.items()), stdin]
        case CopyAction():
            named = [[s.pattern] if isinstance(s, Local) else [s.name, s.content] if isinstance(s, Inline) else s
                     for s in action.sources]  # fmt: skip
            how = [action.target, action.owner, action.mode, action.parents, action.unpack]
            return ["copy", named, how, action.content]
    return []


def _hashed(*facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
