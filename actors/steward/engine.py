"""How this machine's engine is, as servers elsewhere are told: which life of its workers computes, and its gauges."""

from __future__ import annotations

from actorserve.shm.kv_map.sleep import SleepWord
from actorserve.shm.weights import WeightsRecord

from ..protocol.sockets import engine_wire as wire
from ..runtime.in_flight import NO_REQUEST
from ..runtime.process import Context


class EngineState:
    """What the board, the sleep's word and the record of weights say of it."""

    def __init__(self, context: Context) -> None:
        self._board = context.board
        self._scheduler = context.system.of_kind("scheduler")[0].position
        self._workers = [worker.position for worker in context.system.workers_of(0)]
        self._sleep = SleepWord(context.segment.map, context.system.kv_map_offsets[0])
        self._weights = WeightsRecord(context.files["weights"], 0)

    @property
    def is_parked(self) -> bool:
        """Is there to be no worker?"""
        return self._sleep.state.is_parked

    def worker(self) -> int:
        """Which life of the workers computes; 0: none. Of a group all count."""
        if self.is_parked or not all(map(self._board.is_ready, self._workers)):
            return 0
        return sum(map(self._board.incarnation, self._workers))

    def record(self) -> wire.Engine:
        """All of it."""
        worker, gauges = self.worker(), self._board.gauges(self._scheduler)
        return wire.Engine(worker, gauges, sleep=self._sleep.state.packed(), weights=self._weights.read()[1])

    def was_ended(self) -> bool:
        """Has somebody ended all of the workers that died last, so that no request did?"""
        return all(self._board.ended(worker) in NO_REQUEST for worker in self._workers)
