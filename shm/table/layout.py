"""Where everything in a request table lies: a header page, then all slots' control words, then all slots' data.

Header, in words: magic, then version, slots, max tokens, block size, parameter bytes (the supervisor's, once).
Control words of a slot: four cache lines, one for each writer (see table.py). Data of a slot, in whole cache lines:
parameters, rendition, token ids int32[max tokens], hashes of max tokens // block size blocks. Knows nothing of what
they mean.
"""

from __future__ import annotations

from ..fence import store_fence
from ..layout import CACHE_LINE, HASH_BYTES, LINE_WORDS, WORD_BYTES, whole
from ..segment import Segment

MAGIC = 0x314C424154544341  # "ACTTABL1"
FORMAT = 4
HEADER_BYTES = 4096
VERSION, SLOTS, MAX_TOKENS, BLOCK_SIZE, PARAMS_BYTES, RENDITION_BYTES = range(1, 7)  # header words after the magic
CONTROL_WORDS = 4 * LINE_WORDS  # of a slot
GENERATION, CANCEL, MODEL, PARAMS, ARRIVAL, FIRST_TOLD, END_TOLD, SEED = range(8)
LIMIT, HASHED, PROMPT, RENDITION, RENDER_BEGUN, RENDERED, GIVEN, ENGINE = 8, 9, 10, 11, 12, 13, 14, 15
CACHED, TOKENS, FINISH, ADMITTED, SCHEDULED, FIRST_TOKEN, LAST_TOKEN, SETBACKS = 16, 17, 18, 19, 20, 21, 22, 23
TEXT, STOP, LOAD, DRAFTED, ACCEPTED = 24, 25, 26, 27, 28
LAST_GENERATION = 0x7FFFFFFF  # 1 follows
MOST_ENGINES = 0xFFFF  # the engine word's value: pinned << 31 | deaths << 24 | moves << 16 | engine
MOVES_SHIFT, DEATHS_SHIFT, MOST_MOVES, MOST_DEATHS, PINNED = 16, 24, 0xFF, 0x7F, 1 << 31


def _data_bytes(max_tokens: int, block_size: int, params_bytes: int, rendition_bytes: int) -> int:
    """Bytes of one slot's parameters, rendition, tokens and hashes, in whole cache lines."""
    size = params_bytes + rendition_bytes + 4 * max_tokens + HASH_BYTES * (max_tokens // block_size)
    return whole(size, CACHE_LINE)


def table_bytes(
    slots: int, max_tokens: int, block_size: int, params_bytes: int = 16 << 10, rendition_bytes: int = 1 << 10
) -> int:
    """Bytes of a table."""
    data = _data_bytes(max_tokens, block_size, params_bytes, rendition_bytes)
    return HEADER_BYTES + slots * (WORD_BYTES * CONTROL_WORDS + data)


class TableLayout:
    """The sizes of the table at `offset` of a segment, and where each slot's parts are."""

    def __init__(self, segment: Segment, offset: int) -> None:
        words, header = segment.words, offset // WORD_BYTES
        if words[header] != MAGIC or words[header + VERSION] != FORMAT:
            raise ValueError(f"no request table of version {FORMAT} lies at {offset}")
        self.segment = segment
        self.offset = offset
        self.slots, self.max_tokens = words[header + SLOTS], words[header + MAX_TOKENS]
        self.block_size, self.params_bytes = words[header + BLOCK_SIZE], words[header + PARAMS_BYTES]
        self.rendition_bytes = words[header + RENDITION_BYTES]
        self.control_offset = offset + HEADER_BYTES
        self.stride = _data_bytes(self.max_tokens, self.block_size, self.params_bytes, self.rendition_bytes)
        self._data = self.control_offset + WORD_BYTES * CONTROL_WORDS * self.slots
        self._first_control = self.control_offset // WORD_BYTES

    @staticmethod
    def write_header(segment: Segment, offset: int, sizes: tuple[int, int, int, int, int]) -> None:
        """Slots, max tokens, block size, bytes of parameters and renditions; the magic last. The memory is zeroed."""
        if min(sizes) <= 0 or sizes[3] % CACHE_LINE or sizes[4] % CACHE_LINE or offset % CACHE_LINE:
            raise ValueError("a table's offset and parameter areas are multiples of 64 bytes, and all sizes positive")
        if offset + table_bytes(*sizes) > segment.size:
            raise ValueError(f"a table of {table_bytes(*sizes):,} bytes at {offset} is more than the segment has")
        header = offset // WORD_BYTES
        segment.words[header + VERSION] = FORMAT
        for word, value in enumerate(sizes, SLOTS):
            segment.words[header + word] = value
        store_fence()
        segment.words[header] = MAGIC

    def control_word(self, slot: int) -> int:
        """The slot's first control word, as an index into the segment's words."""
        if not 0 <= slot < self.slots:
            raise IndexError(f"there is no slot {slot} among {self.slots}")
        return self._first_control + CONTROL_WORDS * slot

    def params_start(self, slot: int) -> int:
        """Where the slot's parameters begin, in bytes of the segment."""
        return self._data + self.stride * slot

    def rendition_start(self, slot: int) -> int:
        """Where the slot's rendition begins, in bytes of the segment."""
        return self._data + self.stride * slot + self.params_bytes

    def token_index(self, slot: int) -> int:
        """Where the slot's token ids begin, as an index of int32s in the segment."""
        return (self.rendition_start(slot) + self.rendition_bytes) // 4

    def hashes_start(self, slot: int) -> int:
        """Where the slot's hashes begin, in bytes of the segment."""
        return 4 * (self.token_index(slot) + self.max_tokens)
