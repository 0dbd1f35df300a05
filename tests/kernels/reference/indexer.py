"""The formula of kernels/triton/attention/indexer.py in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def chosen_slots(queries: Tensor, weights: Tensor, keys: Tensor, blocks: Tensor, length: int, topk: int) -> list[int]:
    """What one query [heads, dim] of so many positions sees, which lie in `blocks` of `keys`: of equal scores the first
    ones."""
    block_size, positions = keys.shape[2], torch.arange(length)
    slots = blocks.cpu()[positions // block_size] * block_size + positions % block_size
    if length <= topk:
        return [int(slot) for slot in slots]
    own = keys.cpu().flatten(0, 2)[slots].double()
    scores = weights.cpu().double() @ (queries.cpu().double() @ own.T).relu()
    best = scores.sort(descending=True, stable=True).indices[:topk]
    return [int(slot) for slot in slots[best.sort().values]]
