"""One batch, from where it is to its end. Which step is next stands in its state, and what is answered in its lines."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from ..files.batches import ERRORS, OUTPUT, Batch, BatchStore, LineError, NoInput
from ..files.lines import Request, answer_line, decode_request, digest_of
from ..files.threads import on_disk
from ..protocol.wire import UNREADABLE
from .memory import LineMemory
from .message_results import INTERNAL, message_result
from .output import Output
from .results import publish_lines
from .validation import Checked, check_lines, lines_of, too_long

if TYPE_CHECKING:
    from .asking import Asker

CANCELLED_S = 600.0  # that lines get to end which were begun, and may wait for their next try
TOGETHER = 256  # answers of lines that were not asked, which are written at once
TELL_S = 1.0  # between two times that its counts are stored
EXPIRED = {
    "code": "batch_expired",
    "message": "This request could not be executed before the completion window expired.",
}
CANCELLED = {"code": "batch_cancelled", "message": "The batch was cancelled before this request was asked."}


@dataclass(frozen=True)
class Limits:
    """Of the server today."""

    longest: int  # bytes of a line
    most: int  # lines of a batch that are asked at once
    memory: LineMemory


class BatchRun:
    """Of the batcher. `counted` is told of each answer whether it is an error."""

    def __init__(
        self, store: BatchStore, asker: Asker, batch: Batch, limits: Limits, counted: Callable[[bool], object]
    ) -> None:
        self._store, self._asker, self._counted = store, asker, counted
        self.request, self.state = batch.request, batch.state
        self._longest = limits.longest
        self._own = asyncio.Semaphore(limits.most)  # lines that have begun: they may wait for their next try
        self._memory = limits.memory.share()
        self._counts = dict[str, int]()  # of what was answered, once that is over
        self._saving = asyncio.Lock()
        self._adding = asyncio.Lock()
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

    async def fail(self, error: Exception) -> None:
        """It ends here, by what `run` has raised; what is answered stays."""
        errors = [self._told(error)]
        if self.state.status == "finalizing":  # what stands in the way of that is not gone through again
            return await self._save(status="failed", outcome="failed", errors=errors, ended_at=_now())
        if self.request.is_anthropics:
            await self._tell_failed(errors[0])
        outcome = {"status": "finalizing", "outcome": "failed", "errors": errors, "finalizing_at": _now()}
        await self._save(**outcome, **self._counts)
        return await self._finish()

    def _told(self, error: Exception) -> LineError:
        if isinstance(error, NoInput):
            text = f"The file {self.request.input_file_id} is not there any more."
            return LineError("file_not_found", text, "input_file_id")
        return LineError(INTERNAL, "The batch could not go on; the server's log says why.")

    async def _save(self, **changes: Any) -> None:
        async with self._saving:
            state = msgspec.structs.replace(self.state, **changes)
            await on_disk(self._store.save, self.request.id, state)
            self.state = state

    # --- its lines -----------------------------------------------------------------------------------------------

    async def _validate(self) -> None:
        begun: dict[str, Any] = {"status": "in_progress", "in_progress_at": _now(), "longest": self._longest}
        if self.request.is_anthropics:  # its lines were looked at as they came
            return await self._save(total=self.request.total, **begun)
        found = None if self._cancelled.is_set() else await self._check()
        if found is None or self._cancelled.is_set():
            return await self._save(status="cancelled", outcome="cancelled", ended_at=_now())
        if found.errors:
            return await self._save(status="failed", outcome="failed", errors=found.errors, ended_at=_now())
        return await self._save(total=found.total, model=found.model, **begun)

    async def _check(self) -> Checked | None:
        """None where it is cancelled meanwhile: nobody waits for what the server says of its model then."""
        found = await check_lines(self._store.input(self.request), self.request.endpoint, self._longest)
        if found.errors or found.model is None:
            return found
        asking = asyncio.create_task(self._asker.why_no_model(self.request, found.model))
        try:
            await self._unless_cancelled(asking)
        finally:
            await _ended(asking)
        if asking.cancelled():
            return None
        if said := asking.result():
            found.errors.append(LineError("model_not_found", said, "body.model", found.first))
        return found

    async def _answer(self) -> None:
        form = message_result if self.request.is_anthropics else dict
        output = await on_disk(Output, self._store.answers(self.request.id), form)
        try:
            await on_disk(output.take_over)
            await self._save(**output.counts)  # on a disk that is full nothing is asked in vain
            outcome = await self._ask(output)
            if (error := self._told_of_unasked(outcome)) is not None:
                await self._tell_unasked(output, error)
            await on_disk(output.sync)
            await self._save(status="finalizing", outcome=outcome, finalizing_at=_now(), **output.counts)
        finally:
            self._counts = output.counts
            await on_disk(output.close)

    async def _tell_unasked(self, output: Output, error: dict[str, str]) -> None:
        """Of all that have no answer."""
        answers = list[dict[str, Any]]()
        try:
            async for _, line, _ in self._unanswered(output):
                answers.append(answer_line(line.custom_id, None, error))
                if len(answers) == TOGETHER:
                    together, answers = answers, []
                    await self._add(output, *together)
        finally:  # also where the next line cannot be read
            await self._add(output, *answers)

    async def _tell_failed(self, error: LineError) -> None:
        """Anthropic's clients read of each request what became of it, as far as its lines can be read."""
        output = await on_disk(Output, self._store.answers(self.request.id), message_result)
        try:
            await on_disk(output.take_over)
            with contextlib.suppress(NoInput, *UNREADABLE):  # it has failed of that, which is in the log
                await self._tell_unasked(output, {"code": error.code, "message": error.message})
            await on_disk(output.sync)
        finally:
            self._counts = output.counts
            await on_disk(output.close)

    def _told_of_unasked(self, outcome: str) -> dict[str, str] | None:
        """Anthropic's clients read of each line what became of it, OpenAI's of those that have expired."""
        if outcome == "expired":
            return EXPIRED
        return CANCELLED if outcome == "cancelled" and self.request.is_anthropics else None

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
        is_left = len(output.done) < self.state.total or output.counts["cancelled"]
        return "cancelled" if self._cancelled.is_set() and is_left else "completed"

    async def _until_fed(self, feeding: asyncio.Task[None]) -> None:
        """All lines have begun, or no more are to."""
        await self._unless_cancelled(feeding)
        if feeding.done():
            return feeding.result()
        return await _ended(feeding)

    async def _unless_cancelled(self, task: asyncio.Task[Any]) -> None:
        """It has ended, or the batch is cancelled."""
        stop = asyncio.create_task(self._cancelled.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _ended(stop)

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
        async for number, line, size in self._unanswered(output):
            await self._own.acquire()
            await self._memory.take(size)
            if self._cancelled.is_set():
                self._memory.give_back(size)
                return
            task = asyncio.create_task(self._ask_one(output, number, line))
            task.add_done_callback(partial(self._has_ended, size))
            self._lines.add(task)
            self._take_ended()

    def _has_ended(self, size: int, task: asyncio.Task[None]) -> None:
        """Also where it never began."""
        self._memory.give_back(size)
        self._own.release()

    async def _unanswered(self, output: Output) -> AsyncIterator[tuple[int, Request, int]]:
        """With their numbers and bytes. A line that is too long by now, which it was not for the server that looked at
        it, is answered here.
        """
        async for number, line in lines_of(self._store.input(self.request), self.state.longest or self._longest):
            request = decode_request(line)
            if digest_of(request.custom_id) in output.done:
                continue
            if len(line) > self._longest:
                error = {"code": "line_too_long", "message": too_long(self._longest)}
                await self._add(output, answer_line(request.custom_id, None, error))
            else:
                yield number, request, len(line)

    async def _ask_one(self, output: Output, number: int, line: Request) -> None:
        await self._add(output, await self._asker.ask(self.request, number, line))

    async def _add(self, output: Output, *answers: dict[str, Any]) -> None:
        async with self._adding:
            many, failed = len(output.done), output.failed
            try:
                await on_disk(output.add, *answers)
            finally:  # they stand there also where nobody waits for them any more
                for index in range(len(output.done) - many):
                    self._counted(index < output.failed - failed)
                self._changed.set()

    async def _tell(self, output: Output) -> None:
        """Clients see how far it is."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._save(**output.counts)
            await asyncio.sleep(TELL_S)

    # --- its end -------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """By the outcome that is stored; what of it was done is done once more, to the same end."""
        ended: dict[str, Any] = {"status": self.state.outcome, "ended_at": _now()}
        if self.request.is_anthropics:  # its lines stay where they are
            return await self._save(**ended)
        files = [await on_disk(publish_lines, self._store.folder, self.request, name) for name in (OUTPUT, ERRORS)]
        return await self._save(output_file_id=files[0], error_file_id=files[1], **ended)


def _now() -> int:
    return int(time.time())


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    """They are broken off, if they have not ended; it raises what one of them did."""
    for task in tasks:
        task.cancel()
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(found, Exception):
            raise found
