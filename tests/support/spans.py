"""A collector of OpenTelemetry spans over OTLP/HTTP on the loopback interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.server import wait_until
from support.webhook_receiver import Receiver


@dataclass(frozen=True)
class ReceivedSpan:
    service: str
    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    failed: bool


class Collector:
    def __init__(self) -> None:
        self._receiver = Receiver()
        self._receiver.status = 200

    @property
    def environment(self) -> dict[str, str]:
        """Return the standard variables that send spans here."""
        endpoint = self._receiver.url.removesuffix("/hook")
        times = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_TIMEOUT": "60"}
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **times}

    def spans(self) -> list[ReceivedSpan]:
        found = []
        for request in list(self._receiver.received):
            assert request.path == "/v1/traces"
            for resource in ExportTraceServiceRequest.FromString(request.body).resource_spans:
                named = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
                found += [_span(named["service.name"], one) for scope in resource.scope_spans for one in scope.spans]
        return found

    def wait_for(self, service: str, name: str, trace: str | None = None) -> ReceivedSpan:
        """Return the newest span with this service and name, and of this trace if given."""

        def matching() -> list[ReceivedSpan]:
            wanted = [one for one in self.spans() if (one.service, one.name) == (service, name)]
            return [one for one in wanted if trace in (None, one.trace)]

        wait_until(matching, f"a span {name!r} of {service}")
        return matching()[-1]

    def close(self) -> None:
        self._receiver.close()


def _span(service: str, span: Any) -> ReceivedSpan:
    attributes = {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}
    return ReceivedSpan(
        service, span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), attributes,
        span.status.code == 2,
    )  # fmt: skip
