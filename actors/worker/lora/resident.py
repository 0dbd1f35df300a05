"""The adapters that a worker has in memory. Files are read and products made by a thread beside the one that computes
steps, which takes over what is there between two of them.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch

from ...model.lora.adapter import AdapterError, read_adapter, stamp_of
from .build import AdapterMaker
from .products import LoraProduct
from .sites import RowAdapters

Made = dict[int, LoraProduct]

CHANGED = "its files have changed since it was loaded"
MEANWHILE = "its files have changed while they were read"


class AdapterNews(NamedTuple):
    """Of an adapter that was asked for: it is there, or why it is not."""

    adapter: int
    problem: str = ""
    stamp: int = 0  # of the files that were read
    changed: bool = False  # they are not those that were asked for


class _Read(NamedTuple):
    news: AdapterNews
    made: Made | None = None


class ResidentAdapters:
    """What has been read, by id. All but `_run` belongs to the actor's own thread."""

    def __init__(self, maker: AdapterMaker, max_rank: int, wake: Callable[[], None]) -> None:
        """`wake` is called when something has been read, by the thread."""
        self._maker, self._max_rank, self._wake = maker, max_rank, wake
        self._loaded: dict[int, Made] = {}
        self._wanted: queue.SimpleQueue[tuple[int, str, int]] = queue.SimpleQueue()
        self._reading: set[int] = set()
        self._read: deque[_Read] = deque()  # appended by the thread
        self._known: list[int] = []  # that are asked for again
        self._thread = threading.Thread(target=self._run, name="actorserve-adapters", daemon=True)
        self._thread.start()

    @property
    def there(self) -> list[int]:
        """The ids of those in memory."""
        return sorted(self._loaded)

    def rows(self, count: int) -> RowAdapters:
        """For a batch of so many rows."""
        return RowAdapters(self._maker.sites, self._loaded, count)

    def check(self, path: str) -> None:
        """AdapterError if what files say of an adapter does not fit the model."""
        self._maker.check(read_adapter(path, self._max_rank))

    def read(self, adapter: int, path: str, stamp: int = 0) -> None:
        """Have it in memory, of files with this stamp if it is not 0; `take_read` says when. It may be asked again."""
        if adapter in self._loaded:
            self._known.append(adapter)
        elif adapter not in self._reading:
            self._reading.add(adapter)
            self._wanted.put((adapter, path, stamp))

    def drop(self, adapter: int) -> None:
        """No row has it; one that is being read is not wanted any more."""
        self._loaded.pop(adapter, None)
        self._reading.discard(adapter)

    def take_read(self) -> list[AdapterNews]:
        """What has been read since the last time, or cannot be."""
        told = [AdapterNews(adapter) for adapter in self._known]
        self._known.clear()
        while self._read:
            news, made = self._read.popleft()
            if news.adapter not in self._reading:
                continue
            self._reading.discard(news.adapter)
            if made is not None:
                self._loaded[news.adapter] = made
            told.append(news)
        return told

    def _run(self) -> None:
        while True:
            self._read.append(self._make(*self._wanted.get()))
            self._wake()

    def _make(self, adapter: int, path: str, stamp: int) -> _Read:
        found = stamp_of(path)
        if stamp and found and found != stamp:
            return _Read(AdapterNews(adapter, CHANGED, changed=True))
        made = self._made(path)
        if isinstance(made, str):
            return _Read(AdapterNews(adapter, made))
        if stamp_of(path) != found:
            return _Read(AdapterNews(adapter, MEANWHILE, changed=bool(stamp)))
        return _Read(AdapterNews(adapter, stamp=found), made)

    def _made(self, path: str) -> Made | str:
        try:
            with torch.inference_mode():
                return self._maker.make(read_adapter(path, self._max_rank))
        except AdapterError as error:
            return str(error)
        except MemoryError:
            return "there is no memory for it"
        except Exception as error:  # of this adapter: the others, and all requests, go on
            return f"it cannot be read: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
