"""A sound cut into windows that a model takes: each as long as may be, ending where it is quiet."""

from __future__ import annotations

import numpy as np

SEARCHED_S = 2.0  # at a window's end, for where it is quietest
QUIET_S = 0.1


def cut(samples: np.ndarray, rate: int, seconds: float) -> list[tuple[int, int]]:
    """(first sample, the one behind the last) of each window."""
    size, searched, quiet = int(seconds * rate), int(min(SEARCHED_S, seconds / 4) * rate), int(QUIET_S * rate)
    windows, start = [], 0
    while len(samples) - start > size:
        end = start + size
        part = samples[end - searched : end].astype(np.float64) ** 2
        pieces = part[: len(part) // quiet * quiet].reshape(-1, quiet).sum(1)
        end = end - searched + int(pieces.argmin()) * quiet + quiet // 2
        windows.append((start, end))
        start = end
    return [*windows, (start, len(samples))]
