"""When each token of a text was said: the path through what some heads of cross attention look at, as Whisper has it.

weights [heads, tokens, positions] of the heads that are known to follow the sound are normalised over the tokens,
smoothed by a median over positions, and averaged. The cheapest monotonic path through their negative (dynamic time
warping) goes from the first token and position to the last; a token begins where the path comes to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from ..adapter.hooks import Call, Unfit, as_scale

DIAGONAL, UP, LEFT = range(3)  # where the path comes from: both, the token before, the position before


class LookingOn:
    """Computes one pass of a decoder over all tokens of a text, and keeps what the cross attention looks at."""

    past = 0
    read_length = 1

    def __init__(self, heads: Sequence[tuple[int, int]], positions: int) -> None:
        """`heads`: (layer, head); of the encoder's answer the first `positions` count."""
        self._heads, self._positions = heads, positions
        self._crossing: dict[int, int] = {}  # layers by the keys that they were given
        self._seen: dict[tuple[int, int], Tensor] = {}

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return keys, values

    def cross_update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self._crossing = {id(keys): layer}
        return keys, values

    def cross(self, layer: int) -> tuple[Tensor, Tensor]:
        raise Unfit("asks for keys of cross attention that are made in this pass")

    def attend(self, call: Call) -> Tensor:
        scale = as_scale(call.options.get("scaling"), call.queries.shape[3])
        layer = self._crossing.pop(id(call.keys), None)
        if layer is None:
            return scaled_dot_product_attention(
                call.queries, call.keys, call.values, scale=scale, is_causal=True
            ).transpose(1, 2)
        shares = (call.queries @ call.keys.transpose(2, 3) * scale).float().softmax(-1)
        for head in (head for wanted, head in self._heads if wanted == layer):
            self._seen[layer, head] = shares[0, head, :, : self._positions]
        return (shares.to(call.values.dtype) @ call.values).transpose(1, 2)

    @property
    def weights(self) -> Tensor:
        """[heads, tokens, positions]."""
        return torch.stack([self._seen[head] for head in self._heads])


def begins(weights: Tensor, median: int) -> list[int]:
    """The position at which each token begins."""
    std = torch.std(weights, dim=-2, keepdim=True, unbiased=False)
    plain = _smoothed((weights - weights.mean(dim=-2, keepdim=True)) / std, median).mean(dim=0)
    return warp(-plain.double().numpy())


def _smoothed(weights: Tensor, width: int) -> Tensor:
    """The median of `width` neighbours along positions; the ends are mirrored."""
    half = width // 2
    if weights.shape[-1] <= half:
        return weights
    return pad(weights, (half, half, 0, 0), mode="reflect").unfold(-1, width, 1).sort()[0][..., half]


def warp(costs: np.ndarray) -> list[int]:
    """Of a path through costs [tokens, positions]: the first position of each token."""
    came_from = _ways(costs)
    token, position = costs.shape
    found = np.zeros(token, np.int64)
    while token > 0 or position > 0:
        if token > 0:
            found[token - 1] = max(0, position - 1)
        way = LEFT if not token else UP if not position else came_from[token, position]
        token -= way in (DIAGONAL, UP)
        position -= way in (DIAGONAL, LEFT)
    return [int(one) for one in found]


def _ways(costs: np.ndarray) -> np.ndarray:
    """From where the cheapest path comes to each place. All places of a diagonal are computed at once."""
    rows, columns = costs.shape
    best = np.full((rows + 1, columns + 1), np.inf, np.float32)
    best[0, 0] = 0
    ways = np.full(best.shape, LEFT, np.int8)
    for diagonal in range(2, rows + columns + 1):
        row = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        column = diagonal - row
        both, up, left = best[row - 1, column - 1], best[row - 1, column], best[row, column - 1]
        is_both, is_up = (both < up) & (both < left), (up < both) & (up < left)
        best[row, column] = costs[row - 1, column - 1] + np.where(is_both, both, np.where(is_up, up, left))
        ways[row, column] = np.where(is_both, DIAGONAL, np.where(is_up, UP, LEFT))
    return ways
