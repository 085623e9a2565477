"""network: manage the network policy of a sandbox and show its log."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from skerry.cli import output, prompts
from skerry.cli.context import CliContext, json_lines_option, json_option, pass_cli, sandbox_argument
from skerry.cli.options.network import (
    cassette_to_load,
    network_options,
    network_policy,
    preset_option,
    project_setting,
    warn_loopback,
)
from skerry.cli.options.project import project_from_options, project_options
from skerry.cli.output import denial_fix
from skerry.cli.project import find_project_file
from skerry.client.handler_rules import parse_handlers
from skerry.client.host.cassette_file import save_cassette
from skerry.config import load
from skerry.errors import InvalidRequest, NotFound
from skerry.network.policy.suggest import project_file_patch
from skerry.types import Handler, Network, NetworkAttempt, NetworkInfo, Preset

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox

_rules = click.argument("rules", nargs=-1, required=True, metavar="RULE...")


@click.group()
def network() -> None:
    """Manage the network policy of a sandbox and show its network log.

    A rule is [METHODS ]HOST[:PORTS][/PATH][@ADDRESSES]: api.example.com, *.example.org, db.internal:5432@10.0.0.5,
    10.0.0.0/8:5432, "GET api.example.com/v1". Default ports: 80 and 443.
    """


@network.command()
@json_option
@sandbox_argument
@pass_cli
def show(cli: CliContext, sandbox: str, as_json: bool) -> None:
    """Show the network policy and traffic counters of SANDBOX."""
    _print(cli.sandbox(sandbox).network.show(), as_json)


@network.command()
@json_option
@preset_option
@sandbox_argument
@click.argument("rules", nargs=-1, metavar="[RULE]...")
@pass_cli
def allow(cli: CliContext, sandbox: str, rules: tuple[str, ...], presets: tuple[str, ...], as_json: bool) -> None:
    """Add allow rules to the policy of SANDBOX, with immediate effect.

    A RULE is like api.example.com, *.example.org or db.internal:5432; `skerry network --help` shows the full syntax.
    The same rule is removed from the deny rules.
    """
    if not rules and not presets:
        raise click.UsageError("name the hosts to allow: RULE or --preset NAME")
    warn_loopback(rules)
    _print(cli.sandbox(sandbox).network.allow(*rules, presets=presets), as_json)


@network.command()
@json_option
@sandbox_argument
@_rules
@pass_cli
def deny(cli: CliContext, sandbox: str, rules: tuple[str, ...], as_json: bool) -> None:
    """Add deny rules to the policy of SANDBOX, with immediate effect, and close open connections.

    A RULE has the syntax of `allow`; without ports it denies every port. Deny rules win over allow rules.
    """
    _print(cli.sandbox(sandbox).network.deny(*rules), as_json)


@network.command("set")
@network_options
@project_options
@json_option
@sandbox_argument
@pass_cli
def set_(cli: CliContext, /, sandbox: str, as_json: bool, **given: Any) -> None:
    """Replace the policy of SANDBOX with these options and the project's skerry.toml."""
    project = project_from_options(given)
    network = network_policy(given, project.settings, project.directory)
    if network is None:
        raise click.UsageError("no new policy given: use --allow RULE, --preset NAME or --network none")
    cassette, target = cassette_to_load(given, network), cli.sandbox(sandbox)
    info = target.network.set(network)
    if cassette is not None:
        target.network.load_cassette(cassette)
    _print(info, as_json)


@network.command()
@json_option
@sandbox_argument
@click.argument("rules", nargs=-1, required=True, metavar="RULE...")
@pass_cli
def handle(cli: CliContext, sandbox: str, rules: tuple[str, ...], as_json: bool) -> None:
    """Change, redirect or answer the HTTP requests of SANDBOX, with immediate effect.

    A RULE is "HOST set NAME: VALUE", "HOST add NAME: VALUE" or "HOST remove NAME", with `response` before the verb
    for headers of responses, or "HOST redirect OTHER", or "HOST answer [STATUS] FILE". HOST is [METHODS
    ]HOST[:PORTS][/PATH]. The rules of a host replace its earlier ones. They open nothing: the policy must allow the
    host, and OTHER too.
    """
    _print(cli.sandbox(sandbox).network.add_handlers(*parse_handlers(rules, Path.cwd())), as_json)


@network.command()
@json_option
@sandbox_argument
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...")
@pass_cli
def unhandle(cli: CliContext, sandbox: str, hosts: tuple[str, ...], as_json: bool) -> None:
    """Remove the handlers of these hosts from SANDBOX. HOST is as `skerry network show` prints it."""
    _print(cli.sandbox(sandbox).network.remove_handlers(*hosts), as_json)


@network.command()
@json_option
@sandbox_argument
@click.argument("hosts", nargs=-1, metavar="[HOST]...")
@pass_cli
def mirror(cli: CliContext, sandbox: str, hosts: tuple[str, ...], as_json: bool) -> None:
    """Write the HTTP exchanges of SANDBOX with these hosts, and no others, to its trace. Without HOST: stop."""
    _print(cli.sandbox(sandbox).network.mirror(*hosts), as_json)


@network.command()
@click.option("-o", "--output", "file", type=click.Path(), metavar="FILE", help="Write it to this file.")
@json_option
@sandbox_argument
@pass_cli
def cassette(cli: CliContext, sandbox: str, file: str | None, as_json: bool) -> None:
    """Save the recorded HTTP exchanges of SANDBOX, or show their number.

    A sandbox records with --record-network. `skerry run --cassette FILE` serves them again.
    """
    target = cli.sandbox(sandbox)
    if file is not None:
        save_cassette(file, target.network.cassette())
    info = target.network.cassette_info()
    if as_json:
        output.json(info)
    else:
        rows = [("exchanges", str(info.exchanges)), ("size", output.format_size(info.size))]
        rows += [("not recorded", str(info.omitted))] if info.omitted else []
        output.pairs([*rows, *([("ended", info.full)] if info.full else [])])


@network.command()
@click.option("-f", "--follow", is_flag=True, help="Follow new attempts.")
@click.option("--denied", is_flag=True, help="List only denied attempts.")
@click.option("--since", type=click.IntRange(0), default=0, metavar="SEQ", help="List only attempts after this number.")
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="List only the newest N attempts.")
@json_lines_option
@sandbox_argument
@pass_cli
def log(cli: CliContext, /, sandbox: str, as_json: bool, **which: Any) -> None:
    """List the network attempts of SANDBOX, oldest first, with the decision, the rule and a hint for denied ones."""
    if which["follow"] and which["limit"]:
        raise click.UsageError("--limit cannot be combined with --follow")
    for attempt in cli.sandbox(sandbox).network.log(**which):
        if as_json:
            output.json_line(attempt)
        else:
            output.line(_attempt_line(attempt, sandbox))


def _attempt_line(attempt: NetworkAttempt, sandbox: str) -> str:
    moment = time.strftime("%H:%M:%S", time.gmtime(attempt.at))
    where = attempt.host if attempt.port is None else f"{attempt.host}:{attempt.port}"
    seen = " ".join(filter(None, (attempt.method, attempt.path))) or attempt.kind
    words = [str(attempt.seq).rjust(5), moment, attempt.decision.ljust(7), where, seen]
    words += [attempt.process] if attempt.process else []
    words += [f"×{attempt.count}"] if attempt.count > 1 else []
    words += [f"with {', '.join(attempt.secrets)}"] if attempt.secrets else []
    if attempt.decision == "allowed":
        end = (
            "open"
            if not attempt.ended
            else f"sent {output.format_size(attempt.sent)}, received {output.format_size(attempt.received)}"
        )
        return "  ".join([*words, attempt.why, end] if attempt.kind != "name" else [*words, attempt.why])
    fix = denial_fix(attempt, sandbox)
    return "  ".join([*words, attempt.why, *([f"hint: {fix}"] if fix else [])])


@network.command()
@json_option
@sandbox_argument
@pass_cli
def suggest(cli: CliContext, sandbox: str, as_json: bool) -> None:
    """Print the smallest policy that allows the logged attempts of SANDBOX, as a patch to skerry.toml.

    Use it with --network learn. Read the patch before you apply it: the programs in the sandbox chose its contents.
    `skerry network suggest SANDBOX | patch` applies it.
    """
    target = cli.sandbox(sandbox)
    found = target.network.suggest()
    if as_json:
        output.json(found)
        return
    file = find_project_file()
    presets = project_setting(load(project=file), "network.presets") or ()
    missing = _without_presets(found, presets, target.cached_info.network)
    difference = project_file_patch(missing, file.content.decode() if file is not None else "")
    if difference:
        if file is not None and file.path.parent != Path.cwd() and not cli.quiet:
            output.info(f"this patch is for {file.path}; apply it in that directory")
        for line in difference.splitlines():
            output.line(line)
    else:
        output.info("nothing to add" if found.allow else "no attempts that a rule could allow")


def _without_presets(learned: Network, presets: Iterable[str], there: Network) -> Network:
    """Remove the rules that the project's presets contain already."""
    known = {preset.name: preset.allow for preset in there.presets if isinstance(preset, Preset)}
    covered = {rule for name in presets for rule in known.get(name, ())}
    return replace(learned, allow=tuple(rule for rule in learned.allow if rule not in covered))


@network.command()
@sandbox_argument
@pass_cli
def ask(cli: CliContext, sandbox: str) -> None:
    """Answer approval requests of SANDBOX at this terminal (for --network ask). Ctrl-C quits."""
    prompt = prompts.open_prompt()
    if prompt is None:
        raise InvalidRequest("stdin is not a terminal", hint="without a terminal, use sandbox.network.approvals()")
    target = cli.sandbox(sandbox)
    if target.cached_info.network.on_unknown != "ask":
        output.info(f"{sandbox} does not ask; to enable it: skerry network set {sandbox} --network ask")
    if not cli.quiet:
        output.info(f"waiting for approval requests of {sandbox}; Ctrl-C quits")
    _answer(target, prompt)


def _answer(target: Sandbox, prompt: prompts.Prompt) -> None:
    for request in target.network.approvals():
        approval = prompt(request)
        if approval is None:
            continue
        try:
            target.network.answer(request, approval.allow, remember=approval.remember)
        except NotFound as error:
            output.error(error)


def _print(info: NetworkInfo, as_json: bool) -> None:
    if as_json:
        output.json(info)
    else:
        output.pairs([*policy_pairs(info.network), *_traffic(info)])


def policy_pairs(policy: Network) -> list[tuple[str, str]]:
    """Describe a policy: one rule per row, at most 20 of each kind."""
    rows = [("network", _mode_text(policy))]
    for name in ("allow", "deny", "inspect", "mirror"):
        rules: tuple[str, ...] = getattr(policy, name)
        rows += [(name, rule) for rule in rules[:20]]
        rows += [(name, f"and {len(rules) - 20:,} more: --json lists them all")] if len(rules) > 20 else []
    rows += [("handler", text) for handler in policy.handlers for text in _handler_texts(handler)]
    for preset in policy.presets:
        hosts = f": {', '.join(preset.allow)}" if isinstance(preset, Preset) else ""
        rows.append(("preset", f"{preset.name if isinstance(preset, Preset) else preset}{hosts}"))
    rows += [("peer", f"{name}={ref}") for name, ref in policy.peers.items()]
    bounds = [f"{name} {value}" for name in ("bytes_per_second", "max_bytes", "max_connections")
              if (value := getattr(policy, name)) is not None]  # fmt: skip
    if policy.cassette is not None:
        meaning = {"record": "HTTP exchanges are recorded", "replay": "responses come from the cassette only"}
        rows.append(("cassette", f"{policy.cassette}: {meaning[policy.cassette]}"))
    return [*rows, *([("bounds", ", ".join(bounds))] if bounds else [])]


def _handler_texts(handler: Handler) -> list[str]:
    """Describe a handler by the rules that would make it."""
    texts = []
    for prefix, field in (("", ""), ("response ", "response_")):
        texts += [f"{prefix}remove {name}" for name in getattr(handler, f"{field}remove_headers")]
        for verb in ("set", "add"):
            headers: dict[str, str] = getattr(handler, f"{field}{verb}_headers")
            texts += [f"{prefix}{verb} {name}: {value}" for name, value in headers.items()]
    texts += [f"redirect {handler.redirect}"] if handler.redirect is not None else []
    if handler.answer is not None:
        texts.append(f"answer {handler.answer.status}, {len(handler.answer.body or b'')} bytes")
    whats = {"request": "requests", "response": "responses", "both": "requests and responses"}
    texts += [f"a client decides about {whats[handler.callback]}"] if handler.callback is not None else []
    return [f"{handler.host} {text}" for text in texts]


def _mode_text(policy: Network) -> str:
    if policy.on_unknown == "learn":
        return "learn: destinations without a rule are allowed and recorded"
    if policy.on_unknown == "ask":
        return "ask: destinations without a rule need an approval"
    if "*" in policy.allow:
        return "open: all public destinations are allowed"
    return "closed: no connections" if policy.closed else "only the destinations listed here"


def _traffic(info: NetworkInfo) -> list[tuple[str, str]]:
    rows = [("secret", f"{secret.name} to {', '.join(secret.hosts)}") for secret in info.secrets]
    sent, received = output.format_size(info.sent), output.format_size(info.received)
    rows.append(("traffic", f"sent {sent}, received {received}, {info.open_connections} open now"))
    return rows if info.ready else [*rows, ("proxy", "not ready: no connections until it is back")]
