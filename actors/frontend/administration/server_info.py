"""What `/server_info` says: versions, options, the model, what operators have asked for, and all actors, and of the
first model what SGLang's says; and what `/v1/loads` does.

Everything lies in shared memory and /proc, so that it is answered whoever hangs.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

import actorserve
from actorserve.http.loads import EngineLoad, states
from actorserve.shm.kv_map.pause import PauseWord
from actorserve.shm.kv_map.sleep import SleepWord
from actorserve.shm.weights import WeightsRecord

from ...options.config import Config
from ...protocol.served import ServedModel
from ...runtime.process import Context
from ...telemetry.discovery import without_secrets
from ...telemetry.gauges import SchedulerGauge as Gauge
from ...telemetry.snapshot import ActorStatus, SnapshotReader
from ...telemetry.versions import versions

SHOWN = ("name", "kind", "pid", "state", "up_s", "restarts", "cpu_s", "memory_bytes", "gauges")


class ServerInfo:
    """Of one server, by any frontend."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._snapshots = SnapshotReader(context.system, context.segment, os.getppid())

    def look(self, config_format: str) -> dict[str, Any]:
        """`config_format`: the options as `text`, one a line, or as a `json` object; keys are in neither."""
        context = self._context
        options = msgspec.to_builtins(without_secrets(context.config))
        if config_format == "text":
            options = "\n".join(f"{name}: {value}" for name, value in options.items())
        return {
            "version": actorserve.__version__,
            "config": options,
            "model": msgspec.to_builtins(context.model),
            "models": [_model(served) for served in context.system.models],
            "versions": versions(),
            "tokenizer_path": context.model.tokenizer_folder,
            "internal_states": states(self._loads_of(context.system.models[0])),
            "engines": [self._engine(engine, offset) for engine, offset in enumerate(context.system.kv_map_offsets)],
            "actors": [_shown(actor) for actor in self._snapshots.look().actors],
        }

    def loads(self) -> list[EngineLoad]:
        """Of each engine."""
        return [load for served in self._context.system.models for load in self._loads_of(served)]

    def _loads_of(self, served: ServedModel) -> list[EngineLoad]:
        """Of each engine of this model."""
        first = self._context.config.first_engine
        return [
            self._load(first + actor.engine, actor.position, served.config)
            for actor in self._context.system.of_kind("scheduler")
            if actor.engine in served.engines
        ]

    def _load(self, rank: int, position: int, config: Config) -> EngineLoad:
        gauges = self._context.board.gauges(position)
        return EngineLoad(
            rank=rank,
            running=gauges[Gauge.RUNNING],
            waiting=gauges[Gauge.WAITING],
            waiting_tokens=gauges[Gauge.WAITING_TOKENS],
            held_tokens=(gauges[Gauge.BLOCKS_TOTAL] - gauges[Gauge.BLOCKS_FREE]) * config.block_size,
            most_tokens=gauges[Gauge.BLOCKS_TOTAL] * config.block_size,
            most_running=config.max_num_seqs,
            prefix_queries=gauges[Gauge.PREFIX_QUERIES],
            prefix_hits=gauges[Gauge.PREFIX_HITS],
            drafts=gauges[Gauge.DRAFTS],
            draft_tokens=gauges[Gauge.DRAFT_TOKENS],
            accepted_tokens=gauges[Gauge.ACCEPTED_TOKENS],
        )

    def _engine(self, engine: int, offset: int) -> dict[str, Any]:
        memory = self._context.segment.map
        sleep, weights = SleepWord(memory, offset).state, WeightsRecord(self._context.files["weights"], engine)
        generation, folder = weights.read()
        served = self._context.system.model_of(engine)
        return {
            "model": served.name,
            "pause": PauseWord(memory, offset).state.name.lower(),
            "sleep_level": sleep.level,
            "weights_generation": generation,
            "weights_folder": folder or served.info.folder,
        }


def _model(served: ServedModel) -> dict[str, Any]:
    """One of several, in short."""
    return {
        "names": served.config.served_names(),
        "folder": served.info.folder,
        "architecture": served.info.architecture,
        "max_model_len": served.info.max_model_len,
        "engines": list(served.engines),
    }


def _shown(actor: ActorStatus) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(actor)
    return {name: found[name] for name in SHOWN}
