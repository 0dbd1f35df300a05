"""Which types of numbers a model is computed and kept in: --dtype, --quantization, --kv-cache-dtype. Knows no torch."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ...options.config import Config, ConfigError
from ..architecture import Architecture
from ..quantization import AUTO, GGUF, METHODS, NONE, QuantMethod, is_auto
from .kv import KV_TYPES, KVType
from .machine import cpu_flags

WIDE = ("t5", "mt5", "umt5", "longt5", "gemma", "glm4")  # of whose hidden states some are infinite in float16
NATIVE_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # the last is arm64's


class Number(NamedTuple):
    """The same without torch."""

    itemsize: int


NUMBERS = {"float32": Number(4), "bfloat16": Number(2), "float16": Number(2)}  # by --dtype


def dtype_on_cpu(config: Config, shape: Architecture) -> str:
    """--dtype; `auto` is float32, or bfloat16 where the model is stored so and the processor multiplies it natively.

    Of quantised weights that of all the rest, which the format may say.
    """
    check_quantization(config, shape, on_gpu=False)
    if shape.quantization.computes_in is not None:
        return shape.quantization.computes_in
    return float_on_cpu(config, shape.stored_dtype)


def float_on_cpu(config: Config, stored: str) -> str:
    """The same of weights that are floats, and stored in this type."""
    if config.dtype != "auto":
        return config.dtype
    native = stored == "bfloat16" and cpu_flags() & NATIVE_BFLOAT16
    return "bfloat16" if native else "float32"


def float_on_gpu(config: Config, stored: str) -> str:
    """The same on a GPU; `auto` is the type that they are stored in, but bfloat16 for float32, which takes twice the
    memory and many times as long, and is for checks.
    """
    if config.dtype != "auto":
        return config.dtype
    return "bfloat16" if stored == "float32" else stored


def pooled_on_gpu(config: Config, stored: str, kind: str) -> str:
    """The same of an encoder that pools, of this `model_type`: there float16 is for float32, whose vectors are nearer;
    some kinds go beyond its range.
    """
    if config.dtype != "auto" or stored not in ("float32", "None"):
        return float_on_gpu(config, stored)
    return "bfloat16" if kind.startswith(WIDE) else "float16"


def kv_type_on_cpu(config: Config, computed: str, quantised: bool) -> KVType:
    """--kv-cache-dtype on a CPU; `auto` is the type that a model computes in, but float16 where its weights were
    rounded to fewer bits: that adds next to nothing to what is lost already.
    """
    if config.kv_cache_dtype != "auto":
        return KV_TYPES[config.kv_cache_dtype]
    return KV_TYPES["float16" if quantised and computed == "float32" else computed]


def kv_type_of(config: Config, shape: Architecture) -> KVType:
    """How a model keeps keys and values on a CPU."""
    return kv_type_on_cpu(config, dtype_on_cpu(config, shape), shape.quantization.computes_in is not None)


def method_at_load(config: Config) -> QuantMethod:
    """What --quantization makes on a CPU of weights that are stored as floats; ConfigError if that cannot be."""
    method = METHODS.get(config.quantization, NONE)
    if method.stored_as is not None:
        raise ConfigError(f"--quantization {method.name}: the model's weights are not of this format")
    if method.computes_in is not None and (reason := method.refusal(config.dtype, on_gpu=False)) is not None:
        raise ConfigError(f"--quantization {method.name}: {reason}")
    return method


def check_quantization(config: Config, shape: Architecture, on_gpu: bool) -> None:
    """ConfigError if the weight format and the device, or --dtype, do not go together."""
    method = shape.quantization
    if shape.stored is not None and is_auto(config.quantization):
        if on_gpu:
            return  # they stay as they are stored, or become floats: see `architecture_on_gpu`
        if method.refusal(config.dtype, on_gpu):
            kept = f"model: its weights ({shape.stored.name}) become {method.name}, "
            raise ConfigError(f"{kept}with {method.computes_in}; for --dtype {config.dtype} set --quantization none")
    if reason := method.refusal(config.dtype, on_gpu):
        asked = "--quantization" if config.quantization == method.name else "model: weights in"
        raise ConfigError(f"{asked} {method.name}: {reason}")


def architecture_on_gpu(config: Config, shape: Architecture, of_gguf: bool = False) -> tuple[Architecture, bool]:
    """The architecture as a GPU computes it, and whether weights stay in the bits of the checkpoint where they can.

    What a CPU would make int8 of is floats there, but for those; --quantization none has no others. `of_gguf`: weights
    are a GGUF file's.
    """
    of_gguf = of_gguf and config.quantization in (AUTO, GGUF.name)
    keeps = is_auto(config.quantization) or shape.quantization.rounds_inputs
    if of_gguf or (shape.stored is not None and keeps):
        return msgspec.structs.replace(shape, quantization=NONE, mixed=False), True
    return msgspec.structs.replace(shape, quantization=shape.quantization.on_gpu()), False
