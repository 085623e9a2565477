# Generated from client/_async/client.py by scripts/generate_sync.py. Do not edit.
"""The client of one server: sends requests, raises the server's errors, and starts the local server if it is not
running."""

from __future__ import annotations

import builtins
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx2

from skerry import telemetry
from skerry.client._sync.images import Images
from skerry.client._sync.records.trace import Records
from skerry.client._sync.volumes.volume import Volumes
from skerry.client.create_options import seconds
from skerry.client.transport import backend_sync as backend
from skerry.client.transport import local_server
from skerry.client.transport.address import check_token, resolve
from skerry.client.transport.backoff import Backoff
from skerry.client.transport.connection import NotConnected, http_request, translate_errors
from skerry.client.transport.requests import code, review, sandboxes
from skerry.client.transport.requests.sandboxes import Request
from skerry.client.transport.responses import decode, response_error
from skerry.codecs.ndjson import LineDecoder
from skerry.config import load
from skerry.errors import InvalidRequest, ServerUnreachable
from skerry.types import (
    AuditKeys,
    AuditPage,
    AuditRecord,
    AuditReport,
    Budget,
    BudgetInfo,
    BudgetList,
    BudgetRequest,
    Event,
    LanguageInfo,
    LanguageList,
    PackRequest,
    PoolInfo,
    ReviewRefs,
    ReviewRefsList,
    SandboxStats,
    SandboxStatsList,
    TokenInfo,
    TokenList,
    UsageReport,
    WebhookDelivery,
    WebhookDeliveryList,
    WebhookInfo,
    WebhookList,
    WebhookRetry,
    WebhookTest,
    usage_day,
)
from skerry.types.replays import ReplayReport
from skerry.types.traces import TraceStep

T = TypeVar("T")
E = TypeVar("E")


class Client:
    """A server, reached over a pool of connections. `Sandbox(server=client)` shares it between sandboxes."""

    def __init__(self, server: str | None = None, *, token: str | None = None) -> None:
        self.address = resolve(server, load(flags={"token": check_token(token)}))
        self.audit = Audit(self)
        self.budgets = Budgets(self)
        self.images = Images(self)
        self.pool = Pool(self)
        self.tokens = Tokens(self)
        self.volumes = Volumes(self)
        self.webhooks = Webhooks(self)
        self.headers: Mapping[str, str] = {}  # of all requests
        self._transport: httpx2.HTTPTransport | None = None
        telemetry.configure("skerry-client")

    def __repr__(self) -> str:
        return f"Client({str(self.address)!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def info(self) -> dict[str, Any]:
        """Return information about the server: version, pid, address, uptime, runtime, storage."""
        return self.request_json(sandboxes.server(), dict[str, Any])

    def languages(self) -> list[LanguageInfo]:
        """Return the languages that code can run in, with their versions and the images that have them;
        `sandbox.code.languages()` returns those found in a sandbox."""
        return (self.request_json(code.languages(None), LanguageList)).languages

    def stats(self, *refs: str) -> list[SandboxStats]:
        """Return the resource usage and limits of these sandboxes, by ID or name; the default is all of yours."""
        return (self.request_json(sandboxes.stats(refs), SandboxStatsList)).sandboxes

    def usage(
        self,
        by: str = "sandbox",
        *,
        since: str | float | None = None,
        until: str | float | None = None,
        sandbox: str | None = None,
        label: str | None = None,
        owner: str | None = None,
    ) -> UsageReport:
        """Return the resources that your sandboxes have used, also deleted ones, by `sandbox`, `actor`, `image`,
        `owner`, `day` or `label:KEY`.

        `since`, `until`: the first and the last day (UTC): a day like "2026-11-30", a time span before now like "7d",
        or a Unix time. `sandbox`, `label` ("KEY=VALUE"), `owner`: count only these. An administrator gets the usage of
        all owners."""
        first = usage_day(since, "since") if since is not None else None
        last = usage_day(until, "until") if until is not None else None
        given = {"sandbox": sandbox, "label": label, "owner": owner}
        return self.request_json(sandboxes.usage_report(by, first, last, given), UsageReport)

    def doctor(self) -> dict[str, Any]:
        """Return the isolation features of the server's host, and those that it lacks."""
        return self.request_json(sandboxes.doctor(), dict[str, Any])

    def stop(self) -> None:
        """Stop the server. Sandboxes keep running."""
        self.request(sandboxes.stop_server())

    def events(
        self,
        *,
        follow: bool = False,
        since: int | None = None,
        sandbox: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> Iterator[Event]:
        """Iterate over events, oldest first: after event number `since`, of one sandbox, of one type
        (`"process.ended"`, or `"process"` for all process events). `follow` waits for new events and reconnects;
        without `since` it starts now."""
        return follow_events(self, sandboxes.EventFilter(follow, since, sandbox, type))

    def records(self, sandbox: str) -> Records:
        """Return the records of a sandbox: by name or ID, of a deleted one by its ID."""
        return Records(self, sandbox)

    def replay(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        sandbox: str | None = None,
        until: int | None = None,
        keep: bool = False,
        network: bool = False,
        step_timeout: float | None = None,
        on_step: backend.Callback[TraceStep] | None = None,
    ) -> ReplayReport:
        """Run a trace again in a new sandbox from the same start, and compare each step: of an exported file (`path`),
        of a sandbox, also of a deleted one by its ID, or the steps after a snapshot (`sandbox`).

        `until`: the number of the last step. `keep`: keep the new sandbox. `network`: allow the hosts of the recorded
        policy, by default no host. `step_timeout`: the maximum seconds of a step. `on_step` is called before each
        step. Secrets are never taken from a trace."""
        from skerry.client._sync.records.replay import ReplayOptions, replay_file, replay_sandbox  # rarely needed

        options = ReplayOptions(until, keep, network, seconds(step_timeout), on_step)
        if (path is None) == (sandbox is None):
            raise InvalidRequest("replay: name a path or a sandbox, and not both")
        if path is not None:
            return replay_file(self, path, options)
        return replay_sandbox(self, sandbox or "", options)

    def reviews(self, origin: str | None = None) -> list[ReviewRefs]:
        """Return the refs of your sandboxes' ledgers for a git remote: all, or those of one origin."""
        return (self.request_json(review.refs(origin), ReviewRefsList)).reviews

    @contextmanager
    def review_pack(
        self, ref: str, wants: Sequence[str], haves: Sequence[str] = ()
    ) -> Iterator[Iterator[bytes]]:
        """Yield the objects of some of those refs as a git pack."""
        payload = PackRequest(wants=tuple(wants), haves=tuple(haves))
        with self.stream(review.pack(ref, payload)) as pieces:
            yield pieces

    def request_json(self, request: Request, kind: type[T]) -> T:
        """Send a request and return its response as a value of that type."""
        with self.response(request) as response:
            return decode(response.read(), kind)

    def request_json_or_none(self, request: Request, kind: type[T]) -> T | None:
        """Send a request and return its response; None if the server has no value yet."""
        with self.response(request) as response:
            body = response.read()
            return None if response.status_code == 204 else decode(body, kind)

    def request(self, request: Request) -> None:
        """Send a request; its response has no value."""
        with self.response(request) as response:
            response.read()

    @contextmanager
    def stream(self, request: Request) -> Iterator[Iterator[bytes]]:
        """Send a request and yield the bytes of its response."""
        with self.response(request) as response:
            yield response.iter_raw()

    def upgrade(self, request: Request) -> httpx2.Response:
        """Send an upgrade request. The connection belongs to the response and ends when that is closed."""
        with telemetry.client_span(request.method, request.path) as trace:
            response = self._send(request, trace)
        if response.status_code == 101:
            return response
        try:
            with translate_errors(self.address):
                raise response_error(response.status_code, response.read())
        finally:
            response.close()

    @contextmanager
    def response(self, request: Request) -> Iterator[httpx2.Response]:
        """Send a request and yield its response before the body is read."""
        with telemetry.client_span(request.method, request.path) as trace:
            response = self._send(request, trace)
            try:
                with translate_errors(self.address):
                    if not response.is_success:
                        raise response_error(response.status_code, response.read())
                    yield response
            finally:
                response.close()

    def _send(self, request: Request, trace: Mapping[str, str]) -> httpx2.Response:
        try:
            return self._send_once(request, trace)
        except ServerUnreachable as error:
            if not self._may_retry(request, error):
                raise
        return self._send_once(request, trace)

    def _may_retry(self, request: Request, error: ServerUnreachable) -> bool:
        if isinstance(error, NotConnected):
            if not local_server.may_start(self.address):
                return False
            backend.in_thread(local_server.start, self.address)
            return True
        return request.repeatable

    def _send_once(self, request: Request, trace: Mapping[str, str]) -> httpx2.Response:
        if self._transport is None:
            self._transport = backend.open_transport(self.address)
        with translate_errors(self.address):
            prepared = http_request(self.address, request, {**self.headers, **trace})
            return self._transport.handle_request(prepared)


def follow_events(client: Client, query: sandboxes.EventFilter) -> Iterator[Event]:
    """Yield events; a followed stream reconnects where it broke, without losing or repeating an event."""
    if not query.follow:
        for event in _read_events(client, query, query.since):
            yield event
        return
    since, backoff = query.since, Backoff()
    while True:
        try:
            for event in _read_events(client, query, since):
                since = event.seq
                if event.type == "hello":
                    backoff.connected()
                    continue
                backoff.reset()
                yield event
            raise ServerUnreachable("the stream of events ended", hint="`skerry server status`")
        except ServerUnreachable as error:
            backend.sleep(backoff.next_delay(error))


def _read_events(client: Client, query: sandboxes.EventFilter, since: int | None) -> Iterator[Event]:
    lines = LineDecoder()
    with client.stream(sandboxes.events(query, since)) as chunks:
        for chunk in chunks:
            for line in lines.feed(chunk):
                yield decode(line, Event)


class Audit:
    """The server's audit log."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def records(
        self,
        *,
        sandbox: str | None = None,
        actor: str | None = None,
        owner: str | None = None,
        type: str | None = None,  # noqa: A002
        since: float | None = None,
        limit: int | None = None,
    ) -> Iterator[AuditRecord]:
        """Iterate over records, newest first: of a sandbox (ID or name), an actor (a token's ID or `uid:N`), a type
        (`"process.run"`, or `"process"`), since a Unix time; at most `limit`. An administrator sees those of all
        owners."""
        given = {"sandbox": sandbox, "actor": actor, "owner": owner, "type": type, "since": since}
        left, before = limit, None
        while left is None or left > 0:
            count = None if left is None else min(left, 1000)
            page = self._client.request_json(sandboxes.audit(before, count, given), AuditPage)
            for record in page.records:
                yield record
            left = None if left is None else left - len(page.records)
            before = page.next
            if before is None:
                return

    def verify(self) -> AuditReport:
        """Let the server verify the whole log. An export can be verified without the server: `skerry audit verify`."""
        return self._client.request_json(sandboxes.verify_audit(), AuditReport)

    @contextmanager
    def export(self) -> Iterator[Iterator[bytes]]:
        """Yield the lines of the whole log, up to a new seal."""
        with self._client.stream(sandboxes.export_audit()) as pieces:
            yield pieces

    def keys(self) -> AuditKeys:
        """Return the public keys and the newest checkpoint."""
        return self._client.request_json(sandboxes.audit_keys(), AuditKeys)

    def rotate_key(self) -> AuditKeys:
        """Sign with a new key from now on; the old one introduces it."""
        return self._client.request_json(sandboxes.audit_keys("POST"), AuditKeys)


class Budgets:
    """Budgets of labels and owners. `Sandbox(budget=…)` and `sandbox.update(budget=…)` set those of sandboxes."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self, sandbox: str | None = None) -> builtins.list[BudgetInfo]:
        """Return your budgets with their used amounts; with `sandbox`, those that its usage counts to."""
        return (self._client.request_json(sandboxes.budgets(sandbox), BudgetList)).budgets

    def set(self, budget: Budget, *, label: str | None = None, owner: str | None = None) -> BudgetInfo:
        """Set the budget of a label (`"task=42"`) or, as an administrator, of an owner. Setting it again changes the
        amounts and keeps the used ones."""
        request = BudgetRequest(budget=budget, label=label, owner=owner)
        return self._client.request_json(sandboxes.set_budget(request), BudgetInfo)

    def remove(self, budget: str) -> None:
        """Remove the budget of a label or an owner by its ID, with its used amounts."""
        self._client.request(sandboxes.remove_budget(budget))


class Pool:
    def __init__(self, client: Client) -> None:
        self._client = client

    def show(self) -> PoolInfo:
        """Return the number of ready sandboxes per image, and how often a create used one."""
        return self._client.request_json(sandboxes.pool(), PoolInfo)

    def set(self, image: str, size: int) -> PoolInfo:
        """Keep that many sandboxes of an image ready, while the server runs."""
        return self._client.request_json(sandboxes.set_pool(image, size), PoolInfo)

    def drain(self) -> PoolInfo:
        """Delete all ready sandboxes; new ones are made when `set` is called again."""
        return self._client.request_json(sandboxes.pool("DELETE"), PoolInfo)


class Tokens:
    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, scope: str = "use", *, owner: str | None = None, note: str | None = None) -> TokenInfo:
        """Create a token; its `secret` is in this result and never shown again."""
        return self._client.request_json(sandboxes.create_token(scope, owner, note), TokenInfo)

    def list(self) -> builtins.list[TokenInfo]:
        return (self._client.request_json(sandboxes.tokens(), TokenList)).tokens

    def remove(self, token: str) -> None:
        self._client.request(sandboxes.remove_token(token))


class Webhooks:
    """The webhooks of the operator's settings."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self) -> builtins.list[WebhookInfo]:
        """Return all webhooks with the state of their queues."""
        return list((self._client.request_json(sandboxes.webhooks(), WebhookList)).webhooks)

    def test(self, name: str) -> WebhookTest:
        """Send a test event now, and return the result."""
        return self._client.request_json(sandboxes.test_webhook(name), WebhookTest)

    def dead(self, name: str | None = None, *, limit: int | None = None) -> builtins.list[WebhookDelivery]:
        """Return deliveries that failed for good, newest first: of one webhook, or of all."""
        request = sandboxes.dead_deliveries(name, limit)
        return list((self._client.request_json(request, WebhookDeliveryList)).deliveries)

    def retry(self, name: str, *ids: str) -> int:
        """Send dead deliveries of a webhook again, those with these IDs or all, and return their number."""
        return (self._client.request_json(sandboxes.retry_webhook(name, ids), WebhookRetry)).retried


class ResumableStream(Generic[E]):
    """Events over broken connections: iterate until `_ended`. A gap is reported, and no event comes twice. The subclass
    implements `_once`, which yields the events of one connection, beginning with None when the stream is established.
    """

    def __init__(self) -> None:
        self._events: Generator[E | None, None] | None = None
        self._ended = False

    def _once(self) -> Generator[E | None, None]:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop. Another iterator can continue from the same position."""
        events, self._events, self._ended = self._events, None, True
        if events is not None:
            events.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> E:
        try:
            events = self._begin()
            while True:
                event = next(events)
                if event is not None:
                    return event
        except StopIteration:
            raise
        except BaseException:
            # A cancelled wait has ended the generator, which would look like the end of the stream: the next call
            # continues from the position.
            self._events = None
            raise

    def _begin(self) -> Generator[E | None, None]:
        if self._events is None:
            events = self._follow()
            if not self._ended:
                next(events)
            self._events = events
        return self._events

    def _follow(self) -> Generator[E | None, None]:
        backoff, stood = Backoff(), False
        while not self._ended:
            try:
                for event in self._once():
                    stood = True
                    if event is None:
                        backoff.connected()
                    else:
                        backoff.reset()
                    yield event
            except ServerUnreachable as error:
                if not stood:
                    raise
                backend.sleep(backoff.next_delay(error))
