"""Pictures before a decoder of transformers: their embeddings stand in the places of those of ids, and their tokens see
one another, where the model has it so. What the whole model does beside (which ids layers are told of) stays its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from actorserve.kernels.cpu.attention import StepAttention

from ...model.vision.spec import VisionSpec
from ..cpu.memory.window_tables import TabledAttention
from ..vision.attention import PictureAttention
from ..vision.step import VisionStep

TOWERS = ("vision_tower", "embed_vision", "visual", "audio_tower", "embed_audio", "multi_modal_projector")


class GivenPictures:
    """Of one model."""

    def __init__(self, model: PreTrainedModel, spec: VisionSpec) -> None:
        self.spec = spec
        self._at: Tensor | None = None  # of the tokens of the next forward pass, those that are of pictures
        self._rows: Tensor | None = None
        model.get_input_embeddings().register_forward_hook(self._put)

    def see(self, step: VisionStep | None) -> None:
        """What the step's tokens have of pictures."""
        self._at, self._rows = (None, None) if step is None else (step.at, step.rows)

    @contextmanager
    def narrowed(self, tokens: Tensor) -> Iterator[None]:
        """Forward passes are of these tokens of the step alone, which ascend."""
        at, rows = self._at, self._rows
        if at is not None and rows is not None:
            places = torch.searchsorted(tokens, at).clamp(max=len(tokens) - 1)
            own = tokens[places] == at
            self._at, self._rows = places[own], rows[own]
        try:
            yield
        finally:
            self._at, self._rows = at, rows

    def attention(
        self, step: VisionStep | None, inner: StepAttention | TabledAttention
    ) -> StepAttention | TabledAttention | PictureAttention:
        """By what a step of all rows attends."""
        if step is None or not step.runs:
            return inner
        return PictureAttention(inner, step.runs, self.spec.within_windows)

    def _put(self, module: nn.Module, given: Any, embedded: Tensor) -> None:
        if self._at is not None and self._rows is not None:
            embedded.view(-1, embedded.shape[-1])[self._at] = self._rows.to(embedded.dtype)


def drop_towers(model: nn.Module) -> None:
    """What sees and hears is made apart, in floats (../vision/tower.py)."""
    for part in list(model.modules()):
        for name in TOWERS:
            if name in part._modules:
                setattr(part, name, None)
