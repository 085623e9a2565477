"""The languages that code can be run in: the server's table, and which of them are there in a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from skerry.code import languages
from skerry.code.languages import Language
from skerry.config import Settings
from skerry.engine.images.service import ImageService
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.spec import new_id
from skerry.errors import InvalidRequest, NotFound, PermissionDenied, SkerryError, ToolchainMissing
from skerry.keeper import Keeper, ProcessSpec
from skerry.types import Caller, ImageInfo, LanguageInfo, Progress, is_version

AT_ONCE: Final = 4  # languages of a sandbox that are queried for their versions at once
VERSION_TIMEOUT_S: Final = 10.0
MAX_PRINTED: Final = 4 << 10

# The distribution's unversioned programs are links to a versioned one.
_PROGRAMS: Final = {
    "python": ("usr/bin/python3", r"python(3\.[0-9]+)"),
    "c": ("usr/bin/gcc", r"gcc-([0-9]+)"),
    "cpp": ("usr/bin/g++", r"g\+\+-([0-9]+)"),
}

Found = dict[tuple[str, str | None], str]


class LanguageService:
    """`engine.languages`: the built-in table with the operator's entries.

    A version that was found is remembered while its sandbox runs; a missing one is looked up again, because it may be
    installed any time. A list always queries all again."""

    def __init__(self, settings: Settings, lifecycle: Lifecycle, images: ImageService) -> None:
        self.table = languages.build(settings["languages"])
        self._allowed = _allowed(self.table, settings["languages.allow"])
        self._installs = settings["languages.install"] == "auto"
        self._lifecycle, self._images = lifecycle, images
        self._found: WeakKeyDictionary[Keeper, Found] = WeakKeyDictionary()

    def listed(self) -> list[LanguageInfo]:
        """As the table has them, with the versions of `base`."""
        there, versions = {image.name for image in self._images.list()}, self._base_versions()
        found = []
        for language in self._allowed.values():
            image = language.own_image if self._installs or language.own_image in there else None
            row = language.with_base(versions.get(language.name))
            found.append(row.info(image=image, installed=image in there))
        return found

    def install(self, name: str) -> AsyncIterator[Progress | ImageInfo]:
        """Build the image that has the tools of a language, unless it is there. Yield progress, then the image."""
        language, _ = languages.find(self._allowed, name)
        image = language.own_image
        if image is None:
            raise NotFound(f"no image has the tools of {language.name}", hint="`base` may have them")
        if not self._installs:
            raise PermissionDenied(
                "installing languages is not allowed on this server",
                hint=f"the operator sets languages.install; `skerry image build {image}` needs an admin",
            )
        return self._images.build(image, rebuild=False)

    def _base_versions(self) -> dict[str, str]:
        """Return the versions in `base`, read from the names of its programs; before it is built, from those of the
        host, which has the same release."""
        try:
            image = self._images.get("base")
        except NotFound:
            return _named_versions([Path("/")])
        if image.recipe is None:  # from another host: its links are not trusted
            return {}
        return _named_versions(self._images.trees(image))

    async def there(self, caller: Caller, ref: str) -> list[LanguageInfo]:
        """As they are in a sandbox."""
        async with self._lifecycle.use(caller, ref) as (sandbox, keeper):
            self._found.pop(keeper, None)
            turn = asyncio.Semaphore(AT_ONCE)

            async def look(language: Language) -> LanguageInfo:
                async with turn:
                    return language.info(await self.version(sandbox, keeper, language), looked=True)

            image, versions = sandbox.record.spec.image, self._base_versions()
            rows = [row.with_base(versions.get(row.name)).inside(image) for row in self._allowed.values()]
            looks = [asyncio.ensure_future(look(language)) for language in rows]
            try:
                return await asyncio.gather(*looks)
            finally:
                for one in looks:
                    one.cancel()

    def find(self, sandbox: Sandbox, text: str) -> tuple[Language, str | None]:
        """Return the language as this sandbox's image has it, and the requested version."""
        language, asked = languages.find(self.table, text)
        if language.name not in self._allowed:
            raise PermissionDenied(
                f"language: {language.name} code is not allowed on this server",
                hint=f"allowed: {', '.join(self._allowed)}; the operator sets languages.allow",
            )
        return language.inside(sandbox.record.spec.image), asked

    async def check(
        self, sandbox: Sandbox, keeper: Keeper, language: Language, asked: str | None, user: str | None = None
    ) -> str | None:
        """Return the installed version if it is the requested one."""
        found = await self.version(sandbox, keeper, language, user)
        if asked is None:
            return found
        if found is None:
            raise toolchain_missing(language)
        if not is_version(asked, found):
            row = language.with_base(self._base_versions().get(language.name))
            images = [image for version, image in row.versions.items() if is_version(asked, version)]
            where = f"a sandbox of the image {images[-1]} has that" if images else f"known: {known(language)}"
            raise InvalidRequest(f"language: this sandbox has {language.name} {found}, not {asked}", hint=where)
        return found

    async def version(
        self, sandbox: Sandbox, keeper: Keeper, language: Language, user: str | None = None
    ) -> str | None:
        """Return the installed version; None if it is unknown or not installed."""
        remembered = self._found.setdefault(keeper, {})
        key = language.name, user
        if key not in remembered and (found := await _look(sandbox, keeper, language, user)) is not None:
            remembered[key] = found
        return remembered.get(key)


def _named_versions(trees: list[Path]) -> dict[str, str]:
    found = {}
    for name, (path, pattern) in _PROGRAMS.items():
        for tree in trees:
            with contextlib.suppress(OSError):
                if match := re.fullmatch(pattern, os.readlink(tree / path)):
                    found[name] = match[1]
    return found


def _allowed(known: languages.Table, names: tuple[str, ...] | None) -> languages.Table:
    if names is None:
        return known
    try:
        return {language.name: language for language, _ in (languages.find(known, name) for name in names)}
    except InvalidRequest as error:
        raise InvalidRequest(f"languages.allow: {error.message}", hint=error.hint) from None


def toolchain_missing(language: Language, program: str | None = None) -> ToolchainMissing:
    """Its program is not there."""
    program = program or language.program
    apt = "; apt needs the preset apt (--preset apt), and `sudo apt-get update` first" if language.packages else ""
    return ToolchainMissing(
        f"{language.name} code needs {program}, and this sandbox has none",
        hint=f"it comes with {language.needs}{apt}",
        details={"language": language.name, "program": program},
    )


def known(language: Language) -> str:
    return ", ".join(language.versions) or "none"


async def _look(sandbox: Sandbox, keeper: Keeper, language: Language, user: str | None) -> str | None:
    if not language.version:
        return None
    process, printed = new_id("p-"), {"stdout": b"", "stderr": b""}
    env: dict[str, str | None] = {**language.environment("/tmp")}  # noqa: S108 -- of the sandbox
    spec = ProcessSpec(
        id=process,
        argv=language.filled(language.version, "."),
        env=env,
        cwd="/",
        user=user,
        timeout_s=VERSION_TIMEOUT_S,
    )
    sandbox.activity.begin(process, sandbox.count_oom_kills())
    try:
        stream = await keeper.start(spec)
        async with contextlib.aclosing(stream):
            async for name, data in stream:
                printed[name] += data
                if len(printed[name]) > MAX_PRINTED:
                    return None
            ended_well = stream.exit.exit_code == 0
        with contextlib.suppress(SkerryError):
            await keeper.remove(process)
        if not ended_well:
            return None
        return languages.read_version(printed["stdout"]) or languages.read_version(printed["stderr"])
    finally:
        sandbox.activity.end(process, sandbox.count_oom_kills)
