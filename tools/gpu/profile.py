"""Where the time of a step goes on the device, kernel by kernel, as torch's profiler sees it.

Launches of the process are slower behind it; so it comes behind all that is timed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import torch

from .report import say

# Where the profiler takes itself down, which it does later, the next one may see no kernels (pytorch/kineto#1554), or
# the process ends where it has CUDA graphs.
os.environ.setdefault("TEARDOWN_CUPTI", "0")

STEPS = 5
SHOWN = 12  # kernels, those that take longest first
NOISE = re.compile(r"^void |<.*|\(.*")  # of C++ names


def profiled(label: str, step: Callable[[], object], wall: float, layers: int) -> float:
    """Say what each kernel of a step takes; the share of `wall`, a step's seconds, in which kernels run.

    Without a GPU there are none, and the share is 0.
    """
    if not torch.cuda.is_available():
        step()
        return 0.0
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = {}
    for event in profile.key_averages():
        if event.device_type == torch.autograd.DeviceType.CUDA and event.self_device_time_total:
            name = NOISE.sub("", event.key)[:60] or event.key[:60]
            both = found.setdefault(name, [0.0, 0])
            both[0] += event.self_device_time_total / STEPS
            both[1] += event.count / STEPS
    whole = sum(took for took, _ in found.values())
    for name, (took, count) in sorted(found.items(), key=lambda item: -item[1][0])[:SHOWN]:
        what = f"{label}: `{name}`, {count:g} a step, {took / layers:.1f} us a layer: share of the step"
        say(what, took * 1e-6 / wall)
    say(f"{label}: kernels launched a layer", sum(count for _, count in found.values()) / layers)
    return whole * 1e-6 / wall
