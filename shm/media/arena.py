"""What requests have of pictures, films and sounds: processed tensors, and of each slot which are its own. A file of
its own, in which nobody but the worker and the media actors reads much.

Of each slot, in lines of words, one for each writer:
    line 0  its frontend   REQUEST: generation << 32 | 1, REQUEST_AT: where in the inbox (inbox.py) it is told what a
                           media actor is to fetch and process; stored before the cursor
    line 1  a media actor  DONE: generation << 32 | 1, all of it is done, or refused, and told; HELD: generation << 32 |
                           entries that this use of the slot holds, behind the words that name them
    line 2  a renderer     ITEMS: generation << 32 | bytes of the items, behind these; before the prompt's cursor
    then    HOLDS          words, sequence << 16 | entry; then the items, msgpack
Entries are pieces of the memory with a picture's tensors. A media actor alone writes the entries and the memory of its
own part. An entry has a line of words:
    SEQUENCE   odd while there is nothing to be found, even when all behind it holds; it only rises
    DIGEST (two words), OFFSET and BYTES of its extent, DESCRIBED: bytes of the description with which the extent
    begins, USED: when it was wanted last, CLOCK_MONOTONIC ns
An entry is held as long as a use of a slot that names it runs: its memory is not given away. Others stay until the
room is needed, and are found again by their digest: that is the cache of processed pictures.

Who dies where:
- the media actor, with SEQUENCE odd: its successor finds nothing there, and the room is free. Before HELD is stored:
  the entry is there and nobody's; the successor finds the request not DONE, and the entry by its digest. Before DONE:
  the renderer may get the request twice, and finds its prompt in the slot.
- the frontend, before REQUEST is stored: there is none. Its successor's use of the slot has another generation.
- the renderer, before ITEMS: the message comes again, and it writes the same. The worker may still read when a use has
  ended, be it cancelled, and its entries are given to others: `intact` says behind the reading whether what was read
  was the slot's all the time.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from ..fence import load_fence, store_fence
from ..layout import CACHE_LINE, LINE_WORDS, LOW32, PAGE, WORD_BYTES, generation_of, slot_of, whole

if TYPE_CHECKING:
    import numpy as np

REQUEST, REQUEST_AT = 0, 1
DONE, HELD = LINE_WORDS, LINE_WORDS + 1
ITEMS = 2 * LINE_WORDS
HOLDS = 3 * LINE_WORDS
MOST_ITEMS = 128  # of one prompt
ITEMS_BYTES = 40 << 10  # of all of them, packed
ITEMS_START = WORD_BYTES * (HOLDS + MOST_ITEMS)
SLOT_BYTES = whole(ITEMS_START + ITEMS_BYTES, PAGE)
SEQUENCE, DIGEST, OFFSET, BYTES, DESCRIBED, USED = 0, 1, 3, 4, 5, 6
ENTRIES = 4096  # of each media actor
ENTRY_BITS = 16  # of an entry's number, over all of them
CHUNK = 64 << 10  # what memory is given out in


class ArenaSizes(NamedTuple):
    """Of the file: slots, media actors, and bytes of each one's memory."""

    slots: int
    parts: int
    part_bytes: int

    @property
    def entries_start(self) -> int:
        return self.slots * SLOT_BYTES

    @property
    def data_start(self) -> int:
        return self.entries_start + self.parts * ENTRIES * CACHE_LINE

    @property
    def size(self) -> int:
        return self.data_start + self.parts * self.part_bytes


class Placed(Protocol):
    """An array in the arena: numpy's name of its numbers, and the bytes from the file's beginning."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def offset(self) -> int: ...


class MediaArena:
    """The file as every process sees it; each writes what is its own. `kind`: the struct of an item."""

    def __init__(self, fd: int, sizes: ArenaSizes, kind: Any = Any) -> None:
        self.sizes = sizes
        self.map = mmap.mmap(fd, sizes.size)
        self.words = memoryview(self.map).cast("Q")
        self._seen = memoryview(self.map).toreadonly()
        self._decode = msgspec.msgpack.Decoder(list[kind]).decode
        self._encode = msgspec.msgpack.Encoder().encode

    @staticmethod
    def create(sizes: ArenaSizes) -> int:
        """The descriptor of a memory file for these sizes. It is sparse: memory is taken when it is written."""
        if sizes.parts * ENTRIES > 1 << ENTRY_BITS or sizes.part_bytes % CHUNK:
            raise ValueError(f"no arena has {sizes.parts} parts of {sizes.part_bytes} bytes")
        fd = os.memfd_create("actorserve-media", os.MFD_CLOEXEC)
        os.ftruncate(fd, sizes.size)
        return fd

    # --- for the worker and the scheduler ------------------------------------------------------------------------

    def items(self, slot: int, generation: int) -> list[Any]:
        """What this use of a slot has of pictures, in the order of its prompt; nothing where it has none."""
        start = self.slot_word(slot)
        cursor = self.words[start + ITEMS]  # SYNC: media.items, pairs with write_items
        if cursor >> 32 != generation:
            return []
        load_fence()
        place = WORD_BYTES * start + ITEMS_START
        packed = self.map[place : place + (cursor & LOW32)]
        load_fence()
        return self._decode(packed) if self.words[start + ITEMS] == cursor else []

    def array(self, tensor: Placed) -> np.ndarray:
        """Its numbers, where they lie: a view that cannot be written."""
        import numpy as np  # not for the supervisor, which makes the file

        count = 1
        for size in tensor.shape:
            count *= size
        return np.frombuffer(self._seen, tensor.dtype, count, tensor.offset).reshape(tensor.shape)

    def intact(self, slot: int, generation: int) -> bool:
        """Is all that its arrays have shown since `items` still this use's? Asked when it was read, not before."""
        load_fence()
        held = self.holds(slot, generation)
        same = all(self.words[self.entry_word(entry) + SEQUENCE] == sequence for entry, sequence in held)
        load_fence()
        return same and self._is_latest(slot, generation)

    def _is_latest(self, slot: int, generation: int) -> bool:
        """Of the next use, HELD may be stored long before ITEMS; and where it is, `holds` has found nothing."""
        start = self.slot_word(slot)
        return all(self.words[start + word] >> 32 == generation for word in (HELD, ITEMS))

    def holds(self, slot: int, generation: int) -> list[tuple[int, int]]:
        """(entry, its sequence) of all that this use of a slot holds."""
        start = self.slot_word(slot)
        cursor = self.words[start + HELD]  # SYNC: media.held, pairs with write_holds
        if cursor >> 32 != generation:
            return []
        load_fence()
        words = self.words[start + HOLDS : start + HOLDS + (cursor & LOW32)].tolist()
        return [(word & (1 << ENTRY_BITS) - 1, word >> ENTRY_BITS) for word in words]

    # --- each writer's own words of a slot -----------------------------------------------------------------------

    def ask(self, ref: int, place: int) -> None:
        """The frontend: what is to be done for this use lies there in the inbox."""
        start = self.slot_word(slot_of(ref))
        self.words[start + REQUEST] = 0
        store_fence()
        self.words[start + REQUEST_AT] = place
        store_fence()
        self.words[start + REQUEST] = generation_of(ref) << 32 | 1  # SYNC: media.request, pairs with asked

    def asked(self, ref: int) -> int | None:
        """Where in the inbox it is told what is to be done for this use of a slot; None if nothing is."""
        start = self.slot_word(slot_of(ref))
        cursor = self.words[start + REQUEST]  # SYNC: media.request
        if cursor >> 32 != generation_of(ref):
            return None
        load_fence()
        return self.words[start + REQUEST_AT]

    def finish(self, ref: int) -> None:
        """The media actor: what was asked for this use is done with, and whoever goes on with it was told."""
        self.words[self.slot_word(slot_of(ref)) + DONE] = generation_of(ref) << 32 | 1

    def is_finished(self, ref: int) -> bool:
        return self.words[self.slot_word(slot_of(ref)) + DONE] >> 32 == generation_of(ref)

    def write_holds(self, ref: int, holds: list[tuple[int, int]]) -> None:
        """The media actor: (entry, its sequence) of all that this use of a slot has. What a predecessor has stored is
        left as it is: somebody may be reading.
        """
        start = self.slot_word(slot_of(ref))
        if holds and self.holds(slot_of(ref), generation_of(ref)) == holds:
            return
        self.words[start + HELD] = 0
        store_fence()
        for index, (entry, sequence) in enumerate(holds):
            self.words[start + HOLDS + index] = sequence << ENTRY_BITS | entry
        store_fence()
        self.words[start + HELD] = generation_of(ref) << 32 | len(holds)  # SYNC: media.held

    def write_items(self, ref: int, items: list[Any]) -> None:
        """The renderer: the items, with their positions in the prompt, before it publishes the prompt."""
        packed = self._encode(items)
        if len(packed) > ITEMS_BYTES:
            raise ValueError(f"{len(packed)} bytes of items, at most {ITEMS_BYTES} fit")
        start = self.slot_word(slot_of(ref))
        self.words[start + ITEMS] = 0
        store_fence()
        place = WORD_BYTES * start + ITEMS_START
        self.map[place : place + len(packed)] = packed
        store_fence()
        self.words[start + ITEMS] = generation_of(ref) << 32 | len(packed)  # SYNC: media.items

    # --- places --------------------------------------------------------------------------------------------------

    def slot_word(self, slot: int) -> int:
        """The first word of a slot."""
        if not 0 <= slot < self.sizes.slots:
            raise IndexError(f"there is no slot {slot} among {self.sizes.slots}")
        return slot * SLOT_BYTES // WORD_BYTES

    def entry_word(self, entry: int) -> int:
        """The first word of an entry."""
        return (self.sizes.entries_start + entry * CACHE_LINE) // WORD_BYTES
