"""torchao's tensors in safetensors: numbers of 8 bits, or of fewer in as many, with scales by tensor, row or group."""

from __future__ import annotations

from ..values import Values
from .rules import listed
from .stored import WHOLE, ScaledWeight, StoredWeights

FLOATS = ("Float8WeightOnlyConfig", "Float8DynamicActivationFloat8WeightConfig")
BYTES = ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig")
FEW_BITS = {"IntxWeightOnlyConfig": "granularity", "Int8DynamicActivationIntxWeightConfig": "weight_granularity"}
BY_ROW, BY_TENSOR, BY_GROUP, BY_AXIS = "PerRow", "PerTensor", "PerGroup", "PerAxis"


def read_torchao(given: Values) -> StoredWeights:
    """ConfigError names what is not supported."""
    kinds = given.object("quant_type")
    default = None if kinds is None else kinds.object("default")
    if default is None:
        raise given.wrong("quant_type", "an object with default, for all layers,")
    if given.flag("include_input_output_embeddings"):
        raise given.wrong("include_input_output_embeddings", "false")
    form, plain = _form(default), listed(given.texts("modules_to_not_convert"))
    return StoredWeights(name="torchao", of=lambda name: None if "layers." not in name or plain(name) else form)


def _form(given: Values) -> ScaledWeight:
    name, data = given.text("_type") or "", given.object("_data") or Values(given.file, {})
    if name not in (*FLOATS, *BYTES, *FEW_BITS):
        raise given.wrong("_type", f"{' or '.join((*FLOATS, *BYTES, *FEW_BITS))}")
    return ScaledWeight(
        type="F8_E4M3" if name in FLOATS else "I8",
        block=_block(data, FEW_BITS.get(name, "granularity")),
        weight="_weight_qdata",
        scale="_weight_scale",
        zero=None if name in FLOATS else "_weight_zero_point",
        without_zero=name in BYTES,
    )


def _block(given: Values, key: str) -> tuple[int, int]:
    """Rows and columns that share a scale; of several the last is of weights."""
    value = given[key]
    one = value[-1] if isinstance(value, list) and value else value
    kind = one.get("_type") if isinstance(one, dict) else BY_ROW if one is None else None
    if kind == BY_TENSOR:
        return WHOLE, WHOLE
    if kind in (BY_ROW, BY_AXIS):
        return 1, WHOLE
    inner = one.get("_data") if isinstance(one, dict) else None
    size = inner.get("group_size") if isinstance(inner, dict) else None
    if kind != BY_GROUP or not isinstance(size, int) or size < 1:
        raise given.wrong(key, f"{BY_TENSOR}, {BY_ROW}, {BY_AXIS} or {BY_GROUP}")
    return 1, size
