"""Heads that draft: small networks that go on from hidden states of the model which they were trained for.

Each format is data: which tensors it has, and in which order they are used. Whoever computes one (worker/speculative)
reads it here, whatever the device. Knows no files and no torch.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

import msgspec

from ..architecture import Architecture
from ..families.dense.llama import llama_layer
from ..formats.stored import FLOATS, StoredSpec
from ..layers import HEAD, Axis, Kind, LayerSpec, LinearSpec, TensorSpec

EMBEDDING = "embed_tokens"  # as heads have it
TO_TARGET, FROM_TARGET = "d2t", "t2d"  # from a drafted word to one of the model, as a difference; which may be drafted
WHOLE_NUMBERS = ("I64", "I32")


class TargetStates(NamedTuple):
    """Which hidden states of the model a head reads, of each token."""

    layers: tuple[int, ...] = ()  # the residual stream before these layers, side by side; empty: behind the last one
    normed: bool = False  # the last one, as the model's own head sees it


class RecurrentFormat(msgspec.Struct, frozen=True, kw_only=True):
    """One layer that drafts token by token: of a hidden state h at position p, and the token e that stands at p + 1,

        h = fuse(states)                                   where states of several layers are read
        pair = token_norm e beside hidden_norm h           (`token_first`, or the other way round)
        x = join(pair), seen = attention_norm x            without `join`: x = h, seen = pair
        x += out(attention(qkv seen))                      with the position p
        x += down(act(gate) * up)                          with gate, up of gate_up(mlp_norm x)
        y = final_norm x
        the logits of the token at p + 2 are head(y), and h at p + 1 is x, or y with `normed_back`
    Where h of the model itself is known it is taken, and that of the head otherwise.
    """

    layer: LayerSpec
    fuse: LinearSpec | None = None
    join: LinearSpec | None = None
    token_norm: str = ""
    hidden_norm: str = ""
    final_norm: str = ""
    token_first: bool = True
    normed_back: bool = False

    @property
    def linears(self) -> tuple[LinearSpec, ...]:
        """Those beside the layer's."""
        return tuple(linear for linear in (self.fuse, self.join) if linear is not None)

    @property
    def norms(self) -> tuple[str, ...]:
        """Likewise."""
        return tuple(name for name in (self.token_norm, self.hidden_norm, self.final_norm) if name)


def _pair_layer() -> LayerSpec:
    """Llama's, of which q, k and v are made of a pair."""
    layer = llama_layer()
    wide = tuple(msgspec.structs.replace(linear, columns=Axis.PAIR) for linear in layer.qkv)
    return msgspec.structs.replace(layer, attention_norm=None, qkv=wide)


EAGLE = RecurrentFormat(
    layer=msgspec.structs.replace(llama_layer(), attention_norm=None).under("layers.0."),
    join=LinearSpec("fc", (Axis.HIDDEN,), Axis.PAIR),
)
EAGLE3 = RecurrentFormat(
    layer=_pair_layer().under("layers.0."),
    fuse=LinearSpec("fc", (Axis.HIDDEN,), Axis.TARGET_STATES),
    token_norm="layers.0.input_layernorm",
    hidden_norm="layers.0.hidden_norm",
    final_norm="norm",
)
MTP = RecurrentFormat(
    layer=llama_layer().under("layers.0."),
    join=LinearSpec("layers.0.input_proj", (Axis.HIDDEN,), Axis.PAIR),
    token_norm="layers.0.token_layernorm",
    hidden_norm="layers.0.hidden_layernorm",
    final_norm="layers.0.final_layernorm",
    token_first=False,
    normed_back=True,
)


class DraftShape(Architecture, frozen=True, kw_only=True):
    """What is computed with keys and values of its own, and shares with the model what it does not bring along."""

    states: TargetStates
    target_hidden: int
    draft_vocabulary: int
    own_embeddings: bool  # otherwise the model's
    own_head: bool  # likewise
    mapped: bool  # words that may be drafted are counted otherwise than the model's

    @property
    def head(self) -> LinearSpec:
        return LinearSpec(HEAD, (Axis.DRAFT_VOCABULARY,), Axis.HIDDEN)

    def size(self, axis: Axis) -> int:
        own = {
            Axis.PAIR: 2 * self.hidden_size,
            Axis.TARGET_STATES: max(1, len(self.states.layers)) * self.target_hidden,
            Axis.DRAFT_VOCABULARY: self.draft_vocabulary,
        }
        return own[axis] if axis in own else super().size(axis)

    def specs(self) -> dict[str, TensorSpec]:
        found: dict[str, TensorSpec] = {}
        for layer in range(self.layers):
            found |= self.layer_at(layer).tensors()
        if self.own_embeddings:
            found[f"{EMBEDDING}.weight"] = TensorSpec(Kind.EMBEDDING, (Axis.VOCABULARY,), Axis.HIDDEN)
        return found | self.head.tensors() if self.own_head else found

    def stored_specs(self, there: Container[str] = ()) -> dict[str, StoredSpec]:
        words = {
            TO_TARGET: StoredSpec((self.draft_vocabulary,), WHOLE_NUMBERS, optional=not self.mapped),
            FROM_TARGET: StoredSpec((self.vocab_size,), ("BOOL",), optional=True),
        }
        return super().stored_specs(there) | words


def _beside_layers(linears: Iterable[LinearSpec], norms: Iterable[str]) -> dict[str, TensorSpec]:
    """Their tensors; norms are of the hidden size."""
    found: dict[str, TensorSpec] = {}
    for linear in linears:
        found |= linear.tensors()
    return found | {f"{name}.weight": TensorSpec(Kind.GAIN, (Axis.HIDDEN,)) for name in norms}


class RecurrentShape(DraftShape, frozen=True, kw_only=True):
    """A head of a recurrent format: an architecture of one layer."""

    format: RecurrentFormat
    hidden_norm_stays: bool = False  # what is added to is the hidden state behind its norm

    def layer_at(self, index: int, first_expert: int = 0) -> LayerSpec:
        return self.format.layer

    def specs(self) -> dict[str, TensorSpec]:
        return super().specs() | _beside_layers(self.format.linears, self.format.norms)


BLOCK_FUSE = LinearSpec("fc", (Axis.HIDDEN,), Axis.TARGET_STATES)
BLOCK_HIDDEN_NORM, BLOCK_FINAL_NORM = "hidden_norm", "norm"
BLOCK_LAYER = llama_layer(
    qkv_bias="self_attn.q_proj", out_bias="self_attn.o_proj", mlp_bias="mlp.gate_proj", qk_norm=True
)  # a bias is told by the linear that has it


class BlockShape(DraftShape, frozen=True, kw_only=True):
    """A small model that says a block of tokens in one pass (DFlash). Of the model's hidden states s_j at positions
    j < p and the token t at p, with masks m at p + 1 and on, as many as there are drafts:

        c_j = hidden_norm(fuse(s_j)), x_i = the embeddings of t, m, m, … at positions p, p + 1, p + 2, …
        in each layer, with norms and rotations of q and k as in Qwen3:
            keys and values are those of c_j at j < p, and of attention_norm x_i; queries of attention_norm x_i
            x += out(attention), x += down(silu(gate) * up)            with gate, up of gate_up(mlp_norm x)
        the logits of the token at p + i are head(final_norm x_i), i > 0
    Within the block each position sees all others, but in causal layers those before it alone.
    """

    block: int  # positions, the first one's token included, that it was made for
    mask: int  # a token
    causal: tuple[bool, ...]  # by layer

    def layer_at(self, index: int, first_expert: int = 0) -> LayerSpec:
        return self.layer.under(f"layers.{index}.")

    def specs(self) -> dict[str, TensorSpec]:
        return super().specs() | _beside_layers([BLOCK_FUSE], [BLOCK_HIDDEN_NORM, BLOCK_FINAL_NORM])


MEDUSA_STATES = TargetStates(normed=True)


class MedusaShape(NamedTuple):
    """Heads of which number i says the token i + 2 behind the last hidden state, each for itself:

    x += silu(linear x) for each of its blocks; logits = out(x)
    """

    heads: int
    blocks: int  # of a head
    biased: bool
    own_outs: bool  # otherwise the model's own head makes the logits
    hidden_size: int
    vocab_size: int

    def stored_specs(self, there: Container[str] = ()) -> dict[str, StoredSpec]:
        """Every tensor of the checkpoint."""
        hidden, found = self.hidden_size, {}
        for head in range(self.heads):
            for block in range(self.blocks):
                found[block_name(head, block)] = (hidden, hidden)
            if self.own_outs:
                found[out_name(head)] = (self.vocab_size, hidden)
        blocks = [name for name in found if self.biased and ".blocks." in name]
        biases = {f"{name.removesuffix('weight')}bias": (hidden,) for name in blocks}
        return {name: StoredSpec(shape, tuple(FLOATS)) for name, shape in (found | biases).items()}


def block_name(head: int, block: int) -> str:
    """Of the weight of a block."""
    return f"heads.{head}.blocks.{block}.weight"


def out_name(head: int) -> str:
    """Of the weight that makes a head's logits."""
    return f"heads.{head}.out.weight"


Shape = DraftShape | MedusaShape
