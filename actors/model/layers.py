"""Which tensors a layer has in its checkpoint, and what each of them is: data that all share who read a model.

Executors make their products and norms of it, sharding cuts by it, weight files are compared with it and memory is
counted by it, so that a name of a tensor and the order of its parts stand once. Knows no files and no torch.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

EMBEDDINGS = "model.embed_tokens"
FINAL_NORM = "model.norm"
HEAD = "lm_head"


class Axis(enum.Enum):
    """What rows or columns of a tensor are. How many there are and who of a tensor-parallel group has which follows."""

    HIDDEN = "hidden"  # the residual stream, which every rank has
    HEAD_DIM = "head_dim"  # one head, as the gains of norms of q and k
    QUERIES = "queries"  # all heads of q
    KEYS = "keys"
    VALUES = "values"
    INTERMEDIATE = "intermediate"
    VOCABULARY = "vocabulary"


ROTATED = (Axis.QUERIES, Axis.KEYS)  # what turns with the position


class Kind(enum.Enum):
    """What a tensor does."""

    EMBEDDING = "embedding"
    WEIGHT = "weight"  # of a product
    BIAS = "bias"
    GAIN = "gain"  # of a norm
    SCALE = "scale"  # of the rows of a quantised weight


class TensorSpec(NamedTuple):
    """A tensor of the checkpoint."""

    kind: Kind
    rows: tuple[Axis, ...]  # one after the other, where the checkpoint has several fused into one
    columns: Axis | None = None  # of a bias: those of its weight
    types: tuple[str, ...] = ()  # beside floating point, in which it may be stored (in safetensors' words)


class LinearSpec(msgspec.Struct, frozen=True):
    """A linear layer as the checkpoint has it."""

    name: str
    rows: tuple[Axis, ...]  # what it makes
    columns: Axis  # what it takes
    bias: bool | str = False  # a text: the field of config.json that says whether it has one

    def tensors(self) -> dict[str, TensorSpec]:
        found = {f"{self.name}.weight": TensorSpec(Kind.WEIGHT, self.rows, self.columns)}
        if self.bias:
            found[f"{self.name}.bias"] = TensorSpec(Kind.BIAS, self.rows, self.columns)
        return found


class LayerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of one layer, by what they are for; names are those within the layer, or with `at` whole ones.

        x += out(attention(rope(q_norm q), rope(k_norm k), v))    with q, k, v of qkv(attention_norm x)
        x += down(act(gate) * up)                                 with gate, up of gate_up(mlp_norm x)
    `qkv` makes q, then k, then v, and `gate_up` gate and then up, in one linear of the checkpoint or in several.
    """

    attention_norm: str = "input_layernorm"
    qkv: tuple[LinearSpec, ...]
    q_norm: str | None = None  # of each head, all with the same gain
    k_norm: str | None = None
    out: LinearSpec
    mlp_norm: str = "post_attention_layernorm"
    gate_up: tuple[LinearSpec, ...]
    down: LinearSpec

    def at(self, layer: int) -> LayerSpec:
        """The same with the names that tensors of this layer have in the checkpoint."""
        prefix = f"model.layers.{layer}."
        named = {name: prefix + own for name in NORMS if (own := getattr(self, name)) is not None}
        return msgspec.structs.replace(
            self._each(lambda linear: msgspec.structs.replace(linear, name=prefix + linear.name)), **named
        )

    def with_biases(self, flag: Callable[[str], bool]) -> LayerSpec:
        """The same for a config.json, whose fields `flag` reads."""

        def known(linear: LinearSpec) -> LinearSpec:
            has = flag(linear.bias) if isinstance(linear.bias, str) else linear.bias
            return msgspec.structs.replace(linear, bias=has)

        return self._each(known)

    def tensors(self, of: Callable[[LinearSpec], dict[str, TensorSpec]] = LinearSpec.tensors) -> dict[str, TensorSpec]:
        """Every tensor of the layer; `of` says which a linear has."""
        hidden, head = TensorSpec(Kind.GAIN, (Axis.HIDDEN,)), TensorSpec(Kind.GAIN, (Axis.HEAD_DIM,))
        found = {f"{name}.weight": hidden for name in (self.attention_norm, self.mlp_norm)}
        for linear in self.linears():
            found |= of(linear)
        return found | {f"{name}.weight": head for name in (self.q_norm, self.k_norm) if name is not None}

    def linears(self) -> Iterator[LinearSpec]:
        """All of them."""
        yield from (*self.qkv, self.out, *self.gate_up, self.down)

    def _each(self, change: Callable[[LinearSpec], LinearSpec]) -> LayerSpec:
        return msgspec.structs.replace(
            self,
            qkv=tuple(change(linear) for linear in self.qkv),
            out=change(self.out),
            gate_up=tuple(change(linear) for linear in self.gate_up),
            down=change(self.down),
        )


NORMS = ("attention_norm", "q_norm", "k_norm", "mlp_norm")
