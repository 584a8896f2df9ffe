"""
What this process counts, for Prometheus.

No label names a tenant, a person or a key: there may be thousands, and the internal listener is not where their use is
anybody's business. Reports are (`/admin/v1/usage`).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from gateway.vocabulary import Ending, Usage, UsageSource

registry = CollectorRegistry()

REQUESTS = Counter("weighbridge_requests", "Requests settled, by ending.", ["model", "ending"], registry=registry)
TOKENS = Counter("weighbridge_tokens", "Tokens billed.", ["model", "kind"], registry=registry)
USAGE_SOURCES = Counter(
    "weighbridge_usage_source",
    "Where billed usage came from; all but `final` is second best.",
    ["source"],
    registry=registry,
)
HTTP_ANSWERS = Counter(
    "weighbridge_http_answers", "Answers, by route and status.", ["route", "status"], registry=registry
)
HTTP_SECONDS = Histogram("weighbridge_http_seconds", "Time to answer, in seconds.", ["route"], registry=registry)
LEDGER_BATCH_SECONDS = Histogram(
    "weighbridge_ledger_batch_seconds",
    "Time of one ledger statement, in seconds.",
    ["statement"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0),
    registry=registry,
)
ORPHANS_SETTLED = Counter(
    "weighbridge_orphans_settled", "Open rows of dead processes settled from checkpoints.", registry=registry
)
STORE_UNAVAILABLE = Counter(
    "weighbridge_store_unavailable", "Times Postgres or Redis did not answer.", ["store"], registry=registry
)


def request_settled(model: str, ending: Ending, usage: Usage, source: UsageSource) -> None:
    """Count one settled request."""
    REQUESTS.labels(model, ending.value).inc()
    USAGE_SOURCES.labels(source.value).inc()
    TOKENS.labels(model, "prompt").inc(usage.prompt_tokens)
    TOKENS.labels(model, "completion").inc(usage.completion_tokens)
    TOKENS.labels(model, "cached").inc(usage.cached_tokens)


@contextmanager
def ledger_batch(statement: str) -> Iterator[None]:
    """Time one statement of the ledger."""
    began = time.perf_counter()
    try:
        yield
    finally:
        LEDGER_BATCH_SECONDS.labels(statement).observe(time.perf_counter() - began)


def render() -> bytes:
    """Return everything in Prometheus's text format."""
    return generate_latest(registry)
