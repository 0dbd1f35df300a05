"""What a runner asks of a model on a CPU, whether its layers are described (executor.py) or transformers' own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from actorserve.kernels.cpu.paged_kv import PagedKV, Span

from ...model.memory.kv import KVSpec
from .memory.states import StepStates
from .memory.window_tables import AnyKV


class StepAttending(Protocol):
    """The attention of one step's spans; what else there is of it is between a model and itself."""

    def advance(self) -> bool:
        """The same spans, of one token each, a position further on. False: another object has to be made for them."""


class Decoder(Protocol):
    """A model that goes on with texts."""

    @property
    def kv(self) -> KVSpec:
        """What it keeps of tokens."""

    @property
    def dtype(self) -> torch.dtype:
        """In which it computes."""

    @property
    def precision(self) -> torch.dtype:
        """What factors of its products are; keys and values are kept in it, or as --kv-cache-dtype says."""

    @property
    def quantised(self) -> bool:
        """Were its weights rounded to fewer bits than it computes in?"""

    @property
    def vocab_size(self) -> int:
        """How many logits there are."""

    @property
    def batch_invariant(self) -> bool:
        """Has a token the same bits in every batch?"""

    def attention(self, kv: PagedKV, spans: Sequence[Span]) -> StepAttending:
        """For a step of these spans, to be given to `forward`; over several block tables a TabledAttention is."""

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        kv: AnyKV,
        attention: Any,
        states: StepStates | None = None,
    ) -> Tensor:
        """Something for each token of the flat batch, of which logits are made; keys and values go to `slots`.

        `attention` is what `attention` gave; `states` are there where `kv` of the model has some.
        """

    def logits(self, x: Tensor) -> Tensor:
        """Logits [rows, vocabulary] of rows of that, in float32."""
