"""What `/server_info` says: versions, options, the model, what operators have asked for, and all actors; and what
`/get_load` does.

Everything lies in shared memory and /proc, so that it is answered whoever hangs.
"""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec

import actorserve
from actorserve.shm.kv_map.pause import PauseWord
from actorserve.shm.kv_map.sleep import SleepWord
from actorserve.shm.weights import WeightsRecord

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
            "engines": [self._engine(engine, offset) for engine, offset in enumerate(context.system.kv_map_offsets)],
            "actors": [_shown(actor) for actor in self._snapshots.look().actors],
        }

    def loads(self) -> list[dict[str, float]]:
        """Of each engine, by SGLang's names: requests, and tokens that are kept of them or that wait for a row."""
        system, first = self._context.system, self._context.config.first_engine
        return [
            self._load(first + actor.engine, actor.position, system.model_of(actor.engine).config.block_size)
            for actor in system.of_kind("scheduler")
        ]

    def _load(self, rank: int, position: int, block_size: int) -> dict[str, float]:
        gauges = self._context.board.gauges(position)
        held = gauges[Gauge.BLOCKS_TOTAL] - gauges[Gauge.BLOCKS_FREE]
        return {
            "dp_rank": rank,
            "num_reqs": gauges[Gauge.RUNNING] + gauges[Gauge.WAITING],
            "num_waiting_reqs": gauges[Gauge.WAITING],
            "num_tokens": held * block_size + gauges[Gauge.WAITING_TOKENS],
            "ts_tic": time.perf_counter(),
        }

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
