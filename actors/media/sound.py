"""Sounds to the tensors that a model takes: log-mel spectra as Whisper's, in windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..model.info import ModelInfo, read_json
from ..options.config import Config
from ..protocol.media import AUDIO, MediaSource
from ..sound.decode import SoundError, decode_steps
from ..sound.features import LogMel
from .processors import Marks, Processed, told_of
from .refused import MediaRefused
from .steps import in_parts, made_of

EXTRACTOR_FILE, NESTED = "preprocessor_config.json", "feature_extractor"
MOST_WINDOWS = 120  # an hour of those of half a minute


class SoundProcessor:
    """Of one model."""

    def __init__(self, config: Config, model: ModelInfo) -> None:
        self._told = told_of(model)
        self._marks = Marks(model, self._told, AUDIO)
        self._most_tokens = model.max_model_len
        folder = Path(model.folder)
        nested: dict[str, Any] = self._told.processor.get(NESTED) or {}
        about = nested or read_json(folder / EXTRACTOR_FILE, missing_ok=True)
        sizes = self._told.config.get("audio_config") or {}
        self.rate, hop = int(about.get("sampling_rate") or 16_000), int(about.get("hop_length") or 160)
        self._frames = 2 * int(sizes.get("max_source_positions") or 1500)  # of a window
        mels = int(about.get("feature_size") or sizes.get("num_mel_bins") or 128)
        self._mel = LogMel(mels, int(about.get("n_fft") or 400), hop, self.rate, self._frames * hop)
        self._one_window = self._told.config["model_type"] == "qwen2_audio"

    def process(self, data: bytes, source: MediaSource) -> Iterator[Processed | None]:
        """In small steps: None until it is there."""
        return in_parts(self._steps(data))

    def _steps(self, data: bytes) -> Iterator[Processed | None]:
        seconds = self._mel.samples / self.rate
        most = seconds * (1 if self._one_window else min(MOST_WINDOWS, self._most_windows()))
        try:
            samples = yield from made_of(decode_steps(data, self.rate, most))
        except SoundError as error:
            raise MediaRefused(f"{error}.") from None
        features = yield from made_of(self._mel.windows(samples))
        yield self._whole(features, len(samples))

    def _most_windows(self) -> int:
        """That do not fill the model's length."""
        return max(1, self._most_tokens // max(1, self._tokens(1, 0)))

    def _tokens(self, windows: int, samples: int) -> int:
        """Embeddings of so many windows; where there is one alone, of so many samples."""
        if self._one_window:
            frames = -(-samples // self._mel.hop)
            return max(1, ((frames - 1) // 2 + 1 - 2) // 2 + 1)
        sizes = self._told.config["audio_config"]
        hidden = int(sizes.get("hidden_size") or sizes.get("d_model") or 1280)
        return windows * (self._frames // 2) * hidden // int(sizes.get("intermediate_size") or 5120)

    def _whole(self, features: np.ndarray, samples: int) -> Processed:
        count = self._tokens(len(features), samples)
        arrays = {"input_features": features}
        if self._one_window:
            mask = np.arange(self._frames) < -(-samples // self._mel.hop)
            arrays["feature_attention_mask"] = mask[None].astype(np.int64)
        text = self._marks.expansion.text(replace(self._told, outputs={"count": count}), self._marks.embedded)
        return self._marks.processed(arrays, text)


def make_processor(config: Config, model: ModelInfo) -> SoundProcessor:
    """Of the model's family."""
    return SoundProcessor(config, model)
