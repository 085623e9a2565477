"""What all commands share: which server is meant, and how much is said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from skerry.types import NAME

if TYPE_CHECKING:
    from skerry.client._sync.client import Client
    from skerry.client._sync.sandbox import Sandbox


@dataclass(frozen=True)
class Session:
    server: str | None = None
    quiet: bool = False

    def client(self) -> Client:
        from skerry.client._sync.client import Client

        return Client(self.server)

    def sandbox(self, ref: str) -> Sandbox:
        from skerry.client._sync.sandbox import Sandbox

        return Sandbox.get(ref, server=self.client())


class SandboxName(click.ParamType[str]):
    """An id or a name; the shell completes those that exist."""

    name = "sandbox"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        root = ctx.find_root().params
        names = known_names(Session(server=root.get("server")))
        return [click.shell_completion.CompletionItem(name) for name in names if name.startswith(incomplete)]


def known_names(session: Session) -> list[str]:
    """For the shell's completion: quick, silent, and never a reason to start a server."""
    from skerry.client import local
    from skerry.client._sync.sandbox import Sandbox
    from skerry.errors import SkerryError

    try:
        with session.client() as client:
            if client.address.socket and not local.listening(client.address.socket):
                return []
            found = Sandbox.list(server=client)
    except SkerryError:
        return []
    return sorted(name for one in found if NAME.fullmatch(name := one.name or one.id))


pass_session = click.make_pass_decorator(Session, ensure=True)
sandbox_argument = click.argument("sandbox", type=SandboxName())
sandboxes_argument = click.argument("sandboxes", type=SandboxName(), nargs=-1, required=True, metavar="SANDBOX...")
json_option = click.option("--json", "as_json", is_flag=True, help="Give JSON.")
