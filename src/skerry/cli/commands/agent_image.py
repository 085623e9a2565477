"""The image of an agent: built at first use, then shared by all sandboxes."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from skerry.cli import output
from skerry.cli.build_progress import BuildProgress
from skerry.cli.context import CliContext
from skerry.client._sync.build import Image
from skerry.client._sync.sandbox import Sandbox
from skerry.client.agents.kits import VERSION, Kit
from skerry.client.build.dockerfile import DockerfileContext, read_dockerfile
from skerry.client.build.sources import digest
from skerry.client.build.steps import Copy, Local, Recipe
from skerry.client.transport.requests import snapshots
from skerry.errors import CommandFailed, InvalidRequest, NotFound, PermissionDenied
from skerry.types import ImageInfo, Limits, Network, SnapshotInfo

if TYPE_CHECKING:
    from skerry.client._sync.client import Client

MARK: Final = "SKERRY_KIT"  # the variable of an image with the digest of its recipe
LIMITS: Final = Limits(cpus=2, memory="4G", pids=2048)
_LOOKUP_TIMEOUT: Final = 120
_MANAGERS: Final = {"npm": r"\bnpm\b", "pip": r"\bpip3?\b", "apt": r"\bapt(-get)?\b"}
_NEWEST: Final = {
    "npm": ["npm", "view", "--no-update-notifier", "--cache", ".npm", "{}", "version"],
    "pip": ["python3", "-m", "pip", "index", "versions", "--disable-pip-version-check", "{}"],
}
_VERSION: Final = re.compile(r"[0-9]+(?:\.[0-9]+)+")


@dataclass(frozen=True)
class AgentImage:
    """`ref`: its name, or the ID of a snapshot for a user that may not name images. `argv`: its command."""

    ref: str
    argv: tuple[str, ...]
    env: dict[str, str]


def digest_of(kit: Kit) -> str:
    """Return a digest of everything that makes the image."""
    facts: list[object] = [kit.recipe, sorted(kit.build_arguments.items())]
    if kit.directory is not None and (copied := _copied(_recipe(kit))):
        # The files that a variable names are known in the build only.
        unknown = any("$" in one.pattern for one in copied)
        facts.append(digest([Local(kit.directory, ".")] if unknown else copied))
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:16]


def _recipe(kit: Kit) -> Recipe:
    context = DockerfileContext(f"{kit.name}.dockerfile", kit.directory or "/var/empty", ())
    return read_dockerfile(kit.recipe, context, arguments=kit.build_arguments).recipe


def _copied(recipe: Recipe) -> list[Local]:
    """Return the files of this machine in an image."""
    steps = [step for step in recipe.steps if isinstance(step, Copy)]
    own = [source for step in steps for source in step.sources if isinstance(source, Local)]
    return [*own, *(source for step in steps if step.stage is not None for source in _copied(step.stage))]


def ensure_image(cli: CliContext, client: Client, kit: Kit) -> AgentImage:
    """Return the image of the kit; build a missing one, and one whose recipe has changed."""
    if kit.pulled is not None:
        return _image(kit.image, client.images.get(kit.image))
    try:
        found = client.images.get(kit.image)
        if found.env.get(MARK) == digest_of(kit):
            return _image(kit.image, found)
    except NotFound:
        pass
    return build_image(cli, client, kit)


def build_image(cli: CliContext, client: Client, kit: Kit) -> AgentImage:
    progress = BuildProgress(first=f"building {kit.image} (once; later starts use it)")
    image = Image(_recipe(kit)).env(**{MARK: digest_of(kit)})
    presets = tuple(name for name, pattern in _MANAGERS.items() if re.search(pattern, kit.recipe))
    shown: dict[str, Any] = {} if cli.quiet else {"on_step": progress.step, "on_output": progress.output}
    network = Network(allow=kit.network.install.allow, presets=presets)
    with progress:
        snapshot = image.build(network=network, limits=LIMITS, server=client, **shown)
    try:
        return _image(kit.image, client.images.from_snapshot(snapshot.id, kit.image))
    except PermissionDenied:
        return _image(snapshot.id, snapshot.info)


def image_of(client: Client, ref: str) -> AgentImage:
    """Return the image that a sandbox was created from."""
    try:
        return _image(ref, client.images.get(ref))
    except NotFound:
        return _image(ref, client.request_json(snapshots.get(ref), SnapshotInfo))


def _image(ref: str, found: ImageInfo | SnapshotInfo) -> AgentImage:
    argv = (*found.entrypoint, *found.cmd)
    if not argv:
        raise InvalidRequest(f"image {ref} has no command", hint="the recipe of a kit needs an ENTRYPOINT")
    return AgentImage(ref, argv, found.env)


def installed_version(client: Client, name: str) -> str | None:
    """Return the version of an agent that was installed last."""
    prefix = f"agent/{name}@"
    found = [image for image in client.images.list() if image.name.startswith(prefix)]
    newest = max(found, key=lambda image: image.created_at, default=None)
    version = newest.name.removeprefix(prefix) if newest is not None else ""
    return version if _VERSION.fullmatch(version) else None


def newest_version(client: Client, kit: Kit) -> str:
    """Return the newest version of the agent's package. A sandbox looks it up, with the hosts of the package
    manager."""
    manager, _, package = kit.extension.package.partition(":")
    if not package or VERSION not in kit.args:
        raise InvalidRequest(f"{kit.name}: its newest version is not known", hint="--version VERSION")
    words = [word.format(package) for word in _NEWEST[manager]]
    with Sandbox(network=Network(presets=(manager,)), server=client) as sandbox:
        found = sandbox.run(words, timeout=_LOOKUP_TIMEOUT)
    version = _VERSION.search(found.stdout)
    if not found.ok or version is None:
        raise CommandFailed(f"the newest version of {package} was not found", hint=found.stderr[-400:] or None)
    return version[0]


def report(cli: CliContext, kit: Kit) -> None:
    if kit.skipped and not cli.quiet:
        output.info(f"{kit.name}: not supported here, and skipped: {', '.join(kit.skipped)}")
