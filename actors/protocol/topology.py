"""The one picture: which actors there are, which lanes join them, and where all of it lies in shared memory.

Pure data, computed alike by the supervisor and by every actor from the options and the kinds of actors (kinds.py), so
that only descriptors travel.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from .actor_kind import Sends
from .actor_spec import AccountPlaces, ActorSpec, Lane
from .file_sizes import MAX_TABLES, FileSizes, form_bytes
from .kinds import KINDS, SUPERVISOR
from .roster import Roster
from .served import ServedModel
from .step import longest_answer, longest_step

SMALL = 1 << 20  # bytes of a lane whose messages are hints
SMALLEST = 64 << 10  # of one that is hardly used
TABLE_BUDGET = 512 << 20  # bytes of the request table, unless --max-num-queued-reqs asks for more
MOST_QUEUED = 2048  # unless it asks for more; load generators begin a thousand requests at once if not told otherwise
PARAMS_BYTES = 32 << 10  # parameter area of one slot
RENDITION_BYTES = 48 << 10  # of what a renderer makes of them; grammars are the largest part
SPARE_SLOTS = 32  # slots whose client has gone and whose end is still on its way round


class System(Roster):
    """Actors, lanes and offsets for one set of options."""

    def __init__(self, config: Config, model: ModelInfo, also: Sequence[ModelInfo] = ()) -> None:
        """`model` is that of MODEL, and `also` those of --also."""
        super().__init__(config, model, also)
        self.max_queued, self.slots_per_frontend = self._slots()
        self.slots = self.slots_per_frontend * config.frontends
        self._place()
        self.files = FileSizes(config, self.models, self.slots, self.max_blocks, len(self.of_kind("media")))

    @property
    def _slot_sizes(self) -> tuple[int, int, int, int]:
        """Of the request table: tokens of a slot, tokens of a block, bytes of parameters and of renditions."""
        return self.max_tokens, self.config.block_size, PARAMS_BYTES, RENDITION_BYTES

    @property
    def max_tokens(self) -> int:
        """Of a slot's log, for the model that needs most."""
        return max(one.max_tokens for one in self.models)

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
        hearing = {actor.name for actor in self.actors if self.models[actor.model].hears}
        for source in self._senders():
            for sends in source.traits.sends:
                for target, readers in self._targets(source, KINDS[sends.to]):
                    capacity = self._capacity(sends, source, target in hearing)
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
        """The board has one for each actor, one for each process beside them, and the supervisor's."""
        return self.supervisor.position + 1

    def _capacity(self, sends: Sends, source: ActorSpec, hears: bool) -> int:
        """A record may fill a third of its lane. `hears`: who reads it is of a model that writes sounds down."""
        if sends.small:
            return SMALLEST
        if sends.steps:
            return max(SMALL, whole(3 * self._longest_step(self.models[source.model]), CACHE_LINE))
        if not sends.bodies:
            return SMALL
        longest = self.config.max_body_bytes
        if sends.sounds and hears:
            longest = max(longest, form_bytes(self.config))
        return 4 * (longest // CACHE_LINE * CACHE_LINE) + SMALL

    @staticmethod
    def _longest_step(served: ServedModel) -> int:
        """In bytes, or its answer."""
        config = served.config
        blocks = -(-served.max_tokens // config.block_size)
        return max(longest_step(config.max_num_seqs, blocks, PARAMS_BYTES), longest_answer(config.max_num_seqs))

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
