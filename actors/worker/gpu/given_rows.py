"""Rows that a step's tokens are given in the place of their embeddings, in a device's memory, where graphs read them:
pictures' (pictures.py), or of prompts that clients gave as embeddings.

They lie side by side, whoever has them, and of each token it is said which is its own. A step without sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.triton.vision.given_rows import GivenRows

from ..transfer import sent
from .buffers import Sizes, StepBuffers
from .executor import GpuBatch, GpuModel

if TYPE_CHECKING:
    from ..cpu.prompt_embeds import RowEmbeds
    from .sampler import RowWork

NUMBERS = 1  # that the host says of a token


class GivenBuffer:
    """Of one runner."""

    def __init__(self, numbers: Tensor, tokens: int, hidden: int, kinds: int, dtype: torch.dtype) -> None:
        """`numbers`: whose first `tokens` say which rows are each token's; `kinds`: embeddings, and what is added."""
        self._numbers, self._tokens = numbers, tokens
        self._places = numbers[:tokens].fill_(-1)
        self._rows = torch.zeros(kinds, tokens, hidden, dtype=dtype, device=numbers.device)
        self._given = False  # whether what is there is of anybody

    def give(self, buffers: StepBuffers, at: np.ndarray, parts: Sequence[Tensor]) -> None:
        """To these tokens these rows of each kind, which are there; zeros of further kinds."""
        places, count = buffers.pictures[: self._tokens], at.size
        places.fill(-1)
        places[at] = np.arange(count)
        buffers.send_pictures(self._numbers, 0, self._tokens)
        for target, rows in zip(self._rows, parts, strict=False):
            target[:count].copy_(rows)
        self._rows[len(parts) :, :count].zero_()
        self._given = True

    def take_back(self) -> bool:
        """What the last step had, if it had any."""
        given, self._given = self._given, False
        if given:
            self._places.fill_(-1)
        return given

    def of(self, tokens: int) -> GivenRows:
        """What the first tokens of a step are given."""
        return GivenRows(self._places[:tokens], self._rows[0], self._rows[1:])


class PromptRows:
    """Prompts that are embeddings, of one runner."""

    def __init__(self, embeds: RowEmbeds, sizes: Sizes, model: GpuModel) -> None:
        tokens, self._hidden = sizes.listed_tokens, model.shape.hidden_size
        self._embeds, self._dtype, self._device = embeds, model.dtype, model.device
        numbers = torch.zeros(tokens, dtype=torch.int64, device=model.device)
        self._buffer = GivenBuffer(numbers, tokens, self._hidden, 1, model.dtype)

    def place(self, row: int, ref: int) -> int:
        """A sequence takes a row; how many of its first tokens are embeddings."""
        return self._embeds.place(row, ref)

    def begin(self, buffers: StepBuffers, work: RowWork) -> bool:
        """Give the device what a step's tokens have; whether any has."""
        step = self._embeds.step(work.rows, work.firsts, work.counts, self._hidden)
        if step is None:
            self._buffer.take_back()
            return False
        self._buffer.give(buffers, step.at.numpy(), [sent(step.rows.to(self._dtype), self._device)])
        return True

    def among(self, batch: GpuBatch) -> GpuBatch:
        """A step some of whose tokens may be given embeddings."""
        return batch._replace(given=self._buffer.of(len(batch.inputs.ids)))
