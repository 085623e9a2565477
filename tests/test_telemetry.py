"""Spans: off without configuration, and over OTLP with it. The spans of a real server: tests/integration."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.spans import Collector

from skerry import telemetry


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def run(program: str, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**kept, **variables}, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


UNCONFIGURED = """if True:
    import sys, skerry, skerry.client._async.client, skerry.server.serve, skerry.server.http.endpoint, skerry.cli.app
    from skerry import telemetry
    skerry.Client("unix:///none")
    assert telemetry.configure("test") is None
    with telemetry.client_span("GET", "/v1/sandboxes") as headers:
        assert headers == {}
    with telemetry.server_span("GET", "/v1/sandboxes", "00-" + "1" * 32 + "-" + "2" * 16 + "-01", None) as attributes:
        assert attributes is None
    with telemetry.keeper_span(b"GET /v1/hello HTTP/1.1"):
        pass
    assert [name for name in sys.modules if name.startswith("opentelemetry")] == []
"""


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_nothing_is_imported_without_configuration(variables: dict[str, str]) -> None:
    run(UNCONFIGURED, **variables)


CALLER = """if True:
    from skerry import telemetry
    assert telemetry.configure("caller") is None
    with telemetry.client_span("POST", "/v1/sandboxes/dev/processes") as headers:
        print(headers["traceparent"])
    try:
        with telemetry.client_span("GET", "/v1/sandboxes/dev"):
            raise TimeoutError
    except TimeoutError:
        pass
"""


def test_program_sends_its_spans_at_the_end(collector: Collector) -> None:
    version, trace, span, flags = run(CALLER, **collector.environment).strip().split("-")
    assert version == "00"
    assert int(flags, 16) & 1, "sampled"
    sent = collector.wait_for("caller", "skerry POST sandboxes processes")
    assert (sent.trace, sent.id, sent.failed) == (trace, span, False)
    failed = collector.wait_for("caller", "skerry GET sandboxes")
    assert failed.failed
    assert failed.attributes["error.type"] == "TimeoutError"


def test_standard_variables_name_the_service(collector: Collector) -> None:
    run(CALLER, **collector.environment, OTEL_SERVICE_NAME="named")
    collector.wait_for("named", "skerry POST sandboxes processes")


APPLICATION = """if True:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from skerry import telemetry
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    trace.set_tracer_provider(provider)
    with trace.get_tracer("mine").start_as_current_span("task") as task:
        with telemetry.client_span("GET", "/v1/sandboxes"):
            pass
    inner, outer = memory.get_finished_spans()
    assert inner.parent.span_id == outer.context.span_id == task.get_span_context().span_id
"""


def test_provider_of_the_application_gets_the_spans() -> None:
    run(APPLICATION)


def test_missing_collector_does_not_delay_a_program() -> None:
    run(CALLER, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")


def test_unsupported_protocol_is_reported() -> None:
    program = "from skerry import telemetry; print(telemetry.configure('x'))"
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert "http/protobuf" in run(program, **variables)


def test_name_of_a_keeper_span_has_no_ids() -> None:
    assert telemetry._ID.sub("/{id}", "/v1/processes/p-abcdefghij/signal") == "/v1/processes/{id}/signal"
