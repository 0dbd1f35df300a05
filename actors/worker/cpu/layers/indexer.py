"""Which tokens a query sees where it sees the likeliest few alone (model/layers.py: IndexSpec), on a CPU.

    score of key k_j for query i = Σ_h weight_ih · max(0, q_ih · k_j)    of which the highest `topk` up to i are seen
The k of a token is kept behind its latent, in the model's type; norms of keys, weights and scores are float32. Scores
are made for some queries at a time, or for each alone, of keys up to it, where bits must not follow from the chunk that
it is in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ....model.layers import IndexSpec
from ....model.shapes import INDEX_NORM_EPS, IndexShape
from ...models.sharding import Get
from ..batch_invariant import BatchInvariantLinear

SCORED = 1 << 24  # numbers of scores that are made at once
Rotate = Callable[[Tensor, Tensor], None]


class Builder(Protocol):
    """What this needs of one."""

    get: Get
    dtype: torch.dtype
    batch_invariant: bool


class Indexer:
    """That of one layer."""

    def __init__(self, build: Builder, spec: IndexSpec, sizes: IndexShape, turning: int, rotate: Rotate) -> None:
        """`turning`: the first numbers of a head turn."""
        self.sizes, self.turning, self.rotate, self.alone = sizes, turning, rotate, build.batch_invariant
        order = torch.arange(sizes.dim)
        if not sizes.interleaved:  # numbers that turn together become neighbours, as rotations want them
            order[:turning] = order[:turning].view(2, -1).t().flatten()

        def read(name: str) -> Tensor:
            heads: Tensor = build.get(name).unflatten(0, (-1, sizes.dim))
            return heads[:, order].flatten(0, 1)

        self.queries = self._product(read(f"{spec.queries.name}.weight").to(build.dtype))
        self.key = self._product(read(f"{spec.key.name}.weight").to(build.dtype))
        self.gain, self.bias = (read(f"{spec.norm}.{part}").float() for part in ("weight", "bias"))
        scale = (sizes.heads * sizes.dim) ** -0.5
        self.weights = self._product(build.get(f"{spec.weights.name}.weight").float() * scale)

    def _product(self, weight: Tensor) -> Callable[[Tensor], Tensor]:
        if self.alone:
            return BatchInvariantLinear(weight, None)
        return lambda x: F.linear(x, weight)

    def keys(self, seen: Tensor, rotations: Tensor) -> Tensor:
        """What is kept of tokens, [tokens, 1, dim]."""
        made = F.layer_norm(self.key(seen).float(), (self.sizes.dim,), self.gain, self.bias, INDEX_NORM_EPS)
        keys = made.to(seen.dtype)[:, None]
        self.rotate(keys[..., : self.turning], rotations)
        return keys

    def choose(self, seen: Tensor, latent: Tensor, rotations: Tensor, position: int, keys: Tensor) -> Tensor:
        """The positions [queries, topk] that queries of a span see, which begins at `position`, behind more than these;
        `keys` [tokens, dim] are those up to its end. `seen` and `latent` are what weights and queries are made of.
        """
        queries = self.queries(latent).unflatten(1, (self.sizes.heads, -1))
        self.rotate(queries[..., : self.turning], rotations)
        queries, weights, keys = queries.float(), self.weights(seen.float()), keys.float().contiguous()
        count = 1 if self.alone else max(1, SCORED // (self.sizes.heads * len(keys)))
        parts = zip(queries.split(count), weights.split(count), strict=True)
        found = [self._best(*part, position + number * count, keys) for number, part in enumerate(parts)]
        return torch.cat(found)

    def _best(self, queries: Tensor, weights: Tensor, position: int, keys: Tensor) -> Tensor:
        """Of queries at `position` and behind it."""
        count = len(queries)
        keys = keys[: position + count]
        products = (queries.flatten(0, 1) @ keys.t()).relu_().view(count, self.sizes.heads, -1)
        scores = torch.bmm(weights[:, None], products)[:, 0]
        later = torch.arange(len(keys)) > position + torch.arange(count)[:, None]
        return scores.masked_fill_(later, float("-inf")).topk(self.sizes.topk, -1).indices
