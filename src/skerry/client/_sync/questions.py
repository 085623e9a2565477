# Generated from client/_async/questions.py by scripts/generate_sync.py. Do not edit.
"""Questions about what no rule names, and a callback that answers them."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING

import httpx

from skerry.client import backend_sync as backend
from skerry.client import network_requests as requests
from skerry.client.lines import LineDecoder
from skerry.client.patience import Patience
from skerry.client.responses import decode
from skerry.errors import NotFound, ServerUnreachable, SkerryError
from skerry.types import Question, Reply

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox


class Questions:
    """`for question in …`, without end, through broken connections; until `close`, or the sandbox is gone."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._questions: Generator[Question, None] | None = None
        self._response: httpx.Response | None = None
        self._ended = False

    def __iter__(self) -> Questions:
        return self

    def __next__(self) -> Question:
        if self._questions is None:
            self._questions = self._follow()
        return next(self._questions)

    def end(self) -> None:
        """Also from another thread, while one waits for the next question."""
        self._ended = True
        if self._response is not None:
            backend.cut(self._response)

    def close(self) -> None:
        self.end()
        questions, self._questions = self._questions, None
        if questions is not None:
            questions.close()

    def _follow(self) -> Generator[Question, None]:
        """What still waits comes again after a break, and is told once."""
        told: set[str] = set()
        patience = Patience()
        while not self._ended:
            try:
                for question in self._once():
                    patience.renew()
                    if question.id not in told:
                        told.add(question.id)
                        yield question
                raise ServerUnreachable("the stream of questions ended", hint="`skerry server status`")
            except ServerUnreachable as error:
                if not self._ended:
                    backend.sleep(patience.pause(error))
            except NotFound:  # the sandbox is gone, and nobody asks any more
                return

    def _once(self) -> Generator[Question, None]:
        lines = LineDecoder()
        with self._sandbox.client.answer(requests.questions(self._sandbox.id)) as response:
            self._response = response
            try:
                for chunk in response.iter_raw():
                    for line in lines.feed(chunk):
                        yield decode(line, Question)
            finally:
                self._response = None


class Asking:
    """A callback that answers questions in the background. `close` ends it; what waits then is not answered."""

    def __init__(self, sandbox: Sandbox, answerer: backend.Answerer) -> None:
        self._sandbox = sandbox
        self._answerer = answerer
        self._questions = Questions(sandbox)
        self._aside = backend.Aside()

    def start(self) -> None:
        self._sandbox.asking.append(self)
        self._aside.start(self._work)

    def __enter__(self) -> Asking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self in self._sandbox.asking:
            self._sandbox.asking.remove(self)
        self._questions.end()
        self._aside.end()

    def _work(self) -> None:
        try:
            for question in self._questions:
                self._answer(question)
        except SkerryError as error:
            warnings.warn(f"questions of {self._sandbox.id} are no longer answered: {error}", stacklevel=2)

    def _answer(self, question: Question) -> None:
        reply = self._reply(question)
        try:
            self._sandbox.client.done(requests.reply(self._sandbox.id, question.id, reply))
        except (NotFound, ServerUnreachable):  # too late, or another was quicker; or who asked went with the server
            return

    def _reply(self, question: Question) -> Reply:
        try:
            said = backend.consult(self._answerer, question)
        except Exception as error:
            warnings.warn(f"a question about {question.host} got no answer: {error!r}", stacklevel=2)
            said = False
        return said if isinstance(said, Reply) else Reply(allow=said is True)
