"""One request and its handler: the effects of a rule, or the decision of a client. Without a valid decision in time the
request fails."""

from __future__ import annotations

from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final

from skerry.network.messages import HandlerResult
from skerry.network.worker.audit import printable
from skerry.network.worker.http.filters import (
    BlockedByFilter,
    BodyFilter,
    FilterDenial,
    Headers,
    RequestHead,
    ResponseHead,
)
from skerry.network.worker.http.handlers import (
    decode_headers,
    encode_headers,
    shown_headers,
    size_denial,
    with_request_changes,
    with_response_changes,
)
from skerry.network.worker.sandbox_context import SandboxContext
from skerry.network.worker.secrets.masking import SecretPatterns
from skerry.types import Handler, HttpResponse, readable_size
from skerry.types.handlers import MAX_HANDLER_BODY

MAX_CALL_HEAD: Final = 24 << 10  # bytes of the heads of one call: as JSON they fit into a message to the server
_BODILESS: Final = frozenset((204, 304))


@dataclass(frozen=True)
class HandledRequest:
    """The effect of a handler on a request."""

    head: RequestHead
    redirect: str | None = None
    answer: HttpResponse | None = None


class HandlerRun:
    """A handler and one exchange. `url`: of the request as the program made it."""

    def __init__(self, context: SandboxContext, handler: Handler, url: str, cgroup: int | None) -> None:
        self._context, self.handler, self._url, self._cgroup = context, handler, url, cgroup
        self._request = RequestHead(b"GET", b"/", ())
        interceptor = context.interceptor
        self._patterns: SecretPatterns | None = interceptor.patterns() if interceptor is not None else None

    @property
    def needs_request_body(self) -> bool:
        return self.handler.bodies and self.handler.calls_for_requests

    @property
    def needs_response_body(self) -> bool:
        return self.handler.bodies and self.handler.calls_for_responses

    @property
    def sees_response(self) -> bool:
        handler = self.handler
        return handler.calls_for_responses or bool(
            handler.response_set_headers or handler.response_add_headers or handler.response_remove_headers
        )

    async def on_request(self, head: RequestHead, body: bytes | None) -> HandledRequest:
        """Return the effect on a request. Raise BlockedByFilter if the handler gives no valid decision."""
        handler = self.handler
        self._request = head
        if handler.answer is not None:
            return HandledRequest(head, answer=handler.answer)
        if not handler.calls_for_requests:
            return HandledRequest(_bounded_request(with_request_changes(handler, head)), handler.redirect)
        decision = (await self._call(head, None, body)).decision
        if decision.response is not None:
            return HandledRequest(head, answer=replace_body(decision.response, b""))
        if decision.headers is not None:
            hidden = tuple(one for one in head.headers if one not in shown_headers(head.headers))
            head = _bounded_request(replace(head, headers=(*hidden, *encode_headers(decision.headers))))
        return HandledRequest(head, decision.redirect)

    async def on_response(self, head: ResponseHead, body: bytes | None) -> tuple[ResponseHead, bytes | None]:
        """Return the response as the program receives it, and its new body, if it has one."""
        handler = self.handler
        if not handler.calls_for_responses:
            return _bounded_response(with_response_changes(handler, head)), body
        decision = (await self._call(self._request, head, body)).decision
        if decision.headers is not None or decision.redirect is not None:
            raise _failed("it changed the request after the response had come")
        given = decision.response
        if given is None:
            return head, body
        body = given.body if given.body is not None else body
        if body is None and given.status != head.status:
            raise _failed("it changed the status of a response without giving a body")
        if body and given.status in _BODILESS:
            raise _failed(f"it changed the status of a response with a body to {given.status}")
        changed = ResponseHead(given.status, _reason(given.status, head), encode_headers(given.headers))
        return _bounded_response(changed), body

    async def _call(self, request: RequestHead, response: ResponseHead | None, body: bytes | None) -> HandlerResult:
        headers, kept = shown_headers(request.headers), () if response is None else shown_headers(response.headers)
        if len(self._url) + _size(headers) + _size(kept) > MAX_CALL_HEAD:
            raise _failed(f"the head of the message is longer than {readable_size(MAX_CALL_HEAD)}", 431)
        shown = None if response is None else (response.status, decode_headers(self._masked(kept)))
        try:
            result = await self._context.server.handle(
                self.handler, request.method.decode(), self._masked_text(self._url),
                decode_headers(self._masked(headers)), shown, self._masked_body(body), self._cgroup,
            )  # fmt: skip
        except TimeoutError:
            raise _failed(f"it gave no answer within {self.handler.timeout_s:g} s") from None
        except OSError as error:
            raise _failed(printable(str(error))) from None
        if result.error is not None or result.decision.error is not None:
            raise _failed(printable(result.error or result.decision.error or ""))
        return result

    def _masked(self, headers: Headers) -> Headers:
        """Mask secrets, which may also come from a host that does not receive them."""
        patterns = self._patterns
        if patterns is None:
            return headers
        return tuple((patterns.mask_name(name), patterns.mask(value)) for name, value in headers)

    def _masked_text(self, text: str) -> str:
        return text if self._patterns is None else self._patterns.mask(text.encode("latin-1")).decode("latin-1")

    def _masked_body(self, body: bytes | None) -> bytes | None:
        return body if body is None or self._patterns is None else self._patterns.mask(body)


def replace_body(response: HttpResponse, body: bytes) -> HttpResponse:
    """Return the response with this body if it has none."""
    if response.body is not None:
        return response
    return HttpResponse(status=response.status, headers=response.headers, body=body)


class BodyCollector:
    """A filter that collects a body for a handler and passes nothing on."""

    same_length = False

    def __init__(self, inner: BodyFilter | None = None) -> None:
        self._inner = inner
        self.data = bytearray()

    def feed(self, data: bytes) -> bytes:
        return self._add(data if self._inner is None else self._inner.feed(data))

    def end(self) -> bytes:
        return self._add(b"" if self._inner is None else self._inner.end())

    def _add(self, data: bytes) -> bytes:
        self.data += data
        if len(self.data) > MAX_HANDLER_BODY:
            raise _failed(f"the body is larger than {readable_size(MAX_HANDLER_BODY)}", 413)
        return b""


class Discarded:
    """A filter that reads a body and passes nothing on."""

    same_length = False

    def __init__(self, inner: BodyFilter | None) -> None:
        self._inner = inner

    def feed(self, data: bytes) -> bytes:
        if self._inner is not None:
            self._inner.feed(data)
        return b""

    def end(self) -> bytes:
        return b""


def _failed(why: str, status: int = 502) -> BlockedByFilter:
    return BlockedByFilter(
        FilterDenial(
            why=f"its handler failed: {why}", status=status,
            hint="run the client that handles this host, or remove the handler: skerry network unhandle",
        )
    )  # fmt: skip


def _bounded_request(head: RequestHead) -> RequestHead:
    if (denial := size_denial(head.headers)) is not None:
        raise BlockedByFilter(denial)
    return head


def _bounded_response(head: ResponseHead) -> ResponseHead:
    if (denial := size_denial(head.headers)) is not None:
        raise BlockedByFilter(denial)
    return head


def _size(headers: Headers) -> int:
    return sum(len(name) + len(value) for name, value in headers)


def _reason(status: int, head: ResponseHead) -> bytes:
    return head.reason if status == head.status else reason_of(status)


def reason_of(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""
