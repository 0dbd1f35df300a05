"""Layers of transformers that keep a latent of each token, of which they make keys and values of all heads anew: on a
GPU nothing is made anew, as in layers/latent.py. With the halves K and V of a head's matrix `kv_b_proj`

    q · (K c) = (Kᵀ q) · c,  and  Σ p_j · V c_j = V · Σ p_j · c_j

so that all heads attend over what is kept, as one head of keys whose first numbers are the values. What turns stands
behind the latent in keys, and behind what is plain in queries. A layer expands the tokens of its step all the same;
what it makes of them is not looked at.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from ....model.memory.kv import KVSpec
from ...adapter.hooks import Call, Unfit
from ...adapter.probe import Recorder, Traits
from .shape import INSTEAD


class LatentSizes(NamedTuple):
    """Numbers of a layer's heads and of what it keeps."""

    plain: int  # of a head's queries, those that do not turn
    turning: int
    rank: int
    values: int  # of a head

    @classmethod
    def of(cls, module: Any) -> LatentSizes:
        """Unfit if it is no layer of this kind."""
        linear: Any = getattr(module, "kv_b_proj", None)
        names = "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"
        if not isinstance(linear, nn.Linear) or not all(hasattr(module, name) for name in names):
            what = "makes keys and values anew of what it keeps, and not as latents with kv_b_proj are expanded"
            raise Unfit(f"{what}, which by layers of transformers a GPU's worker cannot {INSTEAD}")
        if "bias" in dict(linear.named_parameters()):
            raise Unfit(f"expands latents with a bias, which by layers of transformers a GPU's worker cannot {INSTEAD}")
        plain, turning, values = (int(getattr(module, name)) for name in names)
        return cls(plain, turning, linear.in_features, values)

    def absorb(self, call: Call, width: int) -> Tensor:
        """Queries as those of one head of latents, [tokens, heads, width]; what is over are zeros."""
        rows, heads, tokens, _ = call.queries.shape
        flat, (keys_up, _) = call.queries.transpose(1, 2).flatten(0, 1), self._halves(call.module)
        queries = flat.new_empty(rows * tokens, heads, width)
        torch.bmm(flat[..., : self.plain].transpose(0, 1), keys_up, out=queries[..., : self.rank].transpose(0, 1))
        end = self.rank + self.turning
        queries[..., self.rank : end] = flat[..., self.plain :]
        queries[..., end:] = 0
        return queries

    def expand(self, module: nn.Module, seen: Tensor) -> Tensor:
        """What heads make of sums of latents [tokens, heads, rank or more]: [tokens, heads, values]."""
        _, values_up = self._halves(module)
        made: Tensor = torch.bmm(seen[..., : self.rank].transpose(0, 1), values_up.mT).transpose(0, 1)
        return made

    def _halves(self, module: Any) -> tuple[Tensor, Tensor]:
        """Parts of its matrix: [heads, plain, rank] and [heads, values, rank]."""
        weight: Tensor = module.kv_b_proj.weight
        keys_up, values_up = weight.unflatten(0, (-1, self.plain + self.values)).split([self.plain, self.values], 1)
        return keys_up, values_up


def absorbed(traits: Traits, recorder: Recorder) -> KVSpec:
    """What is kept, where layers that expand latents attend over these. Unfit if one makes keys in another way."""
    layers = list(traits.kv.layers)
    for asked, (call, *_) in zip(traits.asked, recorder.calls, strict=True):
        layer = layers[asked.layer]
        if not asked.gathered or layer is None:
            continue
        sizes = LatentSizes.of(call.module)
        if (layer.kv_heads, layer.key_dim, layer.value_dim) != (1, sizes.rank, sizes.turning):
            raise Unfit(f"keeps no latents as its layers have them {INSTEAD}")
        key = sizes.rank + sizes.turning
        layers[asked.layer] = replace(layer, key_dim=key, value_dim=sizes.rank, values_in_keys=True)
    return replace(traits.kv, layers=tuple(layers))
