"""The words that something drafts, on a GPU: their embeddings, and what makes logits of the model's vocabulary."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ....model.heads.formats import EMBEDDING, DraftShape
from ...models.sharding import Get
from ...speculative.words import target_words
from ..executor import GpuBuilder, GpuModel


class DraftWords:
    """Of a checkpoint of what drafts; what it does not bring along is the model's."""

    def __init__(self, shape: DraftShape, get: Get, target: GpuModel, build: GpuBuilder) -> None:
        self.target, self.vocab_size = target, shape.vocab_size
        self.embeddings = build.tensor(EMBEDDING) if shape.own_embeddings else target.embeddings
        self.head = build.linear(shape.head) if shape.own_head else None
        self.words = target_words(shape, get).to(target.device) if shape.mapped else None

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings of words of the model, another tensor each time."""
        return F.embedding(ids, self.embeddings)

    def logits(self, normed: Tensor) -> Tensor:
        """Logits [rows, vocabulary of the model]; -inf of words that are never drafted."""
        if self.head is None:
            return self.target.logits(normed)
        own = self.head(normed)
        if self.words is None:
            return own
        return own.new_full((len(own), self.vocab_size), float("-inf")).index_copy_(1, self.words, own)
