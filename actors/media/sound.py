"""Sounds to the tensors that a model takes: log-mel spectra as Whisper's, in windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..model.info import ModelInfo, read_json
from ..options.config import Config
from ..protocol.media import AUDIO, MediaSource
from ..sound.decode import SoundError, decode_steps
from ..sound.features import LogMel
from ..sound.sizes import EXTRACTOR_FILE, SoundSizes
from .processors import Marks, Processed, told_of
from .refused import MediaRefused
from .steps import in_parts, made_of


class SoundProcessor:
    """Of one model."""

    def __init__(self, config: Config, model: ModelInfo) -> None:
        self._told = told_of(model)
        self._marks = Marks(model, self._told, AUDIO)
        extractor = read_json(Path(model.folder) / EXTRACTOR_FILE, missing_ok=True)
        self._sizes = sizes = SoundSizes.read(self._told.config, self._told.processor, extractor)
        self._most_windows = sizes.most_windows(model.max_model_len)
        self._mel = LogMel(sizes.mels, sizes.n_fft, sizes.hop, sizes.rate, sizes.frames * sizes.hop)

    def process(self, data: bytes, source: MediaSource) -> Iterator[Processed | None]:
        """In small steps: None until it is there."""
        return in_parts(self._steps(data))

    def _steps(self, data: bytes) -> Iterator[Processed | None]:
        rate = self._sizes.rate
        most = self._mel.samples / rate * self._most_windows
        try:
            samples = yield from made_of(decode_steps(data, rate, most))
        except SoundError as error:
            raise MediaRefused(f"{error}.") from None
        features = yield from made_of(self._mel.windows(samples))
        yield self._whole(features, len(samples))

    def _whole(self, features: np.ndarray, samples: int) -> Processed:
        count = self._sizes.tokens(len(features), samples)
        arrays = {"input_features": features}
        if self._sizes.one_window:
            mask = np.arange(self._sizes.frames) < -(-samples // self._mel.hop)
            arrays["feature_attention_mask"] = mask[None].astype(np.int64)
        text = self._marks.expansion.text(replace(self._told, outputs={"count": count}), self._marks.embedded)
        return self._marks.processed(arrays, text)


def make_processor(config: Config, model: ModelInfo) -> SoundProcessor:
    """Of the model's family."""
    return SoundProcessor(config, model)
