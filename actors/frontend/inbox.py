"""What other actors tell a frontend: each message to the jobs that it concerns."""

from __future__ import annotations

from actorserve.http.errors import ApiError
from actorserve.http.generation.choice import Choice
from actorserve.http.generation.fields.decoding import unloadable
from actorserve.http.generation.job import Job
from actorserve.shm.table.hidden_states import HiddenStates
from actorserve.shm.table.vectors import Vectors

from ..protocol.messages import (
    NO_QUOTA,
    Cancel,
    Delta,
    Failed,
    Finish,
    PromptTokenLogprobs,
    Rendered,
    Resent,
    ToFrontend,
)
from ..protocol.topics.adapters import AdapterChanged
from ..protocol.topics.administration import (
    Aborted,
    CacheReset,
    MediaForgotten,
    Paused,
    PrefixCacheReset,
    Profiled,
    SleepChanged,
    Unanswered,
    WorkersCalled,
)
from ..protocol.topics.calls import Detokenized, Measured, Synced, Tokenized
from ..protocol.topics.io_processors import PostProcessed, PreProcessed
from ..protocol.topics.tools import ToolCalled, ToolsListed
from ..runtime.process import Context
from .accounts.quotas import Quotas
from .administration.sleep import load_problem
from .observability.client_metrics import ClientMetrics
from .renderers import Renderers
from .requests.answer_limits import too_many_logprobs
from .requests.jobs import Jobs
from .requests.orphans import OrphanedSlots
from .requests.retained import RetainedAnswers
from .requests.slots import SlotPhase, Slots, SlotUse
from .rpc import Calls

GONE = 499


class FrontendInbox:
    """The receiving side of a frontend's engine."""

    def __init__(
        self,
        context: Context,
        slots: Slots,
        renderers: Renderers,
        calls: Calls,
        retained: RetainedAnswers,
        orphans: OrphanedSlots,
        client_metrics: ClientMetrics,
        jobs: Jobs,
        vectors: Vectors | None,
        quotas: Quotas | None = None,
        states: HiddenStates | None = None,
    ) -> None:
        self._context, self._table = context, context.table
        self._slots, self._renderers, self._calls = slots, renderers, calls
        self._retained, self._orphans = retained, orphans
        self._client_metrics = client_metrics
        self._jobs = jobs
        self._vectors, self._states = vectors, states
        self._pools = [served.info.pooling is not None for served in context.system.models]
        self._quotas = quotas

    def handle(self, message: ToFrontend) -> None:
        """One message; each may come twice."""
        match message:
            case Delta():
                self._delta(message)
            case Resent():
                self._resent(message)
            case PromptTokenLogprobs():
                self._prompt_told(message)
            case Rendered():
                self._rendered(message)
            case Failed():
                self._failed(message)
            case Synced():
                self._orphans.synced(message.call)
            case Unanswered():
                self._calls.answer(message.call, ApiError(message.status, message.problem))
            case AdapterChanged():
                self._calls.adapter_changed(message)
            case (
                Paused()
                | SleepChanged()
                | WorkersCalled()
                | Profiled()
                | Aborted()
                | PrefixCacheReset()
                | CacheReset()
                | MediaForgotten()
            ):
                self._calls.answer(message.call, message)
            case (
                Tokenized()
                | Detokenized()
                | Measured()
                | PreProcessed()
                | PostProcessed()
                | ToolsListed()
                | ToolCalled()
            ):
                self._calls.answer(message.call, message)

    def _delta(self, delta: Delta) -> None:
        use = self._slots.use(delta.ref)
        if use is None:
            return
        if not use.begun or delta.finish:
            self._client_metrics.delivered(use, delta)
        all_have_it = True
        for job in use.jobs:
            if job in use.late:  # some of what stands before was said to others, even if none of it is text
                all_have_it = False
                continue
            if use.phase is SlotPhase.RENDERING:
                self._jobs.tell_rendered(job, use.ref, use.index)  # the renderer's own message is still on its way
            choice = job.choices[use.index]
            before = choice.tokens
            if delta.finish == Finish.UNLOADABLE:
                job.fail(self._unloadable(delta.ref))
            cached = choice.cached_tokens if before and not delta.finish else self._table.cached(delta.ref)
            if job.delta(use.index, delta, cached):
                self._jobs.touch(job)
                if job.wants_ids or job.trails:
                    self._add_ids(job, choice, use.ref, before)
                if delta.finish:
                    self._add_numbers(job, choice, delta)
                if delta.logprobs and (error := too_many_logprobs(job, self._context.config.max_answer_logprobs)):
                    job.fail(error)
            else:
                all_have_it = False
        if delta.finish and self._quotas is not None and self._is_for_somebody(use):
            self._quotas.ended(delta, max((job.choices[use.index].prompt_tokens for job in use.jobs), default=0))
        if delta.last and all_have_it and not self._orphans.is_wanted(delta.ref):
            if use.phase is SlotPhase.RENDERING:  # what the renderer still says of it finds no use
                self._renderers.leaves(use.renderer, use.ref)
            self._slots.close(delta.ref)

    def _is_for_somebody(self, use: SlotUse) -> bool:
        return use.phase is not SlotPhase.ORPHAN or self._orphans.is_wanted(use.ref)

    def _add_ids(self, job: Job, choice: Choice, ref: int, before: int) -> None:
        """The ids of the tokens that a delta has brought."""
        prompt = self._table.prompt_length(ref) or 0
        ids = self._table.token_ids(ref, prompt + before, prompt + max(before, choice.tokens)).tolist()
        if job.wants_ids:
            choice.ids += ids
        if job.trails:
            choice.trail += ids

    def _add_numbers(self, job: Job, choice: Choice, delta: Delta) -> None:
        """What stands beside the text of a choice that has ended."""
        if self._vectors is not None and self._pools[job.model] and delta.finish == Finish.STOP:
            choice.pooled = self._vectors.read(delta.ref)
        if self._states is not None and job.tells_all:
            choice.hidden_states = self._states.read(delta.ref)
        elif self._states is not None:  # of one token nothing is computed
            last = choice.prompt_tokens + choice.tokens - 2
            choice.hidden_states = self._states.read(delta.ref, last, min(1, choice.tokens - 1))

    def _unloadable(self, ref: int) -> ApiError:
        """What a request gets whose model was to be loaded for it, and cannot be."""
        model = self._table.model(ref)
        return unloadable(self._context.system.models[model].name, load_problem(self._context, model))

    def _resent(self, message: Resent) -> None:
        for ref in message.refs:
            if (use := self._slots.use(ref)) is not None:
                use.late.clear()

    def _prompt_told(self, message: PromptTokenLogprobs) -> None:
        use = self._slots.use(message.ref)
        if use is None:
            return
        for job in use.jobs:
            job.choices[use.index].prompt_logprobs.update(enumerate(message.logprobs, message.start))

    def _rendered(self, message: Rendered) -> None:
        late = []
        for use in self._leave_renderer(message.refs):
            use.phase = SlotPhase.RUNNING
            if self._quotas is not None:
                self._quotas.rendered(use.ref)
            for job in use.jobs:
                self._jobs.tell_rendered(job, use.ref, use.index)
            if not use.jobs and not self._retained.holds(use.ref):
                late.append(use.ref)
        if late:
            self._context.post_to_owners(Cancel, late)

    def _failed(self, message: Failed) -> None:
        error = ApiError(message.status, message.message, message.param, message.code, lengths=message.lengths)
        if message.call:
            self._calls.answer(message.call, error)
        left = self._leave_renderer(message.refs)
        if message.code == NO_QUOTA and self._quotas is not None:
            self._quotas.refused_by_renderer({id(job): job for use in left for job in use.jobs}.values())
        for use in left:
            self._slots.close(use.ref)
            self._jobs.let_go(self._retained.forget_ref(use.ref))
            if message.status != GONE:
                for job in use.jobs:
                    job.fail(error)

    def _leave_renderer(self, refs: list[int]) -> list[SlotUse]:
        """The uses among these refs that a renderer had."""
        uses = [use for ref in refs if (use := self._slots.use(ref)) is not None and use.phase is SlotPhase.RENDERING]
        for use in uses:
            self._renderers.leaves(use.renderer, use.ref)
        return uses
