"""Requests to slots and messages to requests: what the HTTP side sees of the other actors.

Owns the frontend's slots and its calls. Every request and every call has a deadline until it is rendered or answered.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable

from actorserve.http.errors import ApiError, overloaded
from actorserve.http.jobs import Job
from actorserve.http.metrics import ActorFigures, EngineFigures, Exporter
from actorserve.shm.board import ActorState
from actorserve.shm.table import slot_of

from ..gauges import FrontendGauge, SchedulerGauge
from ..messages import (
    Cancel,
    Delta,
    Detokenized,
    Failed,
    Message,
    Render,
    Rendered,
    Resend,
    Sync,
    Synced,
    ToFrontend,
    Tokenized,
)
from ..runtime import Context
from .calls import Calls
from .slots import Phase, Slots, Use

RENDER_S = 60.0  # what a renderer gets for a prompt, its queue included
ADOPTION_S = 5.0  # what connections of a predecessor get to come
GONE = 499


class FrontendEngine:
    """Implements http.jobs.Engine. `changed` is called when something was posted outside of a turn of messages."""

    def __init__(self, context: Context, reserved: Iterable[int] = ()) -> None:
        """`reserved` are slots of a predecessor from which streams may go on."""
        self.context = context
        self.table = context.table
        index = context.spec.index
        self.slots = Slots(self.table, context.system.first_slot(index), context.system.slots_per_frontend)
        self.renderers = [actor.name for actor in context.system.of_kind("renderer")]
        self._load: Counter[str] = Counter()  # prompts at each renderer
        self._jobs: dict[Job, list[int]] = {}  # and their refs
        self._deadlines: dict[Job, asyncio.TimerHandle] = {}
        self._touched: dict[Job, None] = {}
        self.calls = Calls(index, context.system.slots_per_frontend, self._send_to_any)
        self.tokenize, self.detokenize = self.calls.tokenize, self.calls.detokenize
        self._unsynced: set[int] = set()
        self._reserved = set(reserved)
        self._exporter = Exporter(context.config.served_names()[0], self._engine_figures, self._actor_figures)
        self._loop = asyncio.get_running_loop()
        self._adopt_orphans()

    # --- requests ------------------------------------------------------------------------------------------------

    def submit(self, job: Job, refs: list[int] | None = None) -> None:
        """Open a slot for each choice, all or none, and post its prompts to the renderer that has least to do.

        `refs`: the slots are a predecessor's, who has begun to answer from them.
        """
        if refs is not None:
            self._take_over(job, refs)
            return
        if len(job.choices) > self.context.system.slots_per_frontend:
            raise ApiError(400, f"{len(job.choices)} sequences are more than this server ever takes at once.", "n")
        if len(job.choices) > self.slots.free:
            raise overloaded("The server has as many requests as it takes. Try again soon.")
        now = time.time_ns()
        taken: list[int] = []
        width = len(job.params)
        for number, prompt in enumerate(job.prompts):
            renderer = min(self.renderers, key=self._load.__getitem__)
            opened = [
                self.slots.open(params, now, job, number * width + at, renderer) for at, params in enumerate(job.params)
            ]
            for index, ref in enumerate(opened, number * width):
                job.choices[index].ref = ref
            self._load[renderer] += 1
            self._send(renderer, Render(opened, prompt, job.max_tokens, job.truncate_prompt_tokens))
            taken += opened
        self._jobs[job] = taken
        self._deadlines[job] = self._loop.call_later(RENDER_S, self._too_late, job)

    def has(self, refs: list[int]) -> bool:
        """Have all of these slots a prompt, and are they a predecessor's?"""
        return all(self.table.prompt_length(ref) is not None and self.slots.is_orphan(ref) for ref in refs)

    def _take_over(self, job: Job, refs: list[int]) -> None:
        """Go on with slots whose prompts are in the table; their text is asked for from its beginning."""
        if not self.has(refs):
            raise ApiError(500, "What was begun cannot be gone on with.")
        for choice, ref in zip(job.choices, refs, strict=True):
            self.slots.adopt(ref, job, choice.index)
            choice.ref = ref
            job.rendered(choice.index, self.table.prompt_length(ref) or 0)
        self._jobs[job] = refs
        asked: dict[str, list[int]] = {}
        for ref in refs:
            self._reserved.discard(ref)
            asked.setdefault(self.context.system.detokenizer_of(slot_of(ref)), []).append(ref)
        for detokenizer, some in asked.items():
            self.context.post(detokenizer, Resend(some))
        self._flush_soon()

    def release(self, job: Job) -> None:
        """Nobody reads the job any more: what still runs of it is cancelled."""
        refs = self._jobs.pop(job, [])
        if (timer := self._deadlines.pop(job, None)) is not None:
            timer.cancel()
        self._touched.pop(job, None)
        running = []
        for ref in refs:
            use = self.slots.use(ref)
            if use is None:
                continue
            use.job = None
            if job.choices[use.index].finish_reason is None:
                self.table.cancel(ref)
                if use.phase is Phase.RUNNING:
                    running.append(ref)
        if running:
            self.context.post("scheduler", Cancel(running))
            self._flush_soon()

    def _too_late(self, job: Job) -> None:
        uses = (self.slots.use(ref) for ref in self._jobs.get(job, []))
        if any(use is not None and use.phase is Phase.RENDERING for use in uses):
            job.fail(overloaded(f"The prompt was not rendered within {RENDER_S:.0f} s."))

    def _send(self, renderer: str, message: Message) -> None:
        """To a renderer, as a record of its own: if it dies on this one, it need not do others again."""
        self.context.post(renderer, message)
        self.context.outboxes[renderer].flush()

    def _send_to_any(self, message: Message) -> None:
        self._send(min(self.renderers, key=self._load.__getitem__), message)

    def _flush_soon(self) -> None:
        """Publish at the end of this turn of the event loop, with whatever else is posted in it."""
        self._loop.call_soon(self.context.flush)

    # --- messages ------------------------------------------------------------------------------------------------

    def handle(self, message: ToFrontend) -> None:
        """One message; each may come twice."""
        match message:
            case Delta():
                self._delta(message)
            case Rendered():
                self._rendered(message)
            case Failed():
                self._failed(message)
            case Synced():
                self._synced(message.call)
            case Tokenized() | Detokenized():
                self.calls.answer(message.call, message)

    def turn_ends(self) -> None:
        """All messages of a batch were handled: write what they brought, one event a choice."""
        for job in self._touched:
            job.flush()
        self._touched.clear()

    def _delta(self, delta: Delta) -> None:
        use = self.slots.use(delta.ref)
        if use is None:
            return
        if use.job is not None:
            if not use.job.delta(use.index, delta, self.table.cached(delta.ref)):
                return
            self._touched[use.job] = None
        if delta.last and delta.ref not in self._reserved:
            self.slots.close(delta.ref)

    def _rendered(self, message: Rendered) -> None:
        late = []
        for use in self._leave_renderer(message.refs):
            use.phase = Phase.RUNNING
            if use.job is None:
                late.append(use.ref)
            else:
                use.job.rendered(use.index, message.prompt_tokens)
        if late:
            self.context.post("scheduler", Cancel(late))

    def _failed(self, message: Failed) -> None:
        if message.call:
            self.calls.answer(message.call, ApiError(message.status, message.message, message.param))
        for use in self._leave_renderer(message.refs):
            self.slots.close(use.ref)
            if use.job is not None and message.status != GONE:
                use.job.fail(ApiError(message.status, message.message, message.param))

    def _leave_renderer(self, refs: list[int]) -> list[Use]:
        """The uses among these refs that a renderer had; one prompt less for it."""
        uses = [use for ref in refs if (use := self.slots.use(ref)) is not None and use.phase is Phase.RENDERING]
        if uses:
            self._load[uses[0].renderer] -= 1
        return uses

    # --- what a predecessor left ---------------------------------------------------------------------------------

    def _adopt_orphans(self) -> None:
        orphans = self.slots.orphans()
        if not orphans:
            return
        self._reserved &= set(orphans)
        self._cancel([ref for ref in orphans if ref not in self._reserved])
        self._loop.call_later(ADOPTION_S, self._give_up_reserved)
        for renderer in self.renderers:
            number = next(self.calls.numbers)
            self._unsynced.add(number)
            self.context.post(renderer, Sync(number))

    def _cancel(self, orphans: list[int]) -> None:
        """What a predecessor left and nobody goes on with."""
        running = [ref for ref in orphans if not self.table.finish(ref)]
        for ref in running:
            self.table.cancel(ref)
        if running:
            self.context.log.info("%d sequences of a predecessor are cancelled", len(running))
            self.context.post("scheduler", Cancel(running))

    def _give_up_reserved(self) -> None:
        """Connections whose streams could go on have not come: their clients have gone."""
        left, self._reserved = [ref for ref in self._reserved if self.slots.use(ref) is not None], set()
        self._cancel(left)
        if not self._unsynced:
            self.slots.close_orphans()
        self._flush_soon()

    def _synced(self, number: int) -> None:
        if number in self._unsynced:
            self._unsynced.remove(number)
            if not self._unsynced:
                self.slots.close_orphans(self._reserved)

    # --- looking in ----------------------------------------------------------------------------------------------

    def not_ready(self) -> list[str]:
        """The actors that are not READY, with their states."""
        board = self.context.board
        states = ((actor.name, board.snapshot(actor.position).state) for actor in self.context.system.actors)
        return [f"{name}: {state.name.lower()}" for name, state in states if state is not ActorState.READY]

    def in_flight(self) -> int:
        return len(self._jobs)

    def metrics(self) -> bytes:
        return self._exporter.text()

    def write_gauges(self, connections: int) -> None:
        """Say on the board how much this frontend has to do."""
        self.context.status.set_gauge(FrontendGauge.CONNECTIONS, connections)
        self.context.status.set_gauge(FrontendGauge.IN_FLIGHT, len(self._jobs))

    def _engine_figures(self) -> EngineFigures:
        words = self.context.board.gauges(self.context.system.by_name["scheduler"].position)
        return EngineFigures(
            running=words[SchedulerGauge.RUNNING],
            waiting=words[SchedulerGauge.WAITING],
            blocks_total=words[SchedulerGauge.BLOCKS_TOTAL],
            blocks_free=words[SchedulerGauge.BLOCKS_FREE],
            preemptions=words[SchedulerGauge.PREEMPTIONS],
            prefix_queries=words[SchedulerGauge.PREFIX_QUERIES],
            prefix_hits=words[SchedulerGauge.PREFIX_HITS],
            generated=words[SchedulerGauge.GENERATED],
            prompted=words[SchedulerGauge.PROMPTED],
            rejected=words[SchedulerGauge.REJECTED],
        )

    def _actor_figures(self) -> Iterable[ActorFigures]:
        now = time.monotonic_ns()
        for actor in self.context.system.actors:
            seen = self.context.board.snapshot(actor.position)
            age = (now - seen.heartbeat_ns) / 1e9 if seen.heartbeat_ns else 0.0
            restarts, given_up = max(0, seen.incarnation - 1), self.context.board.given_up(actor.position)
            yield ActorFigures(actor.name, seen.state is ActorState.READY, restarts, age, given_up)
