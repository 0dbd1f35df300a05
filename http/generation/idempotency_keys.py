"""The keys of requests that may be sent again, and what is kept by them; and what tells clients apart.

Leaf: the frontend's memory speaks of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

import msgspec

KEY_BYTES = 16


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """Where the answer of a key is: what a repetition needs to give it again."""

    digest: bytes  # of the request
    refs: list[int]
    seed: int
    created: int
    until: float = 0.0  # seconds of CLOCK_MONOTONIC; 0: its end was not seen yet


class StartRecord(msgspec.Struct, frozen=True, array_like=True, tag="mcp-start"):
    """Which response of several turns a key has begun: no slots hold its answer."""

    digest: bytes  # of the request
    seed: int
    created: int
    until: float = 0.0  # seconds of CLOCK_MONOTONIC; 0: its end was not seen yet


class Background(msgspec.Struct, frozen=True, array_like=True, tag="background"):
    """A response that is being made while nobody waits: its request, and where its answer is."""

    id: str
    raw: bytes
    seed: int
    created: int
    account: str = ""  # the name of whose key asked for it, where that is one of --key-file
    request_id: str = ""


class Records(Protocol):
    """Those of a frontend, each of one key. What is old is forgotten where newer ones need its room."""

    def put(self, key: bytes, payload: bytes) -> bool:
        """Keep some bytes by a key, as long as there is room for them; False if they are too many."""

    def get(self, key: bytes, frontend: int | None = None) -> bytes | None:
        """What was put; `frontend`: by which, if not by this one. Of others' only what is as long as a response is."""


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
