"""KV events as vLLM tells them: a batch is a msgpack array `[time, events, rank]`, an event an array that begins with
its name, or a map with its name as `type` (`event_format`). A block's hash is a number: the first 8 bytes of its key.
"""

from __future__ import annotations

import msgspec

MEDIUM = "GPU"  # what readers take for the engine's own KV memory, whatever that is


def hash_of(key: bytes) -> int:
    """As indexers know a block."""
    return int.from_bytes(key[:8], "big")


class Stored(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="BlockStored"):
    """These blocks are there now, each behind the one before it and the first behind its parent."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = MEDIUM
    lora_name: str | None = None


class Removed(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="BlockRemoved"):
    """They are there no more."""

    block_hashes: list[int]
    medium: str | None = MEDIUM


class Cleared(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="AllBlocksCleared"):
    """No block is there."""


Event = Stored | Removed | Cleared


def encode(time: float, events: list[Event], rank: int, as_maps: bool) -> bytes:
    """A batch."""
    told: list[object] = [_as_map(event) for event in events] if as_maps else list(events)
    return msgspec.msgpack.encode([time, told, rank])


def _as_map(event: Event) -> dict[str, object]:
    name = type(event).__struct_config__.tag
    return {"type": name, **{field: getattr(event, field) for field in event.__struct_fields__}}
