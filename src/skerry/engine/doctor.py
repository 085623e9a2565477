"""Checks of this host: the guarantees it can give, the missing parts, and the commands that install them. Works without
a server."""

from __future__ import annotations

import os

from skerry import keeper, runtimes, storage
from skerry.config import Settings
from skerry.engine.volumes.buckets import PROGRAM, find_program
from skerry.errors import HostUnsupported, NotFound, SkerryError
from skerry.images import recipe_digest
from skerry.network.gateway.checks import checks as network
from skerry.review.ledger.git import git_version
from skerry.runtimes.checks import install
from skerry.storage import ImageStore, LayerStore
from skerry.types import Check, parse_size


def examine(settings: Settings) -> list[Check]:
    """Every check, in the order in which they matter."""
    walls = runtimes.checks(settings.state_dir)
    return [*walls, *network(), *_storage(settings), _keeper(), _git(), *_buckets(settings), _base_image(settings)]


def _storage(settings: Settings) -> list[Check]:
    if os.geteuid() != 0:  # the state directory is root's
        return [Check("storage", None, "requires root", "sudo skerry doctor")]
    return storage.checks(
        settings.state_dir,
        settings["storage.driver"],
        pool_size=parse_size(settings["storage.pool_size"]),
        min_free=parse_size(settings["storage.min_free_space"]),
    )


def _keeper() -> Check:
    try:
        return Check("keeper", True, f"{keeper.binary()} (build {keeper.build_id()[:12]})")
    except PermissionError:  # an installation below a directory that this user may not enter
        return Check("keeper", None, "requires root", "sudo skerry doctor")
    except SkerryError as error:
        return Check("keeper", False, error.message, error.hint)


def _git() -> Check:
    """Only reviews need it."""
    try:
        return Check("git", True, git_version())
    except HostUnsupported:
        return Check("git", None, "not found: no sandbox can have a review", install("git"))


def _buckets(settings: Settings) -> list[Check]:
    """Only sandboxes with a bucket need its program, and only if the operator lists a server."""
    if not settings["buckets"]:
        return []
    try:
        return [Check("buckets", True, find_program())]
    except HostUnsupported as error:
        return [Check("buckets", False, error.message, install(PROGRAM))]


def _base_image(settings: Settings) -> Check:
    state = settings.state_dir
    try:
        os.listdir(state / "images")  # opening a store that is not there would make it
        image = ImageStore(state / "images", LayerStore(state / "layers")).get("base")
    except PermissionError:
        return Check("image base", None, "requires root", "sudo skerry doctor")
    except (NotFound, OSError):
        return Check("image base", None, "not made yet", "skerry image build base")
    size = f"{image.size / 1e6:.0f} MB"
    if image.recipe != recipe_digest():
        return Check("image base", None, f"{size}, made by another version of Skerry", "skerry image build base")
    return Check("image base", True, size)
