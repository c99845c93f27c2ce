"""Metrics of the loaders of a rank for Prometheus: served by HTTP, or in a registry that is there already.

Figures are read from the loaders when they are asked for: training does nothing for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from wdsdist._util.extras import extra
from wdsdist._util.validation import check_integer
from wdsdist.distributed import identity
from wdsdist.errors import ArgumentError
from wdsdist.loader.stats import LoaderStats, totals


class Metric(NamedTuple):
    """One figure of one data set on this rank."""

    name: str
    kind: str
    """``"counter"``, which only grows, or ``"gauge"``."""
    help: str
    labels: dict[str, str]
    """``rank`` and ``data``, the location of the data set."""
    value: float


_COUNTERS = {
    "wdsdist_samples": ("samples", "Samples handed out to the training loop."),
    "wdsdist_batches": ("batches", "Batches handed out to the training loop."),
    "wdsdist_bytes": ("bytes", "Bytes of the shards for these samples."),
    "wdsdist_wait_seconds": ("seconds_waiting", "Seconds that the training loop waited for data."),
    "wdsdist_cache_hits": ("cache_hits", "Remote shards opened that were in the cache."),
    "wdsdist_shards_fetched": ("shards_fetched", "Remote shards fetched into the cache, all of each."),
    "wdsdist_fetched_bytes": ("bytes_fetched", "Bytes of these, and of parts of shards."),
    "wdsdist_retries": ("retries", "Requests to stores that failed and were made again."),
    "wdsdist_replaced_samples": ("bad_samples", "Bad samples in whose places others were handed out."),
}
_GAUGES: dict[str, tuple[Callable[[LoaderStats], float | None], str]] = {
    "wdsdist_epoch": (lambda stats: stats.epoch, "The epoch that is played, or was last."),
    "wdsdist_epoch_progress_ratio": (lambda stats: stats.epoch_share, "The part of it that was handed out, 0 to 1."),
    "wdsdist_batch_fill_ratio": (
        lambda stats: stats.fill, "Useful tokens of planned batches over those that there is room for, 0 to 1.",
    ),
}  # fmt: skip


def read() -> list[Metric]:
    """Return the figures of all data sets that this process trains on, for any other system of metrics."""
    found = []
    for label, (sums, latest) in sorted(totals().items()):
        labels = {"rank": str(label.rank), "data": label.data.encode("utf-8", "backslashreplace").decode()}
        for name, (field, text) in _COUNTERS.items():
            found.append(Metric(name, "counter", text, labels, float(sums[field])))
        for name, (value, text) in _GAUGES.items():
            if (number := value(latest)) is not None:
                found.append(Metric(name, "gauge", text, labels, float(number)))
    return found


class _Collector:
    """What a registry of prometheus_client asks for the figures."""

    def collect(self) -> Iterator[Any]:
        core = _client("metrics_core")
        kinds = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
        families: dict[str, Any] = {}
        for one in read():
            if one.name not in families:
                families[one.name] = kinds[one.kind](one.name, one.help, labels=list(one.labels))
            families[one.name].add_metric(list(one.labels.values()), one.value)
        yield from families.values()

    def describe(self) -> list[Any]:
        return []  # so that a registry does not ask for figures when it is given this


_collector = _Collector()


def register(registry: Any = None) -> None:
    """Add the metrics to a registry of prometheus_client, by default its global one; a second time changes nothing.

    Raises `ExtraMissingError` where prometheus_client is not installed.
    """
    chosen = _client("registry").REGISTRY if registry is None else registry
    if not hasattr(chosen, "register"):
        raise ArgumentError(f"registry is {registry!r}: it must be a CollectorRegistry of prometheus_client")
    chosen.register(_collector)


def serve(port: int, *, host: str = "127.0.0.1") -> int:
    """Serve the metrics at ``http://host:port/metrics``, from a thread of this process, and return the port.

    Ranks of one node each serve their own: the rank with local rank n takes ``port + n``.

    Args:
        port: of local rank 0; with 0 any that is free.
        host: the address to listen at. Others than this machine's own can be reached from the network, without a
            password.

    Raises:
        ExtraMissingError: prometheus_client is not installed.
        ArgumentError: the address cannot be used.
    """
    port = check_integer("port", port, 0, 65_535)
    exposition, registry = _client("exposition"), _client("registry").CollectorRegistry()
    register(registry)
    own = port and port + identity().local_rank
    try:
        server, _ = exposition.start_http_server(own, addr=host, registry=registry)
    except (OSError, OverflowError, TypeError) as error:
        raise ArgumentError(
            f"port {own} of {host} cannot be served on ({getattr(error, 'strerror', None) or error}): choose another"
        ) from error
    return int(server.server_port)


def _client(module: str) -> Any:
    return extra(f"prometheus_client.{module}", "metrics", "wdsdist.metrics")
