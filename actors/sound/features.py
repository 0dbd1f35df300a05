"""Log-mel spectra as Whisper's feature extractor makes them, by numpy alone.

    S = |STFT(samples padded to a window, Hann of n_fft, hop)|², without the last frame
    x = log10(max(M S, 1e-10))      features = (max(x, max x - 8) + 4) / 4

with M triangles on Slaney's mel scale from 0 to 8000 Hz, each of the same area.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

LINEAR_HZ, LINEAR_MEL = 1000.0, 15.0  # up to here mels are linear
STEP = 27.0 / np.log(6.4)
HIGHEST_HZ = 8000.0
FLOOR, RANGE = 1e-10, 8.0


class LogMel:
    """Of one model."""

    def __init__(self, mels: int, n_fft: int, hop: int, rate: int, samples: int) -> None:
        """`samples` of a window."""
        self.n_fft, self.hop, self.rate, self.samples = n_fft, hop, rate, samples
        self._window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)
        hertz = _to_hertz(np.linspace(0.0, _to_mel(HIGHEST_HZ), mels + 2))
        self._filters = triangles(hertz, n_fft // 2 + 1, rate) * (2.0 / (hertz[2:] - hertz[:-2]))

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """float32 [mels, frames] of up to a window of samples."""
        (found,) = (made for made in self.windows(samples) if made is not None)
        return np.ascontiguousarray(found[0])

    def windows(self, samples: np.ndarray) -> Iterator[np.ndarray | None]:
        """float32 [windows, mels, frames] of as many whole windows as the samples take, made as of one sound; None as
        each of them is looked at.
        """
        count, size = max(1, -(-len(samples) // self.samples)), self.samples // self.hop
        whole = np.zeros(count * self.samples, np.float64)
        whole[: len(samples)] = samples
        padded = np.pad(whole, self.n_fft // 2, mode="reflect")
        logs = []
        for first in range(0, count * size, size):
            piece = padded[first * self.hop : (first + size - 1) * self.hop + self.n_fft]
            frames = np.lib.stride_tricks.sliding_window_view(piece, self.n_fft)[:: self.hop]
            power = np.abs(np.fft.rfft(frames * self._window, axis=-1)) ** 2
            logs.append(np.log10(np.maximum(power @ self._filters, FLOOR)).T)
            yield None
        most = max(one.max() for one in logs)
        yield np.stack([((np.maximum(one, most - RANGE) + 4.0) / 4.0).astype(np.float32) for one in logs])


def triangles(hertz: np.ndarray, bins: int, rate: int) -> np.ndarray:
    """[bins, mels]: each from one of these frequencies to the next but one, of height 1 between."""
    at = np.linspace(0, rate // 2, bins)
    slopes = hertz[None, :] - at[:, None]
    widths = np.diff(hertz)
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    found: np.ndarray = np.maximum(0.0, np.minimum(rising, falling))
    return found


def _to_mel(hertz: float) -> float:
    return 3.0 * hertz / 200.0 if hertz < LINEAR_HZ else float(LINEAR_MEL + np.log(hertz / LINEAR_HZ) * STEP)


def _to_hertz(mels: np.ndarray) -> np.ndarray:
    linear = 200.0 * mels / 3.0
    return np.where(mels < LINEAR_MEL, linear, LINEAR_HZ * np.exp((mels - LINEAR_MEL) / STEP))
