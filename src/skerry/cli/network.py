"""network: what may leave a sandbox, what was tried, and what to allow."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from skerry.cli import asking, talk
from skerry.cli.denials import remedy
from skerry.cli.policy import network_options, policy, preset_option, tell_of_loopback, wished
from skerry.cli.session import Session, json_option, pass_session, sandbox_argument
from skerry.config import PROJECT_FILE, load
from skerry.errors import InvalidRequest, NotFound
from skerry.network.learn import patch
from skerry.types import Attempt, Network, NetworkInfo, Preset

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox

_rules = click.argument("rules", nargs=-1, required=True, metavar="RULE...")


@click.group()
def network() -> None:
    """What may leave a sandbox, and what was tried.

    A rule is [METHODS ]HOST[:PORTS][/PATH][@ADDRESSES]: api.example.com, *.example.org, db.internal:5432@10.0.0.5,
    10.0.0.0/8:5432, "GET api.example.com/v1". Without ports: 80 and 443.
    """


@network.command()
@json_option
@sandbox_argument
@pass_session
def show(session: Session, sandbox: str, as_json: bool) -> None:
    """Show the policy of SANDBOX, and how much went through."""
    _give(session.sandbox(sandbox).network.show(), as_json)


@network.command()
@json_option
@preset_option
@sandbox_argument
@click.argument("rules", nargs=-1, metavar="[RULE]...")
@pass_session
def allow(session: Session, sandbox: str, rules: tuple[str, ...], presets: tuple[str, ...], as_json: bool) -> None:
    """Let SANDBOX reach more; at once.

    A RULE is like api.example.com, *.example.org or db.internal:5432; `skerry network --help` has the whole of it. It
    leaves the rules to deny, if it is among them.
    """
    if not rules and not presets:
        raise click.UsageError("say what may be reached: a RULE, or --preset NAME")
    tell_of_loopback(rules)
    _give(session.sandbox(sandbox).network.allow(*rules, presets=presets), as_json)


@network.command()
@json_option
@sandbox_argument
@_rules
@pass_session
def deny(session: Session, sandbox: str, rules: tuple[str, ...], as_json: bool) -> None:
    """Let SANDBOX reach less; at once, and open connections are closed.

    A RULE as for `allow`; without ports it means every port. It wins over whatever allows the same.
    """
    _give(session.sandbox(sandbox).network.deny(*rules), as_json)


@network.command("set")
@network_options
@json_option
@sandbox_argument
@pass_session
def set_(session: Session, /, sandbox: str, as_json: bool, **given: Any) -> None:
    """Give SANDBOX another policy in place of its own: these options, beside this directory's skerry.toml."""
    wish = policy(given, load(project=Path.cwd()))
    if wish is None:
        raise click.UsageError("nothing is said of the new policy: --allow RULE, --preset NAME, or --network none")
    _give(session.sandbox(sandbox).network.set(wish), as_json)


@network.command()
@click.option("-f", "--follow", is_flag=True, help="Go on as it happens.")
@click.option("--denied", is_flag=True, help="Only what was refused.")
@click.option("--since", type=click.IntRange(0), default=0, metavar="SEQ", help="Only what came after this number.")
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Only the newest so many.")
@click.option("--json", "as_json", is_flag=True, help="Give JSON, an object a line.")
@sandbox_argument
@pass_session
def log(session: Session, /, sandbox: str, as_json: bool, **which: Any) -> None:
    """List every attempt of SANDBOX to get out, oldest first: allowed or refused, by which rule, and what would allow
    it."""
    if which["follow"] and which["limit"]:
        raise click.UsageError("--limit does not go with --follow")
    for attempt in session.sandbox(sandbox).network.log(**which):
        if as_json:
            talk.give_line(attempt)
        else:
            talk.give_text(_line(attempt, sandbox))


def _line(attempt: Attempt, sandbox: str) -> str:
    moment = time.strftime("%H:%M:%S", time.gmtime(attempt.at))
    where = attempt.host if attempt.port is None else f"{attempt.host}:{attempt.port}"
    seen = f"{attempt.method} {attempt.path}" if attempt.method else attempt.kind
    words = [str(attempt.seq).rjust(5), moment, attempt.decision.ljust(7), where, seen]
    words += [attempt.process] if attempt.process else []
    words += [f"×{attempt.count}"] if attempt.count > 1 else []
    words += [f"with {', '.join(attempt.secrets)}"] if attempt.secrets else []
    if attempt.decision == "allowed":
        end = "open" if not attempt.ended else f"sent {talk.size(attempt.sent)}, received {talk.size(attempt.received)}"
        return "  ".join([*words, attempt.why, end] if attempt.kind != "name" else [*words, attempt.why])
    cure = remedy(attempt, sandbox)
    return "  ".join([*words, attempt.why, *([f"hint: {cure}"] if cure else [])])


@network.command()
@json_option
@sandbox_argument
@pass_session
def learn(session: Session, sandbox: str, as_json: bool) -> None:
    """Print the smallest policy that allows what SANDBOX has tried, as a patch to skerry.toml.

    Made for a sandbox with --network learn. Read it before you use it: whatever ran inside chose what is in it. Then
    `skerry network learn SANDBOX | patch` applies it.
    """
    target = session.sandbox(sandbox)
    found = target.network.learn()
    if as_json:
        talk.give_json(found)
        return
    place = Path.cwd() / PROJECT_FILE
    presets = wished(load(project=Path.cwd()), "network.presets") or ()
    difference = patch(_without(found, presets, target.known.network), place.read_text() if place.exists() else "")
    if difference:
        for line in difference.splitlines():
            talk.give_text(line)
    else:
        talk.say("nothing to add" if found.allow else "nothing was tried that a rule could allow")


def _without(learned: Network, presets: Iterable[str], there: Network) -> Network:
    """What the project's presets allow already is not named again."""
    known = {preset.name: preset.allow for preset in there.presets if isinstance(preset, Preset)}
    covered = {rule for name in presets for rule in known.get(name, ())}
    return replace(learned, allow=tuple(rule for rule in learned.allow if rule not in covered))


@network.command()
@sandbox_argument
@pass_session
def ask(session: Session, sandbox: str) -> None:
    """Answer, at this terminal, what SANDBOX asks: for one with --network ask. Ctrl-C leaves."""
    prompt = asking.prompt_or_none()
    if prompt is None:
        raise InvalidRequest("stdin is not a terminal", hint="sandbox.network.questions() of the SDK needs none")
    target = session.sandbox(sandbox)
    if target.known.network.on_unknown != "ask":
        talk.say(f"{sandbox} asks nobody: `skerry network set {sandbox} --network ask` makes it ask")
    if not session.quiet:
        talk.say(f"waiting for questions of {sandbox}; Ctrl-C leaves")
    _answer(target, prompt)


def _answer(target: Sandbox, prompt: asking.Prompt) -> None:
    for question in target.network.questions():
        reply = prompt(question)
        if reply is None:
            continue
        try:
            target.network.answer(question, reply.allow, remember=reply.remember)
        except NotFound as error:
            talk.say_error(error)


def _give(info: NetworkInfo, as_json: bool) -> None:
    if as_json:
        talk.give_json(info)
    else:
        talk.give_pairs([*policy_pairs(info.network), *_traffic(info)])


def policy_pairs(policy: Network) -> list[tuple[str, str]]:
    """A policy for people; rules one a line, the first twenty."""
    rows = [("network", _in_words(policy))]
    for name in ("allow", "deny", "inspect"):
        rules: tuple[str, ...] = getattr(policy, name)
        rows += [(name, rule) for rule in rules[:20]]
        rows += [(name, f"and {len(rules) - 20:,} more: --json has them all")] if len(rules) > 20 else []
    for preset in policy.presets:
        hosts = f": {', '.join(preset.allow)}" if isinstance(preset, Preset) else ""
        rows.append(("preset", f"{preset.name if isinstance(preset, Preset) else preset}{hosts}"))
    rows += [("peer", f"{name}={ref}") for name, ref in policy.peers.items()]
    bounds = [f"{name} {value}" for name in ("bandwidth", "total", "connections")
              if (value := getattr(policy, name)) is not None]  # fmt: skip
    return [*rows, *([("bounds", ", ".join(bounds))] if bounds else [])]


def _in_words(policy: Network) -> str:
    if policy.on_unknown == "learn":
        return "learn: what no rule names is let through, and kept in mind"
    if policy.on_unknown == "ask":
        return "ask: somebody is asked about what no rule names"
    if "*" in policy.allow:
        return "open: everything but closed addresses"
    return "closed: nothing gets out" if policy.closed else "only what is named here"


def _traffic(info: NetworkInfo) -> list[tuple[str, str]]:
    rows = [("secret", f"{secret.name} to {', '.join(secret.hosts)}") for secret in info.secrets]
    went = f"sent {talk.size(info.sent)}, received {talk.size(info.received)}, {info.open_connections} open now"
    rows.append(("traffic", went))
    return rows if info.ready else [*rows, ("proxy", "not ready: nothing gets out until it is back")]
