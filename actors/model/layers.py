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
SCORES = "score"  # what makes scores of labels in the place of logits


class Axis(enum.Enum):
    """What rows or columns of a tensor are. How many there are and who of a tensor-parallel group has which follows."""

    HIDDEN = "hidden"  # the residual stream, which every rank has
    HEAD_DIM = "head_dim"  # one head, as the gains of norms of q and k
    HEADS = "heads"  # one number for each head of q
    QUERIES = "queries"  # all heads of q
    KEYS = "keys"
    VALUES = "values"
    Q_LATENT = "q latent"  # what all heads of q are made of
    LATENT = "latent"  # what all heads of k and v are made of
    LATENT_ENTRY = "latent entry"  # the same, and the numbers of k that turn, which all heads share
    INDEX_QUERIES = "index queries"  # all heads of what chooses the tokens that are seen
    INDEX_KEY = "index key"  # one of these
    INDEX_HEADS = "index heads"  # one number for each
    LATENT_HEADS = "latent heads"  # what is made of it: of each head the numbers of k that do not turn, then v
    ATTENDED = "attended"  # all heads of v, where these are not as wide as those of k
    INTERMEDIATE = "intermediate"
    EXPERTS = "experts"  # what a router chooses among
    EXPERT_INTERMEDIATE = "expert intermediate"  # of one expert's MLP
    SHARED_INTERMEDIATE = "shared intermediate"  # of the MLP beside the experts, for all tokens
    ONE = "one"
    VOCABULARY = "vocabulary"
    PAIR = "pair"  # of heads that draft: a token's embedding and a hidden state, side by side
    TARGET_STATES = "target states"  # likewise: the hidden states of the model that are read, side by side
    DRAFT_VOCABULARY = "draft vocabulary"  # likewise: the words that may be drafted


ROTATED = (Axis.QUERIES, Axis.KEYS)  # what turns with the position


class Kind(enum.Enum):
    """What a tensor does."""

    EMBEDDING = "embedding"
    WEIGHT = "weight"  # of a product
    BIAS = "bias"
    GAIN = "gain"  # of a norm
    SINK = "sink"  # a score more for each head, that takes a share of attention and gives nothing
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

    @property
    def of_expert(self) -> bool:
        """Whether it is one of many that are chosen of."""
        return Axis.EXPERT_INTERMEDIATE in (*self.rows, self.columns)


class StackedExperts(msgspec.Struct, frozen=True, kw_only=True):
    """How a checkpoint may have a linear of all experts of a layer: as one tensor, [experts, rows, columns].

    The tensor has the name that stands here; those of biases have _bias behind it, those of formats _blocks and such.
    """

    gate_up: str  # rows of gate and of up
    down: str
    transposed: bool = False  # weights of floats are [experts, columns, rows]
    either: bool = False  # some checkpoints have them so, and some not: their shape tells
    interleaved: bool = False  # rows of gate and of up alternate; else those of up follow
    usual: bool = False  # a checkpoint is expected to have them so

    def under(self, prefix: str) -> StackedExperts:
        """The same with a prefix before all names."""
        return msgspec.structs.replace(self, gate_up=prefix + self.gate_up, down=prefix + self.down)


class MoeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Experts in place of a layer's MLP. Each token goes through those few for which the router's scores are highest:

        x += Σ share_e · down_e(act(gate_e) * up_e) + shared(norm x)        with norm x as the MLP has it
    Names of the experts' linears have {expert} where the number stands. Where a checkpoint has them stacked, they are
    read as if it had each by itself.
    """

    router: LinearSpec
    exact_router: bool = False  # a checkpoint that is quantised has it in floats, and does not say so
    float32_scores: bool = False  # the router's results are not rounded to the type that is computed in
    correction: str | None = None  # the tensor of what is added to an expert's score where it is chosen
    gate_up: tuple[LinearSpec, ...]
    down: LinearSpec
    stacked: StackedExperts | None = None
    shared_gate_up: tuple[LinearSpec, ...] = ()  # an MLP for all tokens
    shared_down: LinearSpec | None = None
    shared_gate: LinearSpec | None = None  # the sigmoid of which it is multiplied with
    experts: int = 0  # whose tensors there are; a family knows no number
    first: int = 0  # the number of the first of them

    def expert(self, index: int) -> tuple[tuple[LinearSpec, ...], LinearSpec]:
        """(gate and up, down) of one of them."""

        def named(linear: LinearSpec) -> LinearSpec:
            return msgspec.structs.replace(linear, name=linear.name.format(expert=self.first + index))

        return tuple(named(linear) for linear in self.gate_up), named(self.down)

    def products(self) -> Iterator[tuple[LinearSpec, ...]]:
        """All linears but those of so few rows that they are never quantised, together those that are one product."""
        for index in range(self.experts):
            gate_up, down = self.expert(index)
            yield from (gate_up, (down,))
        if self.shared_down is not None:
            yield from (self.shared_gate_up, (self.shared_down,))

    def routers(self) -> Iterator[LinearSpec]:
        """The others."""
        yield self.router
        if self.shared_gate is not None:
            yield self.shared_gate

    def under(self, prefix: str) -> MoeSpec:
        """The same with a prefix before all names."""
        named = self.each(lambda linear: msgspec.structs.replace(linear, name=prefix + linear.name))
        stacked = None if self.stacked is None else self.stacked.under(prefix)
        correction = None if self.correction is None else prefix + self.correction
        return msgspec.structs.replace(named, stacked=stacked, correction=correction)

    def each(self, change: Callable[[LinearSpec], LinearSpec]) -> MoeSpec:
        """The same of changed linears."""
        return msgspec.structs.replace(
            self,
            router=change(self.router),
            gate_up=tuple(change(linear) for linear in self.gate_up),
            down=change(self.down),
            shared_gate_up=tuple(change(linear) for linear in self.shared_gate_up),
            shared_down=None if self.shared_down is None else change(self.shared_down),
            shared_gate=None if self.shared_gate is None else change(self.shared_gate),
        )


class IndexSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which tokens a query sees (DeepSeek Sparse Attention): those of highest Σ_h weight_h · max(0, q_h · k), with q of
    the latent that q is made of; k, which is kept, and weights of `seen`. The first numbers of a head turn."""

    queries: LinearSpec
    key: LinearSpec
    norm: str  # of the key: with a mean and a bias
    weights: LinearSpec  # a checkpoint that is quantised has it in floats, and does not say so

    def linears(self) -> tuple[LinearSpec, ...]:
        """None of them is ever quantised here."""
        return self.queries, self.key, self.weights

    def under(self, prefix: str) -> IndexSpec:
        """The same with a prefix before all names."""
        named = (msgspec.structs.replace(linear, name=prefix + linear.name) for linear in self.linears())
        queries, key, weights = named
        return IndexSpec(queries=queries, key=key, norm=prefix + self.norm, weights=weights)


class LatentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """q, k and v of a latent that all heads share (multi-head latent attention); `seen` as for qkv:

    q = q_up(q_norm(q_down seen)), of a head n numbers and then those that turn; without `q_up`, q_down makes it
    latent and shared numbers of kv_down(seen); what is kept of a token is kv_norm(latent) beside rope(shared)
    of each head n numbers of k, and v, are kv_up(latent); its k are these and then the shared numbers
    """

    q_down: LinearSpec
    q_norm: str | None = None
    q_up: LinearSpec | None = None
    kv_down: LinearSpec
    kv_norm: str
    kv_up: LinearSpec  # queries and results are multiplied with it, not the latents: it is never quantised here
    index: IndexSpec | None = None

    def products(self) -> Iterator[tuple[LinearSpec, ...]]:
        """Its linears that may be quantised, together those that are one product."""
        if self.q_down.bias == self.kv_down.bias:
            yield (self.q_down, self.kv_down)
        else:
            yield from ((self.q_down,), (self.kv_down,))
        if self.q_up is not None:
            yield (self.q_up,)

    def norms(self) -> dict[str, Axis]:
        """The names of gains."""
        of_q = {} if self.q_norm is None else {self.q_norm: Axis.Q_LATENT}
        return {self.kv_norm: Axis.LATENT} | of_q | ({} if self.index is None else {self.index.norm: Axis.INDEX_KEY})

    def each(self, change: Callable[[LinearSpec], LinearSpec]) -> LatentSpec:
        """The same of changed linears."""
        return msgspec.structs.replace(
            self,
            q_down=change(self.q_down),
            q_up=None if self.q_up is None else change(self.q_up),
            kv_down=change(self.kv_down),
            kv_up=change(self.kv_up),
        )

    def under(self, prefix: str) -> LatentSpec:
        """The same with a prefix before all names."""
        named = self.each(lambda linear: msgspec.structs.replace(linear, name=prefix + linear.name))
        q_norm = None if self.q_norm is None else prefix + self.q_norm
        index = None if self.index is None else self.index.under(prefix)
        return msgspec.structs.replace(named, q_norm=q_norm, kv_norm=prefix + self.kv_norm, index=index)


class LayerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of one layer, by what they are for; names are those within the layer, or with `at` whole ones.

        x += attention_post_norm(out(attention(rope(q_norm q), rope(k_norm k), v)))    q, k, v of qkv(attention_norm x)
        x += mlp_post_norm(down(act(gate) * up))                                       gate, up of gate_up(mlp_norm x)
    Norms without a name are left out. `qkv` makes q, then k, then v, and `gate_up` gate and then up, in one linear of
    the checkpoint or in several.
    """

    attention_norm: str | None = "input_layernorm"
    qkv: tuple[LinearSpec, ...]
    latent: LatentSpec | None = None  # in place of `qkv`, which is empty
    q_norm: str | None = None  # of each head, all with the same gain
    k_norm: str | None = None
    joint_norms: bool = False  # those of q and k are of all heads together, with a gain for each number
    sinks: str | None = None  # the tensor that has one for each head of q
    out: LinearSpec
    attention_post_norm: str | None = None
    mlp_norm: str | None = "post_attention_layernorm"
    gate_up: tuple[LinearSpec, ...]
    down: LinearSpec
    mlp_post_norm: str | None = None
    moe: MoeSpec | None = None  # in place of `gate_up` and `down`

    def at(self, layer: int) -> LayerSpec:
        """The same with the names that tensors of this layer have in the checkpoint."""
        return self.under(f"model.layers.{layer}.")

    def under(self, prefix: str) -> LayerSpec:
        """The same with a prefix before all names."""
        named = {name: prefix + own for name in (*NORMS, "sinks") if (own := getattr(self, name))}
        linears = self._each(lambda linear: msgspec.structs.replace(linear, name=prefix + linear.name))
        moe = None if self.moe is None else self.moe.under(prefix)
        latent = None if self.latent is None else self.latent.under(prefix)
        return msgspec.structs.replace(linears, moe=moe, latent=latent, **named)

    def with_biases(self, flag: Callable[[str], bool]) -> LayerSpec:
        """The same for a config.json, whose fields `flag` reads."""

        def known(linear: LinearSpec) -> LinearSpec:
            has = flag(linear.bias) if isinstance(linear.bias, str) else linear.bias
            return msgspec.structs.replace(linear, bias=has)

        return self._each(known)

    def tensors(self, of: Callable[[LinearSpec], dict[str, TensorSpec]] = LinearSpec.tensors) -> dict[str, TensorSpec]:
        """Every tensor of the layer; `of` says which a linear has."""
        axes = dict.fromkeys(NORMS, Axis.HIDDEN) | {"q_norm": Axis.HEAD_DIM, "k_norm": Axis.HEAD_DIM}
        if self.joint_norms:
            axes |= {"q_norm": Axis.QUERIES, "k_norm": Axis.KEYS}
        found: dict[str, TensorSpec] = {}
        for linear in self.linears():
            found |= of(linear)
        for linear in self.exact():
            found |= linear.tensors()
        if self.moe is not None and self.moe.correction is not None:
            found[self.moe.correction] = TensorSpec(Kind.BIAS, (Axis.EXPERTS,))
        if self.latent is not None and self.latent.index is not None:
            found[f"{self.latent.index.norm}.bias"] = TensorSpec(Kind.BIAS, (Axis.INDEX_KEY,))
        if self.sinks is not None:
            found[self.sinks] = TensorSpec(Kind.SINK, (Axis.HEADS,))
        named = {getattr(self, norm): axis for norm, axis in axes.items()}
        named |= {} if self.latent is None else self.latent.norms()
        return found | {f"{name}.weight": TensorSpec(Kind.GAIN, (axis,)) for name, axis in named.items() if name}

    def products(self) -> Iterator[tuple[LinearSpec, ...]]:
        """Its linears that may be quantised, together those that are one product."""
        yield from (self.qkv,) if self.latent is None else self.latent.products()
        yield (self.out,)
        yield from (self.gate_up, (self.down,)) if self.moe is None else self.moe.products()

    def exact(self) -> Iterator[LinearSpec]:
        """The others."""
        if self.latent is not None:
            yield self.latent.kv_up
            yield from () if self.latent.index is None else self.latent.index.linears()
        if self.moe is not None:
            yield from self.moe.routers()

    def linears(self) -> Iterator[LinearSpec]:
        """All of those that may be."""
        for product in self.products():
            yield from product

    def _each(self, change: Callable[[LinearSpec], LinearSpec]) -> LayerSpec:
        return msgspec.structs.replace(
            self,
            qkv=tuple(change(linear) for linear in self.qkv),
            out=change(self.out),
            gate_up=tuple(change(linear) for linear in self.gate_up),
            down=change(self.down),
            latent=None if self.latent is None else self.latent.each(change),
            moe=None if self.moe is None else self.moe.each(change),
        )


NORMS = ("attention_norm", "q_norm", "k_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm")
