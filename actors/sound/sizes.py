"""How long and wide the spectra are that a model hears, and how many embeddings become of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

MOST_WINDOWS = 120  # an hour of those of half a minute
EXTRACTOR_FILE = "preprocessor_config.json"
NESTED = "feature_extractor"  # of processor_config.json, which says the same


class SoundSizes(NamedTuple):
    """Of one model."""

    rate: int
    hop: int
    n_fft: int
    mels: int
    frames: int  # of a window
    one_window: bool  # a sound has no more
    hidden: int  # numbers of a row of the encoder's
    intermediate: int  # of several rows, which become one embedding

    @classmethod
    def read(cls, config: Mapping[str, Any], processor: Mapping[str, Any], extractor: Mapping[str, Any]) -> SoundSizes:
        """Of the model's files: config.json, processor_config.json, and EXTRACTOR_FILE."""
        about: Mapping[str, Any] = processor.get(NESTED) or extractor
        sizes: Mapping[str, Any] = config.get("audio_config") or {}
        return cls(
            rate=int(about.get("sampling_rate") or 16_000),
            hop=int(about.get("hop_length") or 160),
            n_fft=int(about.get("n_fft") or 400),
            mels=int(about.get("feature_size") or sizes.get("num_mel_bins") or 128),
            frames=2 * int(sizes.get("max_source_positions") or 1500),
            one_window=config["model_type"] == "qwen2_audio",
            hidden=int(sizes.get("hidden_size") or sizes.get("d_model") or 1280),
            intermediate=int(sizes.get("intermediate_size") or 5120),
        )

    def tokens(self, windows: int, samples: int) -> int:
        """Embeddings of so many windows; where there is one alone, of so many samples."""
        if self.one_window:
            frames = -(-samples // self.hop)
            return max(1, ((frames - 1) // 2 + 1 - 2) // 2 + 1)
        return windows * (self.frames // 2) * self.hidden // self.intermediate

    def most_windows(self, most_tokens: int) -> int:
        """That a sound may have, and that do not fill a model of this length."""
        if self.one_window:
            return 1
        return min(MOST_WINDOWS, max(1, most_tokens // max(1, self.tokens(1, 0))))
