"""Which tokens queries see, in types whose numbers are short."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from actorserve.actors.model.families.sparse import INDEX
from actorserve.actors.model.shapes import IndexShape
from actorserve.actors.worker.cpu.layers.indexer import Indexer

SIZES = IndexShape(topk=8, heads=4, dim=64, interleaved=True, layers=(True,))
TOKENS, WIDTH = 300, 48
BEGIN = 100  # of the span that queries are of


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_are_float32(dtype: torch.dtype) -> None:
    """Those of bfloat16 are of 256 kinds between two powers of two; of float16 these here are beyond the largest."""
    random = torch.Generator().manual_seed(1)

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random).to(dtype)

    names = (INDEX.queries.name, INDEX.key.name, INDEX.weights.name)
    rows = (SIZES.heads * SIZES.dim, SIZES.dim, SIZES.heads)
    tensors = {f"{name}.weight": made(count, WIDTH) for name, count in zip(names, rows, strict=True)}
    tensors |= {f"{INDEX.norm}.weight": 50 * made(SIZES.dim), f"{INDEX.norm}.bias": made(SIZES.dim)}
    tensors[f"{INDEX.queries.name}.weight"] *= 10
    build = SimpleNamespace(get=tensors.__getitem__, dtype=dtype, batch_invariant=False)
    indexer = Indexer(build, INDEX, SIZES, 16, lambda heads, rotations: None)
    seen, latent, rotations = made(TOKENS, WIDTH), made(TOKENS, WIDTH), torch.empty(0)
    keys = indexer.keys(seen, rotations)[:, 0]
    assert keys.dtype == dtype
    found = indexer.choose(seen[BEGIN:], latent[BEGIN:], rotations, BEGIN, keys)
    queries = F.linear(latent[BEGIN:], tensors[f"{names[0]}.weight"]).float().unflatten(1, (SIZES.heads, -1))
    weights = F.linear(seen[BEGIN:].float(), tensors[f"{names[2]}.weight"].float())
    scores = torch.einsum("qh,qhk->qk", weights, torch.einsum("qhd,kd->qhk", queries, keys.float()).relu())
    scores.masked_fill_(torch.arange(TOKENS) > torch.arange(BEGIN, TOKENS)[:, None], float("-inf"))
    assert found.sort(1).values.equal(scores.topk(SIZES.topk).indices.sort(1).values)
