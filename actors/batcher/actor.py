"""The batcher: it answers the lines of batches (/v1/batches) by asking this server, as any client does.

The folder of --files-dir is all that it knows: it looks there for what is new, and for what is cancelled. So it does
not matter who dies, nor which server the request came to. Of several servers on one folder the batcher of one works,
and that of another when it has ended. Who writes which file, and what each death leaves, stands in files/folder.py.
When the server stops, the batcher ends before the frontends do, and its batches go on at the next start.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections.abc import Coroutine
from typing import Any

from ..files.batches import Batch, BatchStore, Mark
from ..files.folder import Folder
from ..files.store import FileStore
from ..files.threads import on_disk
from ..options.config import Config
from ..runtime.loop import LoopActor, run_loop
from ..runtime.process import Context
from ..runtime.way import Way
from ..telemetry.gauges import BatcherGauge as Gauge
from .batch_run import BatchRun, Limits
from .memory import LineMemory
from .order import next_of

MOST_LINE_BYTES = 256 << 20  # that lines of all batches have in memory
AGAIN_S = 10.0  # until the next try, where the disk has failed
SWEEP_S = 60.0  # between two looks for files that have expired, old batches, and for what dead writers have left
DAY_S = 86400
ENDS = {
    "completed": Gauge.COMPLETED,
    "failed": Gauge.FAILED,
    "expired": Gauge.EXPIRED,
    "cancelled": Gauge.CANCELLED,
}


class BatcherActor(LoopActor):
    """The one of a server."""

    def __init__(self, context: Context) -> None:
        config = context.config
        assert config.files_dir is not None, "there is no batcher without"
        self._context = context
        self._folder = Folder(config.files_dir)
        self._store = BatchStore(self._folder)
        self._files = FileStore(self._folder, config.files_limit)
        self._most = config.max_batch_lines or max(1, context.system.max_num_seqs // 2)
        self._kept_s = config.batch_retention_days * DAY_S  # 0: for good
        self._memory = LineMemory(MOST_LINE_BYTES)
        self._held: int | None = None  # while this is the batcher of the folder
        self._runs: dict[str, BatchRun] = {}
        self._ended = dict[str, Mark | None]()  # and what is no batch, with their marks as they were looked at
        self._later = dict[str, float]()  # when those are tried again for which the disk failed
        self._waiting = 0
        self._tasks = set[asyncio.Task[None]]()
        self._looking: asyncio.Task[None] | None = None
        self._look_at = self._sweep_at = 0.0

    def open(self) -> None:
        """The loop is there."""
        from .asking import Asker  # aiohttp with it, which the template that forks this actor has no use for

        channel = self._context.channel
        assert channel is not None, "who is a client has a channel"
        self._loop = asyncio.get_running_loop()
        self._asker = Asker(self._context.config, Way(channel), self._context.secret(), self._most)

    async def shut_down(self) -> None:
        """What is under way is broken off, and asked again at the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._asker.close()

    def beat(self) -> None:
        """Is there anything new? One look at a time: a disk may be slow."""
        gauges = self._context.status
        gauges.set_gauge(Gauge.WAITING, self._waiting)
        gauges.set_gauge(Gauge.RUNNING, len(self._runs))
        gauges.set_gauge(Gauge.LINES_RUNNING, self._asker.running)
        if (self._looking is None or self._looking.done()) and self._loop.time() >= self._look_at:
            self._looking = self._start(self._look())

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """What it fails of ends this life."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._is_done)
        return task

    def _is_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()

    async def _look(self) -> None:
        try:
            await on_disk(self._folder.make)
            if self._held is None:
                self._held = await on_disk(self._folder.take_batcher)
            if self._held is not None:
                await self._look_for_batches()
                if self._loop.time() >= self._sweep_at:
                    self._sweep_at = self._loop.time() + SWEEP_S
                    await self._sweep()
        except OSError as error:
            self._look_at = self._failed("the folder of --files-dir cannot be used", error)

    async def _sweep(self) -> None:
        if self._kept_s and (many := await on_disk(self._store.remove_old, time.time() - self._kept_s)):
            self._context.log.info("%d batches are removed, which ended long ago (--batch-retention-days)", many)
        await on_disk(self._files.sweep)

    async def _look_for_batches(self) -> None:
        for name, run in list(self._runs.items()):  # some end meanwhile
            if await on_disk(self._store.is_cancelled, name):
                run.cancel()
        running, now = set(self._runs), self._loop.time()
        waiting = await on_disk(self._new, running)
        ready = [one for one in waiting if self._later.get(one.id, now) <= now]
        begun = next_of(ready, [run.request for run in self._runs.values()], time.time())
        for batch in begun:
            self._begin(batch)
        self._waiting = len(waiting) - len(begun)

    def _new(self, running: set[str]) -> list[Batch]:
        """Those that do not run, and have not ended."""
        found, ended = [], dict[str, Mark | None]()
        for name in set(os.listdir(self._folder.batches)) - running:
            mark = self._store.mark_of(name)  # before the batch is read: another may take its place behind that
            if name in self._ended and self._ended[name] == mark:
                ended[name] = mark
                continue
            one = self._store.get(name)
            if one is None:
                self._context.log.error("%s of --files-dir is no batch that can be read; it is left out", name)
            if one is None or one.has_ended:
                ended[name] = mark
            else:
                self._store.mark_input(one.request)
                found.append(one)
        self._ended = ended  # of what is removed, nothing is known any more
        return found

    def _begin(self, batch: Batch) -> None:
        limits = Limits(self._context.system.files.body_bytes, self._most, self._memory)
        run = BatchRun(self._store, self._asker, batch, limits, self._answered)
        if batch.cancelled_at is not None:
            run.cancel()
        self._runs[batch.id] = run
        self._start(self._go_through(run))

    async def _go_through(self, run: BatchRun) -> None:
        """A disk that fails is tried again. Whatever else one batch fails of ends that one, and no other."""
        name = run.request.id
        try:
            try:
                await run.run()
            except OSError:
                raise
            except Exception as error:
                self._context.log.error("%s cannot go on", name, exc_info=error)
                await run.fail(error)
        except OSError as error:
            self._later[name] = self._failed(f"{name} cannot go on", error)
        else:
            self._context.status.add(ENDS[run.state.status], 1)
            counts = run.state.completed, run.state.failed, run.state.total
            self._context.log.info("%s: %s; %d lines answered, %d with errors, of %d", name, run.state.status, *counts)
        finally:
            del self._runs[name]

    def _failed(self, what: str, error: OSError) -> float:
        """When it is tried again."""
        self._context.log.error("%s: %s; it is tried again in %g s", what, error, AGAIN_S)
        return self._loop.time() + AGAIN_S

    def _answered(self, is_error: bool) -> None:
        self._context.status.add(Gauge.LINES_FAILED if is_error else Gauge.LINES_COMPLETED, 1)


def import_late(config: Config) -> None:
    """What is imported only as it runs."""
    importlib.import_module(".asking", __package__)


def main(context: Context) -> None:
    """Run the batcher until it is told to stop: what is not answered then is asked again."""
    actor = BatcherActor(context)
    run_loop(context, actor, lambda _: actor.open())
