"""Questions about what no rule names, and a callback that answers them."""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import TYPE_CHECKING

import httpx

from skerry.client import backend_async as backend
from skerry.client import network_requests as requests
from skerry.client.lines import LineDecoder
from skerry.client.patience import Patience
from skerry.client.responses import decode
from skerry.errors import NotFound, ServerUnreachable, SkerryError
from skerry.types import Question, Reply

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox


class AsyncQuestions:
    """`async for question in …`, without end, through broken connections; until `aclose`, or the sandbox is gone."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox
        self._questions: AsyncGenerator[Question, None] | None = None
        self._response: httpx.Response | None = None
        self._ended = False

    def __aiter__(self) -> AsyncQuestions:
        return self

    async def __anext__(self) -> Question:
        if self._questions is None:
            self._questions = self._follow()
        return await anext(self._questions)

    def end(self) -> None:
        """Also from another thread, while one waits for the next question."""
        self._ended = True
        if self._response is not None:
            backend.cut(self._response)

    async def aclose(self) -> None:
        self.end()
        questions, self._questions = self._questions, None
        if questions is not None:
            await questions.aclose()

    async def _follow(self) -> AsyncGenerator[Question, None]:
        """What still waits comes again after a break, and is told once."""
        told: set[str] = set()
        patience = Patience()
        while not self._ended:
            try:
                async for question in self._once():
                    patience.renew()
                    if question.id not in told:
                        told.add(question.id)
                        yield question
                raise ServerUnreachable("the stream of questions ended", hint="`skerry server status`")
            except ServerUnreachable as error:
                if not self._ended:
                    await backend.sleep(patience.pause(error))
            except NotFound:  # the sandbox is gone, and nobody asks any more
                return

    async def _once(self) -> AsyncGenerator[Question, None]:
        lines = LineDecoder()
        async with self._sandbox.client.answer(requests.questions(self._sandbox.id)) as response:
            self._response = response
            try:
                async for chunk in response.aiter_raw():
                    for line in lines.feed(chunk):
                        yield decode(line, Question)
            finally:
                self._response = None


class AsyncAsking:
    """A callback that answers questions in the background. `aclose` ends it; what waits then is not answered."""

    def __init__(self, sandbox: AsyncSandbox, answerer: backend.Answerer) -> None:
        self._sandbox = sandbox
        self._answerer = answerer
        self._questions = AsyncQuestions(sandbox)
        self._aside = backend.Aside()

    async def start(self) -> None:
        self._sandbox.asking.append(self)
        await self._aside.start(self._work)

    async def __aenter__(self) -> AsyncAsking:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if self in self._sandbox.asking:
            self._sandbox.asking.remove(self)
        self._questions.end()
        await self._aside.end()

    async def _work(self) -> None:
        try:
            async for question in self._questions:
                await self._answer(question)
        except SkerryError as error:
            warnings.warn(f"questions of {self._sandbox.id} are no longer answered: {error}", stacklevel=2)

    async def _answer(self, question: Question) -> None:
        reply = await self._reply(question)
        try:
            await self._sandbox.client.done(requests.reply(self._sandbox.id, question.id, reply))
        except (NotFound, ServerUnreachable):  # too late, or another was quicker; or who asked went with the server
            return

    async def _reply(self, question: Question) -> Reply:
        try:
            said = await backend.consult(self._answerer, question)
        except Exception as error:
            warnings.warn(f"a question about {question.host} got no answer: {error!r}", stacklevel=2)
            said = False
        return said if isinstance(said, Reply) else Reply(allow=said is True)
