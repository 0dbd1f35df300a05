"""Which blocks a tier has lately written or read, so that none is written again. Threads share it."""

from __future__ import annotations

import threading
from collections import OrderedDict

from .carrier import Kind

MOST_KEYS = 1 << 17


class RecentKeys:
    """The latest ones; False of a key says nothing."""

    def __init__(self) -> None:
        self._keys: OrderedDict[tuple[bytes, bytes], None] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, of: tuple[Kind, bytes]) -> bool:
        kind, key = of
        return (kind.fingerprint, key) in self._keys

    def add(self, kind: Kind, key: bytes) -> None:
        with self._lock:
            self._keys[kind.fingerprint, key] = None
            if len(self._keys) > MOST_KEYS:
                self._keys.popitem(last=False)

    def discard(self, kind: Kind, keys: list[bytes]) -> None:
        with self._lock:
            for key in keys:
                self._keys.pop((kind.fingerprint, key), None)

    def clear(self) -> None:
        with self._lock:
            self._keys.clear()
