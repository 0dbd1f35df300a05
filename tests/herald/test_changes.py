"""Events say how what is cached differs from what was told, and decode by the classes of vLLM's listeners."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from actorserve.actors.herald.changes import BlockChanges
from actorserve.actors.herald.events import Cleared, Removed, Stored, encode, hash_of
from actorserve.actors.protocol.block_hash import HASH_BYTES, extend_hashes
from actorserve.shm.kv_map.map import KVMap, kv_map_bytes
from actorserve.shm.kv_map.notes import BlockNotes, NoteSizes
from actorserve.shm.kv_map.reader import CachedBlocks
from actorserve.shm.segment import Segment
from tests.herald.vllm_events import Index, KVEventBatch, MappedBatch, MappedStored

SIZE, BLOCKS = 8, 32
SIZES = (4, 8, BLOCKS, 0, 0)
DECODE = msgspec.msgpack.Decoder(KVEventBatch).decode


class Engine:
    """A KV map with notes, as a scheduler leaves them."""

    def __init__(self) -> None:
        self.segment = Segment.create(kv_map_bytes(*SIZES), "test")
        self.map = KVMap(self.segment.map, 0, *SIZES)
        sizes = NoteSizes(1, BLOCKS, SIZE)
        self.fd = BlockNotes.create(sizes)
        self.notes = BlockNotes(self.fd, sizes, 0)
        self.map.begin(1, BLOCKS)

    def changes(self) -> BlockChanges:
        return BlockChanges(CachedBlocks(self.segment, 0, SIZES), self.notes, SIZE, lambda number: f"adapter {number}")

    def cache(self, block: int, keys: list[bytes], index: int, tokens: np.ndarray, adapter: int = 0) -> None:
        part = tokens[index * SIZE : (index + 1) * SIZE].tobytes()
        self.notes.write(block, keys[index - 1] if index else None, adapter, part)
        self.map.cache(block, keys[index])


def prefix(seed: int, blocks: int) -> tuple[list[bytes], np.ndarray]:
    tokens = np.random.default_rng(seed).integers(0, 50_000, blocks * SIZE).astype(np.int32)
    packed = extend_hashes(b"", tokens.tobytes(), SIZE)
    return [packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES)], tokens


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    os.close(made.fd)


def test_a_prefix_is_one_event_behind_its_parent(engine: Engine) -> None:
    changes, (keys, tokens) = engine.changes(), prefix(1, 4)
    assert changes.events() == [Cleared()]
    for index, block in enumerate((7, 3, 9)):
        engine.cache(block, keys, index, tokens)
    (event,) = changes.events()
    assert event == Stored([hash_of(key) for key in keys[:3]], None, tokens[: 3 * SIZE].tolist(), SIZE)
    engine.cache(1, keys, 3, tokens, adapter=5)
    (event,) = changes.events()
    assert isinstance(event, Stored) and event.parent_block_hash == hash_of(keys[2])
    assert (event.lora_id, event.lora_name) == (5, "adapter 5")
    engine.map.uncache(1)
    assert changes.events() == [Removed([hash_of(keys[3])])] and changes.events() == []
    engine.map.reset_cache()
    assert changes.events() == [Cleared()] and changes.blocks == 0


def test_of_a_block_without_tokens_nobody_is_told(engine: Engine) -> None:
    """As of a prompt that is embeddings: others' token ids would seem to find it. The block's next use is told."""
    keys, tokens = prefix(1, 3)
    changes = engine.changes()
    engine.cache(0, keys, 0, tokens)
    for block in (1, 2):
        engine.notes.write(block, keys[0], 0, bytes(4 * SIZE))
        engine.notes.write_untold(block)
        engine.map.cache(block, keys[block])
    (cleared, stored) = changes.events()
    assert cleared == Cleared() and stored == Stored([hash_of(keys[0])], None, tokens[:SIZE].tolist(), SIZE)
    assert changes.blocks == 1
    engine.map.uncache(1)
    engine.cache(1, keys, 1, tokens)
    (told,) = changes.events()
    assert told == Stored([hash_of(keys[1])], hash_of(keys[0]), tokens[SIZE : 2 * SIZE].tolist(), SIZE)


def test_a_prefix_that_moves_to_another_block_is_no_event(engine: Engine) -> None:
    changes, (keys, tokens) = engine.changes(), prefix(1, 2)
    engine.cache(0, keys, 0, tokens)
    engine.cache(1, keys, 1, tokens)
    changes.events()
    engine.map.uncache(1)
    engine.cache(5, keys, 1, tokens)
    assert changes.events() == [] and changes.blocks == 2
    engine.map.uncache(5)
    assert changes.events() == [Removed([hash_of(keys[1])])]


def test_all_is_said_anew(engine: Engine) -> None:
    changes, (keys, tokens) = engine.changes(), prefix(1, 3)
    for index in range(3):
        engine.cache(index, keys, index, tokens)
    first = changes.events()
    changes.say_all()
    assert changes.events() == first and first[0] == Cleared() and len(first) == 2
    assert engine.changes().events() == first, "and by a herald that is born again"


@pytest.mark.parametrize("seed", range(5))
def test_a_listener_knows_what_is_cached(engine: Engine, seed: int) -> None:
    """Whatever is cached, given away and reset between two looks; what was told decodes as vLLM's."""
    chance, changes, index = random.Random(seed), engine.changes(), Index()
    prefixes = [prefix(number, 4) for number in range(6)]
    cached: dict[int, tuple[bytes, tuple[int, ...]]] = {}
    for _ in range(300):
        keys, tokens = chance.choice(prefixes)
        there = {key for key, _ in cached.values()}
        depth = next((at for at, key in enumerate(keys) if key not in there), None)
        match chance.randrange(8):
            case 0 | 1 | 2 | 3 if depth is not None and len(cached) < BLOCKS:
                block = chance.choice([one for one in range(BLOCKS) if one not in cached])
                engine.cache(block, keys, depth, tokens)
                cached[block] = keys[depth], tuple(tokens[: (depth + 1) * SIZE].tolist())
            case 4 if depth:  # the last of a prefix is given away first
                block = next(one for one, (key, _) in cached.items() if key == keys[depth - 1])
                engine.map.uncache(block)
                del cached[block]
            case 5 if chance.random() < 0.05:
                engine.map.reset_cache()
                cached.clear()
            case 6 if chance.random() < 0.1:
                changes = engine.changes()
            case _:
                index.hear(DECODE(encode(1.5, changes.events(), 0, False)))
                assert index.tokens == {hash_of(key): known for key, known in cached.values()}


def test_events_as_maps() -> None:
    event = Stored([1, 2], None, [3] * 16, 8, None)
    batch = msgspec.msgpack.decode(encode(2.0, [event, Removed([4]), Cleared()], 3, True), type=MappedBatch)
    assert batch.data_parallel_rank == 3 and batch.ts == 2.0 and len(batch.events) == 3
    assert batch.events[0] == MappedStored([1, 2], None, [3] * 16, 8, None, "GPU", None)
