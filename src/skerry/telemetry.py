"""OpenTelemetry spans of the SDK, the server and the calls of keepers, with the extra `otel`.

The standard variables configure it (`OTEL_EXPORTER_OTLP_ENDPOINT` …); an application that has set up OpenTelemetry by
itself gets the SDK's spans through its own provider. Otherwise nothing is imported, and a span is one comparison.
Spans have no secrets: no query, no header, no body, no command.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from skerry import extras
from skerry._version import __version__
from skerry.errors import SkerryError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

EXPORT_S: Final = 3  # with repetitions: a program must not wait long for an absent collector when it ends
_TIMEOUTS: Final = ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_ID: Final = re.compile(r"/[a-z]{1,3}-[a-z2-7]{10}(?=/|$)")
_own: TracerProvider | None = None
_configured = False


def is_configured(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment asks for spans over OTLP."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "")
    return exporter == "otlp" or (not exporter and any(environ.get(name) for name in _ENDPOINTS))


def configure(service: str) -> str | None:
    """Set up spans if the environment asks for them, once. Return the reason if that is impossible."""
    global _own, _configured
    if _configured or not is_configured():
        return None
    _configured = True
    try:
        extras.require("otel")
    except SkerryError as error:
        return f"{error.message}; {error.hint}"
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in (None, "", "http/protobuf"):
        return f"the protocol {protocol!r} is not supported: set OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf"
    from opentelemetry import trace

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # the application has set up none
        _own = _make_provider(service)
        atexit.register(flush)
    return None


def _make_provider(service: str) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({"service.version": __version__} | ({} if named else {"service.name": service}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # that would wait for an absent collector
    given = any(name in os.environ for name in _TIMEOUTS)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=None if given else EXPORT_S)))
    return provider


def flush() -> None:
    """Send the spans that wait. The timeout of an export bounds this."""
    if _own is not None:
        _own.force_flush()


def _tracer() -> Tracer | None:
    if _own is not None:
        return _own.get_tracer("skerry", __version__)
    api = sys.modules.get("opentelemetry.trace")
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return None
    tracer: Tracer = api.get_tracer("skerry", __version__)
    return tracer


class ClientSpan:
    """The span of a request of the SDK. `headers` carry its context to the server."""

    def __init__(self, span: Span) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._span = span
        self.headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(self.headers, trace.set_span_in_context(span))

    def end(self, error: BaseException | None) -> None:
        _set_error(self._span, error)
        self._span.end()


@contextlib.contextmanager
def client_span(method: str, path: str) -> Iterator[Mapping[str, str]]:
    """Yield the headers of a request to a server. It does not become the current span: another task may
    close the stream."""
    tracer = _tracer()
    if tracer is None:
        yield {}
        return
    from opentelemetry.trace import SpanKind

    words = path.split("/")[2::2]  # every second word is an ID or a name
    attributes = {"http.request.method": method, "url.path": path}
    span = ClientSpan(tracer.start_span(f"skerry {method} {' '.join(words)}", None, SpanKind.CLIENT, attributes))
    try:
        yield span.headers
    except BaseException as error:
        span.end(error)
        raise
    span.end(None)


@contextlib.contextmanager
def server_span(method: str, route: str, parent: str | None, state: str | None) -> Iterator[dict[str, Any] | None]:
    """Make a span for a request current. `parent`, `state`: the caller's `traceparent` and `tracestate`. Yield its
    attributes, which are set at the end; None without spans."""
    tracer = _tracer() if _own is not None else None  # a server has no application around it
    if tracer is None:
        yield None
        return
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {name: value for name, value in (("traceparent", parent), ("tracestate", state)) if value is not None}
    context = TraceContextTextMapPropagator().extract(carrier)
    attributes: dict[str, Any] = {"http.request.method": method, "http.route": route}
    span = tracer.start_span(f"{method} {route}", context, trace.SpanKind.SERVER, attributes)
    added: dict[str, Any] = {}
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield added
        finally:
            span.set_attributes({name: value for name, value in added.items() if value is not None})
            if added.get("http.response.status_code", 0) >= 500:
                span.set_status(trace.StatusCode.ERROR)


@contextlib.contextmanager
def keeper_span(request: bytes) -> Iterator[None]:
    """Make a span for a call of a keeper current, as a part of the span of a request. Of the bytes of the call, the
    method and the path without IDs are its name."""
    tracer = _tracer() if _own is not None else None
    if tracer is None:
        yield
        return
    from opentelemetry import trace

    if not trace.get_current_span().is_recording():  # work in the background
        yield
        return
    method, target = request[:200].decode("latin-1").split(" ")[:2]
    name = f"keeper {method} {_ID.sub('/{id}', target.partition('?')[0])}"
    span = tracer.start_span(name, kind=trace.SpanKind.CLIENT)
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except BaseException as error:
            _set_error(span, error)
            raise


def _set_error(span: Span, error: BaseException | None) -> None:
    if error is None:
        return
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", error.code if isinstance(error, SkerryError) else type(error).__name__)
    span.set_status(StatusCode.ERROR)
