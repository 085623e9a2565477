"""What all commands share: which server is meant, and how much is said."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import click

from skerry.types import LANGUAGE, NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from skerry.client._sync.client import Client
    from skerry.client._sync.process import Process
    from skerry.client._sync.sandbox import Sandbox

T = TypeVar("T")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
PROCESS_ID = re.compile(r"p-[a-z2-7]{10}")


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


class ImageName(click.ParamType[str]):
    """What a sandbox can start from or be compared with; the shell completes those of `kinds` that exist."""

    name = "text"

    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        names = known_images(Session(server=ctx.find_root().params.get("server")), self._kinds)
        return [click.shell_completion.CompletionItem(name) for name in names if name.startswith(incomplete)]


class ProcessId(click.ParamType[str]):
    """A process of the sandbox named before it; the shell completes those that are listed."""

    name = "process"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        session, sandbox = Session(server=ctx.find_root().params.get("server")), ctx.params.get("sandbox")
        found = known_processes(session, sandbox) if isinstance(sandbox, str) else []
        return [
            click.shell_completion.CompletionItem(process.id, help=process.state)
            for process in found
            if PROCESS_ID.fullmatch(process.id) and process.id.startswith(incomplete)
        ]


def known_processes(session: Session, sandbox: str) -> list[Process]:
    """For the shell's completion: a sandbox that does not run is not woken for it."""
    from skerry.errors import SkerryError

    if sandbox not in known_names(session):
        return []
    try:
        found = session.sandbox(sandbox)
        return found.processes.list() if found.state == "running" else []
    except SkerryError:
        return []


def known_names(session: Session) -> list[str]:
    from skerry.client._sync.sandbox import Sandbox

    found = _known(session, lambda client: Sandbox.list(server=client))
    return sorted(name for one in found if NAME.fullmatch(name := one.name or one.id))


def known_images(session: Session, kinds: tuple[str, ...]) -> list[str]:
    from skerry.client._sync.snapshots import Snapshot

    names: list[str] = []
    if "image" in kinds:
        names += [image.name for image in _known(session, lambda client: client.images.list())]
    if "snapshot" in kinds:
        names += [one.name or one.id for one in _known(session, lambda client: Snapshot.list(server=client))]
    if "sandbox" in kinds:
        names += known_names(session)
    return sorted(name for name in names if _IMAGE.fullmatch(name))


def known_languages(session: Session) -> list[str]:
    found = _known(session, lambda client: client.languages())
    return sorted(name for one in found if LANGUAGE.fullmatch(name := one.name))


def _known(session: Session, ask: Callable[[Client], Sequence[T]]) -> Sequence[T]:
    """For the shell's completion: quick, silent, and never a reason to start a server."""
    from skerry.client import local
    from skerry.errors import SkerryError

    try:
        with session.client() as client:
            if client.address.socket and not local.listening(client.address.socket):
                return []
            return ask(client)
    except SkerryError:
        return []


pass_session = click.make_pass_decorator(Session, ensure=True)
sandbox_argument = click.argument("sandbox", type=SandboxName())
image_argument = click.argument("name", type=ImageName("image"))
snapshot_argument = click.argument("snapshot", type=ImageName("snapshot"))
sandboxes_argument = click.argument("sandboxes", type=SandboxName(), nargs=-1, required=True, metavar="SANDBOX...")
process_argument = click.argument("process", type=ProcessId())
processes_argument = click.argument("processes", type=ProcessId(), nargs=-1, required=True, metavar="PROCESS...")
json_option = click.option("--json", "as_json", is_flag=True, help="Give JSON.")
