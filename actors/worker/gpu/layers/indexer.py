"""Which tokens queries see where they see the likeliest few alone (model/layers.py: IndexSpec), on a GPU.

Keys by which tokens are chosen lie in a pool of their own behind the latents of their layer (Pools.index_keys), in the
same blocks, so that whoever moves or counts blocks knows nothing of them. In each step a layer that chooses does so by
    queries, keys and weights · norm keys, rotate, write · score · select slots (kernels/triton/attention/indexer.py)
and it and those behind it that do not choose attend over these slots alone, decoding rows and tokens of chunks alike
(executor.py). All of it follows from shapes, so that graphs hold it. Where no text is longer than what is seen, none of
it is done: attention over all latents is the same.
Scores are compared alone, so that a factor of all weights, which the CPU's have, is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from actorserve.kernels.triton.attention.indexer import ChosenTokens, choose_tokens
from actorserve.kernels.triton.rotary_kv import KeyNorm, Pools, RotaryTables, rotate_and_write

from ....model.layers import IndexSpec
from ....model.shapes import INDEX_NORM_EPS, IndexShape
from ...quantization.none import Float32Linear

if TYPE_CHECKING:
    from ..executor import GpuBatch, GpuBuilder


class GpuIndexer:
    """That of one layer."""

    def __init__(self, build: GpuBuilder, spec: IndexSpec, sizes: IndexShape) -> None:
        self.sizes = sizes
        self.queries = build.float_linear(spec.queries, build.dtype)
        self.key = build.float_linear(spec.key, build.dtype)
        exact = build.exact(f"{spec.weights.name}.weight")
        narrow = exact.to(build.dtype)  # as checkpoints have it, and `seen` need not be widened for them
        self.weights = Float32Linear(narrow if torch.equal(narrow.float(), exact) else exact, build.batch_invariant)
        gain, bias = (build.exact(f"{spec.norm}.{part}") for part in ("weight", "bias"))
        self.norm = KeyNorm(gain, bias, INDEX_NORM_EPS)

    def __call__(self, seen: Tensor, latent: Tensor, turns: RotaryTables, pools: Pools, batch: GpuBatch) -> None:
        """Keep the tokens' keys, and write which tokens each sees. `latent` is what queries are made of, `seen` what
        keys and weights are."""
        inputs, dim = batch.inputs, self.sizes.dim
        assert pools.index_keys is not None and batch.chosen is not None, "who made them knows the model"
        queries, keys = self.queries(latent).unflatten(1, (self.sizes.heads, dim)), self.key(seen)[:, None]
        kept = Pools(pools.index_keys, pools.index_keys[..., :0])
        written = keys, keys[..., :0], inputs.positions, inputs.slots, turns, kept
        rotate_and_write(queries, *written, key_norm=self.norm, interleaved=self.sizes.interleaved)
        weights = self.weights(seen.to(self.weights.weight.dtype))
        choose_tokens(queries, weights, pools.index_keys, inputs.blocks, batch.chosen)


def room_for_chosen(batch: GpuBatch, topk: int) -> ChosenTokens:
    """Of a step's queries whose they are and how many tokens they see, with room for which these are."""
    inputs, starts = batch.inputs, batch.starts
    tokens = torch.arange(len(inputs.slots), dtype=torch.int32, device=inputs.slots.device)
    owners = tokens
    if starts is not None:  # rows that decode may be more than their tokens, and tokens more than rows have
        chunk = torch.searchsorted(starts, tokens, right=True, out_int32=True) - 1
        owners = torch.where(chunk < 0, tokens, batch.decoding + chunk).clamp_(max=len(inputs.lengths) - 1)
    lengths = torch.where(inputs.slots < 0, 0, inputs.positions + 1).int()
    slots = torch.empty(len(tokens), topk, dtype=torch.int32, device=tokens.device)
    return ChosenTokens(owners, lengths, lengths.clamp(max=topk), slots)
