"""The languages that code can be run in: the server's table, and which of them are there in a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final
from weakref import WeakKeyDictionary

from skerry.code import table
from skerry.code.table import Language
from skerry.engine import plan
from skerry.engine.live import Live
from skerry.engine.processes import Use
from skerry.errors import InvalidRequest, SetupFailed, SkerryError
from skerry.keeper import Keeper, ProcessSpec
from skerry.types import Caller, LanguageForm, LanguageInfo, is_version

AT_ONCE: Final = 4  # of a sandbox's, that are asked for their versions
WITHIN_S: Final = 10.0
PRINTED_MOST: Final = 4 << 10

Found = dict[tuple[str, str | None], str]


class Languages:
    """`forms`: the operator's rows. `use` gives a running sandbox for one call.

    A version that was found is remembered for as long as its sandbox runs, one that was not is looked for again: it may
    be installed any time. Whoever asks for a list gets a new look at all."""

    def __init__(self, forms: Mapping[str, LanguageForm], use: Use) -> None:
        self.table = table.build(forms)
        self._use = use
        self._found: WeakKeyDictionary[Keeper, Found] = WeakKeyDictionary()

    def listed(self) -> list[LanguageInfo]:
        """As the table has them."""
        return [language.info() for language in self.table.values()]

    async def there(self, caller: Caller, ref: str) -> list[LanguageInfo]:
        """As they are in a sandbox."""
        async with self._use(caller, ref) as (live, keeper):
            self._found.pop(keeper, None)
            turn = asyncio.Semaphore(AT_ONCE)

            async def look(language: Language) -> LanguageInfo:
                async with turn:
                    return language.info(await self.version(live, keeper, language), looked=True)

            image = live.row.spec.image
            looks = [asyncio.ensure_future(look(language.inside(image))) for language in self.table.values()]
            try:
                return await asyncio.gather(*looks)
            finally:
                for one in looks:
                    one.cancel()

    def find(self, live: Live, text: str) -> tuple[Language, str | None]:
        """Which one is meant, as it is in this sandbox's image, and the version that is asked for."""
        language, asked = table.find(self.table, text)
        return language.inside(live.row.spec.image), asked

    async def check(
        self, live: Live, keeper: Keeper, language: Language, asked: str | None, user: str | None = None
    ) -> str | None:
        """The version that is there, if it is the one that is asked for."""
        found = await self.version(live, keeper, language, user)
        if asked is None:
            return found
        if found is None:
            raise missing(language)
        if not is_version(asked, found):
            images = [image for version, image in language.versions.items() if is_version(asked, version)]
            where = f"a sandbox of the image {images[-1]} has that" if images else f"known: {known(language)}"
            raise InvalidRequest(f"language: this sandbox has {language.name} {found}, not {asked}", hint=where)
        return found

    async def version(self, live: Live, keeper: Keeper, language: Language, user: str | None = None) -> str | None:
        """The version that is there; None: it says none, or is not there."""
        remembered = self._found.setdefault(keeper, {})
        key = language.name, user
        if key not in remembered and (found := await _look(live, keeper, language, user)) is not None:
            remembered[key] = found
        return remembered.get(key)


def missing(language: Language, program: str | None = None) -> SetupFailed:
    """Its program is not there."""
    program = program or language.program
    apt = "; apt needs the preset apt (--preset apt), and `sudo apt-get update` first" if language.packages else ""
    return SetupFailed(
        f"{language.name} code needs {program}, and this sandbox has none",
        hint=f"it comes with {language.needs}{apt}",
        details={"language": language.name, "program": program},
    )


def known(language: Language) -> str:
    return ", ".join(language.versions) or "none"


async def _look(live: Live, keeper: Keeper, language: Language, user: str | None) -> str | None:
    if not language.version:
        return None
    process, printed = plan.new_id("p-"), {"stdout": b"", "stderr": b""}
    env: dict[str, str | None] = {**language.environment("/tmp")}  # noqa: S108 -- of the sandbox
    spec = ProcessSpec(
        id=process, argv=language.filled(language.version, "."), env=env, cwd="/", user=user, timeout_s=WITHIN_S
    )
    live.work.begin(process, live.count_oom_kills())
    try:
        stream = await keeper.start(spec)
        async with contextlib.aclosing(stream):
            async for name, data in stream:
                printed[name] += data
                if len(printed[name]) > PRINTED_MOST:
                    return None
            ended_well = stream.exit.exit_code == 0
        with contextlib.suppress(SkerryError):
            await keeper.remove(process)
        if not ended_well:
            return None
        return table.read_version(printed["stdout"]) or table.read_version(printed["stderr"])
    finally:
        live.work.end(process, live.count_oom_kills)
