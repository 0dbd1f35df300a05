"""A stage's part of a model: some of its layers, the embeddings in the first, norm and logits in the last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from ...model.architecture import Architecture
from ...model.memory.kv import KVSpec
from ..cpu.builder import CpuBuilder
from ..cpu.executor import CpuModel
from ..cpu.layers.norm import RMSNorm
from ..formats.grouped import ReadGrouped
from ..lora.sites import LoraSites
from ..models.sharding import Get
from ..quantization.base import CpuLinear
from ..tensor_parallel import TensorParallelGroup
from .link import StageLink


class _NoLogits:
    """In the place of what makes logits."""

    def __call__(self, x: Tensor) -> NoReturn:
        raise AssertionError("the last stage makes logits")

    def add_to(self, out: Tensor, x: Tensor) -> NoReturn:
        self(x)


class StageModel(CpuModel):
    """What one stage computes: the first of token ids, each other one of what the stage before has sent."""

    def __init__(
        self,
        link: StageLink,
        shapes: Sequence[Architecture],
        get: Get,
        dtype: torch.dtype,
        max_length: int,
        group: TensorParallelGroup | None,
        deterministic: bool,
        grouped: ReadGrouped | None,
        lora: LoraSites | None = None,
    ) -> None:
        """`shapes` of all stages; the rest as of CpuModel."""
        self.link = link
        self.stage_kvs: list[KVSpec] = [shape.kv for shape in shapes]
        super().__init__(shapes[link.index], get, dtype, max_length, group, deterministic, grouped, lora)
        if not self._is_first:
            self.embedding_scale = 1.0

    @property
    def _is_first(self) -> bool:
        return not self.link.index

    @property
    def _is_last(self) -> bool:
        return self.link.index == self.link.count - 1

    def read_embeddings(self, get: Get) -> Tensor:
        return super().read_embeddings(get) if self._is_first else torch.empty(0, dtype=self.dtype)

    def make_norm(self, build: CpuBuilder) -> RMSNorm:
        if self._is_last:
            return super().make_norm(build)
        return RMSNorm(torch.ones(self.shape.hidden_size, dtype=self.dtype), self.shape.norm_eps)  # of no use here

    def make_head(self, build: CpuBuilder) -> CpuLinear:
        return super().make_head(build) if self._is_last else _NoLogits()

    def embed(self, ids: Tensor) -> Tensor:
        if self._is_first:
            return super().embed(ids)
        return self.link.receive(len(ids), self.shape.hidden_size, self.dtype)
