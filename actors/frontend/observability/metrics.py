"""What a frontend reads of all actors: who could not serve a request now, the load, and the figures of `/metrics`.

Nobody is asked: everything lies in shared memory and in /proc, so that it can be read while others hang.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import add

from actorserve.http.accounts import Accounts
from actorserve.http.metrics import Distribution, Exporter, Family, Labels
from actorserve.shm.adapters.registry import RegisteredAdapter

from ...protocol.kinds import KINDS, SUPERVISOR, kind_of
from ...protocol.topology import ActorSpec
from ...runtime.process import Context
from ...telemetry.gauges import FrontendGauge
from ...telemetry.gauges import SchedulerGauge as Gauge
from ...telemetry.histograms import HistogramSpec
from ...telemetry.snapshot import ActorStatus, Snapshot, SnapshotReader, phases_of
from ..adapters import FrontendAdapters
from .key_metrics import of_keys
from .metric_names import ACCEPTED_AT, ACTORS, ENDS, STARTUP, STARTUP_TOTAL, SURVIVED

STALE_S = 3.0  # every loop but the worker's turns at least once a second


class ServerMetrics:
    """The server at one moment, as the HTTP side asks for it."""

    def __init__(
        self, context: Context, adapters: FrontendAdapters | None = None, accounts: Accounts | None = None
    ) -> None:
        self._adapters, self._accounts = adapters, accounts
        self._system, self._segment = context.system, context.segment
        self._board = context.board
        self._own = context.name
        self._snapshots = SnapshotReader(context.system, context.segment, os.getppid())
        self._config = context.config
        self._model = {"model_name": context.config.served_names()[0]}
        first = context.config.first_engine
        self._engines = [{**self._model, "engine": str(first + engine)} for engine in context.system.engines]
        self._labels = self._engines[0] if len(self._engines) == 1 else self._model  # of what is of no single engine
        self._schedulers = [actor.position for actor in context.system.of_kind("scheduler")]
        self._frontends = [actor.position for actor in context.system.of_kind("frontend")]
        self._histograms = [
            (spec, labels, [context.system.histograms(context.segment, actor)[spec.key] for actor in actors])
            for kind in reversed(KINDS)
            for labels, actors in self._by_engine(kind)
            for spec in context.system.histogram_specs(kind)
        ]
        self.metrics = Exporter(self._families).parts

    def _by_engine(self, kind: str) -> list[tuple[Labels, list[ActorSpec]]]:
        """(labels, actors) of a kind: of each engine, or of the server."""
        actors = self._system.of_kind(kind)
        if not KINDS[kind].by_engine:
            return [(self._labels, actors)]
        return [
            (labels, [actor for actor in actors if actor.engine == engine])
            for engine, labels in enumerate(self._engines)
        ]

    def load(self) -> int:
        """Requests that all frontends are answering."""
        return self._of_frontends(FrontendGauge.IN_FLIGHT)

    # --- readiness -----------------------------------------------------------------------------------------------

    def not_ready(self) -> list[str]:
        """Why a request could not be served now: actors, each with its reason."""
        troubled = self._troubled()
        return [] if self._serves(troubled) else _reasons(troubled)

    def degraded(self) -> list[str]:
        """Actors that cannot do their part, where requests are served all the same."""
        troubled = self._troubled()
        return _reasons(troubled) if self._serves(troubled) else []

    def _troubled(self) -> dict[str, str]:
        actors = self._snapshots.look().actors
        parked = self._parked()
        found = [(actor, self._trouble(actor)) for actor in actors if self._engine_of(actor.name) not in parked]
        troubled = {actor.name: trouble for actor, trouble in found if trouble}
        if len(parked) < len(self._engines):
            return troubled
        return troubled | {actor.name: f"parked ({actor.parked})" for actor in actors if actor.parked}

    def _parked(self) -> set[int]:
        """The engines that are not wanted."""
        workers = self._system.of_kind("worker")
        return {worker.engine for worker in workers if self._board.is_parked(worker.position)}

    def _engine_of(self, name: str) -> int | None:
        """Whose it is, if it is an engine's."""
        spec = self._system.by_name.get(name)
        return spec.engine if spec is not None and spec.traits.by_engine else None

    def _serves(self, troubled: Iterable[str]) -> bool:
        """Is an engine left, and all that engines need?"""
        engines = [self._engine_of(name) for name in troubled]
        return None not in engines and len(self._parked().union(engines)) < len(self._engines)

    def _trouble(self, actor: ActorStatus) -> str | None:
        """A worker's loop turns once a step, which may be long: only --step-timeout tells whether it hangs."""
        if not kind_of(actor.kind).needed:
            return None
        if actor.state == "stopped":
            return "stopped by a signal"
        if actor.state != "ready":
            return actor.state
        patient = kind_of(actor.kind).computes or actor.name == self._own
        if not patient and actor.heartbeat_s is not None and actor.heartbeat_s > STALE_S:
            return f"hung: its loop has not turned for {actor.heartbeat_s:.1f} s"
        if actor.kind == "scheduler":
            return self._shortage(actor.gauges)
        return None

    def _shortage(self, gauges: dict[str, int]) -> str | None:
        if not gauges["blocks_total"]:
            return "no KV memory: it has not met its worker yet"
        queued = gauges["running"] + gauges["waiting"]
        if queued >= self._config.max_num_seqs + self._system.max_queued:
            return f"its queue is full ({queued} sequences)"
        return None

    # --- /metrics ------------------------------------------------------------------------------------------------

    def _of_frontends(self, gauge: FrontendGauge) -> int:
        return sum(self._board.gauge(position, gauge) for position in self._frontends)

    def _families(self) -> Iterator[Family]:
        yield from self._plain()
        yield from self._of_schedulers()
        if self._adapters is not None and self._adapters.enabled:
            yield self._lora(self._adapters.registered())
        if self._accounts is not None and self._accounts.enabled:
            yield from of_keys(self._accounts.usage())
        yield from self._counted()
        yield from self._actors(self._snapshots.look())
        yield from self._starts()

    def _plain(self) -> Iterator[Family]:
        """What the records of the kinds say is shown as it is: the sum over all actors of a kind."""
        for kind in KINDS.values():
            for metric in kind.metrics:
                family = Family(metric.type, metric.name, metric.help)
                for labels, actors in self._by_engine(kind.name):
                    value = sum(self._board.gauge(actor.position, metric.gauge) for actor in actors)
                    family.samples.append((labels, value))
                yield family

    def _of_schedulers(self) -> Iterator[Family]:
        """The schedulers' numbers, under vLLM's names."""
        waiting = Family("gauge", "vllm:num_requests_waiting_by_reason", "Of these, for what")
        usage = Family("gauge", "vllm:kv_cache_usage_perc", "Share of KV blocks that are held, 1 is all")
        cache = Family("gauge", "vllm:cache_config_info", "How the KV memory is made")
        ends = Family("counter", "vllm:request_success", "Sequences that have ended")
        refused = Family("counter", "vllm:admission_rejections", "Refused sequences")
        accepted = Family("counter", "vllm:spec_decode_num_accepted_tokens_per_pos", "Those at each place")
        survived = Family("counter", "actorserve:requests_recovered", "Sequences that went on after a death")
        for labels, position in zip(self._engines, self._schedulers, strict=True):
            words = self._board.gauges(position)
            total = words[Gauge.BLOCKS_TOTAL]
            used = (total - words[Gauge.BLOCKS_FREE]) / total if total else 0.0
            why = {"capacity": words[Gauge.WAITING], "deferred": 0}  # nothing waits for anything else
            _add(waiting, labels, "reason", why)
            usage.samples.append((labels, used))
            cache.samples.append(({**labels, **self._cache(total)}, 1))
            _add(ends, labels, "finished_reason", {reason: words[gauge] for reason, gauge in ENDS.items()})
            _add(refused, labels, "reason", {"queue_full": words[Gauge.REJECTED]})
            _add(accepted, labels, "position", {at: words[gauge] for at, gauge in ACCEPTED_AT.items()})
            _add(survived, labels, "died", {died: words[gauge] for died, gauge in SURVIVED.items()})
        _add(refused, self._labels, "reason", {"no_free_slot": self._of_frontends(FrontendGauge.REFUSED)})
        _add(survived, self._labels, "died", {"frontend": self._of_frontends(FrontendGauge.SURVIVED_FRONTEND)})
        yield from (waiting, usage, cache, ends, refused, accepted, survived)

    def _lora(self, seen: Sequence[RegisteredAdapter]) -> Family:
        """As vLLM has it: names in labels, and the time of this look."""
        labels = {
            "max_lora": str(self._config.max_loras),
            "running_lora_adapters": ",".join(one.name for one in seen if one.running),
            "waiting_lora_adapters": ",".join(one.name for one in seen if one.waiting),
        }
        text = "Adapters that requests have which run, and which wait; the value is the time"
        return Family("gauge", "vllm:lora_requests_info", text, [(labels, time.time())])

    def _cache(self, blocks: int) -> Labels:
        config, tokens = self._config, blocks * self._config.block_size
        return {
            "block_size": str(config.block_size),
            "kv_cache_size_tokens": str(tokens),
            "kv_cache_max_concurrency": f"{tokens / self._system.model.max_model_len:.2f}",  # of the longest sequences
            "num_gpu_blocks": str(blocks),
            "enable_prefix_caching": str(config.enable_prefix_caching),
            "gpu_memory_utilization": str(config.gpu_memory_utilization),
        }

    def _counted(self) -> Iterable[Family]:
        """The histograms; those of all frontends are one."""
        families: dict[str, Family] = {}
        for spec, labels, histograms in self._histograms:
            counted = reduce(add, (histogram.read() for histogram in histograms))
            shown = Distribution(_bounds(spec), counted.counts, counted.sum / spec.scale)
            family = families.setdefault(spec.name, Family("histogram", spec.name, spec.help))
            family.samples.append(({**labels, **dict(spec.labels)}, shown))
        return families.values()

    def _actors(self, seen: Snapshot) -> Iterator[Family]:
        for kind, name, text, read in ACTORS:
            values = ((actor.name, read(actor)) for actor in seen.actors)
            samples: list[tuple[Labels, float | Distribution]] = [
                ({"actor": name}, value) for name, value in values if value is not None
            ]
            yield Family(kind, name, text, samples)

    def _starts(self) -> Iterator[Family]:
        """How long the server took to start, and the lives of its actors that count."""
        phases, totals = Family("gauge", *STARTUP), Family("gauge", *STARTUP_TOTAL)
        for name in (SUPERVISOR, *self._system.by_name):
            took = phases_of(self._system, self._segment, self._board, name)
            phases.samples.extend(({"actor": name, "phase": phase}, seconds) for phase, seconds in took.items())
            totals.samples.append(({"actor": name}, sum(took.values())))
        yield phases
        yield totals


def _add(family: Family, labels: Labels, label: str, values: Mapping[str, int]) -> None:
    """A sample of each value, with its own label."""
    family.samples.extend(({**labels, label: key}, float(value)) for key, value in values.items())


def _reasons(troubled: Mapping[str, str]) -> list[str]:
    return [f"{name}: {trouble}" for name, trouble in troubled.items()]


def _bounds(spec: HistogramSpec) -> list[float]:
    return [bound / spec.scale for bound in spec.bounds]
