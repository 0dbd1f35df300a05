"""The architecture that a config.json describes. It comes from strangers: each value is checked. No torch, no files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from ..options.config import ConfigError
from ..options.parser import nearest
from .architecture import Architecture
from .cached import merged
from .families.family import Family, Windows
from .families.registry import BY_ARCHITECTURE
from .formats.configs import read_stored_weights
from .formats.stored import StoredWeights
from .quantization import AUTO, CHECKPOINTS, INT8, METHODS, NONE, SAME, QuantMethod, is_auto
from .rope import Rope, read_rope
from .values import Unsupported, Values
from .vision.texts import has_text_part, read_vision, text_values

LARGEST = 1 << 24  # of a size, words of the vocabulary included: beyond it a value is a mistake
MOST_LAYERS = 1 << 12
TRANSFORMERS = "transformers"  # --model-impl
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}  # config.json's names


def find_architecture(
    values: dict[str, Any], model_impl: str, quantization: str = AUTO, file: Path | str = "config.json"
) -> Architecture | None:
    """The same by --model-impl; None: layers of transformers are to compute it, and the worker knows whether they can.

    A known architecture with something that its layers here do not have (an activation, a way to rotate) is theirs too.
    """
    if model_impl == TRANSFORMERS:
        architecture_name(Values(file, values))
        return None
    part, values, vision = has_text_part(values), text_values(values, file), read_vision(values, file)
    name = architecture_name(Values(file, values))
    if model_impl == AUTO and name not in BY_ARCHITECTURE:
        return None
    try:
        shape = read_architecture(values, file, quantization)
        return msgspec.structs.replace(shape, vision=vision, text_part=part)
    except Unsupported as error:
        if model_impl == AUTO:
            return None
        raise Unsupported(
            f"{error}; --model-impl auto serves it by layers of transformers, on a CPU, if a trial at load shows that "
            "they are right"
        ) from None


def read_architecture(
    values: dict[str, Any], file: Path | str = "config.json", quantization: str = AUTO
) -> Architecture:
    """The architecture that config.json describes; ConfigError says what is not supported, and what is.

    `quantization` is the option.
    """
    part, values, vision = has_text_part(values), text_values(values, file), read_vision(values, file)
    family = _family(Values(file, values))
    given = Values(file, {**family.absent, **values})
    activation = _activation(given, family)
    heads, hidden = given.needed("num_attention_heads", LARGEST), given.needed("hidden_size", LARGEST)
    head_dim = given.whole("head_dim", 1, LARGEST) or hidden // heads
    method, stored = weights_method(given, quantization)
    windows = family.windows(given, given.needed("num_hidden_layers", MOST_LAYERS))
    rope, ropes = _ropes(given, family, windows, head_dim)
    architecture = Architecture(
        vocab_size=given.needed("vocab_size", LARGEST),
        hidden_size=hidden,
        intermediate_size=given.needed("intermediate_size", LARGEST),
        heads=heads,
        kv_heads=given.whole("num_key_value_heads", 1, LARGEST) or heads,
        head_dim=head_dim,
        norm_eps=_or(given.real("rms_norm_eps", 0, 1), 1e-6),
        windows=windows,
        rope=rope,
        ropes=ropes,
        activation=activation,
        layer=family.layer.with_biases(given.flag),
        tied=given.flag("tie_word_embeddings"),
        stored_dtype=given.text("dtype") or given.text("torch_dtype") or "float32",
        quantization=method,
        stored=stored,
        mixed=stored is not None and is_auto(quantization),
        moe=family.moe(given, given.needed("num_hidden_layers", MOST_LAYERS)),
        beside=family.beside,
        names=family.names,
        vision=vision,
        text_part=part,
    )
    architecture = msgspec.structs.replace(architecture, **family.more(given))
    _check(architecture, file)
    return architecture


def _family(given: Values) -> Family:
    name = architecture_name(given)
    family = BY_ARCHITECTURE.get(name)
    if family is None:
        known = ", ".join(BY_ARCHITECTURE)
        raise Unsupported(f"model: the architecture {name} is not supported; these are: {known} ({given.file})")
    return family


def _activation(given: Values, family: Family) -> str:
    name, known = given.text(family.activation) or "silu", ", ".join(ACTIVATIONS)
    if name not in ACTIVATIONS:
        raise Unsupported(f"model: the activation {name} is not supported; these are: {known} ({given.file})")
    return ACTIVATIONS[name]


def _ropes(
    given: Values, family: Family, windows: Windows, head_dim: int
) -> tuple[Rope, tuple[Rope | None, ...] | None]:
    """(that of layers which see most, those by layer, where they differ)."""

    def read(own: Values) -> Rope:
        return read_rope(own, family.ropes, head_dim, family.partial_rotary, family.interleaved)

    sources = family.ropes_of(given, windows)
    known = {id(own): read(own) for own in sources if own is not None}
    found = tuple(None if own is None else known[id(own)] for own in sources)
    turning = [rope for rope in found if rope is not None]
    unbounded = [rope for rope, window in zip(found, windows, strict=True) if rope is not None and window is None]
    rope = next(iter([*unbounded, *turning]), None) or read(given)
    return rope, None if all(one == rope for one in found) else found


def weights_method(given: Values, option: str) -> tuple[QuantMethod, StoredWeights | None]:
    """How weights are kept, as the checkpoint has them or as --quantization makes them at load; and what to decode."""
    quantised = given.object("quantization_config")
    name = quantised.text("quant_method") if quantised is not None else None
    of_floats = quantised is None and option in METHODS
    if option in CHECKPOINTS and not of_floats and (name is None or SAME.get(name, name) != SAME.get(option, option)):
        said = "not quantised" if name is None else name
        advice = "; int8 or fp8 makes 8 bits of them at load" if name is None else ""
        raise ConfigError(f"--quantization {option}: the model's weights are {said} ({given.file}){advice}")
    if quantised is None:
        method = NONE if option == AUTO else METHODS[option]
        if method.stored_as is not None:
            raise ConfigError(f"--quantization {option}: the model's weights are not of this format ({given.file})")
        return method, None
    direct = next((method for method in METHODS.values() if name is not None and method.stored_as == name), None)
    if direct is None:
        if not is_auto(option) and METHODS[option].stored_as is not None:
            raise ConfigError(f"--quantization {option}: the model's weights are {name} ({given.file})")
        return INT8 if is_auto(option) else METHODS[option], read_stored_weights(quantised)
    if option not in (AUTO, NONE.name, direct.name):
        raise ConfigError(f"--quantization {option}: the model's weights are {direct.name} already ({given.file})")
    return direct, None


def architecture_name(given: Values) -> str:
    """The first of `architectures`."""
    names = given["architectures"]
    if names is None or names == []:
        raise ConfigError(f"model: {given.file} names no architecture (architectures)")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise given.wrong("architectures", "a list of names")
    return str(names[0])


def _or(value: float | None, absent: float) -> float:
    return absent if value is None else value


def _check(shape: Architecture, file: Path | str) -> None:
    if shape.heads % shape.kv_heads:
        raise ConfigError(f"model: {shape.heads} attention heads cannot share {shape.kv_heads} of keys ({file})")
    if shape.head_dim % 2 or not shape.head_dim:
        raise ConfigError(f"model: heads of {shape.head_dim} numbers cannot be rotated; it must be even ({file})")


# prints those of the fields that a class of transformers does not know; nothing where it cannot be said
ASK = """
import inspect, json, sys
sys.modules["torch"] = None  # which no configuration needs, and which takes seconds
kind, fields = json.loads(sys.argv[1])
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
made = CONFIG_MAPPING[kind]
known = {*made().to_dict(), *getattr(made, "attribute_map", {}), *inspect.signature(made.__init__).parameters}
print(json.dumps([made.__name__, sorted(known), [one for one in fields if one not in known]]))
"""
ASK_S = 60.0
READ_HERE = frozenset(  # that classes of transformers may not have
    "is_matryoshka matryoshka_dimensions classifier_from_token is_original_qwen3_reranker method sentence_transformers "
    "sbert_ce_default_activation_function problem_type sliding_window_pattern rope_theta rope_scaling rope_parameters "
    "torch_dtype dtype quantization_config num_nextn_predict_layers use_bidirectional_attention".split()
)


def overridden(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """config.json as --hf-overrides wants it."""
    check_overrides(values, changes)
    return merged(values, changes)


def check_overrides(values: dict[str, Any], changes: dict[str, Any]) -> None:
    """ConfigError for a field that neither config.json has nor the model's class of transformers, which is asked in a
    process of its own, and only of fields that are new.
    """
    new = [name for name in changes if name not in values and name not in READ_HERE]
    if not new or values.get("auto_map"):
        return
    command = [sys.executable, "-c", ASK, json.dumps([values.get("model_type"), new])]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=True).stdout
        kind, known, unknown = json.loads(said)
    except (subprocess.SubprocessError, OSError, ValueError):  # no transformers, or none that knows this model
        return
    if unknown:
        near = nearest(unknown[0], [*values, *known])
        text = f"neither config.json nor transformers' {kind} has a field {unknown[0]}{near}"
        raise ConfigError(f"--hf-overrides: {text}")
