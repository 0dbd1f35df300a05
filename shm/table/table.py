"""The request table: one slot a sequence, and in it all that any actor must know to go on with it.

Messages are hints, this is the truth. Every word has one writer; a slot's control words fill a cache line a writer:
    line 0  frontend      generation | cancel | model | params length | arrival, first told, end told (ns) | seed
    line 1  renderer      limit | hashed | rendition length | engine, then prompt | render begun, rendered (ns)
    line 2  scheduler     cached | tokens, then finish | admitted, scheduled, first token, last token (ns) | setbacks
    line 3  detokenizer   text | stop; and of the scheduler, whose line 2 is full: load | drafted, accepted
A cursor is `generation << 32 | value` in one word, so that it is read and written whole together with the generation
that it speaks of; whoever asks for another generation finds nothing there. Order of stores: data before the cursor that
publishes it, the tokens cursor before `finish`; a reader loads the cursor first, `finish` before the tokens cursor.
The engine word says which engine's scheduler writes line 2. The renderer stores the first one, before the prompt; from
then on the word is that scheduler's, which may store another engine's number there: behind all that it has stored in
line 2, and then it stores nothing in the slot any more. So it is with the tokens cursor of an answer that another
server has begun: the renderer stores it, behind the tokens that were given out there and before the prompt, and whoever
is told of the prompt finds a log that goes on. If it dies before the prompt its successor writes the same.

Per slot there follow: parameters (the frontend's), what the renderer made of them, token ids int32 (prompt by the
renderer, then generated ones by the scheduler), 16-byte hashes of the prompt's blocks (the renderer's). A slot is free
when its frontend says so; others never write to a slot of which they have not been told by message, nor under an old
generation. When what happened stands in stamps (stamps.py), which `why` and the histograms read.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..fence import load_fence, store_fence
from ..layout import HASH_BYTES, LOW32, generation_of, make_ref, slot_of
from ..segment import Segment
from .layout import (
    ARRIVAL,
    CACHED,
    CANCEL,
    CONTROL_WORDS,
    DEATHS_SHIFT,
    ENGINE,
    FINISH,
    GENERATION,
    GIVEN,
    HASHED,
    LAST_GENERATION,
    LIMIT,
    LOAD,
    MODEL,
    MOST_DEATHS,
    MOST_ENGINES,
    MOST_MOVES,
    MOVES_SHIFT,
    PARAMS,
    PINNED,
    PROMPT,
    RENDITION,
    SEED,
    STOP,
    TEXT,
    TOKENS,
    TableLayout,
    table_bytes,
)

if TYPE_CHECKING:
    from .arrays import TableArrays

__all__ = ["RequestTable", "generation_of", "make_ref", "slot_of", "table_bytes"]


class RequestTable(TableLayout):
    """A view of the table at `offset` of a segment; every process has its own. A slot that is not there: IndexError."""

    def __init__(self, segment: Segment, offset: int) -> None:
        super().__init__(segment, offset)
        self._words = segment.words
        self._ints = memoryview(segment.map).cast("i")

    @classmethod
    def create(
        cls,
        segment: Segment,
        offset: int,
        slots: int,
        max_tokens: int,
        block_size: int,
        params_bytes: int = 16 << 10,
        rendition_bytes: int = 1 << 10,
    ) -> RequestTable:
        """Write the header into zeroed memory. `params_bytes` and `rendition_bytes` are multiples of 64."""
        cls.write_header(segment, offset, (slots, max_tokens, block_size, params_bytes, rendition_bytes))
        return cls(segment, offset)

    @classmethod
    def attach(cls, segment: Segment, offset: int = 0) -> RequestTable:
        """The table that the supervisor created there."""
        return cls(segment, offset)

    # --- cursors -----------------------------------------------------------------------------------------------

    def _get(self, ref: int, word: int) -> int | None:
        """A cursor's value, None where it speaks of another generation."""
        packed = self._words[self.control_word(ref & LOW32) + word]
        load_fence()  # what the cursor publishes is read after it
        return packed & LOW32 if packed >> 32 == ref >> 32 else None

    def _set(self, ref: int, word: int, value: int) -> None:
        if not 0 <= value <= LOW32:
            raise ValueError(f"a cursor cannot be {value}")
        self._words[self.control_word(ref & LOW32) + word] = ref >> 32 << 32 | value

    # --- the frontend's ------------------------------------------------------------------------------------------

    def open_slot(self, slot: int, params: bytes, arrival_ns: int, seed: int = 0, model: int = 0) -> int:
        """Begin a new use of a free slot; returns its ref. ValueError if the parameters are longer than their area.

        `seed`: what the answer's id is made of; `model`: which of the server's models is asked.
        """
        if len(params) > self.params_bytes:
            raise ValueError(f"{len(params)} bytes of parameters, at most {self.params_bytes} fit")
        control = self.control_word(slot)
        generation = self._words[control + GENERATION] % LAST_GENERATION + 1
        ref = make_ref(generation, slot)
        start = self.params_start(slot)
        self._set(ref, PARAMS, 0)  # the old use has no parameters from here on
        store_fence()
        self.segment.map[start : start + len(params)] = params
        self._words[control + ARRIVAL] = arrival_ns
        self._words[control + SEED] = seed
        self._words[control + MODEL] = model
        store_fence()
        self._set(ref, PARAMS, len(params))  # SYNC: table.params, pairs with params
        store_fence()
        self._words[control + GENERATION] = generation  # SYNC: table.open, pairs with is_current and current_refs
        return ref

    def is_current(self, ref: int) -> bool:
        """Is this still the slot's latest use?"""
        return self._words[self.control_word(ref & LOW32) + GENERATION] == ref >> 32  # SYNC: table.open

    def current_refs(self, first_slot: int, count: int) -> list[int]:
        """The latest use of each of these slots that were ever used; it may have ended."""
        first = self.control_word(first_slot)
        count = max(0, min(count, self.slots - first_slot))
        generations = self._words[first : first + count * CONTROL_WORDS : CONTROL_WORDS].tolist()  # SYNC: table.open
        load_fence()
        return [make_ref(generation, slot) for slot, generation in enumerate(generations, first_slot) if generation]

    def cancel(self, ref: int) -> None:
        """The client has gone."""
        self._set(ref, CANCEL, 1)

    def is_cancelled(self, ref: int) -> bool:
        return bool(self._get(ref, CANCEL))

    def params(self, ref: int) -> bytes:
        """The parameters as they were written by open_slot; nothing if the slot has a newer use."""
        start = self.params_start(ref & LOW32)
        params = self.segment.map[start : start + (self._get(ref, PARAMS) or 0)]  # SYNC: table.params
        load_fence()
        return params if self._get(ref, PARAMS) == len(params) else b""

    def arrival_ns(self, ref: int) -> int:
        """When the latest use of the ref's slot was opened, CLOCK_MONOTONIC."""
        return self._words[self.control_word(ref & LOW32) + ARRIVAL]

    def model(self, ref: int) -> int:
        """Which of the server's models the latest use of the ref's slot asks."""
        return self._words[self.control_word(ref & LOW32) + MODEL]

    def seed(self, ref: int) -> int:
        """What the answer's id is made of, of the latest use of the ref's slot."""
        return self._words[self.control_word(ref & LOW32) + SEED]

    # --- the renderer's ------------------------------------------------------------------------------------------

    def write_prompt(
        self,
        ref: int,
        tokens: Sequence[int] | bytes | memoryview,
        hashes: bytes,
        limit: int,
        rendition: bytes = b"",
        engine: int = 0,
        pinned: bool = False,
        given: Sequence[int] = (),
    ) -> None:
        """The prompt (ids, or int32 as bytes), its blocks' hashes, the most tokens to generate, what else was made of
        the request, and whose it is from now on, because it is wanted there if `pinned`; tokens of the answer that
        another server has `given`; the prompt's length last.
        """
        if len(rendition) > self.rendition_bytes:
            raise ValueError(f"{len(rendition)} bytes of rendition, at most {self.rendition_bytes} fit")
        data = memoryview(tokens if isinstance(tokens, (bytes, memoryview)) else array("i", tokens)).cast("B").cast("i")
        hashed = len(hashes) // HASH_BYTES
        if len(data) + len(given) > self.max_tokens:
            raise ValueError(f"{len(data) + len(given)} tokens, at most {self.max_tokens} fit")
        if len(hashes) % HASH_BYTES or hashed > len(data) // self.block_size:
            raise ValueError(f"{len(hashes)} bytes of hashes for {len(data) // self.block_size} full blocks")
        start = self.token_index(ref & LOW32)
        self._ints[start : start + len(data)] = data
        if given:
            self._ints[start + len(data) : start + len(data) + len(given)] = memoryview(array("i", given))
            self._set(ref, GIVEN, len(given))
            self._set(ref, TOKENS, len(given))  # SYNC: table.prompt, behind which it is read
        place = self.hashes_start(ref & LOW32)
        self.segment.map[place : place + len(hashes)] = hashes
        place = self.rendition_start(ref & LOW32)
        self.segment.map[place : place + len(rendition)] = rendition
        self._set(ref, RENDITION, len(rendition))
        self._set(ref, LIMIT, limit)
        self._set(ref, HASHED, hashed)
        self._set(ref, ENGINE, engine | (PINNED if pinned else 0))
        store_fence()
        self._set(ref, PROMPT, len(data))  # SYNC: table.prompt, pairs with prompt_length

    def prompt_length(self, ref: int) -> int | None:
        """Tokens of the prompt; None before it was rendered."""
        return self._get(ref, PROMPT)  # SYNC: table.prompt

    def limit(self, ref: int) -> int:
        """The most tokens to generate."""
        return self._get(ref, LIMIT) or 0

    def hashes(self, ref: int) -> bytes:
        """The hashes of the prompt's full blocks, 16 bytes each; nothing before the prompt is there, or with another
        load than they are of.
        """
        known = self.prompt_length(ref) is not None and not self.load(ref)
        count = self._get(ref, HASHED) or 0 if known else 0
        place = self.hashes_start(ref & LOW32)
        return self.segment.map[place : place + HASH_BYTES * count]

    def rendition(self, ref: int) -> bytes:
        """What the renderer made of the request's parameters; nothing before the prompt is there, or if the slot has a
        newer use, whose renderer may have begun to write it.
        """
        size = self._get(ref, RENDITION) or 0 if self.prompt_length(ref) is not None else 0
        place = self.rendition_start(ref & LOW32)
        rendition = self.segment.map[place : place + size]
        load_fence()
        return rendition if self.is_current(ref) else b""

    # --- the engine's, whose scheduler owns the slot -------------------------------------------------------------

    def engine(self, ref: int) -> int | None:
        """Whose scheduler writes to this slot; None before there is a prompt."""
        value = self._get(ref, ENGINE)
        return None if value is None else value & MOST_ENGINES

    def moves(self, ref: int) -> tuple[int, int]:
        """(how often the sequence has changed its engine, workers' deaths of which it is suspect)."""
        value = self._get(ref, ENGINE) or 0
        return value >> MOVES_SHIFT & MOST_MOVES, value >> DEATHS_SHIFT & MOST_DEATHS

    def is_pinned(self, ref: int) -> bool:
        """Is it wanted in the engine where it is?"""
        return bool((self._get(ref, ENGINE) or 0) & PINNED)

    def move(self, ref: int, engine: int, deaths: int = 0) -> None:
        """From now on the slot is that engine's: its owner's last store."""
        moves = min(MOST_MOVES, self.moves(ref)[0] + 1)
        store_fence()  # SYNC: table.engine: what the next owner reads is there
        self._set(ref, ENGINE, min(MOST_DEATHS, deaths) << DEATHS_SHIFT | moves << MOVES_SHIFT | engine)

    def clear_deaths(self, ref: int) -> None:
        """It is suspect of none any more; its owner's."""
        value = self._get(ref, ENGINE)
        if value is not None:
            self._set(ref, ENGINE, value & ~(MOST_DEATHS << DEATHS_SHIFT))

    # --- the scheduler's -----------------------------------------------------------------------------------------

    def append(self, ref: int, tokens: Sequence[int]) -> None:
        """Append generated tokens to the log."""
        prompt, count = self.prompt_length(ref), self.generated(ref)
        if prompt is None:
            raise ValueError(f"slot {slot_of(ref)} holds no prompt of generation {generation_of(ref)}")
        if prompt + count + len(tokens) > self.max_tokens:
            raise ValueError(f"{prompt} + {count} + {len(tokens)} tokens, at most {self.max_tokens} fit")
        start = self.token_index(ref & LOW32) + prompt + count
        self._ints[start : start + len(tokens)] = memoryview(array("i", tokens))
        store_fence()
        self._set(ref, TOKENS, count + len(tokens))  # SYNC: table.tokens, pairs with generated

    def generated(self, ref: int) -> int:
        """Generated tokens in the log."""
        return self._get(ref, TOKENS) or 0  # SYNC: table.tokens

    def given(self, ref: int) -> int:
        """Those of them that another server has generated."""
        return self._get(ref, GIVEN) or 0

    def set_cached(self, ref: int, count: int) -> None:
        self._set(ref, CACHED, count)

    def cached(self, ref: int) -> int:
        """Prompt tokens that the prefix cache had."""
        return self._get(ref, CACHED) or 0

    def set_load(self, ref: int, load: int) -> None:
        """The sequence goes on with this load of its adapter, and not with that of its parameters and hashes."""
        self._set(ref, LOAD, load)

    def load(self, ref: int) -> int:
        """The load that took the place of the one in its parameters; 0: none did."""
        return self._get(ref, LOAD) or 0

    def set_finish(self, ref: int, code: int) -> None:
        """The sequence has ended: nothing is appended any more."""
        store_fence()
        self._set(ref, FINISH, code)  # SYNC: table.finish, pairs with finish

    def finish(self, ref: int) -> int:
        """Why the sequence ended; 0 while it has not. Read it before the tokens cursor."""
        return self._get(ref, FINISH) or 0  # SYNC: table.finish

    def token_ids(self, ref: int, start: int, stop: int) -> memoryview[int]:
        """Token ids by position, prompt first: a view, valid as long as the slot's use lasts."""
        if not 0 <= start <= stop <= self.max_tokens:
            raise IndexError(f"no positions [{start}, {stop}) in a log of {self.max_tokens}")
        first = self.token_index(ref & LOW32)
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

    def as_numpy(self) -> TableArrays:
        """The token log and the control words of all slots as arrays (imports numpy)."""
        from .arrays import TableArrays

        return TableArrays(self)
