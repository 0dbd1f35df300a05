"""compressed-tensors, as llm-compressor writes it: groups of layers, each with its numbers' type and format."""

from __future__ import annotations

from collections.abc import Callable

from ..values import Values
from .rules import KV_SCALES, SCALAR, as_part, compiled, group_of, one_of
from .stored import POWERS, WHOLE, Float4Weight, PackedWeight, ScaledWeight, StoredWeights, WeightFormat

LINEAR = "Linear"  # the class of all layers that are quantised
BESIDE = (("input_scale", SCALAR), ("input_zero_point", SCALAR), ("input_global_scale", SCALAR))
FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
)
IN_WEIGHTS = {"weight_input", "weight_output"}  # where a rotation is done once and for all
MIXED = "mixed-precision"  # each group says its own

Closeness = Callable[[str], int]  # with which a layer is meant, by its name; 0: it is not


def read_compressed_tensors(given: Values) -> StoredWeights:
    """ConfigError names what is not supported."""
    one_of(given, "quantization_status", ("compressed", "frozen"), "compressed")
    sparsity = given.object("sparsity_config")
    if sparsity is not None:
        one_of(sparsity, "format", ("dense",), "dense")
    _check_rotations(given)
    groups = given.object("config_groups")
    if groups is None and given.object("kv_cache_scheme") is not None:  # of keys and values alone
        return StoredWeights(name="compressed-tensors", of=lambda name: None, needless=KV_SCALES)
    if groups is None:
        raise given.wrong("config_groups", "an object with a group of layers")
    ignored = _closeness(given, "ignore")
    parts = []
    for name in groups.values:
        if (group := groups.object(name)) is not None:
            parts.append((_closeness(group, "targets"), _format(given, group)))

    def of(name: str) -> WeightFormat | None:
        if ignored(name) or not parts:
            return None
        closeness, form = max(parts, key=lambda part: part[0](name))
        return form if closeness(name) else None

    return StoredWeights(name="compressed-tensors", of=of, needless=KV_SCALES)


def _check_rotations(given: Values) -> None:
    """Those of weights are in them as they are stored; any other turns what goes into a layer or comes out of it."""
    config = given.object("transform_config")
    groups = None if config is None else config.object("config_groups")
    if groups is None:
        return
    for name in groups.values:
        scheme = groups.object(name)
        applied = [] if scheme is None else scheme["apply"] or []
        if scheme is None or not isinstance(applied, list) or not all(isinstance(one, dict) for one in applied):
            raise given.wrong("transform_config", "for each of its groups an object with a list `apply`")
        others = sorted({str(one.get("location")) for one in applied} - IN_WEIGHTS)
        if others:
            known = " and ".join(sorted(IN_WEIGHTS))
            raise scheme.wrong("apply", f"a location of weights alone ({known}; not {others[0]})")


def _closeness(given: Values, key: str) -> Closeness:
    """3 by name, 2 by a pattern (re:), 1 by the class Linear, which all layers are here."""
    words = frozenset(given.texts(key))
    patterns = [compiled(given, key, word) for word in words if word.startswith("re:")]

    def closeness(name: str) -> int:
        names = list(as_part(name))
        if any(own in words for own in names):
            return 3
        return 2 if any(pattern.match(own) for pattern in patterns for own in names) else int(LINEAR in words)

    return closeness


def _format(whole: Values, group: Values) -> WeightFormat:
    own = group if group["format"] is not None or whole["format"] == MIXED else whole
    kind, weights = one_of(own, "format", FORMATS), group.object("weights")
    if weights is None:
        raise group.wrong("weights", "an object with num_bits and type")
    if kind in ("nvfp4-pack-quantized", "mxfp4-pack-quantized"):
        return _four_bits(kind, weights)
    if kind == "pack-quantized":
        return _packed(weights)
    if kind == "mxfp8-quantized":
        one_of(weights, "num_bits", (8,))
        block = 1, group_of(weights, 32)
        return ScaledWeight(type="F8_E4M3", block=block, scale_types=POWERS, others=BESIDE)
    one_of(weights, "num_bits", (8,))
    floats = ("float",) if kind == "float-quantized" else ("int",) if kind == "int-quantized" else ("int", "float")
    type_ = one_of(weights, "type", floats, floats[0])
    symmetric = weights.flag("symmetric", True)
    if type_ == "float" and not symmetric:
        raise weights.wrong("symmetric", "true")
    return ScaledWeight(
        type="I8" if type_ == "int" else "F8_E4M3",
        block=_block(weights),
        zero=None if symmetric else "weight_zero_point",
        others=BESIDE,
    )


def _packed(weights: Values) -> PackedWeight:
    one_of(weights, "type", ("int",), "int")
    strategy = one_of(
        weights, "strategy", ("group", "channel"), "channel" if weights["group_size"] is None else "group"
    )
    group = group_of(weights) if strategy == "group" else WHOLE
    order = one_of(weights, "actorder", ("group", "weight", "static", "dynamic"), "weight")
    return PackedWeight(
        bits=one_of(weights, "num_bits", (2, 4, 8)),
        group=group,
        symmetric=weights.flag("symmetric", True),
        reordered=order in ("group", "dynamic"),
    )


def _four_bits(kind: str, weights: Values) -> Float4Weight:
    one_of(weights, "num_bits", (4,))
    one_of(weights, "type", ("float",))
    if kind == "mxfp4-pack-quantized":
        return Float4Weight(group=group_of(weights, 32), weight="weight_packed", scale_type="U8", others=BESIDE)
    return Float4Weight(
        group=group_of(weights, 16),
        weight="weight_packed",
        scale_type="F8_E4M3",
        whole="weight_global_scale",
        divides=True,
        others=BESIDE,
    )


def _block(weights: Values) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    strategy = one_of(weights, "strategy", ("tensor", "channel", "group", "block"), "tensor")
    if strategy == "group":
        return 1, group_of(weights)
    if strategy == "block":
        rows, columns = weights.reals("block_structure", 2, 1 << 20)
        return int(rows), int(columns)
    return (1, WHOLE) if strategy == "channel" else (WHOLE, WHOLE)
