"""`sandbox.network`: what may leave it, what was tried, and questions about what no rule names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from skerry.client import backend_async as backend
from skerry.client import network_requests as requests
from skerry.client._async.questions import AsyncAsking, AsyncQuestions
from skerry.client.description import check_network
from skerry.client.egress import check_carried, on_this_machine
from skerry.client.lines import LineDecoder
from skerry.client.patience import Patience
from skerry.client.responses import decode
from skerry.errors import InvalidRequest, ServerUnreachable
from skerry.types import Attempt, Network, NetworkChange, NetworkInfo, Preset, Question, Reply

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox


class AsyncSandboxNetwork:
    """Changes hold when the call returns: connections that are no longer allowed are closed by then."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def show(self) -> NetworkInfo:
        """The policy as it stands, and how much went through."""
        return await self._sandbox.client.value(requests.show(self._sandbox.id), NetworkInfo)

    async def allow(self, *rules: str, presets: Sequence[str] = ()) -> NetworkInfo:
        """Let these through too: `"api.example.com"`, `"*.example.org"`, `"db.internal:5432@10.0.0.5"`. A preset whose
        set-up has a password is refused, as in `set`."""
        if not presets:
            return await self._change(NetworkChange(allow=_rules(rules)))
        wish = Network(presets=presets)
        check_network(wish)
        settled, secrets = await backend.in_thread(on_this_machine, wish)
        check_carried(secrets, self._sandbox.known.secrets)
        read = tuple(preset for preset in settled.presets if isinstance(preset, Preset))
        return await self._change(NetworkChange(allow=_rules(rules) if rules else (), presets=read))

    async def deny(self, *rules: str) -> NetworkInfo:
        """Refuse these, whatever else allows them."""
        return await self._change(NetworkChange(deny=_rules(rules)))

    async def _change(self, change: NetworkChange) -> NetworkInfo:
        return await self._sandbox.client.value(requests.change(self._sandbox.id, change), NetworkInfo)

    async def set(self, network: Network) -> NetworkInfo:
        """Another policy in place of the one that is there. A password that a preset's set-up has is a secret, which
        only a create can carry: refused here."""
        check_network(network)
        settled, secrets = await backend.in_thread(on_this_machine, network)
        check_carried(secrets, self._sandbox.known.secrets)
        return await self._sandbox.client.value(requests.set_(self._sandbox.id, settled), NetworkInfo)

    def log(
        self, *, follow: bool = False, since: int = 0, denied: bool = False, limit: int | None = None
    ) -> AsyncIterator[Attempt]:
        """Every attempt to get out, oldest first: after number `since`, only those `denied`, only the newest `limit`.
        `follow` goes on as they come, and takes a broken connection up again."""
        return self._log(requests.LogWish(follow, since, denied, limit))

    async def _log(self, wish: requests.LogWish) -> AsyncIterator[Attempt]:
        since, patience = wish.since, Patience()
        while True:
            try:
                async for attempt in self._once(wish, since):
                    since = attempt.seq
                    patience.renew()
                    yield attempt
                if not wish.follow:
                    return
                raise ServerUnreachable("the log ended", hint="`skerry server status`")
            except ServerUnreachable as error:
                if not wish.follow:
                    raise
                await backend.sleep(patience.pause(error))

    async def _once(self, wish: requests.LogWish, since: int) -> AsyncIterator[Attempt]:
        lines = LineDecoder()
        async with self._sandbox.client.stream(requests.log(self._sandbox.id, wish, since)) as chunks:
            async for chunk in chunks:
                for line in lines.feed(chunk):
                    yield decode(line, Attempt)

    async def learn(self) -> Network:
        """The smallest policy that allows what was tried so far; for a run with `on_unknown="learn"`. Read it before
        you use it: what ran inside chose what is in it."""
        return await self._sandbox.client.value(requests.learn(self._sandbox.id), Network)

    def questions(self) -> AsyncQuestions:
        """With `on_unknown="ask"`: iterate for what is asked, first what waits already. `answer` answers."""
        return AsyncQuestions(self._sandbox)

    async def answer(self, question: Question | str, allow: bool, *, remember: bool = False) -> None:
        """Answer a question; `remember` makes a rule of it. NotFound if it was answered, or too late."""
        name = question if isinstance(question, str) else question.id
        request = requests.reply(self._sandbox.id, name, Reply(allow=allow, remember=remember))
        await self._sandbox.client.done(request)

    async def ask(self, answerer: backend.Answerer) -> AsyncAsking:
        """Have `answerer(question)` answer beside all else, until it is closed or the sandbox is: True is yes, a
        `Reply` may be remembered, all else is no, an exception too."""
        asking = AsyncAsking(self._sandbox, answerer)
        await asking.start()
        return asking


def _rules(rules: tuple[str, ...]) -> tuple[str, ...]:
    if not rules:
        raise InvalidRequest("no rule was given", hint='like allow("api.example.com")')
    if isinstance(rules[0], (list, tuple)):
        raise InvalidRequest("rules are given one after the other, not as a list", hint="put a star before it: *rules")
    return tuple(Network(allow=rules).allow)
