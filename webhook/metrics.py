"""What the webhook counts, for Prometheus.

One registry of our own, so that nothing is exposed that isn't named here. What always holds: labels come from
closed lists; a request can't make a new time series.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"

REGISTRY: Final = CollectorRegistry()
REVIEWS: Final = Counter(
    "startgate_webhook_reviews_total",
    "Admission reviews answered, by path, decision and reason.",
    ("path", "decision", "reason"),
    registry=REGISTRY,
)
SECONDS: Final = Histogram(
    "startgate_webhook_review_seconds",
    "From the whole request read to the answer made.",
    ("path",),
    buckets=(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 3, 6, 10),
    registry=REGISTRY,
)
REJECTED: Final = Counter(
    "startgate_webhook_http_rejected_total",
    "Requests that were no admission review, by HTTP status.",
    ("status",),
    registry=REGISTRY,
)
CONNECTIONS: Final = Gauge(
    "startgate_webhook_connections", "Connections open, those in TLS handshake included.", registry=REGISTRY
)
CUT: Final = Counter(
    "startgate_webhook_connections_cut_total",
    "Connections closed by a limit: handshake, header, full (the one that was idle longest).",
    ("limit",),
    registry=REGISTRY,
)
CERTIFICATE_ENDS: Final = Gauge(
    "startgate_webhook_certificate_not_after_seconds",
    "When the serving certificate ends, in seconds since 1970.",
    registry=REGISTRY,
)
JOURNAL_FAILURES: Final = Counter(
    "startgate_webhook_audit_failures_total",
    "Requests denied because the audit log could not be written.",
    registry=REGISTRY,
)


def exposition() -> bytes:
    """All of it, in the text format."""
    return generate_latest(REGISTRY)
