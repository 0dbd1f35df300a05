"""The one picture: which actors there are, which lanes join them, and where all of it lies in shared memory.

Pure data, computed alike by the supervisor and by every actor from the options and the kinds of actors (kinds.py), so
that only descriptors travel.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from actorserve.shm.accounts.book import book_bytes
from actorserve.shm.accounts.layout import ledger_bytes
from actorserve.shm.adapters.registry import registry_bytes
from actorserve.shm.board.board import board_bytes
from actorserve.shm.board.startup import phases_bytes
from actorserve.shm.histogram import Histogram
from actorserve.shm.kv_map.layout import kv_map_bytes
from actorserve.shm.kv_map.notes import NoteSizes
from actorserve.shm.kv_tier.layout import TierSizes
from actorserve.shm.layout import CACHE_LINE, PAGE, whole
from actorserve.shm.media.arena import CHUNK, ArenaSizes
from actorserve.shm.rings.mailbox import mailbox_bytes
from actorserve.shm.rings.ring import ring_bytes
from actorserve.shm.rings.trace_ring import trace_bytes
from actorserve.shm.segment import Segment
from actorserve.shm.table.table import table_bytes

from ..accounts.account import BOOK_BYTES, MOST_ACCOUNTS
from ..model.info import ModelInfo
from ..model.memory.kv_memory import MAX_SNAPSHOTS
from ..options.config import Config
from ..options.kv_offload import read_tiers
from ..telemetry.histograms import HistogramSpec, histograms_bytes, open_histograms
from .kinds import KINDS, OWN_TEMPLATE, SUPERVISOR, TEMPLATE, ActorKind, Sends, kind_of
from .request import BY_TOKEN

MAX_TABLES = 2  # block tables of windows take no more blocks than the one of all tokens
SMALL = 1 << 20  # bytes of a lane whose messages are hints
SMALLEST = 64 << 10  # of one that is hardly used
TABLE_BUDGET = 512 << 20  # bytes of the request table, unless --max-num-queued-reqs asks for more
MOST_QUEUED = 2048  # unless it asks for more; load generators begin a thousand requests at once if not told otherwise
PARAMS_BYTES = 32 << 10  # parameter area of one slot
RENDITION_BYTES = 48 << 10  # of what a renderer makes of them; grammars are the largest part
JOURNALED = 1024  # connections, the lowest numbers first
RECENT_BYTES = 16 << 20  # of a frontend's keys
BODY_PICTURES = 2  # of the longest that a body has room for, in base64 as well
MOST_INBOX = 8  # of the longest bodies, whose pictures wait for a media actor, of each frontend
SPARE_SLOTS = 32  # slots whose client has gone and whose end is still on its way round


class ActorSpec(msgspec.Struct, frozen=True):
    """One actor: its name in `ps`, its kind's, and its place on the board."""

    name: str
    kind: str
    index: int  # among those of its kind, of its engine if there are such
    position: int
    engine: int = 0  # whose it is; of those that belong to none it says nothing

    @property
    def traits(self) -> ActorKind:
        """What holds for all of its kind."""
        return kind_of(self.kind)


class Lane(msgspec.Struct, frozen=True):
    """One ring at `offset` of the segment, from an actor to its readers; `target` is what it is posted to."""

    source: str
    target: str  # an actor's name, or the kind of all of its readers
    readers: tuple[str, ...]
    offset: int
    capacity: int


class AccountPlaces(msgspec.Struct, frozen=True):
    """Where in the segment clients' keys and what they use lie."""

    book: int
    ledger: int


class System:
    """Actors, lanes and offsets for one set of options."""

    def __init__(self, config: Config, model: ModelInfo) -> None:
        self.config = config
        self.model = model
        self.engines = range(config.engines)
        names = [
            (kind, engine, index)
            for kind in KINDS.values()
            for engine in (self.engines if kind.by_engine else (0,))
            for index in range(_count(kind, config, model))
        ]
        self.actors = [
            ActorSpec(_name(kind, index, engine, config), kind.name, index, position, engine)
            for position, (kind, engine, index) in enumerate(names)
        ]
        self.meetings = [f"meeting@{engine}" if engine else "meeting" for engine in self.engines]  # files, by engine
        self.schedulers = [actor.name for actor in self.of_kind("scheduler")]  # by engine
        behind = len(self.actors)
        self.template = ActorSpec(TEMPLATE, TEMPLATE, 0, behind)  # no actor, but on the board behind them
        own = [kind.name for kind in KINDS.values() if kind.early_imports and self._imports(kind)]
        self.own_templates = {  # by the kind that each of them forks
            name: ActorSpec(OWN_TEMPLATE.format(name), TEMPLATE, index, behind + index)
            for index, name in enumerate(own, 1)
        }
        self.max_queued, self.slots_per_frontend = self._slots()
        self.slots = self.slots_per_frontend * config.frontends
        self._place()

    def _imports(self, kind: ActorKind) -> bool:
        """Has this kind a template of its own here?"""
        return bool(self.of_kind(kind.name)) and (not kind.computes or self.config.worker == "model")

    @property
    def _slot_sizes(self) -> tuple[int, int, int, int]:
        """Of the request table: tokens of a slot, tokens of a block, bytes of parameters and of renditions."""
        return self.max_tokens, self.config.block_size, PARAMS_BYTES, RENDITION_BYTES

    @property
    def max_tokens(self) -> int:
        """Of a slot's log. A sequence that pools ends with a token behind its prompt, which may be as long as the model
        takes."""
        return self.model.max_model_len + (self.model.pooling is not None)

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
            room = TABLE_BUDGET // size // config.frontends - config.max_num_seqs * config.engines - SPARE_SLOTS
            queued = max(16, min(MOST_QUEUED, room))
        return queued, config.max_num_seqs * config.engines + queued + SPARE_SLOTS

    def _place(self) -> None:
        """Lay out the segment: board, sleeping words, histograms, traces, phases, lanes, table, KV maps, keys."""
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
        self.lanes: list[Lane] = []
        for source in self._senders():
            for sends in source.traits.sends:
                capacity = self._capacity(sends)
                for target, readers in self._targets(source, KINDS[sends.to]):
                    self.lanes.append(Lane(source.name, target, readers, offset, capacity))
                    offset += ring_bytes(capacity, len(readers))
        self.table_offset = -(-offset // 4096) * 4096
        first = whole(self.table_offset + table_bytes(self.slots, *self._slot_sizes), CACHE_LINE)
        self.sequence_blocks = -(-self.max_tokens // self.config.block_size)
        self.max_blocks = self.config.max_num_seqs * self.sequence_blocks  # of one block table: no worker has more
        self.kv_map_bytes = whole(kv_map_bytes(*self.kv_map_sizes), CACHE_LINE)
        self.kv_map_offsets = [first + self.kv_map_bytes * engine for engine in self.engines]
        self.size = first + self.kv_map_bytes * len(self.engines)
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
            names = tuple(actor.name for actor in self.of_kind(kind.name) if actor.engine == engine)
            found += [(self.group_of(kind, engine), names)] if kind.group else [(name, (name,)) for name in names]
        return found

    def _heard_by(self, source: ActorSpec, kind: ActorKind) -> list[int]:
        """The engines whose actors of this kind hear this actor."""
        if not kind.by_engine:
            return [0]
        if not source.traits.by_engine:
            return list(self.engines)
        return [engine for engine in self.engines if (engine == source.engine) != (kind is source.traits)]

    def group_of(self, kind: ActorKind, engine: int) -> str:
        """The name of the lanes to all of an engine's group."""
        return kind.name if len(self.engines) == 1 else f"{kind.name}@{engine}"

    def workers_of(self, engine: int) -> list[ActorSpec]:
        """That share its model, stage by stage."""
        return [actor for actor in self.of_kind("worker") if actor.engine == engine]

    def is_reporter(self, worker: ActorSpec) -> bool:
        """Whether this one tells the scheduler what its group has done: the first of those who draw."""
        return worker.index == self.config.workers - self.config.tensor_parallel_size

    def histogram_specs(self, kind: str) -> list[HistogramSpec]:
        """What actors of a kind count in."""
        return KINDS[kind].histograms(self.model.max_model_len)

    def histogram_place(self, actor: ActorSpec) -> tuple[int, list[tuple[str, tuple[int, ...]]]]:
        """Where an actor's histograms begin, and which these are with which bounds, in order."""
        specs = self.histogram_specs(actor.kind)
        return self._histogram_offsets[actor.name], [(spec.key, spec.bounds) for spec in specs]

    def histograms(self, segment: Segment, actor: ActorSpec) -> dict[str, Histogram]:
        """An actor's histograms by their keys: its own to count in, anyone's to read."""
        return open_histograms(segment, self._histogram_offsets[actor.name], self.histogram_specs(actor.kind))

    @property
    def board_blocks(self) -> int:
        """The board has one for each actor, and one for each template."""
        return len(self.actors) + len(self.templates)

    @property
    def templates(self) -> list[ActorSpec]:
        """All processes that fork actors."""
        return [self.template, *self.own_templates.values()]

    @property
    def body_bytes(self) -> int:
        """The longest body of a request. Where it may hold pictures, these cross no lane."""
        return self.config.max_body_bytes + (BODY_PICTURES * self.config.max_media_bytes if self.model.media else 0)

    @property
    def journal(self) -> tuple[int, int]:
        """(records, bytes of each): the requests of so many connections can be taken over by another frontend."""
        return min(self.config.max_connections, JOURNALED), self.body_bytes + self.config.max_header_bytes

    @property
    def answers(self) -> int:
        """Records: the answers on so many connections can be gone on with by another frontend."""
        return min(self.config.max_connections, JOURNALED)

    @property
    def logprobs(self) -> tuple[int, int]:
        """(slots, tokens of each)."""
        return self.slots, self.model.max_model_len

    @property
    def vectors(self) -> tuple[int, int] | None:
        """(slots, numbers of each) of a model that pools: a vector, or one of each token."""
        pooling = self.model.pooling
        if pooling is None:
            return None
        rows = self.model.max_model_len if set(pooling.tasks) & set(BY_TOKEN) else 1
        return self.slots, rows * pooling.numbers

    @property
    def media(self) -> ArenaSizes | None:
        """Of what requests have of pictures and sounds, where the model takes such."""
        actors = len(self.of_kind("media"))
        if not actors:
            return None
        return ArenaSizes(self.slots, actors, max(CHUNK, self.config.media_memory_bytes // actors // CHUNK * CHUNK))

    @property
    def media_inbox(self) -> tuple[int, int]:
        """(frontends, bytes of each), where the model takes pictures or sounds."""
        return self.config.frontends, whole(MOST_INBOX * self.body_bytes, PAGE)

    @property
    def sounds(self) -> tuple[int, int] | None:
        """(slots, numbers of each) of a model that listens: the features of a window."""
        encoder = self.model.encoder
        if encoder is None or encoder.speech is None:
            return None
        return self.slots, encoder.speech.mels * encoder.speech.frames

    @property
    def kv_notes(self) -> NoteSizes | None:
        """Of what stands in cached blocks, where somebody is told."""
        if not self.config.tells_kv:
            return None
        return NoteSizes(len(self.engines), MAX_TABLES * self.max_blocks, self.config.block_size)

    @property
    def kv_tier(self) -> TierSizes | None:
        """Of the KV blocks that are kept in the host's memory."""
        tiers = read_tiers(self.config)
        return None if tiers is None else TierSizes(len(self.engines), tiers.memory_bytes)

    @property
    def recent(self) -> tuple[int, int]:
        """(regions, bytes of each): what frontends must find again by keys."""
        return self.config.frontends, RECENT_BYTES

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

    def scheduler_of(self, engine: int | None) -> str:
        """Whom to tell of a slot of this engine. None: of a slot that has no prompt yet; the first passes it on."""
        return self.schedulers[engine or 0]

    @property
    def with_clients(self) -> list[ActorSpec]:
        """Those that are handed clients' connections."""
        return [actor for actor in self.actors if actor.traits.has_clients]

    def first_slot(self, frontend: int) -> int:
        """The first of the slots that only this frontend opens and frees."""
        return frontend * self.slots_per_frontend

    def frontend_of(self, slot: int) -> str:
        return f"frontend-{slot // self.slots_per_frontend}"

    def media_of(self, slot: int) -> str:
        """Who processes the pictures of a request that begins with this slot."""
        return f"media-{slot % self.config.media_actors}"

    def detokenizer_of(self, slot: int) -> str:
        return f"detokenizer-{slot % self.config.detokenizers}"


def _count(kind: ActorKind, config: Config, model: ModelInfo) -> int:
    """How many actors of this kind there are, in an engine if they are of engines."""
    if (kind.only_with and not getattr(model, kind.only_with)) or (kind.only_if and not getattr(config, kind.only_if)):
        return 0
    return int(getattr(config, kind.count)) if kind.count else 1


def _name(kind: ActorKind, index: int, engine: int, config: Config) -> str:
    """The kind's own if there can be no other; a group of one is not told apart, either. Of several engines each has
    its number behind an @.
    """
    alone = not kind.count or (kind.group and getattr(config, kind.count) == 1)
    name = kind.name if alone else f"{kind.name}-{_place(index, config) if kind.group else index}"
    return f"{name}@{engine}" if kind.by_engine and config.engines > 1 else name


def _place(index: int, config: Config) -> str:
    """A worker's in its group: its number, or its stage with what it is there, such as pp1-tp0."""
    stage, rank = divmod(index, config.tensor_parallel_size)
    if config.pipeline_parallel_size == 1:
        return str(index)
    return f"pp{stage}" if config.tensor_parallel_size == 1 else f"pp{stage}-tp{rank}"
