"""The context of a command (server and verbosity) and argument types that complete names.

The client is imported when it is first used: `skerry --version`, `skerry serve` and the help do without httpx2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import click

from skerry.cli import output
from skerry.client.transport import local_server
from skerry.errors import SkerryError
from skerry.types import LANGUAGE, NAME, PROCESS_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from skerry.client._sync.client import Client
    from skerry.client._sync.processes import Process
    from skerry.client._sync.sandbox import Sandbox

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., object]")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_DASHED = "skerry.dashed"


@dataclass(frozen=True)
class CliContext:
    """The global options of one `skerry` call."""

    server: str | None = None
    quiet: bool = False

    def client(self) -> Client:
        from skerry.client._sync.client import Client

        return Client(self.server)

    def sandbox(self, ref: str) -> Sandbox:
        from skerry.client._sync.sandbox import Sandbox

        return Sandbox.get(ref, server=self.client())


class SandboxName(click.ParamType[str]):
    """An ID or a name; the shell completes existing ones."""

    name = "sandbox"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        root = ctx.find_root().params
        names = known_names(CliContext(server=root.get("server")))
        return [click.shell_completion.CompletionItem(name) for name in names if name.startswith(incomplete)]


class ImageName(click.ParamType[str]):
    """An image, snapshot, volume or sandbox; the shell completes existing ones of `kinds`."""

    name = "text"

    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        names = known_images(CliContext(server=ctx.find_root().params.get("server")), self._kinds)
        return [click.shell_completion.CompletionItem(name) for name in names if name.startswith(incomplete)]


class WebhookName(click.ParamType[str]):
    """A webhook of the server's settings; the shell completes existing ones."""

    name = "webhook"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        cli = CliContext(server=ctx.find_root().params.get("server"))
        names = [one.name for one in _known(cli, lambda client: client.webhooks.list()) if NAME.fullmatch(one.name)]
        return [click.shell_completion.CompletionItem(name) for name in names if name.startswith(incomplete)]


class ProcessId(click.ParamType[str]):
    """A process of the preceding sandbox argument; the shell completes listed ones."""

    name = "process"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        cli, sandbox = CliContext(server=ctx.find_root().params.get("server")), ctx.params.get("sandbox")
        found = known_processes(cli, sandbox) if isinstance(sandbox, str) else []
        return [
            click.shell_completion.CompletionItem(process.id, help=process.state)
            for process in found
            if PROCESS_ID.fullmatch(process.id) and process.id.startswith(incomplete)
        ]


def known_processes(cli: CliContext, sandbox: str) -> list[Process]:
    """Return processes for shell completion. Do not resume a sandbox for it."""

    if sandbox not in known_names(cli):
        return []
    try:
        found = cli.sandbox(sandbox)
        return found.processes.list() if found.state == "running" else []
    except SkerryError:
        return []


def known_names(cli: CliContext) -> list[str]:
    from skerry.client._sync.sandbox import Sandbox

    found = _known(cli, lambda client: Sandbox.list(server=client))
    return sorted(name for one in found if NAME.fullmatch(name := one.name or one.id))


def known_images(cli: CliContext, kinds: tuple[str, ...]) -> list[str]:
    from skerry.client._sync.snapshots import Snapshot

    names: list[str] = []
    if "image" in kinds:
        names += [image.name for image in _known(cli, lambda client: client.images.list())]
    if "snapshot" in kinds:
        names += [one.name or one.id for one in _known(cli, lambda client: Snapshot.list(server=client))]
    if "volume" in kinds:
        names += [one.name for one in _known(cli, lambda client: client.volumes.list())]
    if "sandbox" in kinds:
        names += known_names(cli)
    return sorted(name for name in names if _IMAGE.fullmatch(name))


def known_languages(cli: CliContext) -> list[str]:
    found = _known(cli, lambda client: client.languages())
    return sorted(name for one in found if LANGUAGE.fullmatch(name := one.name))


def _known(cli: CliContext, ask: Callable[[Client], Sequence[T]]) -> Sequence[T]:
    """Return names for shell completion: quick, silent, and without starting a server."""

    try:
        with cli.client() as client:
            if client.address.socket and not local_server.listening(client.address.socket):
                return []
            return ask(client)
    except SkerryError:
        return []


class DashedCommand(click.Command):
    """A command that notes whether its words begin after `--`; see `is_dashed`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        words = len(ctx.params["command"]) + (ctx.params.get("sandbox") is not None)
        ctx.meta[_DASHED] = given[len(given) - words - 1 : len(given) - words] == ["--"]
        return rest


def is_dashed(ctx: click.Context) -> bool:
    """Return whether the words of a `DashedCommand` begin after `--`."""
    return bool(ctx.meta[_DASHED])


pass_cli = click.make_pass_decorator(CliContext, ensure=True)
sandbox_argument = click.argument("sandbox", type=SandboxName())
image_argument = click.argument("name", type=ImageName("image"))
volume_argument = click.argument("volume", type=ImageName("volume"))
snapshot_argument = click.argument("snapshot", type=ImageName("snapshot"))
sandboxes_argument = click.argument("sandboxes", type=SandboxName(), nargs=-1, required=True, metavar="SANDBOX...")
process_argument = click.argument("process", type=ProcessId())
processes_argument = click.argument("processes", type=ProcessId(), nargs=-1, required=True, metavar="PROCESS...")


def _json_option(help_text: str) -> Callable[[F], F]:
    """Declare --json. It is read before the other options, so that errors about them are JSON too."""
    return click.option("--json", "as_json", is_flag=True, is_eager=True, callback=_with_json_errors, help=help_text)


def _with_json_errors(_: click.Context, __: click.Parameter, value: bool) -> bool:
    if value:
        output.use_json_errors()
    return value


json_option = _json_option("Print JSON, errors too.")
json_lines_option = _json_option("Print JSON, one object per line; errors too.")
