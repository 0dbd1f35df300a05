"""What operators ask of all engines, as a frontend asks it.

Nothing of it is kept here: that an engine sleeps, and with which weights it wakes, stands in shared memory
(shm/kv_map/sleep.py, shm/weights.py), and a frontend's successor finds the operator's request in its journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import msgspec

from actorserve.http.errors import ApiError, bad_request
from actorserve.http.generation.fields.decoding import unloadable
from actorserve.http.loads import EngineLoad
from actorserve.shm.kv_map.sleep import Part

from ...model.weights.replacement import find_weights
from ...options.config import ConfigError
from ...protocol.messages import Message
from ...protocol.served import ServedModel
from ...protocol.sockets.file_digests import weights_digest
from ...protocol.topics.administration import (
    METHODS,
    CallArguments,
    CallWorkers,
    CheckWeights,
    Mode,
    Sleep,
    SleepChanged,
    WakeUp,
    WorkersCalled,
)
from ...runtime.process import Context
from ...telemetry.gauges import SchedulerGauge
from ..rpc import Calls
from .found_models import FoundModels
from .profile import Profiles
from .server_info import ServerInfo
from .sleep import SleepWatch, load_problem

ASK_S = 120.0  # what a worker gets for what a request needs, deaths included
PARTS = {"weights": Part.WEIGHTS, "kv_cache": Part.KV}


class Administration:
    """Of one frontend's engine."""

    def __init__(self, context: Context, calls: Calls) -> None:
        self._context, self._calls = context, calls
        self._watch = SleepWatch(context)
        self._info = ServerInfo(context)
        self._found = FoundModels(context)
        self._profiles = Profiles(context, calls)

    async def sleep(self, level: int, mode: str, refuses: bool, wait_s: int) -> None:
        """Where requests end first, that takes as long as they take."""
        await self._sleep(level, mode, refuses, wait_s)

    async def _sleep(self, level: int, mode: str, refuses: bool, wait_s: int, weights: str | None = None) -> None:
        given = level, cast(Mode, mode), refuses, wait_s, weights
        await self._calls.ask_engines(lambda number: Sleep(number, *given), patient=True)

    async def wake_up(self, parts: list[str]) -> None:
        """Weights take as long to load as they take. Models that load once they are asked for wait on for that."""
        wanted, only = Part.NONE, self._watch.engines_to_wake()
        for part in parts:
            wanted |= PARTS[part]
        answers = await self._calls.ask_engines(lambda number: WakeUp(number, int(wanted)), patient=True, only=only)
        if len(models := self._context.system.models) == 1:
            _check(answers)
        for served in models:
            own = [answer for engine, answer in zip(only, answers, strict=True) if engine in served.engines]
            _check_model(served, own)

    async def unload_model(self, model: int) -> None:
        """What its engines have begun ends first; the next request wakes them."""
        config = self._context.config
        if config.remote_engines or config.nnodes > 1 or config.prefill_engines:
            text = "it is not unloaded with --engines, --nnodes or --prefill-engines; POST /sleep lets all sleep."
            raise bad_request(f"model: {text}", "model")
        engines = self._context.system.models[model].engines
        await self._calls.ask_engines(lambda number: Sleep(number, 1, "wait", idle=True), patient=True, only=engines)

    async def load_model(self, model: int) -> None:
        """Whoever let it sleep."""
        served = self._context.system.models[model]
        answers = await self._calls.ask_engines(
            lambda number: WakeUp(number, int(Part.ALL), loads=True), patient=True, only=served.engines
        )
        _check_model(served, answers)

    def model_state(self, model: int) -> str:
        """As llama-server's router tells it: unloaded, loading or loaded."""
        engines = self._context.system.models[model].engines
        if self._watch.is_unloaded(model):
            return "unloaded"
        schedulers = (self._context.system.of_kind("scheduler")[engine] for engine in engines)
        met = any(self._context.board.gauge(one.position, SchedulerGauge.BLOCKS_TOTAL) for one in schedulers)
        return "loaded" if met else "loading"

    def load_problem(self, model: int) -> str:
        """Why it could not be loaded when it was asked for last; nothing where it could be."""
        return load_problem(self._context, model)

    def is_leaving(self, model: int) -> bool:
        """Is it unloaded once what it has begun has ended?"""
        return self._watch.is_leaving(model)

    async def models_found_since(self) -> dict[str, str]:
        """By name, those of --models-dir and --models-preset that have come since the start, and why these are not
        served.
        """
        return await self._found.unserved()

    def is_sleeping(self) -> bool:
        """Does an engine sleep by an operator's word, or is it to, or does each model by itself? A model that is loaded
        once it is asked for does not meanwhile.
        """
        return self._watch.is_on(by_itself=False) or (not self._watch.loads_some and self._watch.all_are_on)

    def sleeps_until_woken(self) -> bool:
        """And by nothing but an operator's word?"""
        return self._watch.is_on(by_itself=False)

    async def update_weights(self, path: str, mode: str, wait_s: int) -> None:
        """From then on all is computed with the weights of this folder, or as they lie in the served model's now. A
        sleep with other weights behind it: no prefix is found that was computed before.
        """
        if len(self._context.system.models) > 1:
            raise bad_request("path: other weights are not loaded where there are several models (--also).", "path")
        config, model = self._context.config, self._context.model
        if config.nnodes > 1:
            text = "path: other weights are not loaded by a pipeline on several machines (--nnodes)."
            raise bad_request(f"{text} Start it with them.", "path")
        try:
            folder = await asyncio.to_thread(find_weights, config, model, path)
        except ConfigError as error:
            raise bad_request(f"path: {error}", "path") from None
        await self._check_elsewhere(folder)
        await self._sleep(1, mode, False, wait_s, folder)
        await self.wake_up(list(PARTS))

    async def _check_elsewhere(self, folder: str) -> None:
        """Before anything sleeps: engines on other machines must have the same weights in a folder of this name."""
        if elsewhere := self._context.system.remote_engines:
            digest = await asyncio.to_thread(weights_digest, folder or self._context.model.folder)
            await self._calls.ask_engines(lambda number: CheckWeights(number, folder, digest), only=elsewhere)

    async def call_workers(
        self, method: str, args: list[Any], kwargs: dict[str, Any], timeout_s: float | None = None
    ) -> list[Any]:
        """What has come of it in each worker, engine by engine."""
        config = self._context.config
        if method not in METHODS and config.worker_cls is None and config.worker_extension_cls is None:
            raise bad_request(f"method must be among {', '.join(METHODS)}, not {method!r:.80}.", "method")
        packed = msgspec.json.encode(CallArguments(args, kwargs))
        answers = await self._calls.ask_engines(lambda number: CallWorkers(number, method, packed), limit=timeout_s)
        called = [answer for answer in answers if isinstance(answer, WorkersCalled)]
        if problem := next((one.problem for one in called if one.problem), ""):
            field = problem.partition(":")[0]
            raise ApiError(400, f"{problem}.", field if field in ("method", "args") else None)
        return [msgspec.json.decode(result) for one in called for result in one.results]

    async def ask_worker(self, method: str, args: list[Any], model: int) -> Any:
        """What has come of it in the model's first engine, whoever dies meanwhile."""
        first = self._context.system.models[model].engines[0]
        packed = msgspec.json.encode(CallArguments(args, {}))
        async with asyncio.timeout(ASK_S):
            (answer,) = await self._calls.ask_engines(
                lambda number: CallWorkers(number, method, packed), patient=True, only=[first]
            )
        if isinstance(answer, WorkersCalled) and answer.problem and self._watch.is_unloaded(model):
            raise unloadable(self._context.system.models[model].name, answer.problem)
        if not isinstance(answer, WorkersCalled) or answer.problem:
            raise ApiError(500, "The engine could not compute this request.")
        return msgspec.json.decode(answer.results[0])

    async def start_profile(self, seconds: float) -> None:
        """Sample all actors from now on, for so long at most."""
        await self._profiles.start(seconds)

    async def stop_profile(self) -> dict[str, Any]:
        """Where the trace of all actors is."""
        return await self._profiles.stop()

    def world_size(self, every: bool) -> int:
        """How many workers an engine of the first model has, or all that may be."""
        config = self._context.config
        return config.workers * (config.engines if every else 1)

    def server_info(self, config_format: str) -> dict[str, Any]:
        """Versions, options, the model and all actors."""
        return self._info.look(config_format)

    def engine_loads(self) -> list[EngineLoad]:
        """Requests and tokens of each engine."""
        return self._info.loads()


def _check_model(served: ServedModel, answers: Iterable[Message]) -> None:
    """ApiError where an engine could not load this model."""
    for answer in answers:
        if isinstance(answer, SleepChanged) and answer.problem:
            raise unloadable(served.name, answer.problem)


def _check(answers: Iterable[Message]) -> None:
    """ApiError where an engine could not load the weights that were wanted."""
    for answer in answers:
        if isinstance(answer, SleepChanged) and answer.problem:
            text = f"path: these weights cannot be loaded, and those before are again: {answer.problem}"
            raise bad_request(text, "path")
