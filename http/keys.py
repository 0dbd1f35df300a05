"""The keys of requests that may be sent again, and what is kept by them. Leaf: the frontend's memory speaks of them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

KEY_BYTES = 16


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """Where the answer of a key is: what a repetition needs to give it again."""

    digest: bytes  # of the request
    refs: list[int]
    seed: int
    created: int
    until: float = 0.0  # Unix seconds


@dataclass(frozen=True)
class Key:
    """A request that may be sent again."""

    name: bytes
    digest: bytes
    owner: int  # the frontend that handles this key
