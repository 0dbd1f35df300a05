"""Sounds to the tensors that a model takes: log-mel spectra, as Whisper's in windows, or as Gemma's."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..model.info import ModelInfo, read_json
from ..options.config import Config
from ..protocol.media import AUDIO, MediaSource
from ..sound.decode import SoundError, decode_steps
from ..sound.features import LogMel
from ..sound.installed import MISSING, can_decode
from ..sound.sizes import EXTRACTOR_FILE, NESTED, SoundSizes
from ..sound.universal import MOST_S, UniversalMel
from .processors import Marks, Processed, check_tokens, told_of
from .refused import MediaRefused
from .steps import in_parts, made_of

FRAMES_OF_A_TOKEN = 4  # of those that are the sound's own


class SoundProcessor:
    """Of one model."""

    def __init__(self, config: Config, model: ModelInfo) -> None:
        self._told = told_of(model)
        self._marks = Marks(config, model, self._told, AUDIO)
        self._extractor = read_json(Path(model.folder) / EXTRACTOR_FILE, missing_ok=True)

    def process(self, data: bytes, source: MediaSource) -> Iterator[Processed | None]:
        """In small steps: None until it is there."""
        if not can_decode():
            raise MediaRefused(f"{MISSING}.", 501)
        return in_parts(self._steps(data))

    def _steps(self, data: bytes) -> Iterator[Processed | None]:
        raise NotImplementedError

    def _whole(self, arrays: dict[str, np.ndarray], count: int) -> Processed:
        """With so many embeddings."""
        text = self._marks.expansion.text(replace(self._told, outputs={"count": count}), self._marks.embedded)
        return self._marks.processed(arrays, text)


class WindowedSounds(SoundProcessor):
    """In Whisper's windows."""

    def __init__(self, config: Config, model: ModelInfo) -> None:
        super().__init__(config, model)
        self._sizes = sizes = SoundSizes.read(self._told.config, self._told.processor, self._extractor)
        self._most_windows = sizes.most_windows(model.max_model_len)
        self._mel = LogMel(sizes.mels, sizes.n_fft, sizes.hop, sizes.rate, sizes.frames * sizes.hop)

    def _steps(self, data: bytes) -> Iterator[Processed | None]:
        rate = self._sizes.rate
        samples = yield from _decoded(data, rate, self._mel.samples / rate * self._most_windows)
        features = yield from made_of(self._mel.windows(samples))
        arrays = {"input_features": features}
        if self._sizes.one_window:
            mask = np.arange(self._sizes.frames) < -(-len(samples) // self._mel.hop)
            arrays["feature_attention_mask"] = mask[None].astype(np.int64)
        yield self._whole(arrays, self._sizes.tokens(len(features), len(samples)))


class UniversalSounds(SoundProcessor):
    """As they are long, of up to half a minute: Gemma's, whose tower makes an embedding of four frames."""

    def __init__(self, config: Config, model: ModelInfo) -> None:
        super().__init__(config, model)
        self._mel = UniversalMel(self._told.processor.get(NESTED) or self._extractor)
        self._most_tokens = model.max_model_len

    def _steps(self, data: bytes) -> Iterator[Processed | None]:
        samples = yield from _decoded(data, self._mel.rate, MOST_S)
        if len(samples) < self._mel.shortest:
            raise MediaRefused(
                f"it is {len(samples)} samples long; {self._mel.shortest} are needed for it to be heard."
            )
        features, mask = yield from made_of(self._mel.steps(samples))
        count = -(-int(mask.sum()) // FRAMES_OF_A_TOKEN)
        check_tokens(count, self._most_tokens)
        arrays = {"input_features": features[None], "input_features_mask": mask[None].astype(np.int64)}
        yield self._whole(arrays, count)


def _decoded(data: bytes, rate: int, most_s: float) -> Generator[None, None, np.ndarray]:
    try:
        samples = yield from made_of(decode_steps(data, rate, most_s))
    except SoundError as error:
        raise MediaRefused(f"{error}.") from None
    return samples


def make_processor(config: Config, model: ModelInfo) -> SoundProcessor:
    """Of the model's family."""
    return (UniversalSounds if told_of(model).config["model_type"] == "gemma4" else WindowedSounds)(config, model)
