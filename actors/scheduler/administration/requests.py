"""What operators ask of requests: whether steps are planned for them, their ends, and what caches keep of them."""

from __future__ import annotations

from collections.abc import Callable

from actorserve.shm.kv_map.pause import PauseState

from ...protocol.messages import Finish, Message
from ...protocol.topics.administration import (
    END,
    Abort,
    Aborted,
    CacheReset,
    Pause,
    Paused,
    PrefixCacheReset,
    ResetEncoderCache,
    ResetPrefixCache,
    Resume,
)
from ...protocol.topics.calls import frontend_of_call
from ...runtime.in_flight import is_named
from ...runtime.process import Context
from ..scheduler import Scheduler


class RequestAdministration:
    """Of one scheduler's life."""

    def __init__(self, context: Context, scheduler: Scheduler, tell_workers: Callable[[Message], None]) -> None:
        self._context, self._scheduler, self._tell_workers = context, scheduler, tell_workers

    def handle(self, message: Pause | Resume | Abort | ResetPrefixCache | ResetEncoderCache) -> None:
        """One message; it may come twice."""
        match message:
            case Pause():
                self._pause(message)
            case Resume():
                self._scheduler.pause.set(PauseState.RUNNING)
                self._context.log.info("steps are planned again")
                self._tell_paused([message.call, *self._scheduler.pause.take_callers()])
            case Abort():
                self._abort(message)
            case ResetPrefixCache():
                self._reset_prefix_cache(message)
            case ResetEncoderCache():
                self._tell_workers(message)
                self._answer(message.call, CacheReset(message.call))

    def turn(self) -> int:
        """Who waited until what had begun has ended is told; how many were."""
        return self._tell_paused(self._scheduler.pause.drained(self._scheduler.is_drained))

    def _pause(self, message: Pause) -> None:
        """Said again after a death, it finds what is done already; by who waits for its end, nothing is left to do."""
        scheduler, mode = self._scheduler, message.mode
        if mode in ("wait", END) and scheduler.pause.is_asked_by(message.call):
            return
        if mode == "abort":
            for ref in list(scheduler.sequences):
                scheduler.end(ref, Finish.ABORT)
        if message.clear_cache:
            scheduler.reset_prefix_cache(recompute_running=mode == "keep")
        self._context.log.info("no more steps are planned (%s): %d requests", mode, len(scheduler.sequences))
        if mode in ("wait", END):
            scheduler.pause.drain(message.call, until_told=mode == END)
        else:
            scheduler.pause.set(PauseState.PAUSED)
            self._tell_paused([message.call])

    def _tell_paused(self, calls: list[int]) -> int:
        for call in calls:
            self._answer(call, Paused(call))
        return len(calls)

    def _abort(self, message: Abort) -> None:
        """End requests by the ids that their clients or answers have."""
        table, names = self._context.table, message.request_ids
        refs = [ref for ref in self._scheduler.sequences if message.every or is_named(table, ref, names)]
        for ref in refs:
            self._scheduler.end(ref, Finish.ABORT)
        self._context.log.info("%d sequences were ended by an operator", len(refs))
        self._answer(message.call, Aborted(message.call, len(refs)))

    def _reset_prefix_cache(self, message: ResetPrefixCache) -> None:
        """Done at once, also before the worker is met. If this life ends before the answer is in its lane, the message
        comes to the next one, which does it again.
        """
        dropped = self._scheduler.reset_prefix_cache(message.reset_running_requests)
        then = "are computed again" if message.reset_running_requests else "go on in their blocks"
        requests = len(self._scheduler.sequences)
        self._context.log.info("the prefix cache was reset: %d blocks dropped, %d requests %s", dropped, requests, then)
        self._answer(message.call, PrefixCacheReset(message.call))

    def _answer(self, call: int, answer: Message) -> None:
        self._context.post(f"frontend-{frontend_of_call(call)}", answer)
