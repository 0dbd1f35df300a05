"""NIXL as what carries KV blocks between servers (`nixl` in --kv-offload, extra actorserve[nixl]): the one that wants
blocks reads them out of the other's arena, by whatever way UCX has between them (shared memory, RDMA, TCP).

Which blocks, where they lie, and for how long they stay there is said over TCP as ever (protocol/sockets/kv_wire.py).
Each process has one agent; only who knows the secret is told what it takes to read from it. Of deaths: an agent's
memory is not to be read any more when its process is gone, so a transfer fails, or takes too long, and is a miss.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from ...protocol.sockets.kv_wire import WINDOW_BYTES

DRAM, UCX = "DRAM", "UCX"
POLL_S = 0.0002  # NIXL has no signal of its own for a transfer's end
ENDED, FAILED = "DONE", "ERR"


class NixlError(RuntimeError):
    """It could not be transferred."""


class Agent:
    """This process's. `memory`: what others may read; None: nothing."""

    def __init__(self, memory: mmap.mmap | None, log: logging.Logger) -> None:
        from nixl._api import nixl_agent, nixl_agent_config  # imports much

        self._log, self._lock = log, threading.Lock()
        self._nixl: Any = nixl_agent(
            f"actorserve-{os.getpid()}-{os.urandom(4).hex()}", nixl_agent_config(backends=[UCX])
        )
        if memory is not None:
            self.register(memory)
        self.about: bytes = self._nixl.get_agent_metadata()
        self._resting: list[mmap.mmap] = []  # a transfer that was given up may write there still

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """One call at a time; whatever the library raises is a NixlError."""
        try:
            with self._lock:
                yield
        except NixlError:
            raise
        except Exception as error:
            raise NixlError(f"NIXL: {error or type(error).__name__}") from error

    def register(self, memory: mmap.mmap) -> None:
        """It may be read or written by a transfer, for as long as this process lives."""
        with self._calling():
            self._nixl.register_memory([(_address(memory), len(memory), 0, "")], DRAM)

    def memory(self, size: int) -> mmap.mmap:
        """So many bytes for what is read."""
        found = next((memory for memory in self._resting if len(memory) >= size), None)
        if found is not None:
            self._resting.remove(found)
            return found
        made = mmap.mmap(-1, max(size, WINDOW_BYTES))
        self.register(made)
        return made

    def rest(self, memory: mmap.mmap) -> None:
        """It is for the next."""
        self._resting.append(memory)

    @staticmethod
    def place(data: memoryview) -> int:
        """Where these bytes lie."""
        return ctypes.addressof(ctypes.c_char.from_buffer(data))

    def staging(self, about: bytes) -> Staging:
        """Memory for what is read from the agent of which this is said."""
        return Staging(self, about)

    def meet(self, about: bytes) -> str:
        """Another agent, by its name."""
        with self._calling():
            name = self._nixl.add_remote_agent(about)
            return name.decode() if isinstance(name, bytes) else str(name)

    def leave(self, name: str) -> None:
        with self._calling():
            self._nixl.remove_remote_agent(name)

    def read(
        self, name: str, into: list[tuple[int, int, int]], there: list[tuple[int, int, int]], deadline: float
    ) -> None:
        """From the other's memory, (address, bytes, 0) each; NixlError if that fails, or is not done by then."""
        with self._calling():
            own, its = self._nixl.get_xfer_descs(into, DRAM), self._nixl.get_xfer_descs(there, DRAM)
            handle = self._nixl.initialize_xfer("READ", own, its, name, b"")
            state = self._nixl.transfer(handle)
        try:
            while state != ENDED:
                if state == FAILED or time.monotonic() > deadline:
                    raise NixlError("NIXL has failed to read them" if state == FAILED else "NIXL takes too long")
                time.sleep(POLL_S)
                with self._calling():
                    state = self._nixl.check_xfer_state(handle)
        finally:
            with self._calling():
                self._nixl.release_xfer_handle(handle)


class Staging:
    """Where blocks of one other server come to."""

    def __init__(self, agent: Agent, about: bytes) -> None:
        self._agent = agent
        self._name = agent.meet(about)
        self._memory = agent.memory(WINDOW_BYTES)

    def read(self, places: list[int], size: int, deadline: float) -> list[bytes]:
        """Blocks of this size; one may be larger than a window."""
        if len(places) * size > len(self._memory):
            self._agent.rest(self._memory)
            self._memory = self._agent.memory(len(places) * size)
        start = _address(self._memory)
        into = [(start + index * size, size, 0) for index in range(len(places))]
        self._agent.read(self._name, into, [(place, size, 0) for place in places], deadline)
        return [self._memory[index * size : (index + 1) * size] for index in range(len(places))]

    def close(self) -> None:
        self._agent.rest(self._memory)
        with contextlib.suppress(NixlError):  # the other is gone, and nothing of it is left to be told
            self._agent.leave(self._name)


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
