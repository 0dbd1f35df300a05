"""What others' code has to be to keep KV blocks for a server: `--kv-offload plugin:MODULE:NAME`."""

from __future__ import annotations

from collections.abc import Iterable


class KVConnector:
    """Base of a store of KV blocks. One is made by the porter, and by no other process, each time that this starts.

    A block is bytes that say nothing to the connector: it is to give back what it was given, under the same fingerprint
    and key. Whether that is whole the server tells by a checksum in it; what is not is computed. A fingerprint (32
    bytes) stands for all that gives numbers in a block their meaning, a key (16 bytes) for the tokens up to its end.

    `lookup` and `load` are called by one thread, `store` and `forget` by another, one call at a time each. Whoever
    waits for a block waits for less than half a second. A call that takes longer than a second is told in the log, and
    nothing else is asked of its thread until it is over; an exception is told, too, and is a miss, and nothing is asked
    for 5 s.
    """

    def __init__(self, argument: str = "") -> None:
        """`argument`: what stands behind MODULE:NAME: in the option. It runs in the thread of `lookup`."""

    def lookup(self, fingerprint: bytes, keys: list[bytes]) -> int:
        """How many of the first of these blocks are there."""
        raise NotImplementedError

    def load(self, fingerprint: bytes, keys: list[bytes]) -> Iterable[bytes]:
        """These blocks, in this order, up to the first that is not there any more."""
        raise NotImplementedError

    def store(self, fingerprint: bytes, key: bytes, data: bytes) -> None:
        """Keep a block; it may be there already, and nobody minds if it is not kept."""
        raise NotImplementedError

    def forget(self, fingerprint: bytes) -> None:
        """None of these blocks may be found any more: the prefix cache was reset."""
        raise NotImplementedError
