"""The one picture: which actors there are, which lanes join them, and where all of it lies in shared memory.

Pure data, computed alike by the supervisor and by every actor from the options and the kinds of actors (kinds.py), so
that only descriptors travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from actorserve.shm.accounts.book import book_bytes
from actorserve.shm.accounts.layout import ledger_bytes
from actorserve.shm.adapters.registry import registry_bytes
from actorserve.shm.board.board import board_bytes
from actorserve.shm.board.startup import phases_bytes
from actorserve.shm.engine_places import PLACE_BYTES
from actorserve.shm.histogram import Histogram
from actorserve.shm.kv_map.layout import kv_map_bytes
from actorserve.shm.layout import CACHE_LINE, whole
from actorserve.shm.rings.mailbox import mailbox_bytes
from actorserve.shm.rings.ring import ring_bytes
from actorserve.shm.rings.trace_ring import trace_bytes
from actorserve.shm.segment import Segment
from actorserve.shm.table.table import table_bytes

from ..accounts.account import BOOK_BYTES, MOST_ACCOUNTS
from ..model.info import ModelInfo
from ..model.memory.kv_memory import MAX_SNAPSHOTS
from ..options.config import Config
from ..telemetry.histograms import HistogramSpec, histograms_bytes, open_histograms
from .actor_kind import ActorKind, Sends
from .actor_spec import AccountPlaces, ActorSpec, Lane, actor_name
from .file_sizes import MAX_TABLES, FileSizes
from .kinds import HTTP2, KINDS, LINK, OWN_TEMPLATE, RELAY, SUPERVISOR, TEMPLATE
from .served import ServedModel, served_models

SMALL = 1 << 20  # bytes of a lane whose messages are hints
SMALLEST = 64 << 10  # of one that is hardly used
TABLE_BUDGET = 512 << 20  # bytes of the request table, unless --max-num-queued-reqs asks for more
MOST_QUEUED = 2048  # unless it asks for more; load generators begin a thousand requests at once if not told otherwise
PARAMS_BYTES = 32 << 10  # parameter area of one slot
RENDITION_BYTES = 48 << 10  # of what a renderer makes of them; grammars are the largest part
SPARE_SLOTS = 32  # slots whose client has gone and whose end is still on its way round


class System:
    """Actors, lanes and offsets for one set of options."""

    def __init__(self, config: Config, model: ModelInfo, also: Sequence[ModelInfo] = ()) -> None:
        """`model` is that of MODEL, and `also` those of --also."""
        self.config = config
        self.model = model
        self.models = served_models(config, [model, *also])
        self.engines = range(self.models[-1].engines.stop)
        self.remote_engines = range(config.local_engines, config.engines)  # a link stands for the scheduler
        self.local_engines = [engine for engine in self.engines if engine not in self.remote_engines]
        self.actors: list[ActorSpec] = []
        for kind in KINDS.values():
            for served in self.models if kind.by_engine or kind.by_model else self.models[:1]:
                self._add(kind, served)
        self.meetings = [f"meeting@{engine}" if engine else "meeting" for engine in self.engines]  # files, by engine
        self.schedulers = [actor.name for actor in self.of_kind("scheduler")]  # by engine
        behind = len(self.actors)
        self.template = ActorSpec(TEMPLATE, TEMPLATE, 0, behind)
        own = [kind.name for kind in KINDS.values() if kind.early_imports and self._imports(kind)]
        self.own_templates = {  # by the kind that each of them forks
            name: ActorSpec(OWN_TEMPLATE.format(name), TEMPLATE, index, behind + index)
            for index, name in enumerate(own, 1)
        }
        wanted = [kind for kind, given in ((RELAY, config.uds), (HTTP2, config.http2_port)) if given is not None]
        self.relays = {
            kind: ActorSpec(kind, kind, 0, place) for place, kind in enumerate(wanted, behind + 1 + len(own))
        }
        self.beside = [self.template, *self.own_templates.values(), *self.relays.values()]  # on the board behind actors
        self.max_queued, self.slots_per_frontend = self._slots()
        self.slots = self.slots_per_frontend * config.frontends
        self._place()
        self.files = FileSizes(config, self.models, self.slots, self.max_blocks, len(self.of_kind("media")))

    def _add(self, kind: ActorKind, served: ServedModel) -> None:
        """The actors of this kind that are this model's, or the server's."""
        before = 0 if kind.by_engine else len(self.of_kind(kind.name))
        for engine in served.engines if kind.by_engine else (0,):
            is_link = kind.by_engine and engine in self.remote_engines  # of an engine elsewhere nothing else is here
            if is_link and kind.group:
                continue
            for index in range(self._count(kind, served)):
                name = "link" if is_link else actor_name(kind, index, served)
                if kind.by_engine and len(self.engines) > 1:
                    name = f"{name}@{engine}"
                place = before + index, len(self.actors), engine, served.index
                self.actors.append(ActorSpec(name, kind.name, *place, LINK if is_link else ""))

    def _count(self, kind: ActorKind, served: ServedModel) -> int:
        """How many actors of this kind a model has, in an engine if they are of engines."""
        if self.config.steward is not None and not kind.of_stewards:
            return 0
        if kind.only_with and not any(getattr(one.info, kind.only_with) for one in self._of(kind, served)):
            return 0
        if kind.only_if and not getattr(self.config, kind.only_if):
            return 0
        return int(getattr(served.config, kind.count)) if kind.count else 1

    def _of(self, kind: ActorKind, served: ServedModel) -> Sequence[ServedModel]:
        """The models for which these actors are."""
        return [served] if kind.by_engine or kind.by_model else self.models

    def _imports(self, kind: ActorKind) -> bool:
        """Has this kind a template of its own here?"""
        return bool(self.of_kind(kind.name)) and (not kind.computes or self.config.worker == "model")

    def imports_of(self, kind: str) -> list[str]:
        """Modules that the template of this kind imports for the models that are served."""
        if not KINDS[kind].computes:
            return []
        return list(dict.fromkeys(module for served in self.models for module in served.worker_modules()))

    @property
    def _slot_sizes(self) -> tuple[int, int, int, int]:
        """Of the request table: tokens of a slot, tokens of a block, bytes of parameters and of renditions."""
        return self.max_tokens, self.config.block_size, PARAMS_BYTES, RENDITION_BYTES

    @property
    def max_tokens(self) -> int:
        """Of a slot's log, for the model that needs most."""
        return max(one.max_tokens for one in self.models)

    @property
    def max_model_len(self) -> int:
        """Of the model that takes most."""
        return max(one.info.max_model_len for one in self.models)

    @property
    def max_num_seqs(self) -> int:
        """That run at once in all engines together."""
        return sum(one.config.max_num_seqs * len(one.engines) for one in self.models)

    @property
    def table_sizes(self) -> tuple[int, int, int, int, int]:
        """As RequestTable.create takes them."""
        return self.slots, *self._slot_sizes

    def _slots(self) -> tuple[int, int]:
        """(the waiting queue's limit, slots a frontend): every frontend may hold all that one server admits."""
        config = self.config
        if config.max_num_queued_reqs is not None:
            queued = config.max_num_queued_reqs
        else:
            size = table_bytes(1, *self._slot_sizes)
            room = TABLE_BUDGET // size // config.frontends - self.max_num_seqs - SPARE_SLOTS
            queued = max(16, min(MOST_QUEUED, room))
        return queued, self.max_num_seqs + queued + SPARE_SLOTS

    def detokenizers_of(self, model: int) -> list[str]:
        """Who is told of tokens of a model; on a machine that computes for others its steward is."""
        return [one.name for kind in ("detokenizer", "steward") for one in self.of_kind(kind) if one.model == model]

    def _place(self) -> None:
        """Lay out the segment: board, sleeping words, histograms, traces, phases, lanes, table, KV maps, keys."""
        self._place_tables(self._place_lanes(self._place_actors()))
        self._place_options()

    def _place_actors(self) -> int:
        """What each actor has for itself; where that ends."""
        self.board_offset = 0
        offset = board_bytes(self.board_blocks)
        self.mailbox_offsets: dict[str, int] = {}
        for actor in self.actors:
            self.mailbox_offsets[actor.name] = offset
            offset += mailbox_bytes()
        self._histogram_offsets: dict[str, int] = {}
        for actor in self.actors:
            self._histogram_offsets[actor.name] = offset
            offset += histograms_bytes(self.histogram_specs(actor.kind))
        self.trace_offsets: dict[str, int] = {}
        offset = whole(offset, CACHE_LINE)
        for actor in self.actors:
            self.trace_offsets[actor.name] = offset
            offset += trace_bytes()
        self.phase_offsets: dict[str, int] = {}
        for name in (*(actor.name for actor in self.actors), SUPERVISOR):
            self.phase_offsets[name] = offset
            offset += phases_bytes()
        return offset

    def _place_lanes(self, offset: int) -> int:
        self.lanes: list[Lane] = []
        for source in self._senders():
            for sends in source.traits.sends:
                capacity = self._capacity(sends)
                for target, readers in self._targets(source, KINDS[sends.to]):
                    self.lanes.append(Lane(source.name, target, readers, offset, capacity))
                    offset += ring_bytes(capacity, len(readers))
        return offset

    def _place_tables(self, offset: int) -> None:
        """The request table, and a KV map for each engine."""
        self.table_offset = -(-offset // 4096) * 4096
        first = whole(self.table_offset + table_bytes(self.slots, *self._slot_sizes), CACHE_LINE)
        self.sequence_blocks = -(-self.max_tokens // self.config.block_size)
        # of one block table: no worker has more
        self.max_blocks = max(one.config.max_num_seqs for one in self.models) * self.sequence_blocks
        self.kv_map_bytes = whole(kv_map_bytes(*self.kv_map_sizes), CACHE_LINE)
        self.kv_map_offsets = [first + self.kv_map_bytes * engine for engine in self.engines]
        self.size = first + self.kv_map_bytes * len(self.engines)

    def _place_options(self) -> None:
        """What is there with some options alone, and the troubles of engines elsewhere."""
        self.accounts: AccountPlaces | None = None  # of the keys of --key-file
        if self.config.key_file is not None:
            book = whole(self.size, CACHE_LINE)
            ledger = whole(book + book_bytes(BOOK_BYTES), CACHE_LINE)
            self.accounts = AccountPlaces(book, ledger)
            self.size = ledger + ledger_bytes(self.config.frontends, MOST_ACCOUNTS, self.slots)
        self.adapters_offset: int | None = None  # of those of --enable-lora
        if self.config.enable_lora:
            self.adapters_offset = whole(self.size, CACHE_LINE)
            self.size = self.adapters_offset + registry_bytes(len(self.engines))
        self.troubles_offset = whole(self.size, CACHE_LINE)  # of engines elsewhere
        self.size = self.troubles_offset + PLACE_BYTES * len(self.remote_engines)

    @property
    def kv_map_sizes(self) -> tuple[int, int, int, int, int]:
        """As KVMap takes them: with an index where there is somebody else who looks for prefixes."""
        groups = 1 << (self.max_blocks - 1).bit_length() if len(self.engines) > 1 else 0
        return self.slots, self.sequence_blocks, MAX_TABLES * self.max_blocks, MAX_SNAPSHOTS, groups

    def _senders(self) -> list[ActorSpec]:
        """Those that are started last come first: so an inbox hears a request's senders in the order of its way."""
        return [actor for kind in reversed(KINDS) for actor in self.of_kind(kind)]

    def _targets(self, source: ActorSpec, kind: ActorKind) -> list[tuple[str, tuple[str, ...]]]:
        """(name, readers) of each lane from this actor to this kind: those of a group get everything by one lane."""
        found: list[tuple[str, tuple[str, ...]]] = []
        for engine in self._heard_by(source, kind):
            names = tuple(actor.name for actor in self._of_both(source, kind) if actor.engine == engine)
            if kind.group and names:
                found.append((self.group_of(kind, engine), names))
            elif not kind.group:
                found += [(name, (name,)) for name in names]
        return found

    def _of_both(self, source: ActorSpec, kind: ActorKind) -> list[ActorSpec]:
        """The actors of a kind that are for a model which this actor is for, too."""
        if not kind.by_model or not (source.traits.by_engine or source.traits.by_model):
            return self.of_kind(kind.name)
        return [actor for actor in self.of_kind(kind.name) if actor.model == source.model]

    def _heard_by(self, source: ActorSpec, kind: ActorKind) -> list[int]:
        """The engines whose actors of this kind hear this actor."""
        if not kind.by_engine:
            return [0]
        if not (source.traits.by_engine or source.traits.by_model):
            return list(self.engines)
        engines = self.models[source.model].engines
        if not source.traits.by_engine:
            return list(engines)
        return [engine for engine in engines if (engine == source.engine) != (kind is source.traits)]

    def group_of(self, kind: ActorKind, engine: int) -> str:
        """The name of the lanes to all of an engine's group."""
        return kind.name if len(self.engines) == 1 else f"{kind.name}@{engine}"

    def workers_of(self, engine: int) -> list[ActorSpec]:
        """That share its model, stage by stage."""
        return [actor for actor in self.of_kind("worker") if actor.engine == engine]

    def is_reporter(self, worker: ActorSpec) -> bool:
        """Whether this one tells the scheduler what its group has done: the first of those who draw."""
        config = self.models[worker.model].config
        return worker.index == config.workers - config.tensor_parallel_size

    def model_of(self, engine: int) -> ServedModel:
        """The one that this engine computes."""
        return next(one for one in self.models if engine in one.engines)

    def whose(self, actor: ActorSpec) -> str:
        """The name of the model that an actor is for; empty of those that are for all, and where there is one."""
        is_of_one = actor.kind in KINDS and (actor.traits.by_engine or actor.traits.by_model)
        return self.models[actor.model].name if is_of_one and len(self.models) > 1 else ""

    def first_device(self, engine: int) -> int:
        """The number of GPUs that the engines before this one take: each worker has its own, but those on a CPU."""
        return sum(len(self.workers_of(before)) for before in range(engine) if not self.model_of(before).is_on_cpu)

    def histogram_specs(self, kind: str) -> list[HistogramSpec]:
        """What actors of a kind count in."""
        return KINDS[kind].histograms(self.max_model_len)

    def histogram_place(self, actor: ActorSpec) -> tuple[int, list[tuple[str, tuple[int, ...]]]]:
        """Where an actor's histograms begin, and which these are with which bounds, in order."""
        specs = self.histogram_specs(actor.kind)
        return self._histogram_offsets[actor.name], [(spec.key, spec.bounds) for spec in specs]

    def histograms(self, segment: Segment, actor: ActorSpec) -> dict[str, Histogram]:
        """An actor's histograms by their keys: its own to count in, anyone's to read."""
        return open_histograms(segment, self._histogram_offsets[actor.name], self.histogram_specs(actor.kind))

    @property
    def board_blocks(self) -> int:
        """The board has one for each actor, and one for each process beside them."""
        return len(self.actors) + len(self.beside)

    def _capacity(self, sends: Sends) -> int:
        """A record may fill a third of its lane."""
        if sends.small:
            return SMALLEST
        return 4 * (self.config.max_body_bytes // CACHE_LINE * CACHE_LINE) + SMALL if sends.bodies else SMALL

    @cached_property
    def by_name(self) -> dict[str, ActorSpec]:
        return {actor.name: actor for actor in self.actors}

    def of_kind(self, kind: str) -> list[ActorSpec]:
        return [actor for actor in self.actors if actor.kind == kind]

    def scheduler_of(self, engine: int | None, model: int = 0) -> str:
        """Whom to tell of a slot of this engine. None: of one of this model that has no prompt yet; the model's first
        passes it on.
        """
        return self.schedulers[self.models[model].engines[0] if engine is None else engine]

    @property
    def with_clients(self) -> list[ActorSpec]:
        """Those that are handed clients' connections."""
        return [actor for actor in self.actors if actor.traits.has_clients]

    def first_slot(self, frontend: int) -> int:
        """The first of the slots that only this frontend opens and frees."""
        return frontend * self.slots_per_frontend

    def frontend_of(self, slot: int) -> str:
        return f"frontend-{slot // self.slots_per_frontend}"

    def media_of(self, slot: int, model: int = 0) -> str:
        """Who processes the pictures of a request to this model that begins with this slot."""
        return f"media-{slot % self.config.media_actors}{self.models[model].label}"

    def detokenizer_of(self, slot: int, model: int = 0) -> str:
        return f"detokenizer-{slot % self.config.detokenizers}{self.models[model].label}"
