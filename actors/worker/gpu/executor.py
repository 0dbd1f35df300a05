"""The forward pass of the Llama family on a GPU: cuBLAS products, and Triton kernels for all between them.

One flat batch, the tokens of all rows of a step one after the other. Ten launches a layer:
    add+norm · qkv · rotate, write KV · attention (and merge of splits) · out · add+norm · gate-up · silu·mul · down
The residual stream is added to where it is normed, so it stands still between: a layer hands on what is to be added.

Everything it does follows from shapes, and nothing of it waits for the device, so that a graph can capture it for
decoding. Knows tensors; not where weights come from, nor what a request is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from actorserve.kernels.attention_reference import Pages, Scoring
from actorserve.kernels.triton.paged_decode import Scratch, paged_decode
from actorserve.kernels.triton.paged_prefill import paged_prefill
from actorserve.kernels.triton.rms_norm import add_rms_norm, rms_norm
from actorserve.kernels.triton.rotary_kv import Norms, Pools, Turns, rotate_and_write
from actorserve.kernels.triton.silu_mul import silu_mul
from actorserve.kernels.triton.step_inputs import StepInputs

from ...model.architecture import Architecture
from ..cpu.executor import inverse_frequencies
from ..tensor_parallel import Group

Get = Callable[[str], Tensor]  # a tensor of the checkpoint, in the type in which it is stored, anywhere


class Batch(NamedTuple):
    """A step as the model sees it. The first `decoding` rows have one token each; the others follow."""

    inputs: StepInputs
    decoding: int
    starts: Tensor | None  # int32 [other rows + 1]: where the others' tokens begin, and where they end
    scratch: Scratch  # for the rows that decode


class Linear(NamedTuple):
    """y = x Wᵀ + b."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Builder:
    """Makes the parts of a model of a checkpoint's tensors, on the device, one after the other."""

    def __init__(self, shape: Architecture, get: Get, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.get, self.dtype, self.device = shape, get, dtype, device

    def tensor(self, name: str) -> Tensor:
        return self.get(name).to(self.device, self.dtype, copy=True)

    def linear(self, names: list[str], biased: bool) -> Linear:
        """The linears of these names as one."""
        return Linear(self._merged(names, "weight"), self._merged(names, "bias") if biased else None)

    def _merged(self, names: list[str], kind: str) -> Tensor:
        parts = [self.get(f"{name}.{kind}") for name in names]
        shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
        merged = torch.empty(shape, dtype=self.dtype, device=self.device)
        first = 0
        for part in parts:
            merged[first : first + len(part)] = part.to(self.device)  # made another type there
            first += len(part)
        return merged


class Layer:
    """Attention and MLP of one layer."""

    def __init__(self, build: Builder, index: int, group: Group | None) -> None:
        shape = self.shape = build.shape
        self.group = group
        prefix = f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        self.scoring = Scoring(shape.head_dim**-0.5, shape.windows[index])
        self.attention_gain = build.tensor(prefix + "input_layernorm.weight")
        self.mlp_gain = build.tensor(prefix + "post_attention_layernorm.weight")
        self.qkv = build.linear([attention + name for name in ("q_proj", "k_proj", "v_proj")], shape.qkv_bias)
        self.out = build.linear([attention + "o_proj"], shape.out_bias)
        self.gate_up = build.linear([mlp + "gate_proj", mlp + "up_proj"], shape.mlp_bias)
        self.down = build.linear([mlp + "down_proj"], shape.mlp_bias)
        self.norms: Norms | None = None
        if shape.qk_norm:
            q_gain, k_gain = (build.tensor(f"{attention}{name}_norm.weight") for name in "qk")
            self.norms = Norms(q_gain, k_gain, shape.norm_eps)

    def __call__(self, normed: Tensor, residual: Tensor, turns: Turns, pools: Pools, batch: Batch) -> Tensor:
        """What this layer adds to the residual in the end; its middle is added here. `normed` is of the residual."""
        shape, inputs = self.shape, batch.inputs
        heads = self.qkv(normed).view(len(normed), -1, shape.head_dim)
        q, k, v = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), 1)
        rotate_and_write(q, k, v, inputs.positions, inputs.slots, turns, pools, norms=self.norms)
        seen = self._attend(q, pools, batch)
        inner = self._sum(self.out(seen.view(len(seen), -1)))
        normed = add_rms_norm(inner, residual, self.mlp_gain, shape.norm_eps)
        return self._sum(self.down(silu_mul(self.gate_up(normed))))

    def _attend(self, q: Tensor, pools: Pools, batch: Batch) -> Tensor:
        inputs, decoding = batch.inputs, batch.decoding
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if decoding:
            pages = Pages(pools.keys, pools.values, inputs.blocks[:decoding], inputs.lengths[:decoding], pools.scales)
            paged_decode(q[:decoding], pages, self.scoring, batch.scratch, out[:decoding])
        if batch.starts is not None:
            pages = Pages(pools.keys, pools.values, inputs.blocks[decoding:], inputs.lengths[decoding:], pools.scales)
            paged_prefill(q, batch.starts, pages, self.scoring, out)
        return out

    def _sum(self, x: Tensor) -> Tensor:
        """Of a group each member has a part."""
        return x if self.group is None else self.group.add_up(x)


class Hidden(NamedTuple):
    """The end of the last layer: what is in the residual stream, and what is still to be added to it."""

    added: Tensor  # [tokens, hidden]
    residual: Tensor

    def of(self, tokens: Tensor) -> Hidden:
        """Some tokens alone, in memory of their own."""
        return Hidden(self.added[tokens], self.residual[tokens])


class GpuModel:
    """A decoder: a step's inputs in, logits out; it keeps weights, and its caller the KV memory."""

    def __init__(
        self,
        shape: Architecture,
        get: Get,
        dtype: torch.dtype,
        max_length: int,
        device: torch.device,
        group: Group | None = None,
    ) -> None:
        """`shape` and `get` are those of this member's part, where it is one of a group; the vocabulary's is whole."""
        build = Builder(shape, get, dtype, device)
        self.shape, self.dtype, self.device, self.group = shape, dtype, device, group
        self.embeddings = build.tensor("model.embed_tokens.weight")
        self.layers = [Layer(build, index, group) for index in range(shape.layers)]
        self.gain = build.tensor("model.norm.weight")
        self.head = Linear(self.embeddings, None) if shape.tied else build.linear(["lm_head"], False)
        angles = torch.outer(
            torch.arange(max_length, dtype=torch.float32), inverse_frequencies(shape.rope, shape.head_dim)
        )
        self.turns = Turns(angles.cos().to(device), angles.sin().to(device))

    def forward(self, batch: Batch, pools: list[Pools]) -> Hidden:
        """Run a step's tokens through all layers; their keys and values go to their slots of `pools`, one a layer."""
        residual = self._embed(batch.inputs.ids)
        eps = self.shape.norm_eps
        normed = rms_norm(residual, self.layers[0].attention_gain, eps)
        for layer, own, following in zip(self.layers, pools, [*self.layers[1:], None], strict=True):
            added = layer(normed, residual, self.turns, own, batch)
            if following is not None:
                normed = add_rms_norm(added, residual, following.attention_gain, eps)
        return Hidden(added, residual)

    def logits(self, hidden: Hidden) -> Tensor:
        """Logits [tokens, vocabulary], of the model's type. The residual is changed: call it once, or with a part."""
        own = self.head(add_rms_norm(hidden.added, hidden.residual, self.gain, self.shape.norm_eps))
        return own if self.group is None else self.group.side_by_side(own)[:, : self.shape.vocab_size]

    def _embed(self, ids: Tensor) -> Tensor:
        if self.group is None:
            return F.embedding(ids, self.embeddings)
        count = len(self.embeddings)
        own = ids - self.group.rank * count
        mine = (own >= 0) & (own < count)
        x = F.embedding(own.clamp(0, count - 1), self.embeddings)
        return self.group.add_up(x.masked_fill_(~mine[:, None], 0))
