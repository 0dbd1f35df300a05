"""Requests to slots: what the HTTP side sees of the other actors. What those say comes by way of inbox.py.

Owns the frontend's slots and its calls. Every request and every call has a deadline until it is rendered or answered.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable

import msgspec

from actorserve.http.errors import ApiError, overloaded
from actorserve.http.generation.idempotency_keys import Kept, Key
from actorserve.http.generation.job import Job
from actorserve.shm.journals.keyed_log import Recent
from actorserve.shm.table.table import slot_of

from ..protocol.messages import Cancel, Message, Render, Resend
from ..protocol.request import Rendition
from ..runtime.process import Context
from ..telemetry.gauges import FrontendGauge
from .inbox import Incoming
from .observability.client_metrics import Clients
from .observability.dashboard import Sight
from .observability.metrics import Figures
from .orphans import Inherited
from .retained import Keeper
from .rpc import Calls
from .slots import Phase, Slots

RENDER_S = 60.0  # what a renderer gets for a prompt, its queue included


def cannot_finish() -> ApiError:
    """What clients are told whose answer is not there."""
    return ApiError(500, "The server is about to end and cannot finish this request.")


def about_to_end() -> ApiError:
    """What those are told who come then."""
    return overloaded("The server is about to end. Try again soon.")


class FrontendEngine:
    """Implements http.jobs.Engine; what comes from other actors is `handle`d by Incoming."""

    def __init__(self, context: Context, reserved: Iterable[int] = ()) -> None:
        """`reserved` are slots of a predecessor from which streams may go on."""
        self.context = context
        self.table = context.table
        index = context.spec.index
        self.slots = Slots(self.table, context.system.first_slot(index), context.system.slots_per_frontend)
        self.renderers = [actor.name for actor in context.system.of_kind("renderer")]
        self.prompts: Counter[str] = Counter()  # sequences whose prompt is at each renderer
        self._jobs: dict[Job, list[int]] = {}  # and their refs
        self._deadlines: dict[Job, asyncio.TimerHandle] = {}
        self.gives_up = False
        self.calls = Calls(index, context.system.slots_per_frontend, self._send_to_any)
        self.tokenize, self.detokenize = self.calls.tokenize, self.calls.detokenize
        self._decode_rendition = msgspec.msgpack.Decoder(Rendition).decode
        self.index, self.frontends = index, context.config.frontends
        recent = self._recent = Recent(context.files["recent"], *context.system.recent, index)
        self.put, self.get = recent.put, recent.get
        slots = context.system.slots_per_frontend
        self.clients = Clients(context)
        self.keeper = Keeper(recent, self.table, slots, context.config.idempotency_window)
        figures = Figures(context)
        self.metrics, self.not_ready, self.load = figures.metrics, figures.not_ready, figures.load
        self.page_figures = Sight(context).figures
        self._loop = asyncio.get_running_loop()
        self.inherited = Inherited(context, self.slots, self.keeper, self.calls.numbers, reserved)
        self._incoming = Incoming(self)
        self.handle, self.turn_ends = self._incoming.handle, self._incoming.turn_ends

    # --- requests ------------------------------------------------------------------------------------------------

    def submit(self, job: Job, refs: list[int] | None = None) -> None:
        """Open a slot for each choice, all or none, and post its prompts to the renderer that has least to do.

        `refs`: the answer is in these slots already: a predecessor's, who has begun to answer from them, or kept ones.
        """
        if refs is not None:
            self._take_over(job, refs)
            if self.gives_up:
                job.fail(cannot_finish())
            return
        if self.gives_up:
            raise about_to_end()
        if len(job.choices) > self.context.system.slots_per_frontend:
            raise ApiError(400, f"{len(job.choices)} sequences are more than this server ever takes at once.", "n")
        while len(job.choices) > self.slots.free and (old := self.keeper.make_room()):
            self.let_go(old)
        if len(job.choices) > self.slots.free:
            self.clients.refused(len(job.choices))
            raise overloaded("The server has as many requests as it takes. Try again soon.")
        now = time.monotonic_ns()
        taken: list[int] = []
        width = len(job.params)
        for number, prompt in enumerate(job.prompts):
            renderer = min(self.renderers, key=self.prompts.__getitem__)
            opened = [
                self.slots.open(params, now, job, number * width + at, renderer) for at, params in enumerate(job.params)
            ]
            for index, ref in enumerate(opened, number * width):
                job.choices[index].ref = ref
            self.prompts[renderer] += width
            self._send(renderer, Render(opened, prompt, **job.rendering))
            taken += opened
        self._jobs[job] = taken
        self.clients.in_flight(len(self._jobs))
        self._deadlines[job] = self._loop.call_later(RENDER_S, self._too_late, job)

    def has(self, refs: list[int]) -> bool:
        """Are these slots kept, or a predecessor's and have a prompt?"""
        return all(self._can_read(ref) for ref in refs)

    def _can_read(self, ref: int) -> bool:
        if self.slots.is_orphan(ref):
            return self.table.prompt_length(ref) is not None
        return self.keeper.holds(ref) and self.slots.use(ref) is not None

    def keep(self, key: Key, job: Job, seed: int, created: int) -> None:
        """The job's answer can be had again by this key."""
        self.let_go(self.keeper.forget(key.name))
        self.keeper.keep(key.name, Kept(key.digest, job.refs, seed, created))

    def kept(self, key: Key) -> Kept | None:
        """The answer that is kept by this key."""
        return self.keeper.find(key.name)

    def abort(self, job: Job, key: Key) -> None:
        """This answer is kept no more, and cancelled."""
        self.let_go(self.keeper.forget(key.name))
        running = []
        for ref in job.refs:  # also for those who read it beside the job
            use = self.slots.use(ref)
            if use is not None and not self.table.finish(ref):
                self.table.cancel(ref)
                if use.phase is Phase.RUNNING:
                    running.append(ref)
        if running:
            self.context.post("scheduler", Cancel(running))
        self.release(job)
        self._flush_soon()

    def kept_payloads(self) -> list[bytes]:
        """All that was put and is not forgotten."""
        return [payload for key in self._recent.keys() if (payload := self._recent.get(key))]

    def let_go(self, refs: Iterable[int]) -> None:
        """Slots that are kept no more: those that have ended are free, unless somebody reads them still."""
        for ref in refs:
            use = self.slots.use(ref)
            if use is None or use.jobs or self.inherited.is_reserved(ref) or not self.table.finish(ref):
                continue
            if use.phase is Phase.RUNNING or self.inherited.is_settled or self.slots.has_ended(ref):
                self.slots.close(ref)

    def _take_over(self, job: Job, refs: list[int]) -> None:
        """Go on with slots that have been opened; their text is asked for from its beginning."""
        if not self.has(refs):
            raise ApiError(500, "What was begun cannot be gone on with.")
        self.clients.survived(sum(map(self.slots.is_orphan, refs)))
        for choice, ref in zip(job.choices, refs, strict=True):
            self.slots.read(ref, job, choice.index)
            choice.ref = ref
            self.tell_rendered(job, ref, choice.index)
        self._jobs[job] = refs
        self.clients.in_flight(len(self._jobs))
        asked: dict[str, list[int]] = {}
        for ref in refs:
            self.inherited.take(ref)
            asked.setdefault(self.context.system.detokenizer_of(slot_of(ref)), []).append(ref)
        for detokenizer, some in asked.items():
            self.context.post(detokenizer, Resend(some))
        self._flush_soon()

    def tell_rendered(self, job: Job, ref: int, index: int) -> None:
        """What the renderer has made of a prompt, if it is there."""
        length = self.table.prompt_length(ref)
        if length is None:
            return
        packed = self.table.rendition(ref)
        job.rendered(index, length, bool(packed) and self._decode_rendition(packed).opened)
        if job.wants_ids and not job.choices[index].prompt_ids:
            job.choices[index].prompt_ids = self.table.token_ids(ref, 0, length).tolist()

    def release(self, job: Job) -> None:
        """Nobody reads the job any more: what still runs of it is cancelled."""
        refs = self._jobs.pop(job, [])
        self.clients.in_flight(len(self._jobs))
        if (timer := self._deadlines.pop(job, None)) is not None:
            timer.cancel()
        self._incoming.forget(job)
        running = []
        for ref in refs:
            use = self.slots.use(ref)
            if use is None or job not in use.jobs:
                continue
            use.jobs.remove(job)
            if use.jobs or self.keeper.holds(ref):
                continue
            if self.table.finish(ref) and use.phase is Phase.RUNNING:
                self.slots.close(ref)
            elif job.choices[use.index].finish_reason is None:
                self.table.cancel(ref)
                if use.phase is Phase.RUNNING:
                    running.append(ref)
        if running:
            self.context.post("scheduler", Cancel(running))
            self._flush_soon()

    def give_up(self) -> None:
        """The server ends at once: whoever waits is told, and nothing is begun any more."""
        self.gives_up = True
        self.calls.give_up(cannot_finish())
        for job in list(self._jobs):
            job.fail(cannot_finish())

    def _too_late(self, job: Job) -> None:
        uses = (self.slots.use(ref) for ref in self._jobs.get(job, []))
        if any(use is not None and use.phase is Phase.RENDERING for use in uses):
            job.fail(overloaded(f"The prompt was not rendered within {RENDER_S:.0f} s."))

    def _send(self, renderer: str, message: Message) -> None:
        """To a renderer, as a record of its own: if it dies on this one, it need not do others again."""
        self.context.post(renderer, message)
        self.context.outboxes[renderer].flush()

    def _send_to_any(self, message: Message) -> None:
        self._send(min(self.renderers, key=self.prompts.__getitem__), message)

    def _flush_soon(self) -> None:
        """Publish at the end of this turn of the event loop, with whatever else is posted in it."""
        self._loop.call_soon(self.context.flush)

    # --- looking in ----------------------------------------------------------------------------------------------

    def in_flight(self) -> int:
        return len(self._jobs)

    def beat(self, connections: int) -> None:
        """Now and then: let go of what is kept no longer, and say on the board how much this frontend has to do."""
        self.let_go(self.keeper.outdated())
        self.context.status.set_gauge(FrontendGauge.CONNECTIONS, connections)
        self.clients.in_flight(len(self._jobs))
