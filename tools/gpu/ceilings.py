"""What this device can do at most: bytes copied, read and written, and products of 16-bit matrices, a second."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

FILE = Path(os.environ.get("GPU_CHECK_CEILINGS", "/tmp/gpu_check_ceilings.json"))


def seconds(call: Callable[[], object], repeat: int = 20, inner: int = 0) -> float:
    """The median time of a call on the device (or, without one, of the clock).

    `inner`: so many calls at a time are replayed as a graph, so that what is timed is not the launch.
    """
    if not torch.cuda.is_available():
        begun = time.perf_counter()
        call()
        return time.perf_counter() - begun
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    if inner:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(inner):
                call()
        return seconds(graph.replay, repeat) / inner
    times = []
    for _ in range(repeat):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def measure(device: torch.device, small: bool) -> dict[str, float]:
    """bytes/s of a copy, counting both ways; FLOP/s of a bf16 product of random numbers."""
    count = 1 << 20 if small else 1 << 32
    source = torch.empty(count, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    copied = 2 * count / seconds(partial(target.copy_, source))
    size = 256 if small else 8192
    a, b = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    rate = 2 * size**3 / seconds(lambda: torch.mm(a, b, out=out))
    return {"bytes": copied, "flops": rate}


def known() -> dict[str, float]:
    """What `measure` found in an earlier part of the check; measured now if there was none."""
    if FILE.exists():
        found: dict[str, float] = json.loads(FILE.read_text())
        return found
    from .report import TINY

    return measure(torch.device("cuda" if torch.cuda.is_available() else "cpu"), TINY)


if __name__ == "__main__":
    from .report import TINY, say

    ceilings = measure(torch.device("cuda" if torch.cuda.is_available() else "cpu"), TINY)
    FILE.write_text(json.dumps(ceilings))
    if torch.cuda.is_available():
        say("device", torch.cuda.get_device_name())
    say("torch", torch.__version__)
    say("copy, bytes read and written", ceilings["bytes"] / 1e12, "TB/s")
    say("bf16 product of 8192 x 8192", ceilings["flops"] / 1e12, "TFLOP/s")
