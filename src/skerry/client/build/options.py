"""Options of a build, the presets that its steps need, and the errors of a step that fails.

The steps `apt`, `pip` and `npm` may reach the hosts that these programs are configured to use on this machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

from skerry.client.build.steps import Manager, Step
from skerry.client.policy_inputs import resolve_presets
from skerry.client.results.command import Output, describe_end
from skerry.errors import CommandFailed, CommandTimeout, InvalidRequest, SkerryError
from skerry.types import Limits, Network, NetworkAttempt, Options, Preset, Result, SecretValue

STEP_TIMEOUT: Final = 1800.0
_TAIL: Final = 4 << 10
Presets = dict[Manager, tuple[tuple[Preset, ...], tuple[SecretValue, ...]]]


class BuildArguments(TypedDict, total=False):
    """The keyword arguments of `Image.build` besides the name."""

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
    """A step of a build when it starts, or when its cached result is found (`cached`). `where`: its file and line.
    `stage`: it belongs to another stage that this one copies from."""

    number: int
    total: int
    title: str
    where: str | None = None
    cached: bool = False
    stage: bool = False


@dataclass(frozen=True)
class BuildOptions:
    """`network`: the policy of every step; apt, pip and npm steps also reach the hosts that these programs are
    configured for on this machine. `timeout`: for one step. `cache=False` runs every step; a result older than
    `most_age` seconds runs again too. `env`: variables of the build's sandbox. `pull`: pull a missing base."""

    network: Network | None = None
    secrets: Sequence[object] = ()
    limits: Limits = field(default_factory=Limits)
    options: Options = field(default_factory=Options)
    env: Mapping[str, str | None] = field(default_factory=dict)
    timeout: float | None = STEP_TIMEOUT
    cache: bool = True
    on_output: Any = None
    on_step: Any = None
    on_unknown: Any = None
    most_age: float | None = None
    pull: bool = True


_NEEDS_ROOT: Final = ("permission denied", "are you root", "must be root", "operation not permitted", "superuser")


class Tail:
    """The end of an output."""

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


def step_failed(
    step: Step, number: int, total: int, result: Result, tail: str, user: str
) -> CommandFailed | CommandTimeout:
    """Return the error of `check=True`, with the step, its line and the end of its output."""
    said = f"\n{tail}" if tail else "; it printed nothing"
    how = f"timed out after {result.duration_s:.1f} s" if result.timed_out else describe_end(result)
    details = step.place | {"step": number, "steps": total}
    error: CommandFailed | CommandTimeout = (CommandTimeout if result.timed_out else CommandFailed)(
        f"{step.named}: step {number} of {total} {how}{said}",
        hint=_hint(result) or _user_hint(step, tail, user),
        details=details,
    )
    error.result = result
    return error


def _hint(result: Result) -> str | None:
    refused = next((attempt for attempt in result.denied if attempt.decision == "denied"), None)
    return _refused(refused) if refused is not None and not (result.timed_out or result.oom_killed) else result.hint


def _user_hint(step: Step, tail: str, user: str) -> str | None:
    """Return the hint for a step that needs root, as `apt-get` does: many Dockerfiles expect a base image whose user is
    root."""
    if user.partition(":")[0] in ("root", "0") or not any(text in tail.lower() for text in _NEEDS_ROOT):
        return None
    root = "the line `USER root`" if step.where is not None else '.user("root")'
    return f"it ran as the user {user!r} of the image: put {root} before it, and the image's user back after it"


def _refused(attempt: NetworkAttempt) -> str:
    where = attempt.host if attempt.port is None else f"{attempt.host}:{attempt.port}"
    return f"{where} was denied: allow hosts for a build with network=Network(allow=[…]) (--allow, --preset)"


def at_step(step: Step, error: SkerryError) -> SkerryError:
    """Return the same error with the step that raised it."""
    error.message = f"{step.named}: {error.message}"
    error.args = (error.message,)
    error.details = {**error.details, **step.place}
    return error


def read_presets_of(managers: Iterable[Manager], options: BuildOptions) -> Presets:
    """Return the presets of package managers. Blocks: it runs programs. If a program is missing on this machine,
    `options.network` must be set."""
    found: Presets = {}
    for manager in sorted(managers):
        try:
            network, secrets = resolve_presets(Network(presets=(manager,)))
        except InvalidRequest:
            if options.network is None:
                raise
            found[manager] = ((), ())
        else:
            found[manager] = (tuple(p for p in network.presets if isinstance(p, Preset)), secrets)
    return found
