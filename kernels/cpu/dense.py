"""Attention of one sequence's queries over its keys and values, where these lie as a matrix for each head.

In tiles of queries, each over what its queries see: tiles end where chunks do, so that within one it is the distance
alone that says what a query sees. Plain scores go through scaled_dot_product_attention; with a soft cap, slopes, sinks,
or widths of keys and values that differ, all is computed in float32 here.

Knows tensors only: no requests, no plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from actorserve.actors.model.memory.kv import LayerAttention

from .paged_kv import TILE, Masks

SCORES = 1 << 22  # in float32 that are computed at once, where that is not less than a query's


class Context(NamedTuple):
    """Keys [kv_heads, n, key_dim] and values [kv_heads, n, value_dim] of the positions from `start` on."""

    start: int
    keys: Tensor
    values: Tensor


def attend(
    rule: LayerAttention,
    position: int,
    queries: Tensor,
    context: Context,
    out: Tensor,
    masks: Masks,
    sinks: Tensor | None,
) -> None:
    """`queries` [n, heads, key_dim] from `position` on, whose results `out` [n, heads, value_dim] gets."""
    plain = rule.soft_cap is None and rule.slopes is None and sinks is None
    plain = plain and context.keys.shape[2] == context.values.shape[2]
    most = TILE if plain else max(1, min(TILE, SCORES // (queries.shape[1] * context.keys.shape[1])))
    for begin, size in _tiles(rule.chunk, position, len(queries), most):
        low = max(context.start, rule.first_seen(position + begin))
        seen = slice(low - context.start, position + begin + size - context.start)
        tile = Context(low, context.keys[:, seen], context.values[:, seen])
        mask = masks(size, tile.keys.shape[1], rule.window, queries.dtype) if size > 1 else None
        where = slice(begin, begin + size)
        if plain:
            _by_library(rule, queries[where], tile, out[where], mask)
        else:
            _by_formula(rule, position + begin, queries[where], tile, out[where], mask, sinks)


def _tiles(chunk: int | None, position: int, count: int, most: int) -> Iterator[tuple[int, int]]:
    """(first, size) of each tile of `count` queries from `position` on."""
    begin = 0
    while begin < count:
        size = min(most, count - begin)
        if chunk is not None:
            size = min(size, chunk - (position + begin) % chunk)
        yield begin, size
        begin += size


def _by_library(rule: LayerAttention, queries: Tensor, seen: Context, out: Tensor, mask: Tensor | None) -> None:
    result = F.scaled_dot_product_attention(
        queries[None].transpose(1, 2),
        seen.keys[None],
        seen.values[None],
        attn_mask=None if mask is None else mask[None, None],
        scale=rule.scale,
        enable_gqa=True,
    )
    out.copy_(result[0].transpose(0, 1))


def _by_formula(
    rule: LayerAttention,
    position: int,
    queries: Tensor,
    seen: Context,
    out: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """Queries of a group of heads are the rows of one product for each head of keys."""
    count, heads, _ = queries.shape
    kv_heads, length, _ = seen.keys.shape
    grouped = (kv_heads, 1, heads // kv_heads, 1)
    rows = (queries.float() * rule.scale).unflatten(1, (kv_heads, -1)).transpose(0, 1).flatten(1, 2)
    scores = torch.bmm(rows, seen.keys.float().transpose(1, 2)).view(kv_heads, count, -1, length)
    if rule.soft_cap is not None:
        scores.div_(rule.soft_cap).tanh_().mul_(rule.soft_cap)
    if rule.slopes is not None:
        own = torch.arange(position, position + count)
        distance = torch.arange(seen.start, seen.start + length) - own[:, None]
        scores.add_(torch.tensor(rule.slopes).view(grouped) * distance[:, None])
    if mask is not None:
        scores.add_(mask[:, None])
    peak = scores.amax(-1, True)
    if sinks is not None:
        sinks = sinks.float().view(grouped)
        peak = torch.maximum(peak, sinks)
    total = scores.sub_(peak).exp_().sum(-1, True)
    if sinks is not None:
        total += (sinks - peak).exp_()
    scores.div_(total)
    result = torch.bmm(scores.view(kv_heads, -1, length), seen.values.float())
    out.copy_(result.view(kv_heads, count, heads // kv_heads, -1).transpose(0, 1).flatten(1, 2))
