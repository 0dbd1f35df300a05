"""KV memory on a GPU that outlives its worker (--keep-kv): the keeper's (keeper/actor.py), mapped here.

The bookkeeping is that of a CPU's memory (file.py): the header of the worker's file says whose memory it is, and since
which life. Here the file has nothing but that. It has not been run on a GPU.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from ...keeper.driver import Driver, DriverError
from ...protocol.sockets.keeper_wire import Drop, Find, Make, ask
from .file import KeptMemory

ALIGNED = 512  # bytes, at which tensors begin


class DeviceMemory:
    """One worker's, on one device."""

    def __init__(self, kept: KeptMemory, listener: int, worker: str, digest: bytes, device: torch.device) -> None:
        """`listener`: the descriptor of the keeper's socket. DriverError if there is no driver."""
        self.kept = kept
        self._listener, self._worker, self._digest, self._device = listener, worker, digest, device
        self._driver = Driver()
        self._memory: torch.Tensor | None = None
        self._taken = 0
        self._found: int | None = None  # a descriptor of what an earlier life has left
        self._size = 0
        self.since = self._find()

    def _find(self) -> int:
        """Since which life there is what header and keeper both say; 0: nothing."""
        there, fd = ask(self._listener, Find(self._worker, self._digest))
        if fd is None or not there.since or there.since != self.kept.since:
            _close(fd)
            return 0
        self._found, self._size = fd, there.size
        return there.since

    def forget(self) -> None:
        """Nothing is kept; its memory is free before anybody measures what is."""
        self.kept.forget()
        _close(self._found)
        self._found, self.since = None, 0
        ask(self._listener, Drop(self._worker))

    def go_on(self) -> int:
        """With what was found; its blocks."""
        assert self._found is not None, "it was found"
        self._map(self._found, self._size)
        return self.kept.blocks

    def begin(self, blocks: int, size: int, life: int) -> None:
        """All zeros, of so many bytes."""
        made, fd = ask(self._listener, Make(self._worker, self._digest, life, self._index, size))
        if fd is None:
            raise DriverError(made.problem or "the keeper has made no KV memory")
        self._map(fd, made.size)
        assert self._memory is not None, "it is mapped"
        self._memory.zero_()
        self.kept.begin(blocks)

    @property
    def _index(self) -> int:
        return self._device.index or 0

    def _map(self, fd: int, size: int) -> None:
        handle = self._driver.take_in(fd)
        _close(fd)
        self._found = None
        try:
            pointer = self._driver.map(handle, size, self._index)
        finally:
            self._driver.release(handle)  # what is mapped stays
        self._memory = tensor_at(pointer, size, self._device)

    def take(self, size: int) -> torch.Tensor:
        """The next bytes, the same in each life, which all take alike."""
        assert self._memory is not None, "it is mapped"
        start = self._taken
        self._taken += -(-size // ALIGNED) * ALIGNED
        if start + size > len(self._memory):
            raise ValueError(f"{start + size} bytes of KV memory of {len(self._memory)}")
        return self._memory[start : start + size]


def needed(sizes: list[int]) -> int:
    """Bytes for all of these pieces."""
    return sum(-(-size // ALIGNED) * ALIGNED for size in sizes)


def drop(listener: int, worker: str, log: logging.Logger) -> None:
    """Of a worker that has no use of its memory now; who keeps it may be gone, and the memory with it."""
    try:
        ask(listener, Drop(worker))
    except OSError as error:
        log.warning("the keeper of KV memory does not answer: %s", error)


class _Pointed:
    """Memory that torch makes a tensor of."""

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (size,), "typestr": "|u1", "data": (pointer, False), "version": 3,
        }  # fmt: skip


def tensor_at(pointer: int, size: int, device: torch.device) -> torch.Tensor:
    """Bytes at this address; on a CPU, where a test's driver maps memory of the host, too."""
    if device.type == "cuda":
        return torch.as_tensor(_Pointed(pointer, size), device=device)
    import ctypes

    return torch.frombuffer((ctypes.c_char * size).from_address(pointer), dtype=torch.uint8)


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)
