"""`LLM.get_metrics`: vLLM's metrics of this moment as objects, by vLLM's classes, names and labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.utils import floatToGoString

from actorserve.http.metrics import Distribution, Family

from ...frontend.engine import FrontendEngine
from ...frontend.rpc import CALL_S
from ...options.config import Config
from ..engine import FrontendThread

OWN = "vllm:"  # how names begin that vLLM has, too
BY_PLACE, PLACE = "vllm:spec_decode_num_accepted_tokens_per_pos", "position"


@dataclass
class Metric:
    """What all have."""

    name: str
    labels: dict[str, str]


@dataclass
class Counter(Metric):
    """It only grows."""

    value: int


@dataclass
class Vector(Metric):
    """Counters of the places in a draft, in their order."""

    values: list[int]


@dataclass
class Gauge(Metric):
    """It goes up and down."""

    value: float


@dataclass
class Histogram(Metric):
    """`buckets`: how many were at most so much, by that as text, and of all by `+Inf`."""

    count: int
    sum: float
    buckets: dict[str, int]


class MetricsMethods:
    """What LLM inherits of them."""

    config: Config
    _engine: FrontendThread

    def _check_usable(self) -> None:
        raise NotImplementedError

    def get_metrics(self) -> list[Metric]:
        """All that `/metrics` names as vLLM does."""
        self._check_usable()

        async def look(frontend: FrontendEngine) -> list[Metric]:
            return list(_metrics(frontend.metric_families()))

        return self._engine.ask(look, 2 * CALL_S, "what the metrics are")

    def get_world_size(self, include_dp: bool = True) -> int:
        """Workers of all engines, or of one."""
        return self.config.workers * (self.config.engines if include_dp else 1)


def _metrics(families: Iterable[Family]) -> Iterator[Metric]:
    for family in families:
        if family.name == BY_PLACE:
            yield from _vectors(family)
        elif family.name.startswith(OWN):
            yield from _samples(family)


def _samples(family: Family) -> Iterator[Metric]:
    for labels, value in family.samples:
        if isinstance(value, Distribution):
            counts = list(accumulate(value.counts))
            bounds = [*map(floatToGoString, value.bounds), "+Inf"]
            buckets = dict(zip(bounds, counts, strict=True))
            yield Histogram(family.name, dict(labels), counts[-1], value.sum, buckets)
        elif family.kind == "counter":
            yield Counter(family.name, dict(labels), int(value))
        else:
            yield Gauge(family.name, dict(labels), float(value))


def _vectors(family: Family) -> Iterator[Vector]:
    """The counters of each engine as one: a sample is of one place, and they are in their order."""
    found: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for labels, value in family.samples:
        assert not isinstance(value, Distribution)
        engine = tuple((name, text) for name, text in labels.items() if name != PLACE)
        found.setdefault(engine, []).append(int(value))
    yield from (Vector(family.name, dict(engine), values) for engine, values in found.items())
