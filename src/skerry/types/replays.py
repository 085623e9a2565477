"""Replays: the report of a trace that was run again."""

from __future__ import annotations

from typing import Any, Literal

from skerry.types.network import Network, Preset, SecretValue
from skerry.types.sandboxes import Lifecycle, Limits, Options
from skerry.types.values import Answer, Value, check_env, check_text

Verdict = Literal["same", "normalised", "different", "skipped"]


class ReplayRule(Answer, frozen=True, kw_only=True):
    """A rule of the normalisation. `pattern` is a regular expression; its group `v`, if it has one, is the value, and
    the rest is context, which must be equal.

    `check`: a `clock` value is replaced only if it lies within the run that printed it; of an `identity`, one value of
    the first run stands for exactly one value of the second; a `measure` is a duration or a rate; a `derived` file
    follows from other files, which are compared."""

    name: str
    check: Literal["clock", "identity", "measure", "derived"]
    description: str
    pattern: str


class ReplayDifference(Answer, frozen=True, kw_only=True):
    """A difference in one part of a step: `exit_code`, `stdout`, `files` … `diff`: a unified diff of normalised text,
    cut to a maximum length."""

    part: str
    before: str | None = None
    after: str | None = None
    diff: str | None = None


class ReplayStep(Answer, frozen=True, kw_only=True):
    """A step of a replay. `n`: its number in the trace. `rules`: the names of the rules that made it the same.
    `reason`: why it was skipped, or could not be repeated."""

    n: int
    kind: str
    text: str
    verdict: Verdict
    rules: tuple[str, ...] = ()
    differences: tuple[ReplayDifference, ...] = ()
    reason: str | None = None


class ReplayReport(Answer, frozen=True, kw_only=True):
    """`source`: the sandbox of the trace. `sandbox`: the sandbox of the replay, which exists only if it was `kept`.
    `verdict`: `different` if one step is different; else `normalised` if one step is; else `same`. `notes`: parts of
    the trace that a replay leaves out, such as secrets."""

    source: str
    image: str
    image_digest: str
    sandbox: str
    kept: bool
    verdict: Verdict
    steps: tuple[ReplayStep, ...]
    notes: tuple[str, ...] = ()
    rules: tuple[ReplayRule, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether no step is different."""
        return self.verdict != "different"


class RecordedNetwork(Value, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The parts of a recorded network policy that a replay can take over."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    inspect: tuple[str, ...] = ()
    presets: tuple[Preset, ...] = ()
    peers: dict[str, str] = {}
    on_unknown: str = "deny"
    handlers: tuple[dict[str, Any], ...] = ()


class RecordedLifecycle(Value, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The start commands of a recorded sandbox. Its times are not taken from a trace."""

    on_start: tuple[str, ...] = ()
    ready: str | int | None = None
    ready_timeout: str | int | float | None = None

    def __post_init__(self) -> None:
        Lifecycle(on_start=self.on_start, ready=self.ready, ready_timeout=self.ready_timeout)  # checks them


class RecordedVolume(Value, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A volume of a recorded sandbox, for the notes of a report."""

    path: str


class RecordedSpec(Value, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The parts of a recorded sandbox that a replay reads. It never takes labels, secrets, the lifetime, the runtime,
    waived guarantees or volumes from a trace."""

    env: dict[str, str | None] = {}
    limits: Limits = Limits()
    options: Options = Options()
    network: RecordedNetwork = RecordedNetwork()
    lifecycle: RecordedLifecycle = RecordedLifecycle()
    volumes: tuple[RecordedVolume, ...] = ()
    secrets: tuple[dict[str, Any], ...] = ()


class ReplayRequest(Value, frozen=True, kw_only=True):
    """POST /v1/replays: create a sandbox from the start of a trace. The image is found by its digest, also if it has
    another name now, or is a snapshot; `image` is its recorded name. Without `network`, nothing is allowed, also where
    the operator's default allows something. `on_start`, `ready`, `ready_timeout`: as in a lifecycle, but without the
    operator's defaults. `keep`: do not delete it when it is idle."""

    image_digest: str
    image: str = ""
    env: dict[str, str | None] = {}
    limits: Limits = Limits()
    network: Network = Network()
    options: Options = Options()
    secrets: tuple[SecretValue, ...] = ()
    on_start: tuple[str, ...] = ()
    ready: str | int | None = None
    ready_timeout: str | int | float | None = None
    keep: bool = False

    def __post_init__(self) -> None:
        check_env(self.env)
        Lifecycle(on_start=self.on_start, ready=self.ready, ready_timeout=self.ready_timeout)  # checks them
        check_text("image and image_digest", self.image, self.image_digest)
