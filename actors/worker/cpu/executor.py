"""The forward pass on a CPU; which tensors a layer has, and what is done with them, is data (model/layers.py).

One flat batch: the tokens of all sequences of a step, one after the other, whether they are a prompt's or decode.
    x  the residual stream [tokens, hidden]
    x += out(attention(rope(qkv(norm x))))      x += down(silu(gate(norm x)) * up(norm x))      in each layer
    logits = head(norm x)                                                                       where a row samples

Few operations a layer, since one costs some µs whatever it does: q, k and v are one product, gate and up another;
residuals are added by the product itself or in place.

Knows tensors; not where they come from, nor what a request is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from actorserve.kernels.cpu.aligned import AnyAttention
from actorserve.kernels.cpu.native.layers import PlainLayers
from actorserve.kernels.cpu.paged_kv import PagedKV, Span

from ...model.architecture import Architecture
from ...model.layers import EMBEDDINGS, FINAL_NORM
from ..formats.grouped import ReadGrouped
from ..lora.sites import LoraSites
from ..models.sharding import Get
from ..quantization.base import CpuLinear
from ..tensor_parallel import TensorParallelGroup, embed
from ..weight_cache.cache import WeightCache
from .builder import CpuBuilder
from .decoder_layer import Attention, CpuLayer, step_attention
from .layers.elementwise import exact_soft_cap, soft_cap
from .layers.fused import fused_layers, has_native_rows
from .layers.latent import LatentStep
from .layers.native import FEW_TOKENS
from .layers.norm import RMSNorm
from .layers.rotation import growth_table, rotation_table
from .memory.states import StepStates
from .memory.window_tables import AnyKV, TabledAttention
from .prompt_embeds import StepEmbeds


class ResidualTaps:
    """Copies of the residual stream before some layers, of the last step; their number stands for behind all."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = layers
        self.kept: dict[int, Tensor] = {}

    def keep(self, layer: int, x: Tensor) -> None:
        """If this layer is one of them."""
        if layer in self.layers:
            self.kept[layer] = x.clone()

    def of(self, rows: Tensor | slice) -> Tensor:
        """Those of some tokens, side by side."""
        return torch.cat([self.kept[layer][rows] for layer in self.layers], -1)


class CpuModel:
    """A decoder: token ids in, logits out; it keeps weights, and its caller the KV memory."""

    reads_windows_alone = True  # of layers that see a window nothing else is read: what is behind it may be let go

    def __init__(
        self,
        shape: Architecture,
        get: Get,
        dtype: torch.dtype,
        max_length: int,
        group: TensorParallelGroup | None = None,
        deterministic: bool = False,
        grouped: ReadGrouped | None = None,
        lora: LoraSites | None = None,
        cache: WeightCache | None = None,
    ) -> None:
        """`shape` and `get` are those of this member's part, where it is one of a group; the vocabulary's is whole.

        `deterministic`: a token has the same bits in every batch, however its weights are kept. `grouped` reads
        weights that the checkpoint has in groups, where products with them can be had. With `lora` adapters may change
        its products.
        """
        self.batch_invariant = deterministic or shape.quantization.batch_invariant
        build = CpuBuilder(shape, get, dtype, group, self.batch_invariant, grouped, lora, cache)
        self.lora = lora
        self.group = group
        self.shape = shape
        self.kv = shape.kv
        self.dtype, self.precision = build.dtype, dtype
        self.quantised = shape.quantization.computes_in is not None
        self.embeddings = self.read_embeddings(get)
        self.layers = [CpuLayer(build, build.layer(index), index) for index in range(shape.layers)]
        self.norm = self.make_norm(build)
        self.head = self.make_head(build)
        kinds, self.rotation_of = shape.rope_kinds()
        self.rotations = [rotation_table(rope or shape.rope, shape.turning, max_length) for rope in kinds]
        growth = shape.growth_within(max_length)
        self.growth = None if growth is None else growth_table(growth, max_length)
        self.embedding_scale = float(torch.tensor(shape.embedding_scale, dtype=dtype))
        self.fused = fused_layers(self)  # for steps of few tokens
        self.row_invariant = self.batch_invariant or has_native_rows(self)
        self.given: StepEmbeds | None = None  # of this step: its caller sets it before each forward pass
        self.taps: ResidualTaps | None = None  # of who drafts by what is between layers

    def read_embeddings(self, get: Get) -> Tensor:
        """What makes numbers of token ids."""
        table = get(f"{EMBEDDINGS}.weight")  # of 16 bits it stays: its rows are made float32 when read
        return table.to(self.dtype) if table.dtype.itemsize > self.dtype.itemsize else table

    def make_norm(self, build: CpuBuilder) -> RMSNorm:
        """That of what logits are made of."""
        return build.norm(FINAL_NORM)

    def make_head(self, build: CpuBuilder) -> CpuLinear:
        """What makes logits."""
        return build.linear(self.shape.head)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        kv: AnyKV,
        attention: Attention,
        states: StepStates | None = None,
    ) -> Tensor:
        """The last layer's output for each token of the flat batch; their keys and values go to `slots` of `kv`.

        `states` are there where `kv` of the model has some; these models have none.
        """
        x = self.embedded(ids)
        fused = self.fused if self.taps is None and len(ids) <= FEW_TOKENS else None
        if fused is not None and (self.lora is None or self.lora.joins(fused)):
            self._forward_fused(fused, x, positions, slots, kv, attention)
            return x
        rotations, growth = [table[positions][:, None] for table in self.rotations], self.grown(positions)
        for number, (layer, kind) in enumerate(zip(self.layers, self.rotation_of, strict=True)):
            if self.taps is not None:
                self.taps.keep(number, x)
            layer(x, rotations[kind], slots, kv, attention, growth=growth)
        if self.taps is not None:
            self.taps.keep(len(self.layers), x)
        return x

    def _forward_fused(
        self, fused: PlainLayers, x: Tensor, positions: Tensor, slots: Tensor, kv: AnyKV, attention: Attention
    ) -> None:
        """A step of few tokens, at once where attention is so, too, and no query grows."""
        of_all = None if isinstance(attention, TabledAttention | LatentStep) else attention.of_all_layers
        lora, growth = None if self.lora is None else self.lora.added(fused), self.grown(positions)
        if of_all is not None and of_all.pool.joined and growth is None:
            fused.forward_all(x, positions, slots, of_all, lora=lora)
            return

        def mix(index: int, qkv: Tensor) -> Tensor:
            return self.layers[index].mix(slots, kv, attention, qkv, growth)

        fused.forward(x, positions, mix, lora)

    def grown(self, positions: Tensor) -> Tensor | None:
        """What queries there are multiplied with, in layers whose queries grow; None: all with 1."""
        if self.growth is None or self.shape.growth is None or int(positions.max()) < self.shape.growth.start:
            return None
        return self.growth[positions]

    def embedded(self, ids: Tensor) -> Tensor:
        """What the first layer is given in this step."""
        x = self.embed(ids)
        given = self.given
        if given is not None and self.shape.scales_inputs:
            x[given.at] = given.rows.to(x.dtype)
        if self.embedding_scale != 1:
            x.mul_(self.embedding_scale)
        if given is not None and not self.shape.scales_inputs:
            x[given.at] = given.rows.to(x.dtype)
        return x

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings of tokens."""
        return embed(ids, self.embeddings, self.dtype, self.group)

    @property
    def vocab_size(self) -> int:
        """How many logits there are."""
        return self.shape.vocab_size

    def attention(self, kv: PagedKV, spans: Sequence[Span]) -> AnyAttention | LatentStep:
        """That of a step of these spans."""
        return step_attention(kv, spans) if self.shape.latent is None else LatentStep(kv, spans, self.shape.latent)

    def logits(self, x: Tensor) -> Tensor:
        """Logits [rows, vocabulary] of rows of the last layer's output, in float32."""
        return self.logits_of_normed(self.norm(x))

    def logits_of_normed(self, x: Tensor) -> Tensor:
        """The same of rows that the last norm has seen already."""
        own: Tensor = self.head(x).float()
        if self.shape.logits_scale != 1:
            own.mul_(self.shape.logits_scale)
        if self.shape.logits_cap is not None:
            (exact_soft_cap if self.batch_invariant else soft_cap)(own, self.shape.logits_cap)
        return own if self.group is None else self.group.all_gather(own)[:, : self.shape.vocab_size].contiguous()
