"""The requests that a frontend is answering: each job with its slots, from the first message to the last reader.

Every one has a deadline until it is rendered. What other actors say of it comes by way of frontend/inbox.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import msgspec

from actorserve.http.errors import ENDING, ApiError, bad_request, overloaded
from actorserve.http.generation.job import Job
from actorserve.shm.table.table import slot_of

from ...protocol.messages import Cancel, Render, Resend
from ...protocol.request import Rendition
from ...runtime.process import Context
from ..accounts.quotas import Quotas
from ..administration.sleep import SleepWatch
from ..administration.weights import WeightsSalt
from ..observability.client_metrics import ClientMetrics
from ..renderers import Renderers
from .answer_limits import too_much_to_tell
from .orphans import OrphanedSlots
from .retained import RetainedAnswers
from .slots import SlotPhase, Slots

RENDER_S = 60.0  # what a renderer gets for a prompt, its queue included


def cannot_finish() -> ApiError:
    """What clients are told whose answer is not there. 503: nothing is wrong with the request or the server, and
    another server may answer it, as routers and balancers take that status.
    """
    text = "The server is about to end and cannot finish this request."
    return ApiError(503, text, code=ENDING, retry_after=1)


def about_to_end() -> ApiError:
    """What those are told who come then."""
    return overloaded("The server is about to end. Try again soon.")


class Jobs:
    """All jobs of one frontend."""

    def __init__(
        self,
        context: Context,
        slots: Slots,
        renderers: Renderers,
        retained: RetainedAnswers,
        orphans: OrphanedSlots,
        client_metrics: ClientMetrics,
        quotas: Quotas | None = None,
    ) -> None:
        self._context, self._table = context, context.table
        self._slots, self._renderers = slots, renderers
        self._retained, self._orphans = retained, orphans
        self._client_metrics = client_metrics
        self._quotas = quotas
        self._refs: dict[Job, list[int]] = {}  # of all that are answered
        self._deadlines: dict[Job, asyncio.TimerHandle] = {}  # of those that are not rendered
        self._touched: dict[Job, None] = {}  # something came for them in this turn
        self._decode_rendition = msgspec.msgpack.Decoder(Rendition).decode
        self._sleep, self._weights = SleepWatch(context), WeightsSalt(context)
        self._loop = asyncio.get_running_loop()
        self.gives_up = False

    def __len__(self) -> int:
        return len(self._refs)

    # --- begin, or go on -----------------------------------------------------------------------------------------

    def begin(self, job: Job) -> None:
        """Open a slot for each choice, all or none, and post its prompts to the renderer that has least to do."""
        if self.gives_up:
            raise about_to_end()
        if job.lost is not None:
            raise job.lost
        if (refusal := self._sleep.refusal(job.model)) is not None:
            raise refusal
        self._make_room(len(job.choices), job.counted)
        quotas = None
        if self._quotas is not None and job.account is not None:
            quotas = self._quotas
            quotas.admit(job, job.account)
        asked: list[int] = []
        done = False
        try:
            self._open(job, quotas, asked)
            done = True
        finally:
            if quotas is not None:
                quotas.opened(done)
            if not done:
                self._close(job, asked)
        self._add(job, asked)
        self._deadlines[job] = self._loop.call_later(RENDER_S, self._too_late, job)

    def _open(self, job: Job, quotas: Quotas | None, asked: list[int]) -> None:
        """`asked`: the slots that were opened, and of which a renderer is told."""
        now = time.monotonic_ns()
        width = len(job.params)
        own = [job.rendering_of(number) for number in range(len(job.prompts))]
        params, renderings = self._weights.add(job.all_params(), own)
        if max(map(len, params)) > self._table.params_bytes:
            raise bad_request("The request's parameters are too long together.")
        records = self._renderers.reserve(job.model, job.prompts, renderings, width)
        try:
            for number, (prompt, record) in enumerate(zip(job.prompts, records, strict=True)):
                renderer = self._renderers.least_loaded(job.model)
                opened = []
                for index in range(number * width, (number + 1) * width):
                    ref = job.choices[index].ref = self._slots.open(params[index], now, job, index, renderer)
                    if quotas is not None:
                        quotas.hold(ref, index, width)
                    opened.append(ref)
                if record is None:
                    self._renderers.render(renderer, Render(opened, prompt, **renderings[number]))
                else:
                    self._renderers.render_later(renderer, record, opened)
                asked += opened
        finally:
            self._renderers.give_back(records[len(asked) // width :])

    def _close(self, job: Job, asked: list[int]) -> None:
        """What could not be begun: slots of which no renderer was told are free, and the others are cancelled."""
        for ref in job.refs:
            if ref not in asked and self._slots.use(ref) is not None:
                self._slots.close(ref)
        self._refs[job] = asked
        self.release(job)

    def _make_room(self, sequences: int, field: str) -> None:
        """Until so many slots are free, answers that are kept go; ApiError if that is not enough."""
        if sequences > self._context.system.slots_per_frontend:
            text = f"{field}: {sequences} sequences are more than this server ever takes at once."
            raise ApiError(400, text, field)
        while sequences > self._slots.free and (old := self._retained.make_room()):
            self.let_go(old)
        if sequences > self._slots.free:
            self._client_metrics.refused(sequences)
            raise overloaded("The server has as many requests as it takes. Try again soon.")

    def resume(self, job: Job, refs: list[int]) -> None:
        """Go on with slots that have been opened; their text is asked for from its beginning."""
        if not self.can_resume(refs):
            raise ApiError(500, "What was begun cannot be gone on with.")
        self._client_metrics.survived(sum(map(self._slots.is_orphan, refs)))
        for choice, ref in zip(job.choices, refs, strict=True):
            self._slots.read(ref, job, choice.index)
            choice.ref = ref
            self.tell_rendered(job, ref, choice.index)
        self._add(job, refs)
        asked: dict[str, list[int]] = {}
        for ref in refs:
            self._orphans.take(ref)
            detokenizer = self._context.system.detokenizer_of(slot_of(ref), self._table.model(ref))
            asked.setdefault(detokenizer, []).append(ref)
        for detokenizer, some in asked.items():
            self._context.post(detokenizer, Resend(some))
        self._flush_soon()
        if self.gives_up:
            job.fail(cannot_finish())

    def can_resume(self, refs: list[int]) -> bool:
        """Are these slots kept, or a predecessor's and have a prompt?"""
        return all(self._can_read(ref) for ref in refs)

    def _can_read(self, ref: int) -> bool:
        if self._slots.is_orphan(ref):
            return self._table.prompt_length(ref) is not None
        return self._retained.holds(ref) and self._slots.use(ref) is not None

    def _add(self, job: Job, refs: list[int]) -> None:
        self._refs[job] = refs
        self.count()

    def count(self) -> None:
        """Say on the board how many there are."""
        self._client_metrics.in_flight(len(self._refs))

    # --- what comes of them --------------------------------------------------------------------------------------

    def tell_rendered(self, job: Job, ref: int, index: int) -> None:
        """What the renderer has made of a prompt, if it is there."""
        length = self._table.prompt_length(ref)
        if length is None:
            return
        rendition = self._decode_rendition(packed) if (packed := self._table.rendition(ref)) else None
        if rendition is None:
            job.rendered(index, length)
        else:  # where something was read by an encoder, the prompt is that; what follows are its marks
            length = rendition.encoder or length
            language = rendition.hearing.language if rendition.hearing is not None else ""
            job.rendered(index, length, rendition.opened, language)
        job.choices[index].limit = self._table.limit(ref)
        hidden = self._context.system.models[job.model].info.hidden
        if error := too_much_to_tell(job, hidden, self._context.config):
            job.fail(error)
        if job.wants_ids and not job.choices[index].prompt_ids:
            job.choices[index].prompt_ids = self._table.token_ids(ref, 0, length).tolist()

    def touch(self, job: Job) -> None:
        """Something came for it; `flush` hands that on."""
        self._touched[job] = None

    def flush(self) -> int:
        """All messages of a turn were handled: write what they brought, one event a choice. Returns their jobs."""
        touched = len(self._touched)
        for job in self._touched:
            job.flush()
        self._touched.clear()
        return touched

    def _too_late(self, job: Job) -> None:
        uses = (self._slots.use(ref) for ref in self._refs.get(job, []))
        if any(use is not None and use.phase is SlotPhase.RENDERING for use in uses):
            job.fail(overloaded(f"The prompt was not rendered within {RENDER_S:.0f} s."))

    def end_overdue(self) -> None:
        """Whoever has waited for too long through a sleep, and has no token yet, is told so."""
        if not self._sleep.is_on():
            return
        now = time.monotonic_ns()
        for job, refs in self._refs.items():
            if any(choice.tokens or choice.finish_reason for choice in job.choices):
                continue
            if (error := self._sleep.overdue(self._table.arrival_ns(refs[0]), now)) is not None:
                job.fail(error)

    # --- the end -------------------------------------------------------------------------------------------------

    def release(self, job: Job) -> None:
        """Nobody reads the job any more: what still runs of it is cancelled, unless it is kept."""
        refs = self._refs.pop(job, [])
        self.count()
        if (timer := self._deadlines.pop(job, None)) is not None:
            timer.cancel()
        self._touched.pop(job, None)
        unwanted = []
        for ref in refs:
            use = self._slots.use(ref)
            if use is None or job not in use.jobs:
                continue
            use.jobs.remove(job)
            use.late.discard(job)
            if use.jobs or self._retained.holds(ref):
                continue
            if self._table.finish(ref) and use.phase is SlotPhase.RUNNING:
                self._slots.close(ref)
            elif job.choices[use.index].finish_reason is None:
                unwanted.append(ref)
        if self._cancel(unwanted):
            self._flush_soon()

    def abort(self, job: Job) -> None:
        """Cancelled, also for those who read the same slots beside it."""
        self._cancel([ref for ref in job.refs if self._slots.use(ref) is not None and not self._table.finish(ref)])
        self.release(job)
        self._flush_soon()

    def _cancel(self, refs: list[int]) -> bool:
        """Set the cancel word of slots in use, and tell the scheduler of those that it knows; were there any?

        A renderer tells it of the others, or finds the word itself.
        """
        running = []
        for ref in refs:
            use = self._slots.use(ref)
            self._table.cancel(ref)
            if use is not None and use.phase is SlotPhase.RUNNING:
                running.append(ref)
        if running:
            self._context.post_to_owners(Cancel, running)
        return bool(running)

    def let_go(self, refs: Iterable[int]) -> None:
        """Slots that are kept no more: those that have ended are free, unless somebody reads them still."""
        for ref in refs:
            use = self._slots.use(ref)
            if use is None or use.jobs or self._orphans.is_reserved(ref) or not self._table.finish(ref):
                continue
            if use.phase is SlotPhase.RUNNING or self._orphans.is_settled or self._slots.has_ended(ref):
                self._slots.close(ref)

    def give_up(self) -> None:
        """The server ends at once: whoever waits is told, and nothing is begun any more."""
        self.gives_up = True
        for job in list(self._refs):
            job.fail(cannot_finish())

    def _flush_soon(self) -> None:
        """Publish at the end of this turn of the event loop, with whatever else is posted in it."""
        self._loop.call_soon(self._context.flush)
