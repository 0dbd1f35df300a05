"""/metrics: Prometheus' text of what actors keep in shared memory. A scrape touches only the frontend that answers.

Knows names and shapes; the frontend hands it the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


@dataclass(frozen=True)
class ActorFigures:
    """One actor at one moment."""

    name: str
    up: bool
    restarts: int
    heartbeat_age: float  # seconds
    given_up: int  # requests


@dataclass(frozen=True)
class EngineFigures:
    """The scheduler's counts at one moment; field names are those of actors/gauges.py."""

    running: int
    waiting: int
    blocks_total: int
    blocks_free: int
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    generated: int
    prompted: int
    rejected: int


GAUGES: tuple[tuple[str, str, Callable[[EngineFigures], float]], ...] = (
    ("vllm:num_requests_running", "Sequences in the running batch", lambda f: f.running),
    ("vllm:num_requests_waiting", "Sequences that wait to run", lambda f: f.waiting),
    (
        "vllm:kv_cache_usage_perc",
        "Share of KV blocks that are held, 1 is all",
        lambda f: (f.blocks_total - f.blocks_free) / f.blocks_total if f.blocks_total else 0.0,
    ),
)
COUNTERS: tuple[tuple[str, str, Callable[[EngineFigures], float]], ...] = (
    ("vllm:prompt_tokens", "Prompt tokens of admitted sequences", lambda f: f.prompted),
    ("vllm:generation_tokens", "Generated tokens", lambda f: f.generated),
    ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache", lambda f: f.prefix_queries),
    ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache", lambda f: f.prefix_hits),
    ("vllm:num_preemptions", "Sequences that lost their blocks and were computed again", lambda f: f.preemptions),
)


class Exporter:
    """Makes the text out of the figures that two functions give."""

    def __init__(
        self, model: str, engine: Callable[[], EngineFigures], actors: Callable[[], Iterable[ActorFigures]]
    ) -> None:
        self._labels = {"model_name": model, "engine": "0"}
        self._engine = engine
        self._actors = actors
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """Prometheus' exposition format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """What prometheus_client asks for at each scrape."""
        figures = self._engine()
        names, values = list(self._labels), list(self._labels.values())
        for name, help_text, read in GAUGES:
            gauge = GaugeMetricFamily(name, help_text, labels=names)
            gauge.add_metric(values, read(figures))
            yield gauge
        for name, help_text, read in COUNTERS:
            counter = CounterMetricFamily(name, help_text, labels=names)
            counter.add_metric(values, read(figures))
            yield counter
        rejections = CounterMetricFamily("vllm:admission_rejections", "Refused sequences", labels=[*names, "reason"])
        rejections.add_metric([*values, "queue_full"], figures.rejected)
        yield rejections
        yield from self._actor_metrics()

    def _actor_metrics(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("actorserve:actor_up", "1 when the actor is ready", labels=["actor"])
        restarts = CounterMetricFamily("actorserve:actor_restarts", "Times that it was replaced", labels=["actor"])
        age = GaugeMetricFamily("actorserve:actor_heartbeat_age_seconds", "Since its loop turned", labels=["actor"])
        given_up = CounterMetricFamily(
            "actorserve:requests_given_up",
            "Requests on which it died or hung, and which are not tried again",
            labels=["actor"],
        )
        for actor in self._actors():
            up.add_metric([actor.name], actor.up)
            restarts.add_metric([actor.name], actor.restarts)
            age.add_metric([actor.name], actor.heartbeat_age)
            given_up.add_metric([actor.name], actor.given_up)
        yield from (up, restarts, age, given_up)
