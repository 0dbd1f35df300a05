"""The formula of LayerAttention (model/memory/kv.py) in plain torch and float64, to which a CPU is held."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from actorserve.actors.model.memory.kv import LayerAttention


def layer_attention(
    rule: LayerAttention, queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None
) -> Tensor:
    """[queries, heads, value_dim] of the last queries [n, heads, key_dim] of a sequence with keys [length, kv_heads,
    key_dim] and values [length, kv_heads, value_dim]."""
    length, heads, group = len(keys), queries.shape[1], queries.shape[1] // keys.shape[1]
    keys, values = (part.double().repeat_interleave(group, 1) for part in (keys, values))
    p, j = torch.arange(length - len(queries), length)[:, None], torch.arange(length)[None]
    scores = rule.scale * torch.einsum("phd,jhd->phj", queries.double(), keys)
    if rule.soft_cap is not None:
        scores = rule.soft_cap * torch.tanh(scores / rule.soft_cap)
    if rule.slopes is not None:
        scores = scores + torch.tensor(rule.slopes)[None, :, None] * (j - p)[:, None]
    scores = scores.masked_fill(~sees(rule, p, j)[:, None], -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double().view(1, heads, 1).expand(len(queries), -1, 1)], -1)
    return torch.einsum("phj,jhd->phd", torch.softmax(scores, -1)[..., :length], values)


def sees(rule: LayerAttention, p: Tensor, j: Tensor) -> Tensor:
    """Whether queries at p see keys at j."""
    in_window = j > p - rule.window if rule.window is not None else j <= p
    in_chunk = j // rule.chunk == p // rule.chunk if rule.chunk is not None else j <= p
    return (j <= p) & in_window & in_chunk
