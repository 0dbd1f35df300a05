"""The keys of requests that may be sent again, and what is kept by them; and what tells clients apart.

Leaf: the frontend's memory speaks of them.
"""

from __future__ import annotations

import hashlib
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


class Background(msgspec.Struct, frozen=True, array_like=True, tag="background"):
    """A response that is being made while nobody waits: its request, and where its answer is."""

    id: str
    raw: bytes
    seed: int
    created: int
    account: str = ""  # the name of whose key asked for it, where that is one of --key-file
    request_id: str = ""


@dataclass(frozen=True)
class Key:
    """A request that may be sent again."""

    name: bytes
    digest: bytes
    owner: int  # the frontend that handles this key


def client_of(api_key: bytes) -> str:
    """The name of all clients that send this API key; what is kept names them so, and never the key.

    It is made of the key alone: a successor, or one that has read the file of keys again, makes the same of it.
    """
    return hashlib.sha256(b"client\0" + api_key).hexdigest()
