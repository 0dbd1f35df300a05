"""The adapters that a worker has in memory. Files are read and products made by a thread beside the one that computes
steps, which takes over what is there between two of them. What is kept of an adapter is the device's to say.
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch

from ...model.lora.adapter import AdapterError, read_adapter, stamp_of
from .build import AdapterMaker
from .products import LoraProduct
from .sites import LoraSites, RowAdapters

Product = TypeVar("Product")  # of one adapter, by the numbers of sites
Kept = TypeVar("Kept")

CHANGED = "its files have changed since it was loaded"
MEANWHILE = "its files have changed while they were read"


class AdapterNews(NamedTuple):
    """Of an adapter that was asked for: it is there, or why it is not."""

    adapter: int
    problem: str = ""
    stamp: int = 0  # of the files that were read
    changed: bool = False  # they are not those that were asked for


class Wanted(NamedTuple):
    """An adapter that is to be read."""

    adapter: int
    path: str
    stamp: int
    slot: int  # where it is to be, on a device that has slots


class _Read(NamedTuple, Generic[Kept]):
    wanted: Wanted
    news: AdapterNews
    kept: Kept | None = None


class AdapterReader(ABC, Generic[Product, Kept]):
    """What has been read, by id. All but `_run` and what it calls belongs to the actor's own thread."""

    def __init__(self, maker: AdapterMaker[Product], max_rank: int, wake: Callable[[], None]) -> None:
        """`wake` is called when something has been read, by the thread."""
        self._maker, self._max_rank, self._wake = maker, max_rank, wake
        self._loaded: dict[int, Kept] = {}
        self._wanted: queue.SimpleQueue[Wanted] = queue.SimpleQueue()
        self._reading: dict[int, Wanted] = {}
        self._read: deque[_Read[Kept]] = deque()  # appended by the thread
        self._known: list[int] = []  # that are asked for again
        self._thread = threading.Thread(target=self._run, name="actorserve-adapters", daemon=True)
        self._thread.start()

    @abstractmethod
    def keep(self, made: dict[int, Product], slot: int) -> Kept:
        """Called by the thread with all that an adapter adds."""

    @property
    def there(self) -> list[int]:
        """The ids of those in memory."""
        return sorted(self._loaded)

    def check(self, path: str) -> None:
        """AdapterError if what files say of an adapter does not fit the model."""
        self._maker.check(read_adapter(path, self._max_rank))

    def read(self, adapter: int, path: str, stamp: int = 0) -> None:
        """Have it in memory, of files with this stamp if it is not 0; `take_read` says when. It may be asked again."""
        if adapter in self._loaded:
            self._known.append(adapter)
        elif adapter not in self._reading:
            self.begin(adapter, path, stamp)

    def begin(self, adapter: int, path: str, stamp: int, slot: int = 0) -> None:
        """Let the thread read it."""
        wanted = self._reading[adapter] = Wanted(adapter, path, stamp, slot)
        self._wanted.put(wanted)

    def drop(self, adapter: int) -> None:
        """No row has it; one that is being read is not wanted any more."""
        self._loaded.pop(adapter, None)
        self._reading.pop(adapter, None)

    def take_read(self) -> list[AdapterNews]:
        """What has been read since the last time, or cannot be."""
        told = [AdapterNews(adapter) for adapter in self._known]
        self._known.clear()
        while self._read:
            wanted, news, kept = self._read.popleft()
            if self._reading.get(news.adapter) is not wanted:
                continue
            del self._reading[news.adapter]
            if kept is not None:
                self._loaded[news.adapter] = kept
            told.append(news)
        return told

    def _run(self) -> None:
        while True:
            self._read.append(self._make(self._wanted.get()))
            self._wake()

    def _make(self, wanted: Wanted) -> _Read[Kept]:
        adapter, path, stamp, slot = wanted
        found = stamp_of(path)
        if stamp and found and found != stamp:
            return _Read(wanted, AdapterNews(adapter, CHANGED, changed=True))
        made = self._made(path, slot)
        if isinstance(made, str):
            return _Read(wanted, AdapterNews(adapter, made))
        if stamp_of(path) != found:
            return _Read(wanted, AdapterNews(adapter, MEANWHILE, changed=bool(stamp)))
        return _Read(wanted, AdapterNews(adapter, stamp=found), made)

    def _made(self, path: str, slot: int) -> Kept | str:
        try:
            with torch.inference_mode():
                return self.keep(self._maker.make(read_adapter(path, self._max_rank)), slot)
        except AdapterError as error:
            return str(error)
        except MemoryError:
            return "there is no memory for it"
        except Exception as error:  # of this adapter: the others, and all requests, go on
            return f"it cannot be read: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


class CpuAdapterMaker(AdapterMaker[LoraProduct]):
    """Of products of a CPU."""

    sites: LoraSites


class ResidentAdapters(AdapterReader[LoraProduct, dict[int, LoraProduct]]):
    """On a CPU products are computed with where they are."""

    def __init__(self, maker: CpuAdapterMaker, max_rank: int, wake: Callable[[], None]) -> None:
        self._sites = maker.sites
        super().__init__(maker, max_rank, wake)

    def keep(self, made: dict[int, LoraProduct], slot: int) -> dict[int, LoraProduct]:
        return made

    def rows(self, count: int) -> RowAdapters:
        """For a batch of so many rows."""
        return RowAdapters(self._sites, self._loaded, count)
