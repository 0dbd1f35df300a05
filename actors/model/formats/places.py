"""Where tools write how weights are stored, if not into `quantization_config` of config.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any, TypeGuard

from ...options.config import ConfigError
from ..values import read_json
from .rules import listed

FIELD = "quantization_config"
EXPERTS_TYPE = "expert_dtype"  # DeepSeek V4's, beside the other
FLOATS = "modules_to_not_convert"
BESIDE = "hf_quant_config.json"  # of older ModelOpt
OLDER = "compression_config"  # of compressed-tensors' first versions
MLX = "quantization"  # MLX' own, which it writes as the other, too
AS_AT_THE_HUB = frozenset(  # kinds whose weights MLX leaves as they are; it changes those of others when it converts
    "llama mistral qwen2 qwen3 phi3 gemma gemma2 gemma3_text olmo2 granite smollm3 seed_oss glm4".split()
)
EXPERTS = {"num_experts", "num_local_experts", "n_routed_experts"}  # whoever has them, has one of these
ROUTERS = ("gate", "router", "shared_expert_gate")  # what chooses experts, or weighs those for all tokens


def told_elsewhere(folder: Path, values: dict[str, Any], tensors: Callable[[], Set[str]]) -> dict[str, Any]:
    """What is to be changed of config.json so that it says it by itself; nothing, where it does. `tensors`: the names
    of those in the folder's files, as far as these are there."""
    known, mlx = values.get(FIELD), values.get(MLX)
    if isinstance(mlx, dict) and "group_size" in mlx and (known is None or known == mlx):
        if str(values.get("model_type")) not in AS_AT_THE_HUB:
            raise ConfigError(
                f"model: {folder / 'config.json'} is MLX' of a {values.get('model_type')}, whose weights it changes; "
                f"read are {', '.join(sorted(AS_AT_THE_HUB))}; take the model that it was made of, or its GGUF file"
            )
        return {FIELD: {**mlx, "quant_method": "mlx"}}
    text = values.get("text_config")
    if isinstance(known, dict) and known.get("quant_method") == "gptq" and _has_experts(values, text):
        floats = _routers_in_floats(tensors())
        rules: dict[str, Any] = {f"-:.*\\.{re.escape(name)}$": {} for name in floats}
        return {FIELD: {"dynamic": rules}} if rules else {}
    if isinstance(known, dict) and known.get("quant_method") == "awq" and _are_texts(names := known.get(FLOATS)):
        more = _floats_with(names, tensors())
        return {FIELD: {FLOATS: [*names, *more]}} if more else {}
    if isinstance(known, dict) and values.get("model_type") == "deepseek_v4" and EXPERTS_TYPE not in known:
        return {FIELD: {EXPERTS_TYPE: values.get(EXPERTS_TYPE) or "fp8"}}
    if isinstance(known, dict):
        if "quant_method" not in known and isinstance(known.get("producer"), dict):
            return {FIELD: {"quant_method": "modelopt"}}
        return {}
    if known is not None:
        return {}
    if isinstance(older := values.get(OLDER), dict):
        return {FIELD: {"quant_method": "compressed-tensors", **older}}
    if isinstance(text, dict) and isinstance(inner := text.get(FIELD), dict):
        return {FIELD: inner}
    beside = read_json(folder / BESIDE, missing_ok=True)
    return {FIELD: {"quant_method": "modelopt", **beside}} if "quantization" in beside else {}


def _has_experts(*parts: Any) -> bool:
    """Of a model that sees, its text part says it."""
    return any(isinstance(part, dict) and EXPERTS & part.keys() for part in parts)


def _are_texts(names: Any) -> TypeGuard[list[str]]:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _routers_in_floats(there: Set[str]) -> list[str]:
    """The last names of those that GPTQ's tools have left in floats without saying so: only the tensors tell."""
    floats = {name.rpartition(".")[2] for name in _floats(there)}
    return [name for name in ROUTERS if name in floats]


def _floats_with(names: list[str], there: Set[str]) -> list[str]:
    """AutoAWQ leaves in floats what has such a name anywhere in its own, but other tools only what is called so."""
    is_named = listed(tuple(names))
    floats = (name for name in _floats(there) if any(part in name for part in names if part))
    return sorted(name for name in floats if "layers." in name and not is_named(name))


def _floats(there: Set[str]) -> Iterator[str]:
    """What is multiplied as it is, and what is no linear layer at all."""
    modules = (name.removesuffix(".weight") for name in there if name.endswith(".weight"))
    return (name for name in modules if f"{name}.qweight" not in there)
