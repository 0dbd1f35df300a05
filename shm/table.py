"""The request table: one slot a sequence, and in it all that any actor must know to go on with it.

Messages are hints, this is the truth. Every word has one writer; a slot's control words fill a cache line a writer:
    line 0  frontend      generation | cancel | delivered | params length | arrival (ns)
    line 1  renderer      limit, then prompt
    line 2  scheduler     cached | tokens, then finish
    line 3  detokenizer   text | stop
A cursor is `generation << 32 | value` in one word, so that it is read and written whole together with the generation that
it speaks of; whoever asks for another generation finds nothing there. Order of stores: data before the cursor that
publishes it (SYNC: table.prompt, table.tokens), the tokens cursor before `finish` (SYNC: table.finish).

Per slot there follow: parameters (the frontend's), token ids int32 (prompt by the renderer, then generated ones by the
scheduler), 16-byte hashes of the prompt's blocks (the renderer's). A slot is free when its frontend says so; others never
write to a slot of which they have not been told by message, nor under an old generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .fence import store_fence
from .segment import Segment

if TYPE_CHECKING:
    from .table_arrays import TableArrays

MAGIC = 0x31454C4241545341  # "ASTABLE1"
SLOTS, MAX_TOKENS, BLOCK_SIZE, PARAMS_BYTES = 1, 2, 3, 4  # header words after the magic
HEADER_BYTES = 4096
CONTROL_WORDS = 32  # four cache lines a slot
GENERATION, CANCEL, DELIVERED, PARAMS, ARRIVAL = 0, 1, 2, 3, 4
LIMIT, PROMPT = 8, 9
CACHED, TOKENS, FINISH = 16, 17, 18
TEXT, STOP = 24, 25
HASH_BYTES = 16
LOW = 0xFFFFFFFF
LAST_GENERATION = 0x7FFFFFFF


def make_ref(generation: int, slot: int) -> int:
    """The name of one use of a slot."""
    return generation << 32 | slot


def slot_of(ref: int) -> int:
    return ref & LOW


def generation_of(ref: int) -> int:
    return ref >> 32


def _data_bytes(max_tokens: int, block_size: int, params_bytes: int) -> int:
    """Bytes of one slot's parameters, tokens and hashes, in whole cache lines."""
    size = params_bytes + 4 * max_tokens + HASH_BYTES * (max_tokens // block_size)
    return -(-size // 64) * 64


def table_bytes(slots: int, max_tokens: int, block_size: int, params_bytes: int = 16 << 10) -> int:
    """Bytes of a table."""
    return HEADER_BYTES + slots * (8 * CONTROL_WORDS + _data_bytes(max_tokens, block_size, params_bytes))


class RequestTable:
    """A view of the table at `offset` of a segment; every process has its own."""

    def __init__(self, segment: Segment, offset: int) -> None:
        words = segment.words
        if words[offset // 8] != MAGIC:
            raise ValueError(f"no request table lies at {offset}")
        self.segment = segment
        self.offset = offset
        self.slots, self.max_tokens, self.block_size, self.params_bytes = (
            words[offset // 8 + word] for word in (SLOTS, MAX_TOKENS, BLOCK_SIZE, PARAMS_BYTES)
        )
        self._words = words
        self._ints = memoryview(segment.map).cast("i")
        self._control = (offset + HEADER_BYTES) // 8
        self._data = offset + HEADER_BYTES + 8 * CONTROL_WORDS * self.slots
        self._stride = _data_bytes(self.max_tokens, self.block_size, self.params_bytes)

    @classmethod
    def create(
        cls, segment: Segment, offset: int, slots: int, max_tokens: int, block_size: int, params_bytes: int = 16 << 10
    ) -> RequestTable:
        """Write the header into zeroed memory. `params_bytes` is a multiple of 64."""
        if params_bytes % 64 or offset % 64:
            raise ValueError("a table's offset and its parameter areas are multiples of 64 bytes")
        header = offset // 8
        for word, value in ((SLOTS, slots), (MAX_TOKENS, max_tokens), (BLOCK_SIZE, block_size), (PARAMS_BYTES, params_bytes)):
            segment.words[header + word] = value
        store_fence()
        segment.words[header] = MAGIC
        return cls(segment, offset)

    @classmethod
    def attach(cls, segment: Segment, offset: int = 0) -> RequestTable:
        """The table that the supervisor created there."""
        return cls(segment, offset)

    # --- cursors -----------------------------------------------------------------------------------------------

    def _get(self, ref: int, word: int) -> int | None:
        """A cursor's value, None where it speaks of another generation."""
        packed = self._words[self._control + CONTROL_WORDS * (ref & LOW) + word]
        return packed & LOW if packed >> 32 == ref >> 32 else None

    def _set(self, ref: int, word: int, value: int) -> None:
        self._words[self._control + CONTROL_WORDS * (ref & LOW) + word] = ref >> 32 << 32 | value

    # --- the frontend's ------------------------------------------------------------------------------------------

    def open_slot(self, slot: int, params: bytes, arrival_ns: int) -> int:
        """Begin a new use of a free slot; returns its ref. ValueError if the parameters are longer than their area."""
        if len(params) > self.params_bytes:
            raise ValueError(f"{len(params)} bytes of parameters, at most {self.params_bytes} fit")
        control = self._control + CONTROL_WORDS * slot
        generation = self._words[control + GENERATION] % LAST_GENERATION + 1
        ref = make_ref(generation, slot)
        start = self._data + self._stride * slot
        self.segment.map[start : start + len(params)] = params
        self._words[control + ARRIVAL] = arrival_ns
        self._set(ref, PARAMS, len(params))
        store_fence()
        self._words[control + GENERATION] = generation  # SYNC: table.open
        return ref

    def is_current(self, ref: int) -> bool:
        """Is this still the slot's latest use?"""
        return self._words[self._control + CONTROL_WORDS * (ref & LOW) + GENERATION] == ref >> 32

    def current_refs(self, first_slot: int, count: int) -> list[int]:
        """The latest use of each of these slots that were ever used; it may have ended."""
        refs = []
        for slot in range(first_slot, first_slot + count):
            generation = self._words[self._control + CONTROL_WORDS * slot + GENERATION]
            if generation:
                refs.append(make_ref(generation, slot))
        return refs

    def cancel(self, ref: int) -> None:
        self._set(ref, CANCEL, 1)

    def is_cancelled(self, ref: int) -> bool:
        return bool(self._get(ref, CANCEL))

    def set_delivered(self, ref: int, count: int) -> None:
        self._set(ref, DELIVERED, count)

    def delivered(self, ref: int) -> int:
        """Characters handed to the socket."""
        return self._get(ref, DELIVERED) or 0

    def params(self, ref: int) -> bytes:
        """The parameters as they were written by open_slot."""
        start = self._data + self._stride * (ref & LOW)
        return self.segment.map[start : start + (self._get(ref, PARAMS) or 0)]

    def arrival_ns(self, ref: int) -> int:
        return self._words[self._control + CONTROL_WORDS * (ref & LOW) + ARRIVAL]

    # --- the renderer's ------------------------------------------------------------------------------------------

    def write_prompt(self, ref: int, tokens: Sequence[int] | bytes, hashes: bytes, limit: int) -> None:
        """The prompt (ids, or int32 as bytes), its full blocks' hashes and the most tokens to generate; prompt last."""
        start = self._token_index(ref)
        data = memoryview(tokens).cast("B").cast("i") if isinstance(tokens, bytes) else tokens
        count = len(data)
        if count > self.max_tokens:
            raise ValueError(f"{count} tokens, at most {self.max_tokens} fit")
        if isinstance(data, memoryview):
            self._ints[start : start + count] = data
        else:
            for index, token in enumerate(data, start):
                self._ints[index] = token
        place = self._hash_start(ref)
        self.segment.map[place : place + len(hashes)] = hashes
        self._set(ref, LIMIT, limit)
        store_fence()
        self._set(ref, PROMPT, count)  # SYNC: table.prompt

    def prompt_length(self, ref: int) -> int | None:
        """Tokens of the prompt; None before it was rendered."""
        return self._get(ref, PROMPT)

    def limit(self, ref: int) -> int:
        """The most tokens to generate."""
        return self._get(ref, LIMIT) or 0

    def hashes(self, ref: int) -> bytes:
        """The hashes of the prompt's full blocks, 16 bytes each."""
        place = self._hash_start(ref)
        return self.segment.map[place : place + HASH_BYTES * ((self.prompt_length(ref) or 0) // self.block_size)]

    # --- the scheduler's -----------------------------------------------------------------------------------------

    def append(self, ref: int, tokens: Sequence[int]) -> None:
        """Append generated tokens to the log."""
        count = self.generated(ref)
        start = self._token_index(ref) + (self.prompt_length(ref) or 0) + count
        for index, token in enumerate(tokens, start):
            self._ints[index] = token
        store_fence()
        self._set(ref, TOKENS, count + len(tokens))  # SYNC: table.tokens

    def generated(self, ref: int) -> int:
        """Generated tokens in the log."""
        return self._get(ref, TOKENS) or 0

    def set_cached(self, ref: int, count: int) -> None:
        self._set(ref, CACHED, count)

    def cached(self, ref: int) -> int:
        """Prompt tokens that the prefix cache had."""
        return self._get(ref, CACHED) or 0

    def set_finish(self, ref: int, code: int) -> None:
        store_fence()
        self._set(ref, FINISH, code)  # SYNC: table.finish

    def finish(self, ref: int) -> int:
        """Why the sequence ended; 0 while it has not. Read it before the tokens cursor."""
        return self._get(ref, FINISH) or 0

    def token_ids(self, ref: int, start: int, stop: int) -> memoryview[int]:
        """Token ids by position, prompt first: a view, valid as long as the slot's use lasts."""
        first = self._token_index(ref)
        return self._ints[first + start : first + stop]

    # --- the detokenizer's ---------------------------------------------------------------------------------------

    def set_text(self, ref: int, count: int) -> None:
        self._set(ref, TEXT, count)

    def text(self, ref: int) -> int:
        """Generated tokens that were turned to text and sent."""
        return self._get(ref, TEXT) or 0

    def set_stop(self, ref: int, count: int) -> None:
        self._set(ref, STOP, count)

    def stop(self, ref: int) -> int:
        """Generated tokens up to the one that completed a stop string; 0 while there is none."""
        return self._get(ref, STOP) or 0

    # --- where things lie ----------------------------------------------------------------------------------------

    def _token_index(self, ref: int) -> int:
        return (self._data + self._stride * (ref & LOW) + self.params_bytes) // 4

    def _hash_start(self, ref: int) -> int:
        return self._data + self._stride * (ref & LOW) + self.params_bytes + 4 * self.max_tokens

    def as_numpy(self) -> TableArrays:
        """The token log and the control words of all slots as arrays (imports numpy)."""
        from .table_arrays import TableArrays

        return TableArrays(self)

    @property
    def control_offset(self) -> int:
        """Where the control words begin, in bytes of the segment."""
        return self._control * 8

    @property
    def tokens_offset(self) -> int:
        """Where slot 0's token ids begin, in bytes of the segment."""
        return self._data + self.params_bytes

    @property
    def stride(self) -> int:
        """Bytes from one slot's data to the next."""
        return self._stride
