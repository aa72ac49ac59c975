"""Metrics for Prometheus, of one process or merged over the workers of a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from lmlab.serve.batch_queue import BatchReport

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServerMetrics:
    """Counters of one process."""

    def __init__(self, paths: frozenset[str] = frozenset()) -> None:
        self.registry = CollectorRegistry()
        self.paths = paths
        """Paths that are counted by name; others count as one, so that their number is bounded."""
        self.requests = Counter(
            "lmlab_requests", "Answers.", ["path", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "lmlab_request_seconds",
            "Time to answer a request.",
            ["path"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.batches = Histogram(
            "lmlab_batch_requests",
            "Requests that were batched together.",
            ["model"],
            buckets=BATCH_SIZES,
            registry=self.registry,
        )
        self.tokens = Counter(
            "lmlab_tokens", "Tokens of requests, about.", ["model"], registry=self.registry
        )
        self.busy = Counter(
            "lmlab_busy_seconds", "Time that models worked.", ["model"], registry=self.registry
        )
        self.waiting = Gauge(
            "lmlab_waiting_requests", "Requests that wait.", ["model"], registry=self.registry
        )

    def observe_request(self, path: str, status: int, seconds: float) -> None:
        name = path if path in self.paths else "other"
        self.requests.labels(name, str(status)).inc()
        self.seconds.labels(name).observe(seconds)

    def observe_batch(self, model: str, report: BatchReport) -> None:
        self.batches.labels(model).observe(report.jobs)
        self.tokens.labels(model).inc(report.cost)
        self.busy.labels(model).inc(report.seconds)

    def observer(self, model: str) -> Any:
        """What the queue of a model reports its batches to."""
        return partial(self.observe_batch, model)

    def text(self) -> bytes:
        """In Prometheus's text format."""
        text: bytes = generate_latest(self.registry)
        return text


class _Merged:
    """A collector of the metrics of several processes, with the process as a label."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for worker, text in self.texts.items():
            for family in text_string_to_metric_families(text):
                first = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    labels = {**sample.labels, "worker": worker}
                    first.add_sample(sample.name, labels, sample.value)
        yield from families.values()


def merge_metrics(texts: Mapping[str, str]) -> bytes:
    """The metrics of several workers in one text."""
    registry = CollectorRegistry()
    registry.register(_Merged(texts))
    merged: bytes = generate_latest(registry)
    return merged
