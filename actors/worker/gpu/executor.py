"""The forward pass on a GPU: cuBLAS products, and Triton kernels for all between them.

One flat batch, the tokens of all rows of a step one after the other. Ten launches a layer:
    add+norm · qkv · rotate, write KV · attention (and merge of splits) · out · add+norm · gate-up · silu·mul · down
The residual stream is added to where it is normed, so it stands still between: a layer hands on what is to be added.
Of a layer with experts the last three but one are those of worker/gpu/layers/moe.py.

Everything it does follows from shapes, and nothing of it waits for the device, so that a graph can capture it for
decoding. Which tensors a layer has is data (model/layers.py). Knows tensors; not where weights come from, nor what a
request is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from actorserve.kernels.pages import ALONE, ByHead, Pages, Scoring
from actorserve.kernels.triton.attention.decode_launch import MOST_ROWS
from actorserve.kernels.triton.attention.indexer import ChosenTokens
from actorserve.kernels.triton.attention.paged_decode import paged_decode
from actorserve.kernels.triton.attention.paged_prefill import paged_prefill
from actorserve.kernels.triton.attention.tiles import Scratch
from actorserve.kernels.triton.moe.weights import ExpertWeights
from actorserve.kernels.triton.rms_norm import add_rms_norm, rms_norm
from actorserve.kernels.triton.rotary_kv import Norms, Pools, RotaryTables, rotate_and_write
from actorserve.kernels.triton.silu_mul import GATES
from actorserve.kernels.triton.step_inputs import StepInputs
from actorserve.kernels.triton.vision.given_rows import GivenRows, add_rows, put_rows

from ...model.architecture import Architecture
from ...model.formats.stored import ExpertFloat4Weight
from ...model.layers import EMBEDDINGS, FINAL_NORM, LayerSpec, LinearSpec
from ..formats.rounded import EXPERTS
from ..models.rope import cosines_and_sines
from ..models.sharding import Get
from ..models.tensors import join
from ..quantization.base import GpuLinear, LinearTensors
from ..quantization.none import BatchInvariantGpuLinear, CublasLinear, Float32Linear, gpu_linear
from ..tensor_parallel import TensorParallelGroup, embed
from .layers.fused import FUSED, FusedLayers
from .layers.moe import GpuMoe, join_experts, join_mxfp4, join_rounded
from .layers.stored import StoredLinears
from .layers.taps import ResidualTaps
from .lora.sites import GpuLoraSites

if TYPE_CHECKING:
    from .adapted.groups import GroupRules, KeptRows


class GpuBatch(NamedTuple):
    """A step as the model sees it. The first `decoding` rows have one token each; the others follow."""

    inputs: StepInputs
    decoding: int
    starts: Tensor | None  # int32 [other rows + 1]: where the others' tokens begin, and where they end
    scratch: Scratch  # for the rows that decode
    chunk_scratch: Scratch | None = None  # for the others, where these are too few tokens to fill the device
    fixed: bool = False  # a token's attention is the same bits in whatever step it is computed
    given: GivenRows | None = None  # embeddings in the place of some tokens' own
    turned: RotaryTables | None = None  # by token: how each turns, where its position alone does not say it
    ends: Tensor | None = None  # int64 [tokens]: up to where tokens see that see what is behind them, else 0
    chosen: ChosenTokens | None = None  # which tokens are seen, where these are not all before
    kept: KeptRows | None = None  # what the model keeps of its rows beside keys and values

    def by_layer(self, table_of: Sequence[int]) -> list[GpuBatch]:
        """The same as each layer sees it, which lies in one of the block tables."""
        if self.inputs.tables == 1:
            return [self] * len(table_of)
        tables = [self._replace(inputs=self.inputs.of(table)) for table in range(self.inputs.tables)]
        return [tables[table] for table in table_of]

    def alike(self) -> GpuBatch:
        """The same, with all rows for chunks, and keys divided for none: so one kernel makes all tokens' attention."""
        ones = torch.arange(self.decoding + (self.starts is None), dtype=torch.int32, device=self.inputs.ids.device)
        starts = ones if self.starts is None else torch.cat([ones.minimum(self.starts[0]), self.starts])
        return self._replace(decoding=0, starts=starts, chunk_scratch=None, fixed=True)


def attend(q: Tensor, pools: Pools, batch: GpuBatch, scoring: Scoring, by_head: ByHead) -> Tensor:
    """What heads of all tokens of a step see, [tokens, heads, value_dim]: those of rows that decode come first."""
    if batch.chosen is not None:
        return _attend_chosen(q, pools, batch, batch.chosen, scoring)
    inputs, decoding = batch.inputs, batch.decoding
    out = torch.empty(*q.shape[:2], pools.values.shape[3], dtype=q.dtype, device=q.device)
    if decoding:
        pages = Pages(pools.keys, pools.values, inputs.blocks[:decoding], inputs.lengths[:decoding], pools.scales)
        paged_decode(q[:decoding], pages, scoring, batch.scratch, out[:decoding], by_head)
    if batch.starts is not None:
        pages = Pages(pools.keys, pools.values, inputs.blocks[decoding:], inputs.lengths[decoding:], pools.scales)
        paged_prefill(q, batch.starts, pages, scoring, out, batch.chunk_scratch, by_head, batch.fixed, batch.ends)
    return out


def _attend_chosen(q: Tensor, pools: Pools, batch: GpuBatch, chosen: ChosenTokens, scoring: Scoring) -> Tensor:
    """The same over latents of tokens that were chosen, to which a query's slots are a table of blocks of one token."""
    rank = pools.values.shape[3]
    keys = pools.keys.view(-1, ALONE, 1, pools.keys.shape[3])
    out = torch.empty(*q.shape[:2], rank, dtype=q.dtype, device=q.device)
    decoding = batch.decoding
    for begin, end in pairwise([0, decoding, *range(decoding + MOST_ROWS, len(q), MOST_ROWS), len(q)]):
        pages = Pages(keys, keys[..., :rank], chosen.slots[begin:end], chosen.counts[begin:end])
        scratch = batch.scratch if end <= decoding else batch.chunk_scratch
        paged_decode(q[begin:end], pages, scoring, scratch, out[begin:end])
    return out


class GpuBuilder:
    """Makes the parts of a model of a checkpoint's tensors, on the device, one after the other."""

    def __init__(
        self,
        shape: Architecture,
        get: Get,
        dtype: torch.dtype,
        device: torch.device,
        group: TensorParallelGroup | None = None,
        batch_invariant: bool = False,
        lora: GpuLoraSites | None = None,
        stored: StoredLinears | None = None,
    ) -> None:
        """`shape` and `get` are those of this member's part, where it is one of a group; the vocabulary's is whole.

        `batch_invariant`: a token has the same bits in every batch. `lora`: where products are kept that adapters may
        change; `stored`: those with weights of few bits.
        """
        self.shape, self.get, self.dtype, self.device = shape, get, dtype, device
        self.group, self.rank = group, 0 if group is None else group.rank
        self.batch_invariant, self.lora, self.stored = batch_invariant, lora, stored

    def layer(self, index: int) -> LayerSpec:
        """The tensors of a layer; where experts are divided over the group, with this member's."""
        return self.shape.layer_of(index, self.rank)

    def tensor(self, name: str) -> Tensor:
        return self.get(f"{name}.weight").to(self.device, self.dtype, copy=True)

    def linear(self, *linears: LinearSpec) -> GpuLinear:
        """The linears as one, with room for adapters."""
        made = self.plain_linear(*linears)
        if self.lora is None:
            return made
        sizes = [sum(map(self.shape.size, one.rows)) for one in linears]
        bias = self._joined(linears, "bias", self.dtype) if linears[0].bias else None
        names, inputs = [one.name for one in linears], self.shape.size(linears[0].columns)
        return self.lora.wrap(made, names, sizes, inputs, self.dtype, bias)

    def plain_linear(self, *linears: LinearSpec) -> GpuLinear:
        """What chooses experts, or makes logits, is not adapted."""
        joined, biased = partial(self._joined, linears), bool(linears[0].bias)
        tensors = LinearTensors(joined, self.dtype, biased, batch_invariant=self.batch_invariant)
        if self.stored is not None:
            made = self.stored.of(linears, tensors, self.device)
            if made is not None:
                return made
        return gpu_linear(tensors)

    def float_linear(self, linear: LinearSpec, dtype: torch.dtype) -> GpuLinear:
        """Weights are floats, whatever the checkpoint has."""
        return gpu_linear(
            LinearTensors(partial(self._joined, [linear]), dtype, False, batch_invariant=self.batch_invariant)
        )

    def router(self, linear: LinearSpec, float32: bool) -> GpuLinear:
        """What chooses experts; `float32`: by scores that are not rounded to the model's type."""
        if not float32:
            return self.plain_linear(linear)
        return Float32Linear(self._joined([linear], "weight", self.dtype), self.batch_invariant)

    def experts(self, experts: Sequence[Sequence[LinearSpec]]) -> ExpertWeights:
        """The linears of each expert as one, and those of all in one tensor; what is in MXFP4 stays so, and of what
        --quantization asks for there are experts of 8 and of 4 bits."""
        forms = [self.shape.format_of(linear.name) for linears in experts for linear in linears]
        if all(isinstance(form, ExpertFloat4Weight) for form in forms):  # what is read is exact in any case
            exact = lambda linears, kind: self._joined(linears, kind, torch.float32)  # noqa: E731
            stored = self.stored
            groups = lambda linears: None if stored is None else stored.groups(linears)  # noqa: E731
            return join_mxfp4(experts, exact, self.dtype, groups)
        read = lambda linears, kind: self._joined(linears, kind, self.dtype)  # noqa: E731
        make = EXPERTS.get(self.shape.quantization.name)
        return join_experts(experts, read) if make is None else join_rounded(experts, read, make)

    def by_head(self, sinks: str | None) -> ByHead:
        """What attention has of each head."""
        return ByHead() if sinks is None else ByHead(self.exact(sinks))

    def exact(self, name: str) -> Tensor:
        """A tensor in float32, by its whole name."""
        return self.get(name).to(self.device, torch.float32)

    def norms(self, q_norm: str | None, k_norm: str | None) -> Norms | None:
        if q_norm is None or k_norm is None:
            return None
        return Norms(self.tensor(q_norm), self.tensor(k_norm), self.shape.norm_eps)

    def _joined(self, linears: Sequence[LinearSpec], kind: str, dtype: torch.dtype) -> Tensor:
        return join([self.get(f"{linear.name}.{kind}") for linear in linears], dtype, self.device)


class GpuLayer:
    """Attention and MLP of one layer."""

    def __init__(self, build: GpuBuilder, index: int) -> None:
        shape = self.shape = build.shape
        self.group, self.batch_invariant = build.group, build.batch_invariant
        spec = build.layer(index)
        seen = shape.kv.layers[index]
        assert seen is not None, "all layers attend"
        self.scoring = Scoring(seen.scale, seen.window, seen.soft_cap, seen.chunk)
        self._make_norms(build, spec)
        self._make_qkv(build, spec, index)
        self.out = build.linear(spec.out)
        self._make_mlp(build, spec)
        self.norms, self.by_head = build.norms(spec.q_norm, spec.k_norm), build.by_head(spec.sinks)

    def _make_norms(self, build: GpuBuilder, spec: LayerSpec) -> None:
        assert spec.attention_norm is not None and spec.mlp_norm is not None, "others are VariedLayer's"
        self.attention_gain = build.tensor(spec.attention_norm)
        self.mlp_gain = build.tensor(spec.mlp_norm)

    def _make_qkv(self, build: GpuBuilder, spec: LayerSpec, index: int) -> None:
        self.qkv = build.linear(*spec.qkv)

    def _make_mlp(self, build: GpuBuilder, spec: LayerSpec) -> None:
        self.moe = None if spec.moe is None else GpuMoe(build, spec.moe)
        if self.moe is None:
            self.gate_up = build.linear(*spec.gate_up)
            self.down = build.linear(spec.down)

    def __call__(self, normed: Tensor, residual: Tensor, turns: RotaryTables, pools: Pools, batch: GpuBatch) -> Tensor:
        """What this layer adds to the residual in the end; its middle is added here. `normed` is of the residual."""
        inner = self._sum(self.out(self.attention(self.qkv(normed), turns, pools, batch)))
        normed = add_rms_norm(inner, residual, self.mlp_gain, self.shape.norm_eps)
        if self.moe is not None:
            return self._sum(self.moe(normed, batch.inputs.slots))
        return self._sum(self.down(GATES[self.shape.activation](self.gate_up(normed))))

    def attention(self, merged: Tensor, turns: RotaryTables, pools: Pools, batch: GpuBatch) -> Tensor:
        """What heads see, [tokens, all their numbers], by q, k and v side by side."""
        shape, inputs = self.shape, batch.inputs
        heads = merged.view(len(merged), -1, shape.head_dim)
        q, k, v = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), 1)
        rotate_and_write(q, k, v, inputs.positions, inputs.slots, turns, pools, norms=self.norms)
        return self._attend(q, pools, batch).view(len(merged), -1)

    def _attend(self, q: Tensor, pools: Pools, batch: GpuBatch) -> Tensor:
        return attend(q, pools, batch, self.scoring, self.by_head)

    def _sum(self, x: Tensor) -> Tensor:
        """Of a group each member has a part."""
        if self.group is None:
            return x
        return self.group.sum_in_order(x) if self.batch_invariant else self.group.all_reduce(x)


class Hidden(NamedTuple):
    """The end of the last layer: what is in the residual stream, and what is still to be added to it."""

    added: Tensor  # [tokens, hidden]
    residual: Tensor

    def of(self, tokens: Tensor) -> Hidden:
        """Some tokens alone, in memory of their own."""
        return Hidden(self.added[tokens], self.residual[tokens])


class GpuModel:
    """A decoder: a step's inputs in, logits out; it keeps weights, and its caller the KV memory."""

    eager = False  # no graph can hold what it does
    groups: GroupRules | None = None  # of a model that keeps states of its rows
    embedding_scale = 1.0

    def __init__(self, build: GpuBuilder, max_length: int, fused: bool = FUSED) -> None:
        """`fused`: small steps have norms, gates and additions in their products, where these can."""
        shape = build.shape
        self.lora, self.batch_invariant = build.lora, build.batch_invariant
        self.shape, self.dtype, self.device, self.group = shape, build.dtype, build.device, build.group
        self.table_of = [0] * shape.layers  # in which block table each lies; whoever plans the memory sets it
        self.taps: ResidualTaps | None = None  # for whoever reads hidden states of layers, and sets it
        self.embeddings = build.tensor(EMBEDDINGS)
        self.layers = self.make_layers(build)
        self.fused = FusedLayers.of(self.layers, self.device) if fused else None
        self.gain = build.tensor(FINAL_NORM)
        tied = BatchInvariantGpuLinear if self.batch_invariant else CublasLinear
        self.head: GpuLinear = tied(self.embeddings, None) if shape.tied else build.plain_linear(shape.head)
        cos, sin = cosines_and_sines(shape.rope, shape.turning, max_length)
        self.turns = RotaryTables(cos.to(self.device), sin.to(self.device))

    def make_layers(self, build: GpuBuilder) -> Sequence[GpuLayer]:
        return [GpuLayer(build, index) for index in range(build.shape.layers)]

    def forward(self, batch: GpuBatch, pools: list[Pools]) -> Hidden:
        """Run a step's tokens through all layers; their keys and values go to their slots of `pools`, one a layer."""
        residual, turns = self.embedded(batch), self.turns if batch.turned is None else batch.turned
        batches = (batch.alike() if self.batch_invariant else batch).by_layer(self.table_of)
        behind = () if batch.given is None else batch.given.behind
        if self.fused is not None and self.fused.fits(len(residual)) and not len(behind):
            return self._ended(self.fused(residual, turns, pools, batches, self.taps), residual)
        eps = self.shape.norm_eps
        normed = rms_norm(residual, self.layers[0].attention_gain, eps)
        following_layers = [*self.layers[1:], None]
        for index, (own, seen, following) in enumerate(zip(pools, batches, following_layers, strict=True)):
            layer = self.layers[index]
            if self.taps is not None:
                self.taps.keep(index, residual)
            added = layer(normed, residual, turns, own, seen)
            if batch.given is not None and index < len(behind):
                add_rows(added, behind[index], batch.given.places)
            if following is not None:
                normed = add_rms_norm(added, residual, following.attention_gain, eps)
        return self._ended(added, residual)

    def embedded(self, batch: GpuBatch) -> Tensor:
        """What the first layer is given."""
        x, given = embed(batch.inputs.ids, self.embeddings, self.dtype, self.group), batch.given
        if given is not None and self.shape.scales_inputs:
            put_rows(x, given.embeddings, given.places)
        if self.embedding_scale != 1:
            x = x * self.embedding_scale
        if given is not None and not self.shape.scales_inputs:
            put_rows(x, given.embeddings, given.places)
        return x

    def _ended(self, added: Tensor, residual: Tensor) -> Hidden:
        if self.taps is not None:
            self.taps.keep(self.shape.layers, residual, added)
        return Hidden(added, residual)

    def norm(self, hidden: Hidden, out: Tensor | None = None) -> Tensor:
        """What logits are made of. The residual is changed: call it once, or with a part."""
        return add_rms_norm(hidden.added, hidden.residual, self.gain, self.shape.norm_eps, out)

    def logits(self, normed: Tensor) -> Tensor:
        """Logits [tokens, vocabulary], of the model's type."""
        own = self.own_logits(normed)
        return own if self.group is None else self.group.all_gather(own)[:, : self.shape.vocab_size]

    def own_logits(self, normed: Tensor) -> Tensor:
        """Those of this member's words, where it is one of a group; the last one's may go beyond the vocabulary."""
        return self.head(normed)
