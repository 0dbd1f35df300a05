"""KV events as vLLM's listeners declare them: the shapes that what is sent has to decode into."""

from __future__ import annotations

from typing import Any

import msgspec


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


class Mapped(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """As the newest have them."""


class MappedStored(Mapped, tag="BlockStored"):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None


class MappedRemoved(Mapped, tag="BlockRemoved"):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class MappedCleared(Mapped, tag="AllBlocksCleared"):
    pass


class MappedBatch(EventBatch):
    events: list[MappedStored | MappedRemoved | MappedCleared]


class Index:
    """What a router knows by these events, from the first that says that there is no block; what came before is of no
    use. It asserts that no block is told of behind one that is not there.
    """

    def __init__(self) -> None:
        self.tokens: dict[bytes | int, tuple[int, ...]] = {}  # of the whole prefix, by hash
        self.cleared = 0

    def hear(self, batch: KVEventBatch) -> None:
        for event in batch.events:
            match event:
                case AllBlocksCleared():
                    self.tokens.clear()
                    self.cleared += 1
                case _ if not self.cleared:
                    continue
                case BlockRemoved():
                    for key in event.block_hashes:
                        del self.tokens[key]
                case BlockStored():
                    self._store(event)

    def _store(self, event: BlockStored) -> None:
        assert event.medium == "GPU" and len(event.token_ids) == event.block_size * len(event.block_hashes)
        before = () if event.parent_block_hash is None else self.tokens[event.parent_block_hash]
        for index, key in enumerate(event.block_hashes):
            assert key not in self.tokens, "it was told before"
            start = index * event.block_size
            before = (*before, *event.token_ids[start : start + event.block_size])
            self.tokens[key] = before
