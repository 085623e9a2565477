"""secret set, ls, rm."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import click

from skerry.cli import output
from skerry.cli.context import CliContext, json_option, pass_cli
from skerry.cli.options.secrets import command_words
from skerry.client.secret_store import SERVICES, StoredSecret, UserSecrets, check_service
from skerry.client.secrets import read_command, read_variable, text_of
from skerry.errors import InvalidRequest
from skerry.types.network import MAX_SECRET


@click.group("secret")
def secret() -> None:
    """Manage the secrets that you store on this machine, by service.

    A sandbox uses one with --secret NAME=@SERVICE. Values are in a file that only you can read
    (skerry/secrets.json in your directory of settings), or in the system's keyring.
    """


@secret.command("set")
@click.argument("service")
@click.argument("rest", nargs=-1, metavar="")
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="Send it to this host. Default: the service's.")
@click.option("--from-env", metavar="VARIABLE", help="Read the value from this variable of yours.")
@click.option("--from-command", metavar="COMMAND", help="Read the value from the output of a program, without a shell.")
@click.option(
    "--in",
    "place",
    type=click.Choice(["file", "keyring"]),
    help="Keep the value there. Default: the keyring if usable.",
)
@pass_cli
def set_(cli: CliContext, /, service: str, rest: tuple[str, ...], hosts: tuple[str, ...], **given: Any) -> None:
    """Store the value of SERVICE, which is read from a prompt or from stdin. An earlier value is replaced."""
    if rest:  # not quoted: it is probably the value
        raise InvalidRequest(
            "secret set: the value is not an argument, because every user of this machine can read those",
            hint="enter it at the prompt, or pass it on stdin: skerry secret set SERVICE <FILE",
        )
    check_service(service)
    store = UserSecrets()
    if not hosts:
        store.hosts(service)  # raises before the user is asked for a value
    stored = store.set(service, _value(service, given["from_env"], given["from_command"]), hosts, given["place"])
    if not cli.quiet:
        output.info(f"{service}: stored in the {stored.place}, for {', '.join(stored.hosts)}")


def _value(service: str, variable: str | None, command: str | None) -> str:
    if variable is not None and command is not None:
        raise click.UsageError("--from-env cannot be combined with --from-command")
    if variable is not None:
        return read_variable(variable)
    if command is not None:
        return read_command(service, command_words("--from-command", command))
    if os.isatty(0):
        return str(click.prompt(f"Value of {service}", hide_input=True, err=True))
    return text_of(service, sys.stdin.buffer.read(MAX_SECRET + 3))


@secret.command()
@click.option("--known", is_flag=True, help="List the known services with their hosts and headers instead.")
@json_option
@pass_cli
def ls(cli: CliContext, known: bool, as_json: bool) -> None:
    """List the stored secrets, without their values."""
    if known:
        _list_known(as_json)
        return
    found = UserSecrets().services()
    if as_json:
        output.json([
            {"service": n, "hosts": s.hosts, "place": s.place, "set_at": s.set_at, "sign_in": s.sign_in,
             "expires_at": s.expires_at}
            for n, s in found.items()
        ])  # fmt: skip
        return
    rows = [
        (name, one.place, output.format_age(time.time() - one.set_at), _validity(one), " ".join(one.hosts))
        for name, one in found.items()
    ]
    output.table(("SERVICE", "PLACE", "AGE", "VALID", "HOSTS"), rows)


def _validity(one: StoredSecret) -> str:
    """Return how long the access token of a sign-in is valid. It is refreshed when it is used."""
    if not one.sign_in or one.expires_at is None:
        return "-"
    left = one.expires_at - time.time()
    return f"for {output.format_age(left)}" if left > 0 else "expired"


def _list_known(as_json: bool) -> None:
    if as_json:
        output.json(
            [
                {"service": name, "variable": one.variable, "hosts": one.hosts, "header": one.header}
                for name, one in SERVICES.items()
            ]
        )
        return
    rows = ((name, one.variable, one.header, " ".join(one.hosts)) for name, one in SERVICES.items())
    output.table(("SERVICE", "VARIABLE", "HEADER", "HOSTS"), rows)


@secret.command()
@click.argument("services", nargs=-1, required=True, metavar="SERVICE...")
@pass_cli
def rm(cli: CliContext, services: tuple[str, ...]) -> None:
    """Remove the stored secrets of services. Sandboxes that have a secret already keep it."""
    store = UserSecrets()
    for service in services:
        store.remove(service)
        if not cli.quiet:
            output.info(f"{service}: removed")
