"""Log-mel spectra as the Universal Speech Model's, which Gemma hears, by numpy alone.

    S = |DFT(preemphasised frame of samples, Hann)|      features = (log(S M + floor) - mean) / deviation

with M triangles of height 1 on the HTK mel scale. The first frame begins half a frame before the sound. A frame that
ends behind the sound is none of its own: it is zeros, and the mask says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, log2
from typing import Any, NamedTuple

import numpy as np

from .features import triangles

MOST_S = 30.0  # what is longer, transformers cuts off
ROUNDED = 128  # samples are filled up to a multiple of so many
AT_ONCE = 500  # frames of a step


class Spectrum(NamedTuple):
    """Of one sound."""

    features: np.ndarray  # float32 [frames, mels]
    mask: np.ndarray  # bool [frames]


class UniversalMel:
    """Of one model."""

    def __init__(self, extractor: Mapping[str, Any]) -> None:
        """`extractor`: what the model's files say of it; what they leave out is as transformers has it."""

        def number(name: str, absent: float) -> float:
            value = extractor.get(name)
            return absent if value is None else float(value)

        self.rate = int(number("sampling_rate", 16_000))
        self.mels = int(number("feature_size", 128))
        self.size = round(self.rate * number("frame_length_ms", 20.0) / 1000)
        self.hop = round(self.rate * number("hop_length_ms", 10.0) / 1000)
        self._points = 2 ** ceil(log2(self.size)) * (2 if extractor.get("fft_overdrive") else 1)
        self._emphasis, self._whole_frame = number("preemphasis", 0.0), extractor.get("preemphasis_htk_flavor", True)
        self._scale, self._floor = number("input_scale_factor", 1.0), number("mel_floor", 1e-3)
        self._window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.size) / self.size)
        low, high = (_to_mel(number(name, hz)) for name, hz in (("min_frequency", 0.0), ("max_frequency", 8000.0)))
        hertz = 700.0 * (10.0 ** (np.linspace(low, high, self.mels + 2) / 2595.0) - 1.0)
        self._filters = triangles(hertz, self._points // 2 + 1, self.rate)
        self._mean = np.asarray(extractor.get("per_bin_mean") or 0.0)
        self._deviation = np.asarray(extractor.get("per_bin_stddev") or 1.0)

    @property
    def shortest(self) -> int:
        """Samples of a sound with one frame of its own."""
        return self.size - self.size // 2 + 1

    def frames(self, samples: int) -> int:
        """Of a sound that is filled up."""
        return (-(-samples // ROUNDED) * ROUNDED + self.size // 2 - self.size - 1) // self.hop + 1

    def steps(self, samples: np.ndarray) -> Iterator[Spectrum | None]:
        """In small steps: None until it is there. `samples`: no fewer than `shortest`."""
        count, before = self.frames(len(samples)), self.size // 2
        padded = np.zeros((count - 1) * self.hop + self.size + 1)
        own = samples[: len(padded) - before]
        padded[before : before + len(own)] = own * self._scale
        cut = np.lib.stride_tricks.sliding_window_view(padded, self.size + 1)[:: self.hop]
        parts = []
        for first in range(0, count, AT_ONCE):
            power = np.abs(np.fft.rfft(self._emphasised(cut[first : first + AT_ONCE]) * self._window, self._points))
            parts.append((np.log(power @ self._filters + self._floor) - self._mean) / self._deviation)
            yield None
        mask = np.arange(count) * self.hop + self.size < before + len(samples)
        yield Spectrum((np.concatenate(parts) * mask[:, None]).astype(np.float32), mask)

    def _emphasised(self, frames: np.ndarray) -> np.ndarray:
        """[frames, size] of as many with a sample more."""
        if not self._emphasis:
            return frames[:, :-1]
        if not self._whole_frame:
            return frames[:, 1:] - self._emphasis * frames[:, :-1]
        rest = frames[:, 1:-1] - self._emphasis * frames[:, :-2]
        return np.concatenate([frames[:, :1] * (1.0 - self._emphasis), rest], 1)


def _to_mel(hertz: float) -> float:
    return 2595.0 * float(np.log10(1.0 + hertz / 700.0))
