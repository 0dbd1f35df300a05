"""DFlash written down once more in plain operations: a block over a whole context, without a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.support.models import heads

MASK = 7


class BlockReference:
    """What a drafter says behind a text."""

    def __init__(self, tensors: heads.Tensors, target: Path, size: int, windows: tuple[int | None, ...], **config: Any):
        """Of blocks of `size` drafts; layers with a window are causal."""
        self.tensors, self.size, self.windows = tensors, size, windows
        self.model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        self.config = {**heads.config_of(target), **config}

    def drafts(self, ids: list[int], count: int) -> tuple[list[int], float]:
        """The likeliest words behind `ids`, and by how much the least sure was it."""
        best = self.logits(ids)[:count].topk(2)
        words = best.indices[:, 0]
        if "d2t" in self.tensors:
            words = words + self.tensors["d2t"][words]
        return words.tolist(), float((best.values[:, 0] - best.values[:, 1]).min())

    def logits(self, ids: list[int]) -> Tensor:
        """[size, words that may be drafted]."""
        states = self.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        context = torch.cat([states[layer + 1][0, :-1] for layer in (0, 1)], -1) @ self.tensors["fc.weight"].T
        context = self._norm("hidden_norm", context)
        table = self.tensors.get("embed_tokens.weight", self.model.model.embed_tokens.weight)
        x = table[torch.tensor([ids[-1], *[MASK] * self.size])]
        for number, window in enumerate(self.windows):
            x = self._layer(f"layers.{number}.", x, context, window)
        head = self.tensors.get("lm_head.weight", self.model.lm_head.weight)
        found: Tensor = self._norm("norm", x[1:]) @ head.T
        return found

    def _layer(self, prefix: str, x: Tensor, context: Tensor, window: int | None) -> Tensor:
        seen = self._norm(f"{prefix}input_layernorm", x)
        heads_, kv = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q = self._heads(f"{prefix}self_attn.q_proj", seen, heads_)
        k, v = (self._heads(f"{prefix}self_attn.{name}_proj", torch.cat([context, seen]), kv) for name in "kv")
        positions = torch.arange(len(context) + len(x))
        own = positions[len(context) :]
        q = self._rotated(self._norm(f"{prefix}self_attn.q_norm", q), own)
        k = self._rotated(self._norm(f"{prefix}self_attn.k_norm", k), positions)
        back = own[:, None] - positions
        sees = torch.ones_like(back, dtype=torch.bool) if window is None else (back >= 0) & (back < window)
        k, v = (values.repeat_interleave(heads_ // kv, 0) for values in (k, v))
        scores = (q @ k.transpose(1, 2) * q.shape[-1] ** -0.5).masked_fill(~sees, float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
        x = x + self._linear(f"{prefix}self_attn.o_proj", mixed)
        inner = self._norm(f"{prefix}post_attention_layernorm", x)
        gate, up = (self._linear(f"{prefix}mlp.{name}_proj", inner) for name in ("gate", "up"))
        return x + self._linear(f"{prefix}mlp.down_proj", F.silu(gate) * up)

    def _heads(self, name: str, x: Tensor, count: int) -> Tensor:
        return self._linear(name, x).view(len(x), count, -1).transpose(0, 1)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def _norm(self, name: str, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x * scale * self.tensors[f"{name}.weight"]

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        size = x.shape[-1]
        angles = torch.outer(positions.float(), 10_000.0 ** -(torch.arange(0, size, 2) / size))
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin
