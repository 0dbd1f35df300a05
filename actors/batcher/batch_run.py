"""One batch, from where it is to its end. Which step is next stands in its state, and what is answered in its lines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..files.batches import Batch, BatchStore
from ..files.folder import CONTENT
from ..files.lines import Request, answer_line, decode_request
from ..files.threads import on_disk
from .output import Output
from .results import ERRORS, OUTPUT, publish_lines
from .validation import check_lines, lines_of

if TYPE_CHECKING:
    from .asking import Asker

CANCELLED_S = 600.0  # that lines get to end which were begun, and may wait for their next try
TELL_S = 1.0  # between two times that its counts are stored
EXPIRED = {
    "code": "batch_expired",
    "message": "This request could not be executed before the completion window expired.",
}


class BatchRun:
    """Of the batcher. `counted` is told of each answer whether it is an error."""

    def __init__(
        self, store: BatchStore, asker: Asker, batch: Batch, limits: tuple[int, int], counted: Callable[[bool], object]
    ) -> None:
        """`limits`: bytes of a line, and how many are asked at once."""
        self._store, self._asker, self._counted = store, asker, counted
        self.request, self.state = batch.request, batch.state
        self._longest, most = limits
        self._own = asyncio.Semaphore(most)  # lines that have begun: they may wait for their next try
        self._saving = asyncio.Lock()
        self._cancelled = asyncio.Event()
        self._changed = asyncio.Event()
        self._lines = set[asyncio.Task[None]]()

    def cancel(self) -> None:
        """No more lines are begun."""
        self._cancelled.set()

    async def run(self) -> None:
        """To its end, which is stored then. OSError where the disk fails."""
        if self.state.status == "validating":
            await self._validate()
        if self.state.status == "in_progress":
            await self._answer()
        if self.state.status == "finalizing":
            await self._finish()

    async def _save(self, **changes: Any) -> None:
        async with self._saving:
            state = msgspec.structs.replace(self.state, **changes)
            await on_disk(self._store.save, self.request.id, state)
            self.state = state

    # --- its lines -----------------------------------------------------------------------------------------------

    async def _validate(self) -> None:
        if self._cancelled.is_set():
            return await self._save(status="cancelled", outcome="cancelled", ended_at=_now())
        found = await check_lines(self._input, self.request.endpoint, self._longest)
        if found.errors:
            return await self._save(status="failed", outcome="failed", errors=found.errors, ended_at=_now())
        return await self._save(status="in_progress", total=found.total, model=found.model, in_progress_at=_now())

    @property
    def _input(self) -> Path:
        return self._store.folder.files / self.request.input_file_id / CONTENT

    async def _answer(self) -> None:
        output = Output(self._store.place(self.request.id))
        try:
            await output.take_over()
            outcome = await self._ask(output)
            if outcome == "expired":
                async for _, line in self._unanswered(output):
                    self._add(output, answer_line(line.custom_id, None, EXPIRED))
            await on_disk(output.sync)
            await self._save(status="finalizing", outcome=outcome, finalizing_at=_now(), **_counts(output))
        finally:
            output.close()

    async def _ask(self, output: Output) -> str:
        """All that have no answer, as long as there is time; how it ends."""
        if (left_s := self.request.expires_at - time.time()) <= 0:
            return "expired"
        telling = asyncio.create_task(self._tell(output))
        feeding = asyncio.create_task(self._feed(output))
        try:
            async with asyncio.timeout(left_s) as deadline:
                await self._until_fed(feeding)
                await self._until_answered()
        except TimeoutError:
            if not deadline.expired():  # the disk says so, too
                raise
            return "expired"
        finally:
            await _ended(telling, feeding, *self._lines)
        return "cancelled" if self._cancelled.is_set() and len(output.done) < self.state.total else "completed"

    async def _until_fed(self, feeding: asyncio.Task[None]) -> None:
        """All lines have begun, or no more are to."""
        stop = asyncio.create_task(self._cancelled.wait())
        try:
            await asyncio.wait((feeding, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _ended(stop)
        if feeding.done():
            return feeding.result()
        return await _ended(feeding)

    async def _until_answered(self) -> None:
        """All that have begun; of a batch that is cancelled no longer than they get."""
        stop = asyncio.create_task(self._cancelled.wait())
        try:
            while self._lines and not stop.done():
                await asyncio.wait({*self._lines, stop}, return_when=asyncio.FIRST_COMPLETED)
                self._take_ended()
        finally:
            await _ended(stop)
        if self._lines:
            await asyncio.wait(self._lines, timeout=CANCELLED_S)
            self._take_ended()

    def _take_ended(self) -> None:
        """It raises what one of them did."""
        for task in [one for one in self._lines if one.done()]:
            self._lines.remove(task)
            task.result()

    async def _feed(self, output: Output) -> None:
        async for number, line in self._unanswered(output):
            await self._own.acquire()
            if self._cancelled.is_set():
                return
            task = asyncio.create_task(self._ask_one(output, number, line))
            self._lines.add(task)
            self._take_ended()

    async def _unanswered(self, output: Output) -> AsyncIterator[tuple[int, Request]]:
        async for number, line in lines_of(self._input, self._longest):
            request = decode_request(line)
            if request.custom_id not in output.done:
                yield number, request

    async def _ask_one(self, output: Output, number: int, line: Request) -> None:
        try:
            self._add(output, await self._asker.ask(self.request, number, line))
        finally:
            self._own.release()

    def _add(self, output: Output, answer: dict[str, Any]) -> None:
        failed = output.failed
        output.add(answer)
        self._counted(output.failed > failed)
        self._changed.set()

    async def _tell(self, output: Output) -> None:
        """Clients see how far it is."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._save(**_counts(output))
            await asyncio.sleep(TELL_S)

    # --- its end -------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """By the outcome that is stored; what of it was done is done once more, to the same end."""
        files = [await on_disk(publish_lines, self._store.folder, self.request, name) for name in (OUTPUT, ERRORS)]
        outcome = self.state.outcome
        await self._save(status=outcome, ended_at=_now(), output_file_id=files[0], error_file_id=files[1])


def _counts(output: Output) -> dict[str, int]:
    return {"completed": output.completed, "failed": output.failed}


def _now() -> int:
    return int(time.time())


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    """They are broken off, if they have not ended; it raises what one of them did."""
    for task in tasks:
        task.cancel()
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(found, Exception):
            raise found
