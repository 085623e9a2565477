"""`sandbox.network`: the network policy, the log of attempts, and approval requests."""

from __future__ import annotations

import contextlib
import secrets
import warnings
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Literal, Self, TypeVar

import httpx2

from skerry.client.create_options import check_network
from skerry.client.policy_inputs import check_secrets_exist, resolve_presets
from skerry.client.transport import backend_async as backend
from skerry.client.transport.backoff import Backoff
from skerry.client.transport.requests import network as requests
from skerry.client.transport.requests.sandboxes import Request
from skerry.client.transport.responses import decode
from skerry.codecs.ndjson import LineDecoder
from skerry.errors import InvalidRequest, NotFound, ServerUnreachable, SkerryError
from skerry.types import (
    Approval,
    ApprovalRequest,
    CassetteInfo,
    Handler,
    HandlerCall,
    HandlerDecision,
    HttpRequest,
    HttpResponse,
    Network,
    NetworkAttempt,
    NetworkChange,
    NetworkInfo,
    Preset,
)
from skerry.types.handlers import HANDLER_TIMEOUT_S, check_handlers

if TYPE_CHECKING:
    from skerry.client._async.client import AsyncClient
    from skerry.client._async.sandbox import AsyncSandbox

MAX_SEEN = 1000
MAX_CALL_LINE = 4 << 20  # a body for a handler, in base64
V = TypeVar("V", bound=ApprovalRequest | HandlerCall)


class AsyncSandboxNetwork:
    """Changes are in effect when a call returns: connections that are no longer allowed are closed by then."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def show(self) -> NetworkInfo:
        """Return the policy and the traffic counters."""
        return await self._sandbox.client.request_json(requests.show(self._sandbox.id), NetworkInfo)

    async def allow(self, *rules: str, presets: Sequence[str] = ()) -> NetworkInfo:
        """Allow more hosts: `"api.example.com"`, `"*.example.org"`, `"db.internal:5432@10.0.0.5"`. A preset whose
        configuration contains a password is rejected, as in `set`."""
        if not presets:
            return await self._change(NetworkChange(allow=_rules(rules)))
        requested = Network(presets=presets)
        check_network(requested)
        settled, carried = await backend.in_thread(resolve_presets, requested)
        check_secrets_exist(carried, self._sandbox.cached_info.secrets)
        read = tuple(preset for preset in settled.presets if isinstance(preset, Preset))
        return await self._change(NetworkChange(allow=_rules(rules) if rules else (), presets=read))

    async def deny(self, *rules: str) -> NetworkInfo:
        """Deny hosts, even if other rules allow them."""
        return await self._change(NetworkChange(deny=_rules(rules)))

    async def _change(self, change: NetworkChange) -> NetworkInfo:
        return await self._sandbox.client.request_json(requests.change(self._sandbox.id, change), NetworkInfo)

    async def set(self, network: Network) -> NetworkInfo:
        """Replace the policy. A password in a preset's configuration is a secret, which only a create can send: such a
        preset is rejected here."""
        check_network(network)
        settled, carried = await backend.in_thread(resolve_presets, network)
        check_secrets_exist(carried, self._sandbox.cached_info.secrets)
        return await self._sandbox.client.request_json(requests.set_(self._sandbox.id, settled), NetworkInfo)

    def log(
        self, *, follow: bool = False, since: int = 0, denied: bool = False, limit: int | None = None
    ) -> AsyncIterator[NetworkAttempt]:
        """Iterate over connection attempts, oldest first: after number `since`, only `denied` ones, only the newest
        `limit`. `follow` waits for new attempts and reconnects."""
        return self._log(requests.LogFilter(follow, since, denied, limit))

    async def _log(self, query: requests.LogFilter) -> AsyncIterator[NetworkAttempt]:
        since, backoff = query.since, Backoff()
        while True:
            try:
                async for attempt in self._once(query, since):
                    since = attempt.seq
                    backoff.reset()
                    yield attempt
                if not query.follow:
                    return
                raise ServerUnreachable("the log ended", hint="`skerry server status`")
            except ServerUnreachable as error:
                if not query.follow:
                    raise
                await backend.sleep(backoff.next_delay(error))

    async def _once(self, query: requests.LogFilter, since: int) -> AsyncIterator[NetworkAttempt]:
        lines = LineDecoder()
        async with self._sandbox.client.stream(requests.log(self._sandbox.id, query, since)) as chunks:
            async for chunk in chunks:
                for line in lines.feed(chunk):
                    yield decode(line, NetworkAttempt)

    async def suggest(self) -> Network:
        """Return the smallest policy that allows the attempts so far; for a run with `on_unknown="learn"`. Read it
        before you use it: the programs inside determined its content."""
        return await self._sandbox.client.request_json(requests.suggested_policy(self._sandbox.id), Network)

    async def cassette(self) -> bytes:
        """Return the recorded HTTP exchanges, of a sandbox with `Network(cassette="record")`. Raise NotFound if there
        are none."""
        async with self._sandbox.client.stream(requests.cassette(self._sandbox.id)) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def cassette_info(self) -> CassetteInfo:
        """Describe the recorded exchanges: their number, and how many were not recorded."""
        return await self._sandbox.client.request_json(requests.cassette_info(self._sandbox.id), CassetteInfo)

    async def load_cassette(self, cassette: bytes) -> CassetteInfo:
        """Serve these exchanges from now on, each once, in a sandbox with `Network(cassette="replay")`."""
        request = requests.load_cassette(self._sandbox.id, cassette)
        return await self._sandbox.client.request_json(request, CassetteInfo)

    def approvals(self) -> AsyncApprovals:
        """Iterate over approval requests, with `on_unknown="ask"`; pending ones come first. `answer` answers them."""
        return AsyncApprovals(self._sandbox)

    async def answer(self, question: ApprovalRequest | str, allow: bool, *, remember: bool = False) -> None:
        """Answer an approval request; `remember` adds a rule. Raise NotFound if it was answered or has expired."""
        name = question if isinstance(question, str) else question.id
        request = requests.answer_approval(self._sandbox.id, name, Approval(allow=allow, remember=remember))
        await self._sandbox.client.request(request)

    async def ask(self, answerer: backend.Answerer) -> AsyncApprovalHandler:
        """Answer approval requests with `answerer(question)` in the background, until it or the sandbox is closed: True
        allows, a `Reply` can be remembered, any other value and an exception deny."""
        asking = AsyncApprovalHandler(self._sandbox, answerer)
        await asking.start()
        return asking

    async def add_handlers(self, *handlers: Handler) -> NetworkInfo:
        """Add handlers that change, redirect or answer requests, before the others. A handler replaces one of the same
        `host`."""
        check_handlers(handlers)
        return await self._change(NetworkChange(handlers=handlers))

    async def remove_handlers(self, *hosts: str) -> NetworkInfo:
        """Remove the handlers of these hosts, as `Handler.host` names them."""
        return await self._change(NetworkChange(remove_handlers=hosts))

    async def mirror(self, *hosts: str) -> NetworkInfo:
        """Write the exchanges with these hosts, and no others, to the trace from now on."""
        return await self._change(NetworkChange(mirror=hosts))

    async def handle(
        self,
        host: str,
        handler: backend.RequestHandler | None = None,
        *,
        on_response: backend.ResponseHandler | None = None,
        timeout: float = HANDLER_TIMEOUT_S,
        bodies: bool = False,
    ) -> AsyncNetworkHandler:
        """Decide about the requests to a host in this program, until the handler or the sandbox is closed.
        `handler(request)` returns None (send it unchanged), the request with other headers or a redirect, or an
        `HttpResponse` in place of the host's. `on_response(request, response)` returns None or a changed response.
        Without a decision within `timeout` seconds, after an exception, and while this program does not run, the
        requests fail. The calls come one after another. `bodies`: also pass bodies, of up to 1 MiB."""
        if handler is None and on_response is None:
            raise InvalidRequest("handle: no handler given", hint="handle(host, handler) or on_response=handler")
        callback: Literal["request", "response", "both"] = "request" if on_response is None else "response"
        if handler is not None and on_response is not None:
            callback = "both"
        rule = Handler(host=host, callback=callback, timeout=timeout, bodies=bodies)
        await self.add_handlers(rule)
        handling = AsyncNetworkHandler(self._sandbox, host, handler, on_response, rule.timeout_s)
        await handling.start()
        return handling


def _rules(rules: tuple[str, ...]) -> tuple[str, ...]:
    if not rules:
        raise InvalidRequest("no rule given", hint='like allow("api.example.com")')
    if isinstance(rules[0], (list, tuple)):
        raise InvalidRequest("rules are separate arguments, not a list", hint="put a star before it: *rules")
    return tuple(Network(allow=rules).allow)


class _Waiting(Generic[V]):
    """Iterate over values that wait for an answer, each once, over broken connections."""

    def __init__(self, client: AsyncClient, request: Request, kind: type[V], what: str) -> None:
        self._client, self._request, self._kind, self._what = client, request, kind, what
        self._values: AsyncGenerator[V, None] | None = None
        self._response: httpx2.Response | None = None
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> V:
        if self._values is None:
            self._values = self._follow()
        return await anext(self._values)

    def end(self) -> None:
        """End the iteration, also from another thread that waits for the next request."""
        self._ended = True
        if self._response is not None:
            backend.abort(self._response)

    async def aclose(self) -> None:
        self.end()
        values, self._values = self._values, None
        if values is not None:
            await values.aclose()

    async def _follow(self) -> AsyncGenerator[V, None]:
        """Yield each value once; pending values come again after a reconnect."""
        seen: deque[str] = deque(maxlen=MAX_SEEN)
        backoff = Backoff()
        while not self._ended:
            try:
                async for value in self._once():
                    if value.id in seen:
                        backoff.connected()
                        continue
                    backoff.reset()
                    seen.append(value.id)
                    yield value
                raise ServerUnreachable(f"the stream of {self._what} ended", hint="`skerry server status`")
            except ServerUnreachable as error:
                if not self._ended:
                    await backend.sleep(backoff.next_delay(error))
            except NotFound:  # the sandbox was deleted
                return

    async def _once(self) -> AsyncGenerator[V, None]:
        lines = LineDecoder(MAX_CALL_LINE)
        async with self._client.response(self._request) as response:
            self._response = response
            try:
                async for chunk in response.aiter_raw():
                    for line in lines.feed(chunk):
                        yield decode(line, self._kind)
            finally:
                self._response = None


class AsyncApprovals(_Waiting[ApprovalRequest]):
    """Iterate with `async for question in …`, over broken connections, until `aclose` or the deletion of the
    sandbox."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        super().__init__(sandbox.client, requests.approvals(sandbox.id), ApprovalRequest, "approval requests")


class AsyncApprovalHandler:
    """Answers approval requests with a callback in the background. `aclose` ends it; pending requests stay
    unanswered."""

    def __init__(self, sandbox: AsyncSandbox, answerer: backend.Answerer) -> None:
        self._sandbox = sandbox
        self._answerer = answerer
        self._questions = AsyncApprovals(sandbox)
        self._aside = backend.BackgroundTask()

    async def start(self) -> None:
        self._sandbox.approval_handlers.append(self)
        await self._aside.start(self._work)

    async def __aenter__(self) -> AsyncApprovalHandler:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if self in self._sandbox.approval_handlers:
            self._sandbox.approval_handlers.remove(self)
        self._questions.end()
        await self._aside.end()

    async def _work(self) -> None:
        try:
            async for question in self._questions:
                await self._answer(question)
        except SkerryError as error:
            warnings.warn(f"approval requests of {self._sandbox.id} are no longer answered: {error}", stacklevel=2)

    async def _answer(self, question: ApprovalRequest) -> None:
        reply = await self._reply(question)
        try:
            await self._sandbox.client.request(requests.answer_approval(self._sandbox.id, question.id, reply))
        except (NotFound, ServerUnreachable):  # too late, answered by another client, or the asking server has stopped
            return

    async def _reply(self, question: ApprovalRequest) -> Approval:
        try:
            said = await backend.call_answerer(self._answerer, question)
        except Exception as error:
            warnings.warn(f"the approval request for {question.host} was not answered: {error!r}", stacklevel=2)
            said = False
        return said if isinstance(said, Approval) else Approval(allow=said is True)


class AsyncNetworkHandler:
    """Decides about the requests to a host in the background. `aclose` removes the handler from the policy; without
    it, the requests fail as soon as the sandbox object is closed or the program has ended."""

    def __init__(
        self,
        sandbox: AsyncSandbox,
        host: str,
        handler: backend.RequestHandler | None,
        on_response: backend.ResponseHandler | None,
        timeout_s: float,
    ) -> None:
        self._sandbox, self.host = sandbox, host
        self._handler, self._on_response, self._timeout_s = handler, on_response, timeout_s
        request = requests.handler_calls(sandbox.id, host, secrets.token_hex(8))
        self._calls = _Waiting(sandbox.client, request, HandlerCall, "handler calls")
        self._aside = backend.BackgroundTask()

    async def start(self) -> None:
        self._sandbox.network_handlers.append(self)
        await self._aside.start(self._work)

    async def __aenter__(self) -> AsyncNetworkHandler:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Remove the handler from the policy: requests then reach the host unchanged."""
        if self in self._sandbox.network_handlers:
            with contextlib.suppress(NotFound):  # the sandbox was deleted
                await self._sandbox.network.remove_handlers(self.host)
        await self.detach()

    async def detach(self) -> None:
        """Stop deciding, and leave the handler in the policy: requests fail until a client handles them again."""
        if self in self._sandbox.network_handlers:
            self._sandbox.network_handlers.remove(self)
        self._calls.end()
        await self._aside.end()

    async def _work(self) -> None:
        try:
            async for call in self._calls:
                await self._decide(call)
        except SkerryError as error:
            warnings.warn(f"requests to {self.host} are no longer handled: {error}", stacklevel=2)

    async def _decide(self, call: HandlerCall) -> None:
        decision = await self._decision(call)
        try:
            await self._sandbox.client.request(requests.decide_call(self._sandbox.id, call.id, decision))
        except (NotFound, ServerUnreachable):  # too late: the request has failed
            return

    async def _decision(self, call: HandlerCall) -> HandlerDecision:
        """Return the decision of the callback. An exception and a value of another type fail the request."""
        try:
            if call.response is None:
                found = await backend.call_handler(self._timeout_s, self._handler or _unchanged, call.request)
            else:
                callback = self._on_response or _unchanged
                found = await backend.call_handler(self._timeout_s, callback, call.request, call.response)
            return _decision_of(call, found)
        except Exception as error:
            warnings.warn(f"the handler of {self.host} failed: {error!r}", stacklevel=2)
            return HandlerDecision(error=type(error).__name__)


def _unchanged(*_: object) -> None:
    return None


def _decision_of(call: HandlerCall, found: object) -> HandlerDecision:
    if found is None:
        return HandlerDecision()
    if isinstance(found, HttpResponse):
        return HandlerDecision(response=found)
    if not isinstance(found, HttpRequest) or call.response is not None:
        wanted = "None, an HttpRequest or an HttpResponse" if call.response is None else "None or an HttpResponse"
        raise TypeError(f"it returned a {type(found).__name__}, not {wanted}")
    if changed := _other_fields(call.request, found):
        raise TypeError(f"it changed the {changed} of the request: only headers and redirect_to() have an effect")
    headers = found.headers if found.headers != call.request.headers else None
    return HandlerDecision(headers=headers, redirect=found.redirect)


def _other_fields(request: HttpRequest, found: HttpRequest) -> str:
    """Return the names of changed fields that cannot be sent. Ignoring a body without its private parts would send
    the original."""
    names = ("method", "url", "body", "process")
    return ", ".join(name for name in names if getattr(found, name) != getattr(request, name))
