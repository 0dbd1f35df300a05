"""What sets one model apart from another: its family's description with sizes.

Knows names of weights; no torch, no files.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import msgspec

from .families.dense.llama import LLAMA
from .formats.stacked import StackedPart, stacked_parts, stacked_specs
from .formats.stored import FLOATS, StoredSpec, StoredWeights, WeightFormat
from .layers import EMBEDDINGS, FINAL_NORM, HEAD, Axis, Kind, LayerSpec, LinearSpec, TensorSpec
from .memory.kv import KVSpec, LayerAttention, uniform
from .quantization import NONE, QuantMethod
from .rope import Growth, Rope
from .shapes import LatentShape, MoeShape
from .vision.spec import VisionSpec

MATRICES = (Kind.WEIGHT, Kind.EMBEDDING)  # which a checkpoint may have quantised


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of one model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    windows: tuple[int | None, ...]  # by layer: how many tokens back it sees, itself included; None: all
    rope: Rope
    ropes: tuple[Rope | None, ...] | None = None  # by layer, where they differ: None does not turn; None: all as `rope`
    activation: str = "silu"  # of the MLP; or gelu_tanh
    norm_offset: float = 0.0  # norms multiply with so much more than the gains of the checkpoint
    embedding_scale: float = 1.0
    scales_inputs: bool = False  # embeddings that are given in the place of tokens' own are scaled, too
    residual_scale: float = 1.0  # of what each half of a layer adds
    scale: float | None = None  # of scores of attention; None: by the width of a head
    soft_cap: float | None = None  # of the same
    chunks: tuple[int | None, ...] = ()  # by layer: a query sees only those of its chunk of so many; empty: no chunks
    unit_norms: bool = False  # heads of q and k that turn are then made as long as their width's root
    growth: Growth | None = None  # of queries
    logits_scale: float = 1.0
    logits_cap: float | None = None  # cap · tanh(logits / cap)
    layer: LayerSpec = LLAMA.layer.with_biases(lambda field: False)
    tied: bool = False
    stored_dtype: str = "float32"
    quantization: QuantMethod = NONE
    stored: StoredWeights | None = None  # which weights of the checkpoint must be decoded
    mixed: bool = False  # what the checkpoint has as floats stays so
    latent: LatentShape | None = None  # then there is one head of keys, which all share
    moe: MoeShape | None = None
    beside: tuple[str, ...] = ()  # what names of tensors begin with that the model itself has no use for
    names: tuple[tuple[str, str], ...] = ()  # what names of tensors begin with in the checkpoint, and here
    grouped_qkv: bool = False  # in the checkpoint the rows of q, k and v of a KV head follow one another
    vision: VisionSpec | None = None  # of what it is the text part
    first_layer: int = 0  # which one of the checkpoint's its first is, where it is a stage of a pipeline
    text_part: bool = False  # its tensors lie among those of a larger model

    @property
    def layers(self) -> int:
        return len(self.windows)

    @property
    def attention_scale(self) -> float:
        """What scores of attention are multiplied with."""
        return float(self.head_dim**-0.5) if self.scale is None else self.scale

    @property
    def kv(self) -> KVSpec:
        """What it keeps of tokens, and how its layers attend."""
        if self.latent is not None:
            same = LayerAttention(
                heads=self.heads,
                kv_heads=1,
                key_dim=self.latent.kept,
                value_dim=self.latent.rank,
                scale=self.attention_scale,
                values_in_keys=True,
                beside=0 if self.latent.index is None else self.latent.index.dim,
            )
            return KVSpec(layers=(same,) * self.layers)
        sizes = self.heads, self.kv_heads, self.head_dim
        plain = uniform(self.windows, *sizes, self.attention_scale, self.soft_cap, self.layer.sinks is not None)
        if not any(self.chunks):
            return plain
        layers = zip(plain.layers, self.chunks, strict=True)
        return KVSpec(layers=tuple(msgspec.structs.replace(own, chunk=chunk) for own, chunk in layers if own))

    def rope_of(self, layer: int) -> Rope | None:
        """How it turns queries and keys; None: not."""
        return self.rope if self.ropes is None else self.ropes[layer]

    def grows(self, layer: int) -> bool:
        """Whether its queries grow with the position."""
        return self.growth is not None and self.growth.turning == (self.rope_of(layer) is not None)

    def growth_within(self, length: int) -> Growth | None:
        """How queries of some layers do, in texts of up to so many tokens."""
        growth = self.growth
        if growth is None or length <= growth.start or not any(self.grows(layer) for layer in range(self.layers)):
            return None
        return growth

    def chosen_within(self, length: int) -> int | None:
        """How many tokens a query sees at most in texts of up to so many, where the model chooses them; None: all."""
        index = None if self.latent is None else self.latent.index
        return index.topk if index is not None and length > index.topk else None

    @property
    def turning(self) -> int:
        """How wide that is of a head which rotations are made for."""
        return self.head_dim if self.latent is None else self.latent.turning

    def rope_kinds(self) -> tuple[list[Rope | None], list[int]]:
        """(the ways in which layers turn, which of them each layer has)."""
        ropes = [self.rope_of(layer) for layer in range(self.layers)]
        kinds = [rope for index, rope in enumerate(ropes) if rope not in ropes[:index]]
        return kinds, [kinds.index(rope) for rope in ropes]

    @property
    def head(self) -> LinearSpec:
        """What makes logits."""
        return LinearSpec(EMBEDDINGS if self.tied else HEAD, (Axis.VOCABULARY,), Axis.HIDDEN)

    def layer_at(self, index: int, first_expert: int = 0) -> LayerSpec:
        """The tensors of one layer; of its experts those from the given one on."""
        spec = self.layer.at(self.first_layer + index)
        if spec.latent is not None and self.latent and self.latent.index and not self.latent.index.layers[index]:
            spec = msgspec.structs.replace(spec, latent=msgspec.structs.replace(spec.latent, index=None))
        if spec.moe is None or self.moe is None or not self.moe.layers[index]:
            return msgspec.structs.replace(spec, moe=None)
        moe = msgspec.structs.replace(spec.moe, experts=self.moe.experts, first=first_expert)
        if not self.moe.shared_intermediate_size:
            moe = msgspec.structs.replace(moe, shared_gate_up=(), shared_down=None, shared_gate=None)
        return msgspec.structs.replace(spec, moe=moe)

    def unused(self) -> tuple[str, ...]:
        """What names begin with of tensors that a checkpoint may have and the model has no use for: also of indexers in
        layers that see what another has chosen.
        """
        shared: list[str] = []
        if self.latent is not None and self.latent.index is not None:
            for index, chooses in enumerate(self.latent.index.layers):
                spec = self.layer.at(self.first_layer + index).latent
                if spec is not None and spec.index is not None and not chooses:
                    shared += [f"{name}." for name in (spec.index.norm, *(own.name for own in spec.index.linears()))]
        return *self.beside, *shared

    def layer_of(self, index: int, rank: int) -> LayerSpec:
        """The same of one member of a tensor-parallel group, whose shape this is: with the experts that it has."""
        divided = self.moe is not None and self.moe.experts != self.moe.routed
        return self.layer_at(index, rank * self.moe.experts if self.moe is not None and divided else 0)

    def size(self, axis: Axis) -> int:
        """How many rows or columns that is."""
        latent = self.latent
        own = {} if latent is None else self._latent_sizes(latent)
        return (
            own[axis]
            if axis in own
            else {
                Axis.HIDDEN: self.hidden_size,
                Axis.HEAD_DIM: self.head_dim,
                Axis.HEADS: self.heads,
                Axis.QUERIES: self.heads * self.head_dim,
                Axis.KEYS: self.kv_heads * self.head_dim,
                Axis.VALUES: self.kv_heads * self.head_dim,
                Axis.INTERMEDIATE: self.intermediate_size,
                Axis.EXPERTS: self.moe.routed if self.moe else 0,
                Axis.EXPERT_INTERMEDIATE: self.moe.intermediate_size if self.moe else 0,
                Axis.SHARED_INTERMEDIATE: self.moe.shared_intermediate_size if self.moe else 0,
                Axis.ONE: 1,
                Axis.VOCABULARY: self.vocab_size,
            }[axis]
        )

    def _latent_sizes(self, latent: LatentShape) -> dict[Axis, int]:
        return {
            Axis.Q_LATENT: latent.q_rank or 0,
            Axis.LATENT: latent.rank,
            Axis.LATENT_ENTRY: latent.rank + latent.turning,
            Axis.LATENT_HEADS: self.heads * (latent.plain + latent.value_dim),
            Axis.ATTENDED: self.heads * latent.value_dim,
            Axis.INDEX_QUERIES: latent.index.heads * latent.index.dim if latent.index else 0,
            Axis.INDEX_KEY: latent.index.dim if latent.index else 0,
            Axis.INDEX_HEADS: latent.index.heads if latent.index else 0,
        }

    def specs(self) -> dict[str, TensorSpec]:
        """Every tensor that the checkpoint must hold."""
        found = {
            f"{EMBEDDINGS}.weight": TensorSpec(Kind.EMBEDDING, (Axis.VOCABULARY,), Axis.HIDDEN),
            f"{FINAL_NORM}.weight": TensorSpec(Kind.GAIN, (Axis.HIDDEN,)),
        }
        if not self.tied:
            found |= self.head.tensors()
        for layer in range(self.layers):
            found |= self.layer_at(layer).tensors(self.quantization.tensors)
        return found

    def method_of(self, *linears: LinearSpec) -> QuantMethod:
        """How the weight of those is kept, which are one in memory."""
        if self.mixed and any(self.format_of(linear.name) is None for linear in linears):
            return NONE
        without_experts = not self.quantization.with_experts and any(linear.of_expert for linear in linears)
        without_head = not self.quantization.with_head and linears == (self.head,)
        return NONE if without_experts or without_head else self.quantization

    def methods(self) -> dict[str, QuantMethod]:
        """The same by the names of weights."""
        together: list[tuple[LinearSpec, ...]] = [(self.head,)]
        found: dict[str, QuantMethod] = {}
        for layer in map(self.layer_at, range(self.layers)):
            together += layer.products()
            found |= {f"{linear.name}.weight": NONE for linear in layer.exact()}
        return found | {f"{linear.name}.weight": self.method_of(*linears) for linears in together for linear in linears}

    def format_of(self, linear: str) -> WeightFormat | None:
        """How the weight of the layer of this name lies in the checkpoint; None: as floats."""
        if self.stored is None or (linear == EMBEDDINGS and not self.stored.embeddings):
            return None
        moe, latent = self.layer.moe, self.layer.latent
        if moe is not None and moe.exact_router and linear.endswith(f".{moe.router.name}"):
            return None
        if latent is not None and latent.index is not None and linear.endswith(f".{latent.index.weights.name}"):
            return None
        return self.stored.of(linear)

    def row_scales(self, *linears: LinearSpec) -> str | None:
        """What has the scales of all rows of those in the checkpoint, where these are whole numbers of 8 bits there."""
        forms = [self.format_of(linear.name) for linear in linears]
        found = {None if form is None else form.row_scales for form in forms}
        return found.pop() if len(found) == 1 else None

    def scale_specs(self) -> dict[str, TensorSpec]:
        """These tensors, beside those of a model in floats."""
        linears = [linear for layer in range(self.layers) for linear in self.layer_at(layer).linears()]
        return {
            f"{linear.name}.{scales}": TensorSpec(Kind.SCALE, linear.rows)
            for linear in (*linears, self.head)
            if (scales := self.row_scales(linear)) is not None
        }

    def stacked(self, there: Container[str]) -> dict[str, StackedPart]:
        """The tensors of single experts that are parts of others in a checkpoint that has the tensors `there`."""
        found: dict[str, StackedPart] = {}
        for layer in map(self.layer_at, range(self.layers)):
            if layer.moe is not None:
                found |= stacked_parts(layer.moe, there, self._stored_names)
        return found

    def stored_specs(self, there: Container[str] = ()) -> dict[str, StoredSpec]:
        """Every tensor as it lies in a checkpoint that has the tensors `there`."""
        return stacked_specs(self._single_specs(), self.stacked(there))

    def _stored_names(self, linear: LinearSpec) -> Iterator[str]:
        """Those of the tensors of a linear as it lies in the checkpoint."""
        form = self.format_of(linear.name)
        sizes = sum(self.size(axis) for axis in linear.rows), self.size(linear.columns)
        yield from (f"{linear.name}.{name}" for name in (["weight"] if form is None else form.tensors(*sizes)))
        if linear.bias:
            yield f"{linear.name}.bias"

    def _single_specs(self) -> dict[str, StoredSpec]:
        """The same with each expert's tensors by themselves."""
        found: dict[str, StoredSpec] = {}
        for name, spec in self.specs().items():
            shape = self.tensor_shape(spec)
            form = self.format_of(name.removesuffix(".weight")) if spec.kind in MATRICES else None
            if form is None:
                found[name] = StoredSpec(shape, (*FLOATS, *spec.types))
            else:
                linear = name.removesuffix("weight")
                found |= {linear + suffix: stored for suffix, stored in form.tensors(*shape).items()}
        return found

    def stored_shapes(self) -> dict[str, tuple[int, ...]]:
        """Their shapes, where they have one."""
        return {name: spec.shape for name, spec in self._single_specs().items() if spec.shape is not None}

    def own_name(self, stored: str) -> str:
        """Of a tensor of the checkpoint."""
        return next((own + stored.removeprefix(first) for first, own in self.names if stored.startswith(first)), stored)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the same."""
        return {name: self.tensor_shape(spec) for name, spec in self.specs().items()}

    def tensor_shape(self, spec: TensorSpec) -> tuple[int, ...]:
        """The shape of a tensor in the checkpoint."""
        rows = sum(self.size(axis) for axis in spec.rows)
        if spec.columns is None or spec.kind is Kind.BIAS:
            return (rows,)
        return rows, self.size(spec.columns)
