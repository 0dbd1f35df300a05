"""Vectors by a model of two encoders: of texts by one, of pictures by the other, as transformers' model makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from actorserve.shm.table.table import generation_of, slot_of

from ...model.info import ModelInfo
from ...model.pooling.dual_encoder import NO_TOKEN
from ...model.pooling.spec import PoolingSpec
from ...model.tokenizers.tokenizer import load_tokenizer, special_tokens
from ...model.vision.spec import VisionSpec
from ...options.config import Config
from ...protocol.step import Step
from ..transfer import sent
from ..vision.encoder import BadItem, MediaSource, Owner, VisionEncoder
from .divided import by_length
from .load import load_whole
from .runner import ENDED, PooledRow, PoolingWriter
from .whole_prompts import in_parts

if TYPE_CHECKING:
    from ...protocol.wire import Numbers

GB = 1 << 30


class TextEncoder:
    """Texts side by side."""

    def __init__(self, model: PreTrainedModel, info: ModelInfo, spec: PoolingSpec) -> None:
        assert spec.dual is not None
        self._model: Any = model
        self._fixed = spec.dual.padded
        self._pad = _padding(model, info)

    def vectors(self, texts: Sequence[Tensor]) -> list[Tensor]:
        """Of each text's ids."""
        found: dict[int, Tensor] = {}
        sizes = [self._fixed or len(ids) for ids in texts]
        for group in by_length(sizes):
            ids = torch.full((len(group), max(sizes[index] for index in group)), self._pad)
            for row, index in enumerate(group):
                ids[row, : len(texts[index])] = texts[index]
            made = self._model.get_text_features(input_ids=sent(ids, self._model.device)).pooler_output
            found |= dict(zip(group, made, strict=True))
        return [found[index] for index in range(len(texts))]


def _padding(model: PreTrainedModel, info: ModelInfo) -> int:
    """The id behind a text. A CLIP is not to take it for the text's end: it sees nothing of what follows that."""
    text: Any = model.config.get_text_config()
    named = load_tokenizer(info).token_to_id(special_tokens(info).get("pad_token", ""))
    if info.architecture != "CLIPModel":
        return int(named if named is not None else text.pad_token_id or 0)
    return 0 if text.eos_token_id != 0 else 1


class DualEncoderRunner:
    """Implements StepRunner: each row is a text or a picture, computed as a whole."""

    def __init__(
        self, texts: TextEncoder, pictures: VisionEncoder, writer: PoolingWriter, source: MediaSource, rows: int
    ) -> None:
        self.failed_rows: Numbers = ()
        self.encoder = pictures
        self._texts, self._writer, self._source = texts, writer, source
        self._rows: list[PooledRow | None] = [None] * rows

    def run(self, step: Step) -> np.ndarray:
        for new in step.new_rows:
            self._rows[new.row] = self._writer.row(new)
        numbers = step.rows.tolist()
        rows = [row for index in numbers if (row := self._rows[index]) is not None]
        assert [len(row.ids) for row in rows] == step.counts.tolist(), "a prompt was cut"
        failed, texts = [], []
        for number, row in zip(numbers, rows, strict=True):
            items = self._source.items(slot_of(row.ref), generation_of(row.ref))
            if not items:
                texts.append(row)
                continue
            owner = Owner(slot_of(row.ref), generation_of(row.ref))
            try:
                self._writer.write([row], [self.encoder.embeddings(items[0], owner).rows])
            except BadItem:
                failed.append(~number)
        in_parts(self._pool, texts)
        self.failed_rows = failed
        return np.full(len(rows), ENDED, np.int32)

    def _pool(self, texts: Sequence[PooledRow]) -> None:
        self._writer.write(texts, [vector[None] for vector in self._texts.vectors([row.ids for row in texts])])


def load_dual_encoder(
    config: Config, info: ModelInfo, spec: PoolingSpec, source: MediaSource, device: torch.device
) -> tuple[TextEncoder, VisionEncoder]:
    """The model of `info.folder`. ConfigError says what does not fit."""
    model, dtype = load_whole(config, info, spec, device)
    kind = str(model.config.model_type)
    about = VisionSpec(kind=kind, placeholders=(NO_TOKEN,), hidden=spec.width)
    most = int(config.encoder_cache_gb * GB)
    return TextEncoder(model, info, spec), VisionEncoder(model, about, dtype, source, most, device)
