"""A review at a terminal: between the machine, the screen, the keyboard and the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from skerry.cli import loop
from skerry.cli.review import programs
from skerry.cli.review.going import Going
from skerry.cli.review.listening import Listening
from skerry.cli.review.page import body_rows, draw
from skerry.cli.review.rows import Look
from skerry.cli.review.stage import Stage, encoding_of
from skerry.cli.review.stops import Stop
from skerry.cli.review.style import Row, encoded, lines_of
from skerry.cli.review.wishes import Ask, Decide, Edit, Leave, Reload, Suspend, View, Whole, Wish
from skerry.client._async.client import AsyncClient
from skerry.client._async.sandbox import AsyncSandbox
from skerry.errors import Conflict, NotFound, SkerryError
from skerry.types import Hunk, SandboxInfo

if TYPE_CHECKING:
    from skerry.client._async.review import AsyncReview

LINES_MOST = 5000  # of one hunk that are kept
LETTERS_MOST = 1 << 20
T = TypeVar("T", str, bytes)
Step = Callable[[], Wish | None]


class Reviewing:
    def __init__(self, review: AsyncReview, going: Going, stage: Stage, paths: tuple[str, ...]) -> None:
        self._review, self._going, self._stage, self._paths = review, going, stage, paths
        self._steps: asyncio.Queue[Step] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        put = self._steps.put_nowait
        self._listening = Listening(
            lambda key: put(lambda: self._pressed(key)), lambda: put(self._resized), lambda: put(lambda: Leave(129))
        )

    async def run(self) -> int:
        """Until it is left: the exit code."""
        with self._listening.on():
            try:
                while True:
                    self._show()
                    wish = (await self._steps.get())()
                    while wish is not None:
                        if isinstance(wish, Leave):
                            return wish.code
                        wish = self._begin(wish)
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def _show(self) -> None:
        cols, rows = self._stage.size
        self._stage.draw(draw(self._going, cols, rows, ink=self._stage.colours == 256))
        for wish in self._going.asks():
            self._begin(wish)

    # -- keys ---------------------------------------------------------------------------------------------------------

    def _pressed(self, key: str) -> Wish | None:
        if key == "ctrl-l":
            self._stage.forget()
        return self._going.press(key)

    def _resized(self) -> None:
        self._stage.forget()

    # -- wishes -------------------------------------------------------------------------------------------------------

    def _begin(self, wish: Wish) -> Wish | None:
        """What takes time is done beside, and its answer is a step of its own."""
        if isinstance(wish, Edit):
            return self._edit(wish)
        if isinstance(wish, View):
            self._beside(self._view(wish.hunk))
        elif isinstance(wish, Suspend):
            self._stage.suspend()
        elif isinstance(wish, Decide):
            self._beside(self._answered(self._decide(wish)))
        elif isinstance(wish, Reload):
            self._beside(self._answered(self._load()))
        elif isinstance(wish, Ask):
            self._beside(self._ask(wish.hunk))
        elif isinstance(wish, Whole):
            self._beside(self._whole(wish.hunk))
        return None

    def _beside(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answered(self, work: Awaitable[Step]) -> None:
        try:
            step = await work
        except SkerryError as error:
            stale = isinstance(error, (Conflict, NotFound))
            message = error.message if not error.hint else f"{error.message} ({error.hint})"

            def step() -> Wish | None:
                return self._going.failed(message, stale=stale)

        await self._steps.put(step)

    async def _decide(self, wish: Decide) -> Step:
        answer = await self._review.decide(wish.request)
        return lambda: self._going.decided(answer)

    async def _load(self) -> Step:
        review = await self._review.changes(paths=self._paths)
        return lambda: self._going.loaded(review)

    async def _ask(self, hunk: str) -> None:
        try:
            why = await self._review.why(hunk)
        except SkerryError:
            why = None
        await self._steps.put(lambda: self._going.told(hunk, why))

    async def _whole(self, name: str) -> None:
        with contextlib.suppress(SkerryError):
            hunk = _bounded(await self._review.hunk(name))
            await self._steps.put(lambda: self._going.whole(hunk))

    # -- other programs -----------------------------------------------------------------------------------------------

    def _edit(self, wish: Edit) -> Wish | None:
        text: str | None = None
        with self._listening.away(), self._stage.away():
            try:
                text = programs.edited(wish.text, programs.suffix_of(wish.hunk.path))
            except (SkerryError, OSError) as error:
                self._going.message = str(error)
        self._going.edited(text)
        return None

    async def _view(self, hunk: Hunk) -> None:
        """All of it, also what the screen has cut."""
        stop = self._going.stop
        if stop is None:
            return
        with contextlib.suppress(SkerryError):
            if hunk.truncated:
                hunk = await self._review.hunk(hunk.id)
        words = programs.pager()
        look = Look(self._stage.size[0], ink=self._stage.colours == 256, letters=1 << 20)
        rows = body_rows(Stop(stop.file, hunk), look)
        await self._steps.put(lambda: self._paged(rows, words))

    def _paged(self, rows: Iterable[Row], words: list[str] | None) -> None:
        if words is None:
            self._going.message = "there is no pager: name one in the variable PAGER"
            return
        with self._listening.away(), self._stage.away(), contextlib.suppress(SkerryError):
            # `less` would leave at once where all fits, and nothing of it would be seen
            words = [*words, "-+F"] if words[0].endswith("less") else words
            programs.page((encoded(lines_of([row], self._stage.colours), encoding_of()) for row in rows), words)


def _bounded(hunk: Hunk) -> Hunk:
    """As much of it as a screen can be scrolled through; `v` shows the rest."""
    text = _some(hunk.text, "\n")
    raw = None if hunk.raw is None else _some(hunk.raw, b"\n")
    return replace(hunk, text=text, raw=raw, truncated=hunk.truncated or len(text) < len(hunk.text))


def _some(text: T, end: T) -> T:
    """Its first lines, each whole."""
    lines = text[:LETTERS_MOST].split(end, LINES_MOST)
    return end.join(lines[:-1]) + end if len(lines) > LINES_MOST else text[:LETTERS_MOST]


def review(server: str | None, sandbox: SandboxInfo, paths: tuple[str, ...]) -> tuple[int, Going]:
    """At this terminal. The exit code, and how far it went."""
    made: list[Going] = []

    async def work() -> int:
        async with _opened(server, sandbox) as known:
            found = await known.changes(paths=paths)
            made.append(Going(found, sandbox.name or sandbox.id))
            if not made[0].stops:
                return 0
            with Stage() as stage:
                return await Reviewing(known, made[0], stage, paths).run()

    return loop.run(work()), made[0]


@contextlib.asynccontextmanager
async def _opened(server: str | None, sandbox: SandboxInfo) -> AsyncIterator[AsyncReview]:
    async with AsyncClient(server) as client:
        yield AsyncSandbox._of(sandbox, client, shared=True).review
