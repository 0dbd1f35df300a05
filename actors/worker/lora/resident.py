"""The adapters that a worker has in memory. Files are read and products made by a thread beside the one that computes
steps, which takes over what is there between two of them.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

import torch

from ...model.lora.adapter import AdapterError, read_adapter
from .build import AdapterMaker
from .products import LoraProduct
from .sites import RowAdapters

Made = dict[int, LoraProduct]


class ResidentAdapters:
    """What has been read, by id. All but `_run` belongs to the actor's own thread."""

    def __init__(self, maker: AdapterMaker, max_rank: int, wake: Callable[[], None]) -> None:
        """`wake` is called when something has been read, by the thread."""
        self._maker, self._max_rank, self._wake = maker, max_rank, wake
        self._loaded: dict[int, Made] = {}
        self._wanted: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._reading: set[int] = set()
        self._read: deque[tuple[int, Made | str]] = deque()  # appended by the thread
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

    def read(self, adapter: int, path: str) -> None:
        """Have it in memory; `take_read` says when. It may be asked again."""
        if adapter in self._loaded:
            self._known.append(adapter)
        elif adapter not in self._reading:
            self._reading.add(adapter)
            self._wanted.put((adapter, path))

    def drop(self, adapter: int) -> None:
        """No row has it; one that is being read is not wanted any more."""
        self._loaded.pop(adapter, None)
        self._reading.discard(adapter)

    def take_read(self) -> list[tuple[int, str]]:
        """What has been read since the last time: (id, what is wrong with it)."""
        told = [(adapter, "") for adapter in self._known]
        self._known.clear()
        while self._read:
            adapter, made = self._read.popleft()
            if adapter not in self._reading:
                continue
            self._reading.discard(adapter)
            if isinstance(made, str):
                told.append((adapter, made))
            else:
                self._loaded[adapter] = made
                told.append((adapter, ""))
        return told

    def _run(self) -> None:
        while True:
            adapter, path = self._wanted.get()
            self._read.append((adapter, self._make(path)))
            self._wake()

    def _make(self, path: str) -> Made | str:
        try:
            with torch.inference_mode():
                return self._maker.make(read_adapter(path, self._max_rank))
        except AdapterError as error:
            return str(error)
        except MemoryError:
            return "there is no memory for it"
        except Exception as error:  # of this adapter: the others, and all requests, go on
            return f"it cannot be read: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
