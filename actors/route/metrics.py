"""The router's figures for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from .fleet import Fleet
from .replica import Replica

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class RouterMetrics:
    """Counted as it happens; what the fleet knows is read when it is asked for."""

    def __init__(self, fleet: Fleet) -> None:
        registry = self._registry = CollectorRegistry()
        named, to = "actorserve_router_", registry
        self.requests = Counter(f"{named}requests", "Requests by the status of their answer", ["status"], registry=to)
        self.retries = Counter(f"{named}retries", "Requests that were sent again, by why", ["reason"], registry=to)
        self.moves = Counter(
            f"{named}moves", "Streams that went on at another replica, by why", ["reason"], registry=to
        )
        self.broken = Counter(f"{named}broken", "Answers that broke off", registry=to)
        self.up = Gauge(f"{named}replica_up", "Does it answer, and can it serve?", ["replica"], registry=to)
        text = "From the cut of a stream to its next piece"
        self.gaps = Histogram(f"{named}gap_seconds", text, buckets=SECONDS, registry=to)
        text = "From a request to the head of its answer"
        self.heads = Histogram(f"{named}head_seconds", text, buckets=SECONDS, registry=to)
        self.pieces = 0  # of streams
        self._fleet = fleet
        for replica in fleet.replicas:  # those of names come later
            self.up.labels(replica.address).set(0)
        registry.register(self)

    def gone(self, replica: Replica) -> None:
        """Nothing more is known of it, unless it is there again under its address."""
        if all(one.address != replica.address for one in self._fleet.replicas):
            self.up.remove(replica.address)

    def collect(self) -> list[Metric]:
        """What is known by others."""
        named = "actorserve_router_"
        running = GaugeMetricFamily(f"{named}in_flight", "Requests of ours at a replica", labels=["replica"])
        for replica in self._fleet.replicas:
            running.add_metric([replica.address], replica.in_flight)
        return [
            running,
            CounterMetricFamily(f"{named}stream_pieces", "Pieces of streams passed on", self.pieces),
            CounterMetricFamily(f"{named}prompt_bytes", "Of prompts", self._fleet.looked),
            CounterMetricFamily(f"{named}prompt_bytes_known", "Of them, sent there before", self._fleet.found),
        ]

    def text(self) -> tuple[bytes, str]:
        """The body of /metrics, and its type."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4
