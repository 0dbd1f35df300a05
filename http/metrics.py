"""/metrics: Prometheus' text of what actors keep in shared memory. A scrape touches only the frontend that answers.

Knows shapes and formats; the frontend hands it the numbers, with their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Literal

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Kind = Literal["gauge", "counter", "histogram"]
Labels = Mapping[str, str]


@dataclass(frozen=True)
class Distribution:
    """A histogram at one moment. `counts` has one more entry than there are bounds: what is above all of them."""

    bounds: list[float]
    counts: list[int]
    sum: float


@dataclass(frozen=True)
class Family:
    """All samples of one name, by their labels. A counter's name is without its `_total`."""

    kind: Kind
    name: str
    help: str
    samples: list[tuple[Labels, float | Distribution]] = field(default_factory=list)


class Exporter:
    """Makes the text of what a function gives."""

    def __init__(self, families: Callable[[], Iterable[Family]]) -> None:
        self._families = families

    def parts(self, accept: str = "") -> tuple[Iterator[bytes], str]:
        """The body, family by family, and its Content-Type, in the format that the Accept header asks for: Prometheus'
        or OpenMetrics. All numbers are of this moment; each part is written when it is asked for, which takes long.
        """
        encode, content_type = choose_encoder(accept)
        if isinstance(encode, partial):  # else it may write vllm_… for vllm:…
            encode = partial(encode, escaping=ALLOWUTF8)
        return _written(list(self._families()), encode), content_type


class _Metrics(Collector):
    """These metrics, as prometheus_client asks for them."""

    def __init__(self, *metrics: Metric) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _written(families: list[Family], encode: Callable[[Collector], bytes]) -> Iterator[bytes]:
    end = encode(_Metrics())  # OpenMetrics has an end mark
    for family in families:
        yield encode(_Metrics(_metric(family))).removesuffix(end)
    yield end


def _metric(family: Family) -> Metric:
    """Each sample has its own labels: what counts for all engines has no engine's."""
    metric = Metric(family.name, family.help, family.kind)
    for labels, value in family.samples:
        if isinstance(value, Distribution):
            counts = list(accumulate(value.counts))
            bounds = [*map(floatToGoString, value.bounds), "+Inf"]
            for bound, count in zip(bounds, counts, strict=True):
                metric.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, count)
            metric.add_sample(f"{family.name}_count", dict(labels), counts[-1])
            metric.add_sample(f"{family.name}_sum", dict(labels), value.sum)
        else:
            metric.add_sample(f"{family.name}_total" if family.kind == "counter" else family.name, dict(labels), value)
    return metric
