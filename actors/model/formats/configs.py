"""What `quantization_config` of config.json says, by its quant_method. It comes from strangers: each value is checked,
and what is not known is refused by its name, for weights that are read wrongly make wrong texts and no error.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from ...options.config import ConfigError
from ..quantization import SAME
from ..values import Values
from .compressed_tensors import read_compressed_tensors
from .modelopt import read_modelopt
from .quark import read_quark
from .rules import INPUT_SCALES, KV_SCALES, SCALAR, as_part, compiled, group_of, listed, one_of
from .stored import (
    BNB_STORAGE,
    POWERS,
    SCALES,
    WHOLE,
    AffineWeight,
    AwqWeight,
    BnbWeight,
    ExpertFloat4Weight,
    Float4Weight,
    GptqWeight,
    ScaledWeight,
    StoredSpec,
    StoredWeights,
    WeightFormat,
)
from .torchao import read_torchao

EXPERT = re.compile(r"\.experts\.\d+\.")
MLX_FLOATS = {"mxfp4": (32, "U8"), "nvfp4": (16, "F8_E4M3")}  # by mode: columns that share a scale, and its type
EXPERT_FLOAT4 = Float4Weight(group=32, weight="weight", scale_type="U8", scale="scale")  # DeepSeek V4's
FURTHER_TOKENS = re.compile(r"mtp\..*")  # its layers that predict them
PATTERN = re.compile(r"[*+?^$()\[\]{}|\\]")  # in a name that is none: auto-round names layers by both


def read_stored_weights(given: Values) -> StoredWeights:
    """How the weights lie in the checkpoint. ConfigError names what is not supported."""
    name = given.text("quant_method")
    if name is None or name not in READERS:
        raise ConfigError(
            f"model: {given.file} says quant_method = {name!r}, which is not supported; "
            f"these are: {', '.join(name for name in READERS if name not in SAME)}; or take it in 16 or 32 bits"
        )
    return READERS[name](given)


def _gptq(given: Values) -> StoredWeights:
    said = "format" if given["checkpoint_format"] is None else "checkpoint_format"  # by two versions of gptqmodel
    version = one_of(given, said, ("gptq", "gptq_v2"), "gptq")
    one_of(given, "pack_dtype", ("int32",), "int32")
    if given.flag("is_marlin_format"):
        raise given.wrong("is_marlin_format", "false")
    base = GptqWeight(
        bits=one_of(given, "bits", (2, 3, 4, 8)),
        group=group_of(given),
        zero_less=1 if version == "gptq" else 0,
        reordered=given.flag("desc_act"),
    )
    only = given.texts("modules_in_block_to_quantize")
    rules = [(compiled(given, "dynamic", name), _changed(base, name, change)) for name, change in _rules(given)]

    def of(name: str) -> GptqWeight | None:
        if "layers." not in name and not given.flag("lm_head"):
            return None
        for pattern, changed in rules:
            if any(pattern.match(one) for one in as_part(name)):
                return changed
        if only and "layers." in name and not any(name.endswith(f".{part}") for part in only):
            return None
        return base

    return StoredWeights(name="gptq", of=of)


def _rules(given: Values) -> list[tuple[str, Values]]:
    """`dynamic` of gptqmodel: patterns of names (-: not quantised), and what is other there."""
    rules = given.object("dynamic")
    if rules is None:
        return []
    return [(name, rules.object(name) or Values(rules.file, {})) for name in rules.values]


def _changed(base: GptqWeight, rule: str, change: Values) -> GptqWeight | None:
    if rule.startswith("-:"):
        return None
    return GptqWeight(
        bits=one_of(change, "bits", (2, 3, 4, 8), base.bits),
        group=group_of(change, base.group),
        zero_less=base.zero_less,
        reordered=change.flag("desc_act", base.reordered),
    )


def _auto_round(given: Values) -> StoredWeights:
    """GPTQ's or AWQ's tensors; `extra_config` says of which layers the bits are others: of 16 they are floats."""
    packing = one_of(given, "packing_format", ("auto_round:auto_gptq", "auto_round:auto_awq"), "auto_round:auto_gptq")
    one_of(given, "data_type", ("int",), "int")
    group = group_of(given, 128)
    bits = one_of(given, "bits", (4,) if packing.endswith("awq") else (2, 3, 4, 8))
    base = AwqWeight(group=group) if packing.endswith("awq") else _plain_gptq(bits, group)
    others = given.object("extra_config")
    rules = {name: others.object(name) or Values(others.file, {}) for name in others.values} if others else {}
    changed = {name: _other_bits(base, bits, change) for name, change in rules.items()}
    patterns = [(compiled(given, "extra_config", name), own) for name, own in changed.items() if PATTERN.search(name)]
    blocks = given["block_name_to_quantize"]
    only = tuple(blocks.split(",")) if isinstance(blocks, str) else given.texts("block_name_to_quantize")

    def of(name: str) -> WeightFormat | None:
        names = list(as_part(name))
        for one in names:
            if one in changed:
                return changed[one]
        for pattern, own in patterns:
            if pattern.search(name):
                return own
        inside = (
            any(one.startswith(f"{part.strip()}.") for part in only for one in names) if only else "layers." in name
        )
        return base if inside else None

    return StoredWeights(name="auto-round", of=of)


def _plain_gptq(bits: int, group: int) -> GptqWeight:
    return GptqWeight(bits=bits, group=group, zero_less=1, reordered=False)


def _other_bits(base: WeightFormat, bits: int, change: Values) -> WeightFormat | None:
    """Of a layer that `extra_config` names."""
    own = change.whole("bits", 1, 32) or bits
    if own >= 16:
        return None
    if own == bits and change["group_size"] is None:
        return base
    if isinstance(base, GptqWeight):
        return _plain_gptq(one_of(change, "bits", (2, 3, 4, 8), bits), group_of(change, base.group))
    raise change.wrong("bits", f"{bits} or 16")


def _awq(given: Values) -> StoredWeights:
    one_of(given, "bits", (4,))
    for name in ("version", "checkpoint_format", "format"):
        one_of(given, name, ("gemm", "GEMM"), "gemm")
    given.flag("zero_point", True)  # of symmetric weights they stand there as well, all the same
    form = AwqWeight(group=group_of(given))
    return StoredWeights(name="awq", of=_all_layers_but(given.texts("modules_to_not_convert"), form))


def _fp8(given: Values) -> StoredWeights:
    one_of(given, "activation_scheme", ("dynamic", "static"), "dynamic")
    one_of(given, "fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    experts = one_of(given, "expert_dtype", ("fp8", "fp4"), "fp8")
    deepseek_v4 = given["expert_dtype"] is not None
    if given.texts("modules_to_convert"):
        raise given.wrong("modules_to_convert", "nothing (embeddings in floats)")
    sizes, small = given["weight_block_size"], given.text("quant_method") == "mxfp8"
    if sizes is None and not small:
        form = ScaledWeight(type="F8_E4M3", block=(WHOLE, WHOLE), other_name="weight_scale_inv", others=INPUT_SCALES)
    else:
        rows, columns = (1.0, 32.0) if sizes is None else given.reals("weight_block_size", 2, 1 << 20)
        form = ScaledWeight(
            type="F8_E4M3",
            block=(int(rows), int(columns)),
            scale="weight_scale_inv",
            other_name="scale" if deepseek_v4 else None,
            scale_types=POWERS if small else (*SCALES, "F8_E8M0"),
            others=INPUT_SCALES,
        )
    plain = given.texts("modules_to_not_convert") or given.texts("ignored_layers")
    of = _all_layers_but(plain, form)
    return StoredWeights(
        name="fp8",
        of=_with_experts(of, EXPERT_FLOAT4) if experts == "fp4" else of,
        needless=FURTHER_TOKENS if deepseek_v4 else KV_SCALES,
    )


def _with_experts(of: Callable[[str], WeightFormat | None], own: WeightFormat) -> Callable[[str], WeightFormat | None]:
    """Experts, each a module of its own, have another format than the rest."""
    return lambda name: own if EXPERT.search(name) and of(name) is not None else of(name)


def _fbgemm_fp8(given: Values) -> StoredWeights:
    form = ScaledWeight(type="F8_E4M3", block=(1, WHOLE), others=(("input_scale_ub", SCALAR),))
    return StoredWeights(name="fbgemm_fp8", of=_all_layers_but(given.texts("modules_to_not_convert"), form))


def _mxfp4(given: Values) -> StoredWeights:
    """gpt-oss': of the experts alone."""
    form = ExpertFloat4Weight()
    listed = [re.escape(part).replace(r"\*", "[^.]+") for part in given.texts("modules_to_not_convert")]
    plain = re.compile("|".join(rf"(?:.*\.)?{part}(?:\..*)?" for part in listed) or "$.")
    return StoredWeights(
        name="mxfp4", of=lambda name: form if ".experts." in name and not plain.fullmatch(name) else None
    )


def _bitsandbytes(given: Values) -> StoredWeights:
    plain = given.texts("llm_int8_skip_modules")
    form: BnbWeight | ScaledWeight
    if given.flag("load_in_4bit"):
        storage = one_of(given, "bnb_4bit_quant_storage", tuple(BNB_STORAGE), "uint8")
        kind = one_of(given, "bnb_4bit_quant_type", ("nf4", "fp4"), "fp4")
        form = BnbWeight(kind=kind, nested=given.flag("bnb_4bit_use_double_quant"), storage=BNB_STORAGE[storage])
    elif given.flag("load_in_8bit"):
        row_major = ("weight_format", StoredSpec((), ("U8",), optional=True))
        form = ScaledWeight(type="I8", block=(1, WHOLE), scale="SCB", divisor=127.0, others=(row_major,))
    else:
        raise given.wrong("load_in_4bit", "true here or in load_in_8bit")
    return StoredWeights(name="bitsandbytes", of=_all_layers_but(plain, form))


def _mlx(given: Values) -> StoredWeights:
    """All weights and embeddings; layers of which more is said stand beside that, with false those in floats."""
    base = _of_mlx(given, given)
    own = {name: given.object(name) for name, rule in given.values.items() if isinstance(rule, dict)}
    forms = {name: base if rule is None else _of_mlx(rule, given) for name, rule in own.items()}
    floats = {name for name, rule in given.values.items() if rule is False}

    def of(name: str) -> WeightFormat | None:
        named = next((one for one in as_part(name) if one in forms or one in floats), name)
        return None if named in floats else forms.get(named, base)

    return StoredWeights(name="mlx", of=of, embeddings=True)


def _of_mlx(given: Values, whole: Values) -> WeightFormat:
    """What is said of one layer, or of all; a layer's mode is affine where it says none."""
    mode = one_of(given, "mode", ("affine", *MLX_FLOATS), "affine")
    if mode == "affine":
        return _affine(given, whole if whole["mode"] in (None, "affine") else given)
    group, scales = MLX_FLOATS[mode]
    one_of(given, "bits", (4,), 4)
    one_of(given, "group_size", (group,), group)
    return Float4Weight(group=group, weight="weight", scale_type=scales, scale="scales", words=True)


def _metal(given: Values) -> StoredWeights:
    """The same by transformers: of linears alone, and one of its tensors has another name."""
    form = msgspec.structs.replace(_affine(given, given), added="qbiases")
    return StoredWeights(name="metal", of=_all_layers_but(given.texts("modules_to_not_convert"), form))


def _affine(given: Values, whole: Values) -> AffineWeight:
    bits = given if given["bits"] is not None else whole
    group = given if given["group_size"] is not None else whole
    return AffineWeight(bits=one_of(bits, "bits", (2, 3, 4, 5, 6, 8)), group=group_of(group, 64))


def _all_layers_but(plain: tuple[str, ...], form: WeightFormat) -> Callable[[str], WeightFormat | None]:
    """The format of all linears within layers; what makes logits stays floats in all these formats."""
    is_plain = listed(plain)
    return lambda name: None if "layers." not in name or is_plain(name) else form


READERS: dict[str, Callable[[Values], StoredWeights]] = {
    "compressed-tensors": read_compressed_tensors,
    "gptq": _gptq,
    "awq": _awq,
    "auto-round": _auto_round,
    "intel/auto-round": _auto_round,
    "fp8": _fp8,
    "mxfp8": _fp8,
    "fbgemm_fp8": _fbgemm_fp8,
    "modelopt": read_modelopt,
    "modelopt_fp4": read_modelopt,
    "modelopt_mixed": read_modelopt,
    "modelopt_mxfp8": read_modelopt,
    "mlx": _mlx,
    "metal": _metal,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
    "torchao": read_torchao,
    "quark": read_quark,
}
