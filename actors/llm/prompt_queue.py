"""Prompts of all batches: as many are begun as the actors run or keep waiting, the others wait here, in order.

Belongs to the thread of engine.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from actorserve.http.errors import ApiError
from actorserve.http.generation.job import Job

from ..frontend.engine import FrontendEngine
from ..protocol.messages import Finish
from ..runtime.process import Context
from .batch import PromptBatch, PromptRequest
from .outputs import aborted
from .pooling import PooledPrompt


class PromptQueue:
    """`decode`: the text of a prompt's tokens."""

    def __init__(self, context: Context, decode: Callable[[list[int]], str]) -> None:
        config = context.system.config
        self._table, self._decode = context.table, decode
        self._window = config.max_num_seqs + min(config.max_num_seqs, context.system.max_queued)
        self._waiting: deque[tuple[PromptBatch, int]] = deque()
        self._running: dict[Job, tuple[PromptBatch, int]] = {}
        self._sequences = 0  # of what is running

    def open(self, engine: FrontendEngine, turn: Callable[[], None]) -> None:
        """There is somebody to submit to; `turn`: something is to be done."""
        self._engine, self._turn = engine, turn

    def add(self, batch: PromptBatch) -> None:
        """Its prompts come behind all others."""
        self._waiting.extend((batch, index) for index in range(len(batch.wanted)))
        self._turn()

    def begin(self) -> None:
        """Begin with as many as there is room for, in order."""
        while self._waiting:
            batch, index = self._waiting[0]
            wanted = batch.wanted[index]
            if self._running and self._sequences + wanted.sequences > self._window:
                return
            job = wanted.new_job()
            try:
                self._engine.submit(job)
            except ApiError as error:
                if error.status == 503:  # slots whose sequence was cancelled are not free yet: their end will be told
                    return
                self._waiting.popleft()
                batch.end(index, error.message)
                continue
            self._waiting.popleft()
            self._running[job] = batch, index
            self._sequences += wanted.sequences
            job.done.add_done_callback(partial(self._done, job))

    def _done(self, job: Job, done: asyncio.Future[None]) -> None:
        """The job has ended; not if it was cancelled before."""
        known = self._running.pop(job, None)
        if known is None:
            return
        batch, index = known
        self._sequences -= batch.wanted[index].sequences
        error = done.exception()
        rejected = error is not None and any(self._table.finish(ref) == Finish.REJECTED for ref in job.refs)
        outcome = str(error) if error is not None else self._output(batch.wanted[index], job)
        self._engine.release(job)
        if rejected:  # cancelled ones are still in the scheduler's queue: again when the next one has ended
            self._waiting.appendleft((batch, index))
            return
        batch.end(index, outcome)
        self._turn()

    def _output(self, wanted: PromptRequest | PooledPrompt, job: Job) -> Any:
        """Of a job that has ended, and still has its slots, where the times stand."""
        if isinstance(wanted, PromptRequest):
            return wanted.output(job, self._decode, times=self._engine.times(job))
        return wanted.output(job, self._decode)

    def abort(self, batch: PromptBatch) -> None:
        """Its prompts end with what they have, and the finish_reason abort."""
        waiting = {index for other, index in self._waiting if other is batch}
        ended = [
            (index, batch.wanted[index].output(job, self._decode))
            for job, (other, index) in self._running.items()
            if other is batch
        ]
        self.cancel(batch)
        for index, output in ended:
            batch.end(index, aborted(output))
        for index in waiting:
            wanted = batch.wanted[index]
            if isinstance(wanted, PromptRequest):
                batch.end(index, aborted(wanted.output(wanted.new_job(), self._decode)))
            else:
                batch.end(index, "it was aborted before it was begun")

    def cancel(self, batch: PromptBatch) -> None:
        """Nobody waits for it any more."""
        self._waiting = deque(one for one in self._waiting if one[0] is not batch)
        for job in [job for job, (other, _) in self._running.items() if other is batch]:
            _, index = self._running.pop(job)
            self._sequences -= batch.wanted[index].sequences
            self._engine.release(job)
        self._turn()

    def fail(self, error: Exception) -> None:
        """All of them end with it."""
        told = {id(batch): batch for batch, _ in (*self._running.values(), *self._waiting)}
        self._running.clear()
        self._waiting.clear()
        for batch in told.values():
            batch.fail(error)
