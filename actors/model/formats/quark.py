"""AMD's Quark: one way to store all weights, or others for layers by their names. What it rounds of inputs and outputs,
and of KV memory, stays floats here.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable

from ..values import Values
from .rules import INPUT_SCALES, KV_SCALES, SCALAR, as_part, compiled, group_of, one_of
from .stored import WHOLE, Float4Weight, ScaledWeight, StoredSpec, StoredWeights, WeightFormat

LINEAR = "Linear"  # the class of all layers that are quantised
NEEDLESS = re.compile(rf".*\.(prob_)?output_scale|{KV_SCALES.pattern}")
BESIDE = (*INPUT_SCALES, ("input_zero_point", SCALAR))
ROTATIONS = ("rotation", "quarot")
ONLINE = ("r4", "online_r1_rotation", "online_config")  # of these: inputs are rotated, too
MX_GROUP = 32

Matches = Callable[[str], bool]


def read_quark(given: Values) -> StoredWeights:
    """ConfigError names what is not supported."""
    export = given.object("export") or Values(given.file, {})
    one_of(export, "weight_format", ("real_quantized",), "real_quantized")
    _check_algorithms(given)
    whole = _form(given.object("global_quant_config"))
    kinds = given.object("layer_type_quant_config") or Values(given.file, {})
    if any(name != LINEAR for name in kinds.values):
        raise given.wrong("layer_type_quant_config", f"{LINEAR} alone")
    if LINEAR in kinds.values:
        whole = _form(kinds.object(LINEAR))
    rules = given.object("layer_quant_config") or Values(given.file, {})
    forms = [(_matches(given, "layer_quant_config", name), _form(rules.object(name))) for name in rules.values]
    plain = [_matches(given, "exclude", name) for name in given.texts("exclude")]

    def of(name: str) -> WeightFormat | None:
        if any(is_plain(name) for is_plain in plain):
            return None
        return next((form for is_meant, form in forms if is_meant(name)), whole)

    return StoredWeights(name="quark", of=of, needless=NEEDLESS)


def _matches(given: Values, key: str, name: str) -> Matches:
    """Whether a layer is meant: by its name, by one with * and ? in it, or by a pattern (re:)."""
    pattern = compiled(given, key, name) if name.startswith("re:") else re.compile(fnmatch.translate(name))
    return lambda layer: any(pattern.match(own) for own in as_part(layer))


def _check_algorithms(given: Values) -> None:
    """What has changed weights before they were rounded is in them, but for what changes inputs to match."""
    said = given["algo_config"]
    for one in said if isinstance(said, list) else [said]:
        if isinstance(one, dict) and one.get("name") in ROTATIONS and any(one.get(key) for key in ONLINE):
            raise given.wrong("algo_config", "nothing that rotates inputs")


def _form(layer: Values | None) -> WeightFormat | None:
    """Of what is said of layers; none where their weights are floats."""
    if layer is None or layer["weight"] is None:
        return None
    if layer["bias"] is not None:
        raise layer.wrong("bias", "nothing (biases in floats)")
    weight = layer.object("weight")
    if weight is None:
        raise layer.wrong("weight", "an object with dtype and qscheme")
    if weight.flag("is_dynamic"):
        raise weight.wrong("is_dynamic", "false")
    match one_of(weight, "dtype", ("fp8_e4m3", "int8", "fp4")):
        case "fp4":
            return _four_bits(weight)
        case "int8":
            return _integers(weight)
    return ScaledWeight(type="F8_E4M3", block=_block(weight), others=BESIDE)


def _four_bits(weight: Values) -> Float4Weight:
    """MXFP4."""
    one_of(weight, "qscheme", ("per_group",))
    one_of(weight, "scale_format", ("e8m0",))
    one_of(weight, "group_size", (MX_GROUP,))
    return Float4Weight(group=group_of(weight), weight="weight", scale_type="U8", others=BESIDE)


def _integers(weight: Values) -> ScaledWeight:
    if not weight.flag("symmetric", True):
        raise weight.wrong("symmetric", "true")
    zeros = StoredSpec(None, ("I32", "I8"), optional=True, zero=True)
    return ScaledWeight(type="I8", block=_block(weight), others=(*BESIDE, ("weight_zero_point", zeros)))


def _block(weight: Values) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    if one_of(weight, "qscheme", ("per_tensor", "per_channel")) == "per_tensor":
        return WHOLE, WHOLE
    one_of(weight, "ch_axis", (0,), 0)
    return 1, WHOLE
