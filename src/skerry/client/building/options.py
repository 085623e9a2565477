"""How a build goes: what its steps may reach and use, what is told of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

from skerry.client.building.steps import Step
from skerry.client.outcome import Output, how_it_ended
from skerry.errors import CommandFailed, CommandTimeout, SkerryError
from skerry.types import Attempt, Limits, Network, Options, Result

STEP_S: Final = 1800.0
_TAIL: Final = 4 << 10


class Building(TypedDict, total=False):
    """The keyword arguments of `Image.build` beside its name."""

    network: Network | None
    secrets: Sequence[object]
    limits: Limits
    timeout: float | None
    cache: bool
    on_output: Any
    on_step: Any
    server: Any


@dataclass(frozen=True)
class BuildStep:
    """A step of a build as it begins, or as it is found to be done already (`cached`). `where`: its file and line.
    `stage`: it is another stage's, from which this one copies."""

    number: int
    total: int
    title: str
    where: str | None = None
    cached: bool = False
    stage: bool = False


@dataclass(frozen=True)
class BuildOptions:
    """`network`: what every step may reach; an apt, pip or npm step also reaches what its program is set up to reach on
    this machine. `timeout` is a step's. `cache=False` runs every step; so does what is there, once it is older than
    `most_age` seconds. `env` are variables of the build's sandbox. `pull`: a base that is not there is fetched."""

    network: Network | None = None
    secrets: Sequence[object] = ()
    limits: Limits = field(default_factory=Limits)
    options: Options = field(default_factory=Options)
    env: Mapping[str, str | None] = field(default_factory=dict)
    timeout: float | None = STEP_S
    cache: bool = True
    on_output: Any = None
    on_step: Any = None
    on_unknown: Any = None
    most_age: float | None = None
    pull: bool = True


class Tail:
    """The last of an output."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0

    def add(self, output: Output) -> None:
        self._pieces.append(output.data[-_TAIL:])
        self._size += len(self._pieces[-1])
        while self._size - len(self._pieces[0]) >= _TAIL:
            self._size -= len(self._pieces.popleft())

    @property
    def text(self) -> str:
        return b"".join(self._pieces)[-_TAIL:].decode("utf-8", "replace").strip()


def failed(step: Step, number: int, total: int, result: Result, tail: str) -> CommandFailed | CommandTimeout:
    """What `check=True` would raise, with the step, its line, and how its output ended."""
    said = f"\n{tail}" if tail else "; it printed nothing"
    how = f"ran out of time after {result.duration_s:.1f} s" if result.timed_out else how_it_ended(result)
    details = step.place | {"step": number, "steps": total}
    error: CommandFailed | CommandTimeout = (CommandTimeout if result.timed_out else CommandFailed)(
        f"{step.named}: step {number} of {total} {how}{said}", hint=_hint(result), details=details
    )
    error.result = result
    return error


def _hint(result: Result) -> str | None:
    refused = next((attempt for attempt in result.denied if attempt.decision == "denied"), None)
    return _refused(refused) if refused is not None and not (result.timed_out or result.oom_killed) else result.hint


def _refused(attempt: Attempt) -> str:
    where = attempt.host if attempt.port is None else f"{attempt.host}:{attempt.port}"
    return f"{where} was refused: what a build may reach is said with network=Network(allow=[…]) (--allow, --preset)"


def at_step(step: Step, error: SkerryError) -> SkerryError:
    """The same error, with the step that met it."""
    error.message = f"{step.named}: {error.message}"
    error.args = (error.message,)
    error.details = {**error.details, **step.place}
    return error
