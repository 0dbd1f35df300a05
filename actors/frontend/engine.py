"""What the HTTP side sees of the other actors, composed of its parts; each of those says what it owns.

slots             which of the frontend's slots are in use, by whom            frontend/requests/slots.py
renderers         which one has least to do                                    renderers.py
calls             questions to renderers that need no slot                     rpc.py
records           what is found again by a key; conversations by themselves    frontend/requests/records.py
retained          answers among that                                           frontend/requests/retained.py
orphans           what a dead predecessor has left in its slots                frontend/requests/orphans.py
adapters          which ones requests may name                                 frontend/administration/adapters.py
tools             of MCP servers, that are called here                         tools.py
administration/   what operators ask of all engines; who may come meanwhile
scaling           how many engines there are: asked of the supervisor          supervisor.py
accounts          whose key is whose, and what each has used                   frontend/accounts/
jobs              requests that are answered, each with its slots              frontend/requests/jobs.py
inbox             messages of other actors, to the jobs that they concern      inbox.py
observability/    what clients see, counted; the whole server's metrics and readiness; the page's figures
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from copy import copy
from functools import partial
from typing import Any

import msgspec

from actorserve.http.dashboard.figures import PageFigures
from actorserve.http.errors import ApiError
from actorserve.http.generation.idempotency_keys import Kept, Key, Records
from actorserve.http.generation.job import Engine, Heard, Job
from actorserve.http.generation.times import JobTimes, PromptProgress
from actorserve.http.metrics import Family
from actorserve.shm.kv_map.pause import PauseWord
from actorserve.shm.table.stamps import Stamps

from ..accounts.account import Account
from ..protocol.file_sizes import CONVERSATIONS, KEPT
from ..protocol.messages import ToFrontend
from ..protocol.topics.administration import LISTEN
from ..protocol.topics.calls import Measured
from ..protocol.topics.io_processors import PooledPrompt
from ..protocol.topics.prompts import Prompt
from ..runtime.process import Context
from ..telemetry.gauges import FrontendGauge
from .accounts.accounts import FrontendAccounts
from .administration.adapters import FrontendAdapters
from .administration.commands import Administration
from .inbox import FrontendInbox
from .observability.client_metrics import ClientMetrics
from .observability.dashboard import DashboardFigures
from .observability.job_times import read_times
from .observability.metrics import ServerMetrics
from .observability.prompt_progress import PromptsProgress
from .renderers import Renderers
from .requests.jobs import Jobs, cannot_finish
from .requests.lengths import post_measured
from .requests.orphans import OrphanedSlots
from .requests.records import FrontendRecords
from .requests.retained import RetainedAnswers
from .requests.slots import Slots
from .rpc import Calls
from .supervisor import SupervisorLink
from .tools import ToolCalls


class FrontendEngine(Engine):
    """One frontend's engine: a frontend drives it from its event loop, and so does an LLM object."""

    def __init__(self, context: Context, reserved: Iterable[int] = (), alone: bool = False) -> None:
        """`reserved` are slots of a predecessor from which streams may go on. `alone`: no connection can be moved to
        another frontend, so that this one handles all keys.
        """
        system, own, table = context.system, context.spec.index, context.table
        self.index, self.frontends, self.alone = own, context.config.frontends, alone
        count = system.slots_per_frontend
        vectors = context.vectors()
        self._model = context.spec.model  # which one is asked
        self.accounts = FrontendAccounts(context)
        quotas = self.accounts.quotas
        states = context.hidden_states()
        areas = [area for area in (vectors, context.sounds(), context.prompt_embeds(), states) if area is not None]
        self.slots = Slots(table, system.first_slot(own), count, areas, quotas)
        self.renderers = Renderers(context)
        self._calls = Calls(
            *(own, context.incarnation, count, self.renderers.ask),
            [partial(post_measured, context, scheduler) for scheduler in system.schedulers],
            self.renderers.answered,
        )
        self.adapters = FrontendAdapters(context, self._calls)
        self.administration = Administration(context, self._calls)
        self.tools = ToolCalls(context, self._calls)
        self.scaling = SupervisorLink(context)
        self._records = FrontendRecords(context, KEPT)
        self.conversations: Records = FrontendRecords(context, CONVERSATIONS)
        self._retained = RetainedAnswers(self._records.log, table, count, context.config.idempotency_window)
        self._orphans = OrphanedSlots(context, self.slots, self._retained, self._calls.numbers, reserved)
        client_metrics = ClientMetrics(context)
        self._jobs = Jobs(context, self.slots, self.renderers, self._retained, self._orphans, client_metrics, quotas)
        self._inbox = FrontendInbox(
            *(context, self.slots, self.renderers, self._calls, self._retained, self._orphans, client_metrics),
            *(self._jobs, vectors, quotas, states),
        )
        self._stamps = Stamps(table)
        self._pauses = [PauseWord(context.segment.map, offset) for offset in context.system.kv_map_offsets]
        self._context, self._status = context, context.status
        self._metrics = ServerMetrics(context, self.adapters, self.accounts)
        self._page = DashboardFigures(context)
        self._prompts = PromptsProgress(context)
        self._sessions: dict[bytes, float] = {}  # until when they are open, by their keys in the log

    def of_model(self, model: int) -> FrontendEngine:
        """The same, for requests to another of the server's models."""
        other = copy(self)
        other._model = model
        return other

    # --- its actor's ---------------------------------------------------------------------------------------------

    def handle(self, message: ToFrontend) -> None:
        """A message of another actor; it may come twice."""
        self._inbox.handle(message)

    def turn_ends(self) -> int:
        """All messages of a turn were handled: hand on what they brought. Returns to how many jobs."""
        return self._jobs.flush()

    def beat(self, connections: int, adopting: bool = False) -> None:
        """Now and then: let go of what is kept no longer, and say on the board how much this frontend has to do.
        `adopting`: connections of a predecessor may be on their way.
        """
        self._orphans.beat(adopting)
        self._jobs.let_go(self._retained.outdated())
        self._status.set_gauge(FrontendGauge.CONNECTIONS, connections)
        if self.renderers.media is not None:
            self._status.set_gauge(FrontendGauge.MEDIA_INBOX, self.renderers.media.used)
        self._status.set_gauge(FrontendGauge.SESSIONS, self._open_sessions())
        self._jobs.count()
        self._jobs.end_overdue()

    def nobody_goes_on(self, refs: Iterable[int]) -> None:
        """The connections of a predecessor that were answered from these slots are over."""
        self._orphans.give_up(refs)

    @property
    def gives_up(self) -> bool:
        """Does the server end at once?"""
        return self._jobs.gives_up

    def give_up(self) -> None:
        """The server ends at once: whoever waits is told, and nothing is begun any more."""
        self._calls.give_up(cannot_finish())
        self._jobs.give_up()

    # --- http.generation.job.Engine: requests --------------------------------------------------------------------

    def submit(self, job: Job, refs: list[int] | None = None) -> None:
        """`refs`: the answer is in these slots already: a predecessor's, who has begun to answer from them, or kept
        ones.
        """
        job.model = self._model
        if refs is None:
            self._jobs.begin(job)
        else:
            self._jobs.resume(job, refs)

    def turn(self, account: Account) -> AbstractAsyncContextManager[None]:
        assert self.accounts.quotas is not None
        return self.accounts.quotas.turn(account)

    def check_limits(self, account: Account) -> tuple[dict[str, str], ApiError | None]:
        assert self.accounts.quotas is not None
        return self.accounts.quotas.check(account)

    def charge_alone(self, account: Account, prompt: int, completion: int) -> None:
        if self.accounts.quotas is not None:
            self.accounts.quotas.charge_alone(account, prompt, completion)

    def has(self, refs: list[int]) -> bool:
        return self._jobs.can_resume(refs)

    def release(self, job: Job) -> None:
        self._jobs.release(job)

    def times(self, job: Job) -> JobTimes:
        return read_times(job, self._stamps)

    def progress(self, job: Job) -> list[PromptProgress]:
        return self._prompts.progress(job)

    async def tokenize(self, prompt: Prompt, token_strings: bool) -> tuple[list[int], list[str] | None]:
        return await self._calls.tokenize(prompt, token_strings, self._model)

    async def tokenize_as_rendered(
        self, prompt: Prompt, rendering: Mapping[str, Any], offsets: bool
    ) -> tuple[list[int], list[tuple[int, int]] | None]:
        return await self._calls.tokenize_as_rendered(prompt, rendering, offsets, self._model)

    async def pooled_ids(self, prompt: Prompt, field: str, most: int) -> list[int]:
        return await self._calls.pooled_ids(prompt, field, most, self._model)

    async def detokenize(self, tokens: list[int], skip_special: bool = False) -> str:
        return await self._calls.detokenize(tokens, skip_special, self._model)

    async def token_texts(self, tokens: list[int]) -> list[str]:
        return await self._calls.token_texts(tokens, self._model)

    async def pieces(self, tokens: list[int]) -> list[bytes]:
        return await self._calls.pieces(tokens, self._model)

    async def measure(self, sound: bytes) -> Measured:
        return await self._calls.measure(sound, self._model)

    async def pre_process(self, request_id: str, data: bytes) -> list[Prompt]:
        return await self._calls.pre_process(request_id, data, self._model)

    async def post_process(self, request_id: str, data: bytes, pooled: list[PooledPrompt]) -> bytes:
        return await self._calls.post_process(request_id, data, pooled, self._model)

    async def listen(self, ref: int, samples: int, timed: bool) -> Heard:
        heard = await self.administration.ask_worker(LISTEN, [ref, samples, timed], self._model)
        return msgspec.convert(heard, Heard)

    async def reset_prefix_cache(self, reset_running_requests: bool) -> None:
        await self._calls.reset_prefix_cache(reset_running_requests)

    async def pause(self, mode: str, clear_cache: bool) -> None:
        await self._calls.pause(mode, clear_cache)

    async def resume(self) -> None:
        await self._calls.resume()

    def is_paused(self) -> bool:
        return any(word.state.holds for word in self._pauses)

    async def abort_requests(self, request_ids: list[str], every: bool) -> int:
        return await self._calls.abort(request_ids, every)

    async def reset_encoder_cache(self) -> None:
        await self._calls.reset_encoder_cache()

    async def reset_mm_cache(self) -> None:
        names = self.renderers.media.names if self.renderers.media is not None else []
        await self._calls.forget_media([partial(self._context.post_alone, name) for name in names])

    # --- adapters ------------------------------------------------------------------------------------------------

    async def want_adapter(self, name: str | None) -> None:
        await self.adapters.want(name)

    async def load_adapter(self, name: str, path: str, in_place: bool) -> None:
        await self.adapters.load(name, path, in_place)

    async def unload_adapter(self, name: str) -> None:
        await self.adapters.unload(name)

    # --- what is found again by a key ----------------------------------------------------------------------------

    def keep(self, key: Key, job: Job, seed: int, created: int) -> None:
        self._jobs.let_go(self._retained.forget(key.name))
        self._retained.keep(key.name, Kept(key.digest, job.refs, seed, created))

    def kept(self, key: Key) -> Kept | None:
        return self._retained.find(key.name)

    def abort(self, job: Job, key: Key) -> None:
        self._jobs.let_go(self._retained.forget(key.name))
        self._jobs.abort(job)

    def put(self, key: bytes, payload: bytes) -> bool:
        return self._records.put(key, payload)

    def get(self, key: bytes, frontend: int | None = None) -> bytes | None:
        return self._records.get(key, frontend)

    def kept_payloads(self) -> list[bytes]:
        return self._records.payloads()

    # --- looking at the server -----------------------------------------------------------------------------------

    def count_realtime(self, sessions: int = 0, begun: int = 0) -> None:
        """See Engine."""
        self._status.add(FrontendGauge.REALTIME, sessions)
        self._status.add(FrontendGauge.REALTIME_ANSWERS, begun)

    def count_response_sockets(self, sockets: int = 0, begun: int = 0) -> None:
        """See Engine."""
        self._status.add(FrontendGauge.RESPONSE_SOCKETS, sockets)
        self._status.add(FrontendGauge.RESPONSE_SOCKET_ANSWERS, begun)

    def count_session(self, key: bytes, until: float, turns: int = 0) -> None:
        """See Engine."""
        self._sessions[key] = until
        self._status.add(FrontendGauge.SESSION_TURNS, turns)

    def _open_sessions(self) -> int:
        """Without those that nobody has gone on with for too long, or that others had to make room for."""
        now = time.monotonic()
        for key in [key for key, until in self._sessions.items() if until <= now or key not in self._records.log]:
            del self._sessions[key]
        return len(self._sessions)

    def in_flight(self) -> int:
        return len(self._jobs) + self.tools.waiting

    def load(self) -> int:
        return self._metrics.load()

    def not_ready(self) -> list[str]:
        return self._metrics.not_ready()

    def degraded(self) -> list[str]:
        return self._metrics.degraded()

    def metrics(self, accept: str = "") -> tuple[Iterable[bytes], str]:
        return self._metrics.metrics(accept)

    def metric_families(self) -> Iterable[Family]:
        return self._metrics.families()

    def page_figures(self) -> PageFigures:
        return self._page.figures()
