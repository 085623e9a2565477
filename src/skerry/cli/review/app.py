"""The review application: connects the model with the screen, the keyboard and the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from skerry.cli import asyncio_run
from skerry.cli.review import external
from skerry.cli.review.effects import Decide, Edit, Effect, Exit, LoadHunk, LoadOrigin, OpenPager, Reload, Suspend
from skerry.cli.review.input import KeyReader
from skerry.cli.review.items import ReviewItem
from skerry.cli.review.model import ReviewModel
from skerry.cli.review.rows import Layout
from skerry.cli.review.screen import Screen, stdout_encoding
from skerry.cli.review.style import Row, encode, paint_lines
from skerry.cli.review.view import body_rows, draw
from skerry.client._async.client import AsyncClient
from skerry.client._async.sandbox import AsyncSandbox
from skerry.errors import Conflict, NotFound, SkerryError
from skerry.types import Hunk, SandboxInfo

if TYPE_CHECKING:
    from skerry.client._async.review import AsyncSandboxReview

MAX_LINES = 5000  # of one hunk
MAX_CHARACTERS = 1 << 20
T = TypeVar("T", str, bytes)
Step = Callable[[], Effect | None]


class ReviewApp:
    def __init__(
        self,
        review: AsyncSandboxReview,
        model: ReviewModel,
        screen: Screen,
        paths: tuple[str, ...],
        exclude: tuple[str, ...] = (),
    ) -> None:
        self._review, self._model, self._screen, self._paths, self._exclude = review, model, screen, paths, exclude
        self._steps: asyncio.Queue[Step] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        put = self._steps.put_nowait
        self._keys = KeyReader(
            lambda key: put(lambda: self._pressed(key)), lambda: put(self._resized), lambda: put(lambda: Exit(129))
        )

    async def run(self) -> int:
        """Run until the user leaves; return the exit code."""
        with self._keys.on():
            try:
                while True:
                    self._show()
                    effect = (await self._steps.get())()
                    while effect is not None:
                        if isinstance(effect, Exit):
                            return effect.code
                        effect = self._perform(effect)
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def _show(self) -> None:
        cols, rows = self._screen.size
        self._screen.draw(draw(self._model, cols, rows, ink=self._screen.colours == 256))
        for effect in self._model.pending_loads():
            self._perform(effect)

    # -- keys ---------------------------------------------------------------------------------------------------------

    def _pressed(self, key: str) -> Effect | None:
        if key == "ctrl-l":
            self._screen.invalidate()
        return self._model.press(key)

    def _resized(self) -> None:
        self._screen.invalidate()

    # -- effects -------------------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> Effect | None:
        """Perform an effect. Slow work runs in a task, and its answer becomes a step."""
        if isinstance(effect, Edit):
            return self._edit(effect)
        if isinstance(effect, OpenPager):
            self._spawn(self._view(effect.hunk))
        elif isinstance(effect, Suspend):
            self._screen.suspend()
        elif isinstance(effect, Decide):
            self._spawn(self._queue_answer(self._decide(effect)))
        elif isinstance(effect, Reload):
            self._spawn(self._queue_answer(self._load()))
        elif isinstance(effect, LoadOrigin):
            self._spawn(self._ask(effect.hunk))
        elif isinstance(effect, LoadHunk):
            self._spawn(self._whole(effect.hunk))
        return None

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _queue_answer(self, work: Awaitable[Step]) -> None:
        try:
            step = await work
        except SkerryError as error:
            stale = isinstance(error, (Conflict, NotFound))
            message = error.message if not error.hint else f"{error.message} ({error.hint})"

            def step() -> Effect | None:
                return self._model.failed(message, stale=stale)

        await self._steps.put(step)

    async def _decide(self, effect: Decide) -> Step:
        answer = await self._review.decide(effect.request)
        return lambda: self._model.decided(answer)

    async def _load(self) -> Step:
        review = await self._review.changes(paths=self._paths, exclude=self._exclude)
        return lambda: self._model.loaded(review)

    async def _ask(self, hunk: str) -> None:
        try:
            origin = await self._review.origin(hunk)
        except SkerryError:
            origin = None
        await self._steps.put(lambda: self._model.origin_loaded(hunk, origin))

    async def _whole(self, name: str) -> None:
        with contextlib.suppress(SkerryError):
            hunk = _limited(await self._review.hunk(name))
            await self._steps.put(lambda: self._model.hunk_loaded(hunk))

    # -- other programs -----------------------------------------------------------------------------------------------

    def _edit(self, effect: Edit) -> Effect | None:
        text: str | None = None
        with self._keys.released(), self._screen.released():
            try:
                text = external.edit(effect.text, external.suffix_of(effect.hunk.path))
            except (SkerryError, OSError) as error:
                self._model.message = str(error)
        self._model.edited(text)
        return None

    async def _view(self, hunk: Hunk) -> None:
        """Show the whole hunk in the pager, including the part that the screen leaves out."""
        item = self._model.item
        if item is None:
            return
        with contextlib.suppress(SkerryError):
            if hunk.truncated:
                hunk = await self._review.hunk(hunk.id)
        words = external.pager()
        layout = Layout(self._screen.size[0], ink=self._screen.colours == 256, max_line=1 << 20)
        rows = body_rows(ReviewItem(item.file, hunk), layout)
        await self._steps.put(lambda: self._paged(rows, words))

    def _paged(self, rows: Iterable[Row], words: list[str] | None) -> None:
        if words is None:
            self._model.message = "no pager found: set the variable PAGER"
            return
        with self._keys.released(), self._screen.released(), contextlib.suppress(SkerryError):
            # without -+F, `less` would exit at once if all fits, and the user would see nothing
            words = [*words, "-+F"] if words[0].endswith("less") else words
            external.page((encode(paint_lines([row], self._screen.colours), stdout_encoding()) for row in rows), words)


def _limited(hunk: Hunk) -> Hunk:
    """Limit a hunk to a size that can be scrolled; `v` shows the rest."""
    text = _head(hunk.text, "\n")
    raw = None if hunk.raw is None else _head(hunk.raw, b"\n")
    return replace(hunk, text=text, raw=raw, truncated=hunk.truncated or len(text) < len(hunk.text))


def _head(text: T, end: T) -> T:
    """Return the first complete lines."""
    lines = text[:MAX_CHARACTERS].split(end, MAX_LINES)
    return end.join(lines[:-1]) + end if len(lines) > MAX_LINES else text[:MAX_CHARACTERS]


def review(
    server: str | None, sandbox: SandboxInfo, paths: tuple[str, ...], exclude: tuple[str, ...] = ()
) -> tuple[int, ReviewModel]:
    """Run a review on this terminal. Return the exit code and the final model."""
    models: list[ReviewModel] = []

    async def work() -> int:
        async with _open_review(server, sandbox) as known:
            found = await known.changes(paths=paths, exclude=exclude)
            models.append(ReviewModel(found, sandbox.name or sandbox.id))
            if not models[0].items:
                return 0
            with Screen() as screen:
                return await ReviewApp(known, models[0], screen, paths, exclude).run()

    return asyncio_run.run(work()), models[0]


@contextlib.asynccontextmanager
async def _open_review(server: str | None, sandbox: SandboxInfo) -> AsyncIterator[AsyncSandboxReview]:
    async with AsyncClient(server) as client:
        yield AsyncSandbox._of(sandbox, client, shared=True).review
