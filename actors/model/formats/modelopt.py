"""NVIDIA's Model Optimizer: one way to store all weights, or several, by the layers that have each."""

from __future__ import annotations

from collections.abc import Callable

from ..values import Values
from .rules import INPUT_SCALES, KV_SCALES, group_of, listed
from .stored import POWERS, WHOLE, Float4Weight, ScaledWeight, StoredWeights, WeightFormat

MIXED = "MIXED_PRECISION"
BLOCK = 128  # rows and columns of FP8_PB_WO
MX_GROUP = 32


def _fp8(block: tuple[int, int]) -> ScaledWeight:
    return ScaledWeight(type="F8_E4M3", block=block, others=INPUT_SCALES)


def _nvfp4(group: int) -> Float4Weight:
    return Float4Weight(group=group, weight="weight", scale_type="F8_E4M3", whole="weight_scale_2", others=INPUT_SCALES)


ALGORITHMS: dict[str, Callable[[Values], WeightFormat]] = {
    "FP8": lambda given: _fp8((WHOLE, WHOLE)),
    "FP8_PER_CHANNEL_PER_TOKEN": lambda given: _fp8((1, WHOLE)),
    "FP8_PB_WO": lambda given: _fp8((BLOCK, BLOCK)),
    "NVFP4": lambda given: _nvfp4(group_of(given, 16)),
    "W4A16_NVFP4": lambda given: _nvfp4(group_of(given, 16)),
    "MXFP8": lambda given: ScaledWeight(type="F8_E4M3", block=(1, MX_GROUP), scale_types=POWERS, others=INPUT_SCALES),
}


def read_modelopt(given: Values) -> StoredWeights:
    """ConfigError names what is not supported."""
    inner = given.object("quantization") or given  # as hf_quant_config.json has it
    plain = listed(inner.texts("ignore") or inner.texts("exclude_modules"))
    of = _by_layer(inner) if _algorithm(inner) == MIXED else _same(_form(inner, inner))
    return StoredWeights(
        name="modelopt",
        of=lambda name: None if "layers." not in name or plain(name) else of(name),
        needless=KV_SCALES,
    )


def _algorithm(given: Values) -> str:
    return (given.text("quant_algo") or "").upper()


def _form(given: Values, whole: Values) -> WeightFormat:
    """`whole` is what is said of all layers."""
    make = ALGORITHMS.get(_algorithm(given))
    if make is None:
        mixed = "" if given is not whole else f", or {MIXED}"
        raise given.wrong("quant_algo", f"{' or '.join(ALGORITHMS)}{mixed}")
    return make(whole if given["group_size"] is None else given)


def _same(form: WeightFormat) -> Callable[[str], WeightFormat | None]:
    return lambda name: form


def _by_layer(given: Values) -> Callable[[str], WeightFormat | None]:
    """`quantized_layers` names them, or what they are a part of."""
    layers = given.object("quantized_layers")
    if layers is None:
        raise given.wrong("quantized_layers", "an object with the layers and how each is stored")
    names: dict[WeightFormat, list[str]] = {}
    for name in layers.values:
        own = layers.object(name)
        if own is None:
            raise layers.wrong(name, "an object with quant_algo")
        names.setdefault(_form(own, given), []).append(name)
    forms = [(listed(tuple(some)), form) for form, some in names.items()]
    return lambda name: next((form for has, form in forms if has(name)), None)
