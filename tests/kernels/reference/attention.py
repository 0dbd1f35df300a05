"""The formula of kernels/pages.py in plain torch, float32 and slow: what attention kernels are checked against."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from actorserve.kernels.pages import ByHead, Pages, Scoring

from .quantised_kv import dequantise

PLAIN = ByHead()


def reference_attention(
    queries: Tensor,
    starts: list[int],
    pages: Pages,
    scoring: Scoring,
    by_head: ByHead = PLAIN,
    ends: Tensor | None = None,
) -> Tensor:
    """The formula, float32 [tokens, heads, value_dim]; tokens of no row give zeros.

    The tokens of row r are [starts[r], starts[r + 1]), the last ones of its `lengths[r]` positions.
    """
    out = torch.zeros(*queries.shape[:2], pages.values.shape[3], device=queries.device)
    for row, (begin, end) in enumerate(itertools.pairwise(starts)):
        length = int(pages.lengths[row])
        if begin == end or length == 0:
            continue
        keys, values = _gather(pages, row, length, queries.shape[1])
        scores = torch.einsum("qhd,hkd->hqk", queries[begin:end].float(), keys) * scoring.scale
        if scoring.soft_cap is not None:
            scores = scoring.soft_cap * torch.tanh(scores / scoring.soft_cap)
        positions, keys_at = torch.arange(length - (end - begin), length)[:, None], torch.arange(length)[None]
        distance = positions - keys_at
        furthest = positions if ends is None else positions.maximum(ends[begin:end, None].cpu() - 1)
        hidden = (keys_at > furthest) | (distance >= (scoring.window or length))
        if scoring.chunk is not None:
            hidden |= positions // scoring.chunk != keys_at // scoring.chunk
        if by_head.slopes is not None:
            scores -= by_head.slopes[:, None, None] * distance.to(scores.device)
        scores = scores.masked_fill(hidden.to(scores.device), -math.inf)
        if by_head.sinks is not None:
            scores = torch.cat([scores, by_head.sinks[:, None, None].expand(-1, end - begin, 1)], -1)
        shares = torch.softmax(scores, -1).nan_to_num(0)[..., :length]
        out[begin:end] = torch.einsum("hqk,hkd->qhd", shares, values)
    return out


def _gather(pages: Pages, row: int, length: int, heads: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a row, float32 [heads, length, head_dim]."""
    size = pages.keys.shape[2]
    indices = pages.blocks[row, : -(-length // size)].long()
    group = heads // pages.keys.shape[1]
    pools = [pool[indices].float() for pool in pages[:2]]
    if pages.scales is not None:
        pools = [dequantise(pool[indices], own[indices]) for pool, own in zip(pages[:2], pages.scales, strict=True)]
    rows = (pool.transpose(1, 2).flatten(0, 1)[:length] for pool in pools)
    keys, values = (part.repeat_interleave(group, 1).transpose(0, 1) for part in rows)
    return keys, values
