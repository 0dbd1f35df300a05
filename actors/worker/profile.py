"""torch's profiler beside a worker's sampled stacks: operators of a profile's first steps, and kernels on a GPU."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from .torch_import import import_rest

MOST_STEPS = 100  # behind which it stops: it keeps every operator in memory
MOST_ENTRIES = 200_000


class TorchProfiler:
    """Of one profile, used by the worker's thread alone."""

    def __init__(self) -> None:
        import_rest()
        import torch
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)
        self._profile.start()
        self._steps = 0
        self._runs = True

    def step(self) -> None:
        """A step has ended."""
        self._steps += 1
        if self._runs and self._steps >= MOST_STEPS:
            self._end()

    def _end(self) -> None:
        self._profile.stop()
        self._runs = False

    def stop(self) -> list[dict[str, Any]]:
        """Its slices, by the system's clock as the samples are."""
        if self._runs:
            self._end()
        with tempfile.TemporaryDirectory(prefix="actorserve-profile-") as folder:
            path = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(path))
            found: dict[str, Any] = msgspec.json.decode(path.read_bytes())
        base_us = found.get("baseTimeNanoseconds", 0) / 1e3
        entries = [one for one in found.get("traceEvents", []) if one.get("ph") in ("X", "M")][:MOST_ENTRIES]
        return [{**one, "ts": one["ts"] + base_us} if "ts" in one else one for one in entries]
