"""What sets one model apart from another, read from its config.json: its family's description with sizes.

Knows JSON values and names of weights; no torch, no files. config.json comes from strangers: each value is checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..options.config import ConfigError
from .families.llama import LLAMA
from .families.registry import BY_ARCHITECTURE
from .layers import EMBEDDINGS, FINAL_NORM, HEAD, Axis, Kind, LayerSpec, LinearSpec, TensorSpec
from .quantization import METHODS, NONE, QuantMethod
from .rope import Rope, read_rope
from .values import Values

LARGEST = 1 << 24  # of a size, words of the vocabulary included: beyond it a value is a mistake
MOST_LAYERS = 1 << 12
ACTIVATIONS = ("silu", "swish")  # two names of one function


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
    layer: LayerSpec = LLAMA.layer.with_biases(lambda field: False)
    tied: bool = False
    stored_dtype: str = "float32"
    quantization: QuantMethod = NONE

    @property
    def layers(self) -> int:
        return len(self.windows)

    @property
    def attention_scale(self) -> float:
        """What scores of attention are multiplied with."""
        return float(self.head_dim**-0.5)

    @property
    def head(self) -> LinearSpec:
        """What makes logits."""
        return LinearSpec(EMBEDDINGS if self.tied else HEAD, (Axis.VOCABULARY,), Axis.HIDDEN)

    def size(self, axis: Axis) -> int:
        """How many rows or columns that is."""
        return {
            Axis.HIDDEN: self.hidden_size,
            Axis.HEAD_DIM: self.head_dim,
            Axis.QUERIES: self.heads * self.head_dim,
            Axis.KEYS: self.kv_heads * self.head_dim,
            Axis.VALUES: self.kv_heads * self.head_dim,
            Axis.INTERMEDIATE: self.intermediate_size,
            Axis.VOCABULARY: self.vocab_size,
        }[axis]

    def specs(self) -> dict[str, TensorSpec]:
        """Every tensor that the checkpoint must hold."""
        found = {
            f"{EMBEDDINGS}.weight": TensorSpec(Kind.EMBEDDING, (Axis.VOCABULARY,), Axis.HIDDEN),
            f"{FINAL_NORM}.weight": TensorSpec(Kind.GAIN, (Axis.HIDDEN,)),
        }
        if not self.tied:
            found |= self.head.tensors()
        for layer in range(self.layers):
            found |= self.layer.at(layer).tensors(self.quantization.tensors)
        return found

    def method_of(self, linear: LinearSpec) -> QuantMethod:
        """How its weight is kept."""
        return self.quantization if self.quantization.with_head or linear != self.head else NONE

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the same."""
        return {name: self.tensor_shape(spec) for name, spec in self.specs().items()}

    def tensor_shape(self, spec: TensorSpec) -> tuple[int, ...]:
        """The shape of a tensor in the checkpoint."""
        rows = sum(self.size(axis) for axis in spec.rows)
        if spec.columns is None or spec.kind is Kind.BIAS:
            return (rows,)
        return rows, self.size(spec.columns)


def read_architecture(
    values: dict[str, Any], file: Path | str = "config.json", quantization: str = NONE.name
) -> Architecture:
    """The architecture that config.json describes; ConfigError says what is not supported, and what is.

    `quantization` is the option; it cannot be another one than that of a checkpoint that is quantised.
    """
    name = architecture_name(Values(file, values))
    family = BY_ARCHITECTURE.get(name)
    if family is None:
        known = ", ".join(BY_ARCHITECTURE)
        raise ConfigError(f"model: the architecture {name} is not supported; these are: {known} ({file})")
    given = Values(file, {**family.absent, **values})
    activation = given.text("hidden_act") or "silu"
    if activation not in ACTIVATIONS:
        raise ConfigError(
            f"model: the activation {activation} is not supported; these are: {', '.join(ACTIVATIONS)} ({file})"
        )
    heads, hidden = given.needed("num_attention_heads", LARGEST), given.needed("hidden_size", LARGEST)
    head_dim = given.whole("head_dim", 1, LARGEST) or hidden // heads
    architecture = Architecture(
        vocab_size=given.needed("vocab_size", LARGEST),
        hidden_size=hidden,
        intermediate_size=given.needed("intermediate_size", LARGEST),
        heads=heads,
        kv_heads=given.whole("num_key_value_heads", 1, LARGEST) or heads,
        head_dim=head_dim,
        norm_eps=_or(given.real("rms_norm_eps", 0, 1), 1e-6),
        windows=family.windows(given, given.needed("num_hidden_layers", MOST_LAYERS)),
        rope=read_rope(given, family.ropes, head_dim, family.partial_rotary),
        layer=family.layer.with_biases(given.flag),
        tied=given.flag("tie_word_embeddings"),
        stored_dtype=given.text("dtype") or given.text("torch_dtype") or "float32",
        quantization=_method(given, quantization),
    )
    _check(architecture, file)
    return architecture


def _method(given: Values, option: str) -> QuantMethod:
    """How weights are kept: as the checkpoint has them, or as --quantization makes them at load."""
    stored = given.object("quantization_config")
    if stored is None:
        if METHODS[option].stored_as is not None:
            raise ConfigError(f"--quantization {option}: the model's weights are not of this format ({given.file})")
        return METHODS[option]
    name = stored.text("quant_method")
    found = next((method for method in METHODS.values() if name is not None and method.stored_as == name), None)
    if found is None:
        raise ConfigError(
            "model: its weights are quantised, which is not supported (quantization_config in config.json); "
            "take the model in 16 or 32 bits"
        )
    if option not in (NONE.name, found.name):
        raise ConfigError(f"--quantization {option}: the model's weights are {found.name} already ({given.file})")
    return found


def architecture_name(given: Values) -> str:
    """The first of `architectures`."""
    names = given["architectures"]
    if names is None or names == []:
        raise ConfigError(f"model: {given.file} names no architecture (architectures)")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise given.wrong("architectures", "a list of names")
    return str(names[0])


def shard_shape(shape: Architecture, size: int) -> Architecture:
    """The shape of the part that one of `size` workers has. ConfigError if the model cannot be cut into so many."""
    for name, number in (("attention heads", shape.heads), ("numbers in its MLP", shape.intermediate_size)):
        if number % size:
            raise ConfigError(f"--tensor-parallel-size: the model has {number} {name}, which {size} does not divide")
    if max(shape.kv_heads, size) % min(shape.kv_heads, size):
        raise ConfigError(f"--tensor-parallel-size: {shape.kv_heads} KV heads cannot be shared by {size}")
    return msgspec.structs.replace(
        shape,
        heads=shape.heads // size,
        kv_heads=max(1, shape.kv_heads // size),
        intermediate_size=shape.intermediate_size // size,
    )


def _or(value: float | None, absent: float) -> float:
    return absent if value is None else value


def _check(shape: Architecture, file: Path | str) -> None:
    if shape.heads % shape.kv_heads:
        raise ConfigError(f"model: {shape.heads} attention heads cannot share {shape.kv_heads} of keys ({file})")
    if shape.head_dim % 2 or not shape.head_dim:
        raise ConfigError(f"model: heads of {shape.head_dim} numbers cannot be rotated; it must be even ({file})")
