"""What a frontend reads of all actors: who could not serve a request now, the load, and the figures of `/metrics`.

Nobody is asked: everything lies in shared memory and in /proc, so that it can be read while others hang.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import add

from actorserve.http.accounts import Accounts
from actorserve.http.metrics import Distribution, Exporter, Family, Labels
from actorserve.shm.adapters.registry import AdapterState, RegisteredAdapter
from actorserve.shm.engine_places import PARKED, EnginePlaces, EngineTroubles
from actorserve.shm.kv_map.sleep import SleepState, SleepWord

from ...protocol.actor_spec import ActorSpec
from ...protocol.kinds import KINDS, SUPERVISOR, kind_of
from ...runtime.process import Context
from ...telemetry.gauges import FrontendGauge
from ...telemetry.gauges import SchedulerGauge as Gauge
from ...telemetry.histograms import HistogramSpec
from ...telemetry.snapshot import SLEEPING, ActorStatus, Snapshot, SnapshotReader, phases_of
from ..administration.adapters import FrontendAdapters
from .key_metrics import of_keys
from .llama_metrics import with_llama_names
from .metric_names import ACCEPTED_AT, ACTORS, ENDS, SLEEP_STATES, STARTUP, STARTUP_TOTAL, SURVIVED, UNLOADED
from .sglang_metrics import with_sglang_names

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
        places = context.files.get("places")
        self._places = None if places is None else EnginePlaces(places, len(context.system.remote_engines))
        self._troubles = EngineTroubles(context.segment.map, context.system.troubles_offset)
        self._snapshots = SnapshotReader(context.system, context.segment, os.getppid())
        self._config = context.config
        system, first = context.system, context.config.first_engine
        self._models: list[Labels] = [{"model_name": served.name} for served in system.models]
        self._engines = [
            {**self._models[system.model_of(engine).index], "engine": str(first + engine)} for engine in system.engines
        ]
        several = {"model_name": ",".join(served.name for served in system.models)}
        self._labels = self._engines[0] if len(self._engines) == 1 else several  # of what is of no single engine
        self._schedulers = [actor.position for actor in context.system.of_kind("scheduler")]
        self._frontends = [actor.position for actor in context.system.of_kind("frontend")]
        self._histograms = [
            (spec, labels, [context.system.histograms(context.segment, actor)[spec.key] for actor in actors])
            for kind in reversed(KINDS)
            for labels, actors in self._by_engine(kind)
            for spec in context.system.histogram_specs(kind)
        ]
        self.metrics = Exporter(lambda: with_llama_names(with_sglang_names(self.families()))).parts

    def _by_engine(self, kind: str) -> list[tuple[Labels, list[ActorSpec]]]:
        """(labels, actors) of a kind: of each engine, of each of several models, or of the server."""
        actors = self._system.of_kind(kind)
        if KINDS[kind].by_model and len(self._models) > 1:
            by_model = enumerate(self._models)
            return [(labels, [actor for actor in actors if actor.model == index]) for index, labels in by_model]
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
        workers, elsewhere = self._system.of_kind("worker"), self._system.remote_engines
        parked = {worker.engine for worker in workers if self._board.is_parked(worker.position)}
        if self._places is not None:
            parked |= {engine for at, engine in enumerate(elsewhere) if self._places.read(at) == PARKED}
        return parked

    def _engine_of(self, name: str) -> int | None:
        """Whose it is, if it is an engine's."""
        spec = self._system.by_name.get(name)
        return spec.engine if spec is not None and spec.traits.by_engine else None

    def _serves(self, troubled: Iterable[str]) -> bool:
        """Is an engine left, and all that engines of its model need? Texts need nobody who rests, once he was there."""
        specs = [self._system.by_name.get(name) for name in troubled]
        down, models = self._parked(), set()
        for spec in specs:
            if spec is None or not (spec.traits.by_engine or spec.traits.by_model):
                return False
            if spec.traits.by_engine:
                down.add(spec.engine)
            elif not (spec.traits.rests and self._board.incarnation(spec.position) > 1):
                models.add(spec.model)
        left = (engine for engine in self._system.engines if engine not in down)
        return any(self._system.model_of(engine).index not in models for engine in left)

    def _trouble(self, actor: ActorStatus) -> str | None:
        """A worker's loop turns once a step, which may be long: only --step-timeout tells whether it hangs."""
        if not kind_of(actor.kind).needed or actor.state == SLEEPING:  # a sleep is told of by itself
            return None
        if actor.state == "stopped":
            return "stopped by a signal"
        if actor.kind == SUPERVISOR and actor.state in ("starting", "draining"):  # the server is: its actors say why
            return None
        if actor.state != "ready":
            loads = actor.state == "starting" and actor.kind == "worker" and self._is_idle(actor.name)
            return None if loads else actor.state
        patient = kind_of(actor.kind).computes or actor.name == self._own
        if not patient and actor.heartbeat_s is not None and actor.heartbeat_s > STALE_S:
            return f"hung: its loop has not turned for {actor.heartbeat_s:.1f} s"
        if actor.kind == "scheduler":
            return self._shortage(self._system.by_name[actor.name], actor.gauges)
        return None

    def _sleep(self, engine: int) -> SleepState:
        return SleepWord(self._segment.map, self._system.kv_map_offsets[engine]).state

    def _is_idle(self, name: str) -> bool:
        """Has this worker's engine fallen asleep by itself, or does it wake from that? Requests are taken."""
        engine = self._engine_of(name)
        return engine is not None and self._sleep(engine).idle

    def _shortage(self, actor: ActorSpec, gauges: dict[str, int]) -> str | None:
        if not gauges["blocks_total"] and actor.engine in self._system.remote_engines:
            place = self._config.remote_engines[actor.engine - self._system.remote_engines.start]
            why = self._trouble_elsewhere(actor.engine) or "it does not compute yet"
            return f"its engine at {place}: {why}"
        if not gauges["blocks_total"] and not self._sleep(actor.engine).idle:
            return "no KV memory: it has not met its worker yet"
        queued = gauges["running"] + gauges["waiting"]
        if queued >= self._system.models[actor.model].config.max_num_seqs + self._system.max_queued:
            return f"its queue is full ({queued} sequences)"
        return None

    def _trouble_elsewhere(self, engine: int) -> str:
        """Why an engine on another machine does not compute for this server, as its link has it."""
        return self._troubles.read(engine - self._system.remote_engines.start)

    # --- /metrics ------------------------------------------------------------------------------------------------

    def _of_frontends(self, gauge: FrontendGauge) -> int:
        return sum(self._board.gauge(position, gauge) for position in self._frontends)

    def families(self) -> Iterator[Family]:
        """All of this moment, by vLLM's names and this server's own."""
        yield from self._plain()
        yield from self._of_schedulers()
        if self._adapters is not None and self._adapters.enabled:
            yield from self._lora(self._adapters.registered())
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
        for name, relay in self._system.relays.items():
            for metric in kind_of(name).metrics:
                value = self._board.gauge(relay.position, metric.gauge)
                yield Family(metric.type, metric.name, metric.help, [(self._labels, value)])

    def _of_schedulers(self) -> Iterator[Family]:
        """The schedulers' numbers, under vLLM's names."""
        waiting = Family("gauge", "vllm:num_requests_waiting_by_reason", "Of these, for what")
        usage = Family("gauge", "vllm:kv_cache_usage_perc", "Share of KV blocks that are held, 1 is all")
        cache = Family("gauge", "vllm:cache_config_info", "How the KV memory is made")
        ends = Family("counter", "vllm:request_success", "Sequences that have ended")
        asleep = Family("gauge", "vllm:engine_sleep_state", "1 for how the engine is: awake, or asleep at level 1 or 2")
        refused = Family("counter", "vllm:admission_rejections", "Refused sequences")
        accepted = Family("counter", "vllm:spec_decode_num_accepted_tokens_per_pos", "Those at each place")
        survived = Family("counter", "actorserve:requests_recovered", "Sequences that went on after a death")
        trouble = Family("gauge", "actorserve:engine_trouble", "Why an engine elsewhere does not compute")
        sleeps = [self._sleep(engine) for engine in range(len(self._system.kv_map_offsets))]
        schedulers = zip(self._engines, self._schedulers, sleeps, strict=True)
        for engine, (labels, position, sleep) in enumerate(schedulers):
            words = self._board.gauges(position)
            level = 0 if not sleep.is_parked else UNLOADED if sleep.idle else sleep.level
            _add(asleep, labels, "sleep_state", {name: level == at for at, name in enumerate(SLEEP_STATES)})
            total = words[Gauge.BLOCKS_TOTAL]
            used = (total - words[Gauge.BLOCKS_FREE]) / total if total else 0.0
            why = {"capacity": words[Gauge.WAITING], "deferred": 0}  # nothing waits for anything else
            _add(waiting, labels, "reason", why)
            usage.samples.append((labels, used))
            cache.samples.append(({**labels, **self._cache(engine, total)}, 1))
            _add(ends, labels, "finished_reason", {reason: words[gauge] for reason, gauge in ENDS.items()})
            _add(refused, labels, "reason", {"queue_full": words[Gauge.REJECTED]})
            _add(accepted, labels, "position", {at: words[gauge] for at, gauge in ACCEPTED_AT.items()})
            _add(survived, labels, "died", {died: words[gauge] for died, gauge in SURVIVED.items()})
            if engine in self._system.remote_engines and (text := self._trouble_elsewhere(engine)):
                _add(trouble, labels, "reason", {text: 1})
        _add(refused, self._labels, "reason", {"no_free_slot": self._of_frontends(FrontendGauge.REFUSED)})
        _add(survived, self._labels, "died", {"frontend": self._of_frontends(FrontendGauge.SURVIVED_FRONTEND)})
        yield from (waiting, usage, cache, ends, asleep, refused, accepted, survived, trouble)

    def _lora(self, seen: Sequence[RegisteredAdapter]) -> Iterator[Family]:
        """Adapters by state and sequences by adapter; and as vLLM has it, names in labels and the time of this look.
        They are the first model's, of all its engines.
        """
        labels = {
            "max_lora": str(self._config.adapters_at_once()),
            "running_lora_adapters": ",".join(one.name for one in seen if one.running),
            "waiting_lora_adapters": ",".join(one.name for one in seen if one.waiting),
        }
        text = "Adapters that requests have which run, and which wait; the value is the time"
        yield Family("gauge", "vllm:lora_requests_info", text, [(labels, time.time())])
        states = Counter(one.state for one in seen)
        adapters = Family("gauge", "actorserve:adapters", "Adapters that can be named, are read, or end")
        _add(adapters, self._models[0], "state", {state.name.lower(): states[state] for state in AdapterState if state})
        requests = Family("gauge", "actorserve:adapter_requests", "Sequences that have an adapter")
        for name in dict.fromkeys(one.name for one in seen):
            own = [one for one in seen if one.name == name]
            counts = {"running": sum(one.running for one in own), "waiting": sum(one.waiting for one in own)}
            _add(requests, {**self._models[0], "adapter": name}, "state", counts)
        yield from (adapters, requests)

    def _cache(self, engine: int, blocks: int) -> Labels:
        served = self._system.model_of(engine)
        config, tokens = served.config, blocks * self._config.block_size
        return {
            "block_size": str(config.block_size),
            "kv_cache_size_tokens": str(tokens),
            "kv_cache_max_concurrency": f"{tokens / served.info.max_model_len:.2f}",  # of the longest sequences
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
