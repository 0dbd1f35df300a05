"""Pictures before a decoder of transformers: their embeddings stand in the places of those of ids, and their tokens see
one another, where the model has it so. What the whole model does beside (which ids layers are told of) stays its own.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from actorserve.kernels.cpu.attention import StepAttention

from ...model.vision.spec import VisionSpec
from ..cpu.memory.window_tables import TabledAttention
from ..vision.attention import PictureAttention
from ..vision.step import VisionStep

TOWERS = ("vision_tower", "embed_vision", "audio_tower", "embed_audio")


class GivenPictures:
    """Of one model, all of whose tokens of a step are one row."""

    def __init__(self, model: PreTrainedModel, spec: VisionSpec) -> None:
        self.spec = spec
        self._step: VisionStep | None = None
        model.get_input_embeddings().register_forward_hook(self._put)

    def begin(
        self, step: VisionStep | None, attention: StepAttention | TabledAttention
    ) -> StepAttention | TabledAttention | PictureAttention:
        """What the next forward pass has of pictures, and what it attends by."""
        self._step = step
        if step is None or not step.runs:
            return attention
        return PictureAttention(attention, step.runs, self.spec.within_windows)

    def _put(self, module: nn.Module, given: Any, embedded: Tensor) -> None:
        if self._step is not None and self._step.at is not None:
            assert self._step.rows is not None
            embedded[0, self._step.at] = self._step.rows.to(embedded.dtype)


def drop_towers(model: nn.Module) -> None:
    """What sees and hears is made apart, in floats (../vision/tower.py)."""
    for part in list(model.modules()):
        for name in TOWERS:
            if name in part._modules:
                setattr(part, name, None)
