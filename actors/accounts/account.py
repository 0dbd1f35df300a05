"""What the server knows of one client key: its name, its limits, and by what it is told from others. Leaf.

The supervisor reads the file (key_file.py) and publishes the accounts in shared memory; frontends find them there.
"""

from __future__ import annotations

import hashlib

import msgspec

MOST_ACCOUNTS = 1024  # names, in the server's life
BOOK_BYTES = 2 << 20  # of all accounts, packed


class Account(msgspec.Struct, frozen=True, array_like=True):
    """A key of --key-file. What is None is not limited."""

    entry: int  # its number in the ledger, for the server's life
    name: str
    digest: bytes  # of its key; empty: the file has it no more, and nobody is let in by it
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None  # requests at once
    budget: int | None = None  # tokens, since the server's start
    max_tokens: int | None = None  # of one answer
    models: list[str] = []  # that it may ask for; empty: all
    priority: int | None = None  # its requests have none better (lower)

    @property
    def is_limited(self) -> bool:
        """Must a request wait for its turn to be let in?"""
        limits = self.requests_per_minute, self.tokens_per_minute, self.concurrent, self.budget
        return any(limit is not None for limit in limits)

    def may_ask_for(self, model: str) -> bool:
        return not self.models or model in self.models

    def priority_of(self, wanted: int) -> int:
        """What a request gets that wants this one; 0 is what it gets without a wish."""
        return wanted if self.priority is None else max(wanted, self.priority)


def digest_of(key: bytes) -> bytes:
    """By what a key is found: who looks for it learns nothing of others by the time that takes."""
    return hashlib.sha256(key).digest()


def pack(accounts: list[Account]) -> bytes:
    return msgspec.msgpack.encode(accounts)


def unpack(data: bytes) -> list[Account]:
    return msgspec.msgpack.decode(data, type=list[Account]) if data else []
