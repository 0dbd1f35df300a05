"""What happened between two looks: rates from counters, quantiles from histograms, and how they were a while ago."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields

from actorserve.shm.histogram import Counted

from ..protocol.kinds import KINDS
from ..telemetry.histograms import SECOND
from ..telemetry.snapshot import Snapshot

TO_FIRST_TOKEN = "vllm:time_to_first_token_seconds"
BETWEEN_TOKENS = "vllm:inter_token_latency_seconds"
HISTORY = 120  # looks


@dataclass(frozen=True)
class Rates:
    """One span between two looks. None: nothing happened of which it could be said."""

    tokens_s: float  # generated
    prompt_tokens_s: float
    requests_s: float  # sequences that ended
    steps_s: float
    step_tokens: float | None  # that one step computed, on average
    step_s: float | None  # what one took in the worker, on average
    running: float
    waiting: float
    kv_use: float  # share of blocks that sequences hold
    hit_rate: float | None  # of prompt tokens looked up in the prefix cache
    to_first_s: float | None  # median time to the first token
    to_first_late_s: float | None  # of 95 %
    between_s: float | None  # median time between two tokens
    between_late_s: float | None


@dataclass
class Look:
    """What was seen at one moment."""

    snapshot: Snapshot
    histograms: dict[str, Counted]


@dataclass
class Meter:
    """Takes one look after the other."""

    last: Look | None = None
    cpu: dict[str, float | None] = field(default_factory=dict)  # percentages of a core since the look before
    history: dict[str, deque[float | None]] = field(
        default_factory=lambda: {entry.name: deque(maxlen=HISTORY) for entry in fields(Rates)}
    )

    def add(self, snapshot: Snapshot, histograms: dict[str, Counted]) -> Rates | None:
        """The rates since the last look; None at the first."""
        before, self.last = self.last, Look(snapshot, histograms)
        if before is None:
            return None
        rates = rates_between(before, self.last)
        self.cpu = cpu_between(before.snapshot, snapshot)
        for name, values in self.history.items():
            values.append(getattr(rates, name))
        return rates


def rates_between(before: Look, after: Look) -> Rates:
    """Of two looks at one server; the counters of a new life may have begun again at 0."""
    seconds = max(1e-9, after.snapshot.at_s - before.snapshot.at_s)
    old, new = (look.snapshot.sums("scheduler") for look in (before, after))

    def increase(name: str) -> int:
        return max(0, new[name] - old[name])

    steps, looked_up = increase("steps"), increase("prefix_queries")
    first, late_first = _median_and_late(TO_FIRST_TOKEN, before, after)
    between, late_between = _median_and_late(BETWEEN_TOKENS, before, after)
    return Rates(
        tokens_s=increase("generated") / seconds,
        prompt_tokens_s=increase("prompted") / seconds,
        requests_s=increase("finished") / seconds,
        steps_s=steps / seconds,
        step_tokens=increase("planned") / steps if steps else None,
        step_s=_step_seconds(before.snapshot, after.snapshot),
        running=new["running"],
        waiting=new["waiting"],
        kv_use=1 - new["blocks_free"] / new["blocks_total"] if new["blocks_total"] else 0.0,
        hit_rate=increase("prefix_hits") / looked_up if looked_up else None,
        to_first_s=first,
        to_first_late_s=late_first,
        between_s=between,
        between_late_s=late_between,
    )


def _step_seconds(before: Snapshot, after: Snapshot) -> float | None:
    """Of all workers together: those that share a model run the same steps, and so does their mean."""
    old, new = (look.sums("worker") for look in (before, after))
    steps, spent = new["steps"] - old["steps"], new["step_ns"] - old["step_ns"]
    return spent / steps / SECOND if steps > 0 and spent > 0 else None


def cpu_between(before: Snapshot, after: Snapshot) -> dict[str, float | None]:
    """Percentages of a core by name; None for who was not the same process all the while."""
    seconds = max(1e-9, after.at_s - before.at_s)
    old = {actor.name: actor for actor in before.actors}
    found: dict[str, float | None] = {}
    for actor in after.actors:
        then = old.get(actor.name)
        same = then is not None and then.pid == actor.pid
        if then is None or not same or then.cpu_s is None or actor.cpu_s is None:
            found[actor.name] = None
        else:
            found[actor.name] = 100 * max(0.0, actor.cpu_s - then.cpu_s) / seconds
    return found


def _median_and_late(key: str, before: Look, after: Look) -> tuple[float | None, float | None]:
    """The median and the 95th percentile, in seconds, of what was counted between."""
    if key not in before.histograms or key not in after.histograms:
        return None, None
    old, new = before.histograms[key].counts, after.histograms[key].counts
    counts = [max(0, b - a) for a, b in zip(old, new, strict=True)]
    bounds = _BOUNDS[key]
    return quantile(bounds, counts, 0.5), quantile(bounds, counts, 0.95)


_BOUNDS = {  # in seconds; those of times do not depend on the model
    spec.key: [bound / spec.scale for bound in spec.bounds]
    for kind in KINDS.values()
    for spec in kind.histograms(1)
    if spec.scale == SECOND
}


def quantile(bounds: list[float], counts: list[int], share: float) -> float | None:
    """Where so large a share of the values is below, as if those of a bucket lay evenly in it; None without values.

    What is above all bounds is taken for the last of them.
    """
    total = sum(counts)
    if not total:
        return None
    wanted, low = share * total, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and wanted <= count:
            return low + (bound - low) * wanted / count
        wanted -= count
        low = bound
    return bounds[-1]
