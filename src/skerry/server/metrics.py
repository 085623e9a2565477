"""Figures of the server for Prometheus: counters of requests, and the engine's state at the time of each scrape."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client import Counter as RequestCounter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from skerry._version import __version__
from skerry.types import STATES

if TYPE_CHECKING:
    from skerry.engine.engine import Engine
    from skerry.server.loop_monitor import LoopMonitor

# Every label has few values: no owner, sandbox, user label or image of a caller is one.
_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)


class RequestMetrics:
    """Counts the requests of all listeners."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = RequestCounter(
            "skerry_http_requests", "Requests to the API.", ("method", "path", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "skerry_http_request_seconds", "Time until the end of the response.", ("method", "path"),
            buckets=_BUCKETS, registry=self.registry,
        )  # fmt: skip
        ProcessCollector(namespace="skerry_server", registry=self.registry)

    def observe(self, method: str, path: str | None, status: int | None, seconds: float) -> None:
        """Count a request. path: the template of its route; None: no route has this path."""
        method, path = (method, path) if path is not None else ("", "")  # a caller chooses the method
        self._requests.labels(method, path, str(status)).inc()
        self._seconds.labels(method, path).observe(seconds)


class ServerMetrics:
    """All figures, at the time of `collect`."""

    def __init__(self, engine: Engine, requests: RequestMetrics, loop: LoopMonitor) -> None:
        self._engine, self._requests, self._loop = engine, requests, loop

    def text(self, accept: str) -> tuple[str, bytes]:
        """Return the media type and the figures in the format that the caller accepts."""
        encoder, media_type = choose_encoder(accept)
        return media_type, encoder(self)

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("skerry_server_info", "The version of the server.", labels=("version",))
        info.add_metric((__version__,), 1)
        yield info
        yield from self._requests.registry.collect()
        yield from self._sandboxes()
        yield from self._pool()
        yield from self._storage()
        yield _counter("egress_decisions", "Network attempts by decision.", "decision", self._engine.attempts.decisions)
        yield _counter("events", "Events by type.", "type", self._engine.events.written)
        yield from self._usage()
        yield from self._webhooks()
        yield CounterMetricFamily("skerry_event_loop_stalls", "Blocks of 0.1 s or more.", value=self._loop.stalls)
        yield _gauge("event_loop_lag_seconds", "How late the last beat of the event loop was.", self._loop.lag_s)
        yield _gauge("event_loop_longest_stall_seconds", "The longest block since the start.", self._loop.longest_s)
        ready = float(self._engine.gateways.state == "ready")
        yield _gauge("network_worker_ready", "Whether the network worker is ready.", ready)
        writable = float(self._engine.audit.is_writable)
        yield _gauge("audit_writable", "Whether the audit log can be written.", writable)

    def _sandboxes(self) -> Iterator[Metric]:
        states: Counter[str] = Counter(sandbox.record.state for sandbox in self._engine.registry)
        family = GaugeMetricFamily("skerry_sandboxes", "Sandboxes by state.", labels=("state",))
        for state in STATES:
            family.add_metric((state,), states[state])
        yield family
        yield _counter("creates", "Requested sandboxes by result.", "result", self._engine.sandboxes.creates)

    def _pool(self) -> Iterator[Metric]:
        images = self._engine.pool.info().images
        yield _gauge("pool_ready", "Sandboxes that wait in the pool.", sum(image.ready for image in images))
        yield _gauge("pool_size", "Size that the pool aims for.", sum(image.size for image in images))
        uses = {"hit": sum(image.hits for image in images), "miss": sum(image.misses for image in images)}
        yield _counter("pool_requests", "Creates that the pool did or did not serve.", "result", uses)

    def _storage(self) -> Iterator[Metric]:
        found = os.statvfs(self._engine.settings.state_dir)
        yield _gauge("disk_free_bytes", "Free space of the state directory's disk.", found.f_bavail * found.f_frsize)
        yield _gauge("disk_size_bytes", "Size of the state directory's disk.", found.f_blocks * found.f_frsize)
        memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        for name, key in (("available", "MemAvailable"), ("size", "MemTotal")):
            value = int(memory[key].split()[0]) << 10
            yield _gauge(f"memory_{name}_bytes", f"Memory of the host: {key}.", value)

    def _usage(self) -> Iterator[Metric]:
        used = self._engine.meter.used
        for name, help_, value in (
            ("cpu_seconds", "CPU time of sandboxes.", used.cpu_s),
            ("memory_byte_seconds", "Memory of sandboxes times seconds.", used.memory_byte_s),
            ("disk_byte_seconds", "Disk space of sandboxes times seconds.", used.disk_byte_s),
            ("wall_seconds", "Time in which sandboxes ran.", used.wall_s),
            ("active_seconds", "Time in which commands ran in sandboxes.", used.active_s),
        ):
            yield CounterMetricFamily(f"skerry_usage_{name}", help_, value=value)
        traffic = {"sent": used.sent, "received": used.received}
        yield _counter("usage_network_bytes", "Bytes of sandboxes to and from other hosts.", "direction", traffic)
        if (cost := self._engine.meter.prices.cost(used)) is not None:
            yield CounterMetricFamily("skerry_usage_cost", "Cost of sandboxes.", value=cost)

    def _webhooks(self) -> Iterator[Metric]:
        attempts = CounterMetricFamily(
            "skerry_webhook_attempts", "Attempts to send a delivery.", labels=("webhook", "result")
        )
        queued = GaugeMetricFamily("skerry_webhook_deliveries", "Deliveries in the queue.", labels=("webhook", "state"))
        for webhook in self._engine.webhooks.list():
            attempts.add_metric((webhook.name, "sent"), webhook.sent)
            attempts.add_metric((webhook.name, "failed"), webhook.failed)
            queued.add_metric((webhook.name, "waiting"), webhook.waiting)
            queued.add_metric((webhook.name, "dead"), webhook.dead)
        yield attempts
        yield queued


def _gauge(name: str, help_: str, value: float) -> Metric:
    return GaugeMetricFamily(f"skerry_{name}", help_, value=value)


def _counter(name: str, help_: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"skerry_{name}", help_, labels=(label,))
    for value, count in sorted(values.items()):
        family.add_metric((value,), count)
    return family
