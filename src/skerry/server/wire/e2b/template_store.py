"""Templates: names for snapshots of their owner. A template is the snapshots named `TEMPLATE.e2b-TIME`.

A file beside the database holds the other properties of a build: its limits, its tags and its number. A snapshot
without an entry is the rest of a build that a killed server left; the next build of the template removes it.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from skerry.errors import InvalidRequest, NotFound, SkerryError
from skerry.storage.tree import write_atomically
from skerry.types import NAME, Caller, Limits, SnapshotInfo

if TYPE_CHECKING:
    from skerry.engine.engine import Engine

log = logging.getLogger("skerry.server")
MARK: Final = ".e2b-"
DEFAULT_TAG: Final = "default"
MAX_TAGS: Final = 100  # of one template
INTERPRETER: Final = "code-interpreter-v1"
_TEMPLATE: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,44}[a-z0-9]|[a-z0-9]")
_TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_IMAGE_TAGS: Final = ("", DEFAULT_TAG, "latest")  # of an image that has none in its name


class TemplateEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The properties of one build of a template."""

    build: str
    limits: Limits = Limits()
    tags: tuple[str, ...] = ()
    public: bool = False
    updated_at: float = 0.0


@dataclass(frozen=True)
class TemplateBuilt:
    """One build of a template that exists."""

    name: str
    info: SnapshotInfo
    entry: TemplateEntry

    @property
    def snapshot(self) -> str:
        return self.info.name or self.info.id


@dataclass(frozen=True)
class TemplateBase:
    """The image or snapshot of a template, and the limits of its sandboxes."""

    image: str
    limits: Limits = field(default_factory=Limits)


class Templates:
    """The templates of all owners."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._path = engine.settings.state_dir / "e2b-templates.json"
        self._entries = self._read()

    def _read(self) -> dict[str, TemplateEntry]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, TemplateEntry])
        except FileNotFoundError:
            return {}
        except (msgspec.MsgspecError, InvalidRequest, OSError, UnicodeError) as error:
            log.error("failed to read the properties of templates", extra={"error": str(error)})
            return {}

    def _change(self, changes: dict[str, TemplateEntry]) -> None:
        """Store entries, and forget those of snapshots that do not exist any more."""
        there = {info.id for info in self._engine.snapshots.table.list()}
        self._entries = {name: one for name, one in (self._entries | changes).items() if name in there}
        write_atomically(self._path, msgspec.json.encode(self._entries))

    async def all(self, caller: Caller) -> list[TemplateBuilt]:
        """Return the builds of an owner, the newest first."""
        found = []
        for info in await self._engine.snapshots.list(caller):
            entry = self._entries.get(info.id)
            if entry is not None and info.owner == caller.owner:
                found.append(TemplateBuilt((info.name or "").rpartition(MARK)[0], info, entry))
        return sorted(found, key=lambda one: one.info.created_at, reverse=True)

    async def versions(self, caller: Caller, template: str) -> list[TemplateBuilt]:
        """Return the builds of one template, the newest first."""
        return [one for one in await self.all(caller) if one.name == template]

    async def add(self, caller: Caller, template: str, info: SnapshotInfo, entry: TemplateEntry) -> None:
        """Store a new build. Its tags leave the others; builds without any tag are removed, if no sandbox needs
        them."""
        others = await self._without(caller, template, entry)
        self._change({**others, info.id: replace(entry, updated_at=time.time())})
        for old in await self._engine.snapshots.list(caller):
            mine = old.owner == caller.owner and (old.name or "").rpartition(MARK)[0] == template
            former = self._entries.get(old.id)
            if mine and old.id != info.id and (former is None or not former.tags):
                with contextlib.suppress(SkerryError):  # a sandbox needs it
                    await self._engine.snapshots.delete(caller, old.id)

    async def _without(self, caller: Caller, template: str, entry: TemplateEntry) -> dict[str, TemplateEntry]:
        others = {one.info.id: one.entry for one in await self.versions(caller, template)}
        return {
            name: replace(one, tags=tuple(tag for tag in one.tags if tag not in entry.tags))
            for name, one in others.items()
            if set(one.tags) & set(entry.tags)
        }

    # -- finding ------------------------------------------------------------------------------------------------------

    async def find(self, caller: Caller, text: str) -> TemplateBuilt:
        """Return the build that `TEMPLATE:TAG` names; without a tag, the default or the newest one."""
        name, _, tag = text.partition(":")
        found = await self.versions(caller, name) if NAME.fullmatch(name) else []
        tagged = [one for one in found if (tag or DEFAULT_TAG) in one.entry.tags]
        if not tagged and tag:
            tagged = [one for one in found if one.entry.build == tag]  # a build's number is a tag too
        if not tagged and tag in ("", DEFAULT_TAG):
            tagged = found
        if not tagged:
            missing = f" with the tag {tag[:80]!r}" if found else ""
            raise NotFound(f"template {name[:80]!r}{missing} not found")
        return tagged[0]

    async def resolve(self, caller: Caller, text: str) -> TemplateBase:
        """Return the image or the snapshot of a template."""
        name, _, tag = text.partition(":")
        if NAME.fullmatch(name) and await self.versions(caller, name):
            built = await self.find(caller, text)
            return TemplateBase(built.snapshot, built.entry.limits)
        for image in (text, *([name] if tag in _IMAGE_TAGS else [])):
            if self.has_image(caller, image):
                return TemplateBase(image)
        if name == INTERPRETER:
            return self._interpreter(caller)
        raise NotFound(f"template {text[:80]!r} not found")

    def _interpreter(self, caller: Caller) -> TemplateBase:
        """Return the image of the interpreter's template, unless the owner or the operator has one of that name."""
        if not self.has_image(caller, "data"):
            raise NotFound(
                f"template {INTERPRETER!r} not found: it is the image `data`, which this server has not built",
                hint="`skerry image build data` builds it; the template `base` runs code without its packages",
            )
        return TemplateBase("data")

    def has_image(self, caller: Caller, name: str) -> bool:
        try:
            self._engine.snapshots.image(caller, name)
        except NotFound:
            return False
        return True

    # -- tags and properties ------------------------------------------------------------------------------------------

    async def assign(self, caller: Caller, target: str, tags: tuple[str, ...]) -> TemplateBuilt:
        """Give tags to a build. They leave other builds of the template."""
        built = await self.find(caller, target)
        entry = replace(built.entry, tags=tuple(dict.fromkeys((*built.entry.tags, *tags))))
        if len(entry.tags) > MAX_TAGS:
            raise InvalidRequest(f"tags: more than {MAX_TAGS} of one build")
        others = await self._without(caller, built.name, replace(entry, tags=tags))
        self._change({**others, built.info.id: entry})
        return TemplateBuilt(built.name, built.info, entry)

    async def unassign(self, caller: Caller, name: str, tags: tuple[str, ...]) -> None:
        """Remove tags. A build that loses its last one stays until the next build of the template."""
        found = await self.versions(caller, name)
        if not found:
            raise NotFound(f"template {name[:80]!r} not found")
        missing = set(tags) - {tag for one in found for tag in one.entry.tags}
        if missing:
            raise NotFound(f"template {name[:80]!r} has no tag {min(missing)[:80]!r}")
        kept = {
            one.info.id: replace(one.entry, tags=tuple(tag for tag in one.entry.tags if tag not in tags))
            for one in found
        }
        self._change(kept)


def check_template(name: str) -> None:
    if not _TEMPLATE.fullmatch(name):
        raise InvalidRequest(
            f"template: {name[:80]!r} can't be used", hint="1 to 46 lower-case letters, digits, '-', '_', '.'"
        )


def check_tags(tags: tuple[str, ...]) -> None:
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise InvalidRequest(f"tags: {tag[:80]!r} is not a tag", hint="letters, digits, '-', '_', '.'")
