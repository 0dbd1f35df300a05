"""What this device can do at most: bytes copied, read and written, and products of 16-bit matrices, a second."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch

from .report import COMPILED, FOLDER, TINY, say

from actorserve.actors.worker.gpu.graphs import no_collection  # isort: skip

FILE = FOLDER / "ceilings.json"
CALLS = itertools.count()
COLD_BYTES = 256 << 20  # more than any device's L2 holds: who has read so much finds nothing of what was before
AS_IT_IS = "as it is"  # the way to launch that is taken
Call = Callable[[], object]
Made = TypeVar("Made")


def seconds(call: Call, repeat: int = 20) -> float:
    """The median time of a call on the device (or, without one, of the clock)."""
    if COMPILED in os.environ:
        return compiled(call)
    if not torch.cuda.is_available():
        begun = time.perf_counter()
        call()
        return time.perf_counter() - begun
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeat):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def seconds_each(calls: Sequence[Call], repeat: int = 20) -> float:
    """The median time of one of these calls, which are replayed in turn as one graph, so that no launch is timed."""
    if COMPILED in os.environ or not torch.cuda.is_available():
        return seconds(calls[0])
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with no_collection(), torch.cuda.graph(graph):
        for call in calls:
            call()
    return seconds(graph.replay, repeat) / len(calls)


def compared(label: str, variants: Mapping[str, Sequence[Call]]) -> dict[str, float]:
    """The time of each way to launch the same, the quickest first. One that fails is told, and only that which is taken
    is wrong then: others may want too much shared memory of this device.
    """
    times = {}
    for name, calls in variants.items():
        try:
            times[name] = seconds_each(calls, 10)
        except Exception as error:
            what = f"{label}, {name}: {type(error).__name__}: {str(error)[:80]}"
            say(what, "not run", "", "", False if name == AS_IT_IS else None)
    return dict(sorted(times.items(), key=lambda one: one[1]))


def compiled(call: Call) -> float:
    """Call it once, if it is one of those that this process compiles; a time that says nothing."""
    first, each = map(int, os.environ[COMPILED].split("/"))
    if next(CALLS) % each == first:
        call()
    return 1.0


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def cold(make: Callable[[], Made], moved: int, most: int = 64) -> list[Made]:
    """Inputs of so many bytes, or calls with such, of which none is in the cache when it is its turn again.

    At least 4, so that the start of a graph of them is shared; large ones come more than once.
    """
    if TINY or COMPILED in os.environ:
        return [make()]
    made = [make() for _ in range(max(1, min(most, -(-COLD_BYTES // max(moved, 1)))))]
    return (made * 4)[: max(4, len(made))]


def measure(on: torch.device, small: bool) -> dict[str, float]:
    """bytes/s of a copy, counting both ways, and of reading alone; FLOP/s of a bf16 product of random numbers."""
    count = 1 << 20 if small else 1 << 32
    source = torch.empty(count, dtype=torch.uint8, device=on).random_()
    target = torch.empty_like(source)
    copied = 2 * count / seconds(partial(target.copy_, source))
    numbers = source.view(torch.int32)
    read = count / seconds(partial(torch.amax, numbers, 0))
    size = 256 if small else 8192
    a, b = (torch.randn(size, size, device=on).to(torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    rate = 2 * size**3 / seconds(lambda: torch.mm(a, b, out=out))
    return {"bytes": copied, "read": read, "flops": rate}


def known() -> dict[str, float]:
    """What `measure` found in an earlier part of the check; measured now if there was none."""
    if FILE.exists():
        found: dict[str, float] = json.loads(FILE.read_text())
        return found
    return measure(device(), TINY)


if __name__ == "__main__":
    ceilings = measure(device(), TINY)
    FILE.write_text(json.dumps(ceilings))
    if torch.cuda.is_available():
        say("device", torch.cuda.get_device_name())
    say("torch", torch.__version__)
    say("copy, bytes read and written", ceilings["bytes"] / 1e12, "TB/s")
    say("the largest of 4 GiB of numbers, bytes read", ceilings["read"] / 1e12, "TB/s")
    say("bf16 product of 8192 x 8192", ceilings["flops"] / 1e12, "TFLOP/s")
