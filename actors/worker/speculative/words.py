"""The words that something drafts: their embeddings, what makes logits of them, and which of the model's they are."""

from __future__ import annotations

import torch
from torch import Tensor

from ...model.heads.formats import EMBEDDING, TO_TARGET, DraftShape
from ...options.config import ConfigError
from ..cpu.builder import CpuBuilder
from ..cpu.executor import CpuModel
from ..models.sharding import Get


class DraftWords:
    """Of a checkpoint of what drafts; what it does not bring along is the model's."""

    def __init__(self, shape: DraftShape, get: Get, target: CpuModel, build: CpuBuilder) -> None:
        self.target, self.vocab_size = target, shape.vocab_size
        self.embeddings = get(f"{EMBEDDING}.weight").to(target.precision) if shape.own_embeddings else None
        self.head = build.linear(shape.head) if shape.own_head else None
        self.words = target_words(shape, get) if shape.mapped else None

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings of words of the model, another tensor each time."""
        return self.target.embed(ids) if self.embeddings is None else self.embeddings[ids].to(self.target.dtype)

    def logits(self, normed: Tensor) -> Tensor:
        """Logits [rows, vocabulary of the model]; -inf of words that are never drafted."""
        if self.head is None:
            return self.target.logits_of_normed(normed)
        own: Tensor = self.head(normed).float()
        if self.words is None:
            return own
        return own.new_full((len(own), self.vocab_size), float("-inf")).index_copy_(1, self.words, own)


def target_words(shape: DraftShape, get: Get) -> Tensor:
    """Which word of the model each is that may be drafted."""
    words = torch.arange(shape.draft_vocabulary) + get(TO_TARGET).long()
    if len(words.unique()) != len(words) or int(words.min()) < 0 or int(words.max()) >= shape.vocab_size:
        raise ConfigError(f"model: {TO_TARGET} does not lead to different words of the model's {shape.vocab_size}")
    return words
