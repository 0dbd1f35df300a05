"""What of torch.cuda the worker uses, for a device that is pretended (pretended_device.py)."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from .recorded_graphs import RecordedGraph

if TYPE_CHECKING:
    import torch
    from torch import UntypedStorage

PROCESSORS = 132
ROOM = 1 << 30


class Device(Protocol):
    """What is under way."""

    graph: RecordedGraph | None
    hurry: bool
    refuses: bool

    @property
    def given(self) -> int: ...

    def wait(self, given: int | None = None) -> None: ...


class Event:
    """A place in what the device was given."""

    device: ClassVar[Device]

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.at: int | None = None

    def record(self, stream: object = None) -> None:
        assert self.device.graph is None, "an event of the host's within a capture"
        self.at = self.device.given

    def synchronize(self) -> None:
        assert not self.device.hurry, "the host waits for the device"
        self.device.wait(self.at)

    def elapsed_time(self, end: Event) -> float:
        assert self.at is not None and end.at is not None and self.at <= end.at
        return 1.0


class Stream:
    """All is done in the order in which it is given."""

    def __init__(self, on: object = None) -> None: ...

    def wait_stream(self, other: Stream) -> None: ...

    def wait_event(self, event: Event) -> None: ...


class DeviceMemory:
    """Bytes of tensors; what graphs keep is not counted."""

    def __init__(self) -> None:
        self.allocated = self.peak = 0
        self._tensors = Counter[int]()  # of each storage

    def take(self, tensor: object, storage: UntypedStorage) -> None:
        """For as long as the tensor is there."""
        address, size = storage.data_ptr(), storage.nbytes()
        if not self._tensors[address]:
            self.allocated += size
            self.peak = max(self.peak, self.allocated)
        self._tensors[address] += 1
        weakref.finalize(tensor, self._give_back, address, size)

    def _give_back(self, address: int, size: int) -> None:
        self._tensors[address] -= 1
        if not self._tensors[address]:
            del self._tensors[address]
            self.allocated -= size

    def reset_peak(self, on: object = None) -> None:
        """Begin anew."""
        self.peak = self.allocated


class Pools:
    """Of graphs: torch takes none into one whose graphs are all gone."""

    def __init__(self) -> None:
        self.graphs = Counter[int]()  # in each
        self.left: set[int] = set()
        self.number = 0

    def make(self) -> int:
        self.number += 1
        return self.number

    def take(self, pool: int) -> None:
        assert pool not in self.left, "torch takes no graph into a pool whose graphs are all gone"
        self.graphs[pool] += 1

    def give_back(self, pool: int) -> None:
        self.graphs[pool] -= 1
        if not self.graphs[pool]:
            self.left.add(pool)


class CUDAGraph(RecordedGraph):
    """One that leaves its pool when it goes."""

    pools: ClassVar[Pools]
    pool: int | None = None

    def __del__(self) -> None:
        if self.pool is not None:
            self.pools.give_back(self.pool)


def names_of(device: Device, memory: DeviceMemory) -> dict[str, Any]:
    """By the names that they have in torch.cuda."""
    pools = Pools()

    @contextlib.contextmanager
    def graph(made: CUDAGraph, pool: int, capture_error_mode: str = "global") -> Iterator[None]:
        assert device.graph is None and capture_error_mode == "thread_local"
        assert not gc.isenabled(), "what the collector frees breaks a capture"
        pools.take(pool)
        made.pool, device.graph = pool, made
        try:
            yield
        finally:
            device.graph = None

    def synchronize(on: object = None) -> None:
        assert device.graph is None and not device.hurry
        device.wait()

    def set_device(on: torch.device | int) -> None:
        """torch knows none without a number."""
        assert isinstance(on, int) or on.index is not None, f"Expected a torch.device with a specified index: {on}"

    def set_sync_debug_mode(mode: str) -> None:
        device.refuses = {"default": False, "error": True}[mode]

    found: dict[str, Any] = dict.fromkeys(("_lazy_init", "empty_cache"), lambda *given: None)
    found |= {"set_device": set_device, "current_device": lambda: 0, "set_sync_debug_mode": set_sync_debug_mode}
    found |= {"Event": type("Event", (Event,), {"device": device}), "Stream": Stream, "current_stream": Stream}
    found |= {"CUDAGraph": type("CUDAGraph", (CUDAGraph,), {"pools": pools}), "graph": graph}
    found |= {"graph_pool_handle": pools.make, "synchronize": synchronize}
    found |= dict.fromkeys(("stream", "device"), lambda own: contextlib.nullcontext())
    # Of the interpreter, which knows no wait for the kernel before, as Hopper has.
    properties = SimpleNamespace(multi_processor_count=PROCESSORS)
    found |= {"memory_allocated": lambda on=None: memory.allocated, "max_memory_allocated": lambda on=None: memory.peak}
    found |= {"reset_peak_memory_stats": memory.reset_peak}
    told = {"get_device_properties": properties, "get_device_capability": (8, 9), "get_device_name": "none"}
    told["mem_get_info"] = ROOM, ROOM
    return found | {name: lambda on=None, value=value: value for name, value in told.items()}
