"""Checkpoints as Model Optimizer, MLX and torchao write them, and 4 bits of bitsandbytes in another type: as
weight_formats.py has those of others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

Stored = dict[str, Tensor]
Packed = tuple[Stored, np.ndarray]
Pack = Callable[[np.ndarray], Packed]
MLP = "model.layers.1.mlp"
IGNORED: dict[str, Any] = {"quant_method": "modelopt", "ignore": ["lm_head", "model.language_*.layers.1.mlp*", MLP]}
BLOCK, MX_GROUP, MLX_GROUP = 128, 32, 32


def modelopt(algorithm: str, **more: Any) -> dict[str, Any]:
    return IGNORED | {"quant_algo": algorithm} | more


def by_row(weight: np.ndarray) -> Packed:
    scales = (np.abs(weight).max(1) / 448).astype(np.float32)
    numbers = torch.from_numpy(weight / scales[:, None]).to(torch.float8_e4m3fn)
    return {"weight": numbers, "weight_scale": torch.from_numpy(scales)}, numbers.double().numpy() * scales[:, None]


def by_block(weight: np.ndarray) -> Packed:
    """Scales [blocks of rows, 1, blocks of columns, 1]."""
    rows, columns = (-(-size // BLOCK) for size in weight.shape)
    scales = np.random.default_rng(weight.size).uniform(0.001, 0.003, (rows, columns)).astype(np.float32)
    spread = np.repeat(np.repeat(scales, BLOCK, 0), BLOCK, 1)[: weight.shape[0], : weight.shape[1]]
    numbers = torch.from_numpy(weight / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
    stored = torch.from_numpy(scales).view(rows, 1, columns, 1)
    return {"weight": numbers, "weight_scale": stored}, numbers.double().numpy() * spread


def mxfp8(weight: np.ndarray) -> Packed:
    groups = weight.reshape(len(weight), -1, MX_GROUP)
    exponents = np.ceil(np.log2(np.abs(groups).max(2) / 448))
    scales = 2.0**exponents
    numbers = torch.from_numpy(groups / scales[:, :, None]).to(torch.float8_e4m3fn)
    exact = (numbers.double().numpy() * scales[:, :, None]).reshape(weight.shape)
    stored = torch.from_numpy((exponents + 127).astype(np.uint8))
    return {"weight": numbers.reshape(weight.shape), "weight_scale": stored}, exact


def mlx(bits: int) -> Pack:
    """A number is q · scale + bias; q lie bit after bit in words."""

    def pack(weight: np.ndarray) -> Packed:
        groups = weight.reshape(len(weight), -1, MLX_GROUP)
        low, top = groups.min(2), (1 << bits) - 1
        scales = ((groups.max(2) - low) / top).astype(np.float16).astype(np.float64)
        biases = low.astype(np.float16).astype(np.float64)
        numbers = np.clip(np.round((groups - biases[..., None]) / scales[..., None]), 0, top).astype(np.int64)
        exact = (numbers * scales[..., None] + biases[..., None]).reshape(weight.shape)
        ones = (numbers.reshape(len(weight), -1, 1) >> np.arange(bits) & 1).astype(np.uint8).reshape(len(weight), -1)
        words = np.packbits(ones, axis=1, bitorder="little").view(np.uint32)
        found = {"weight": torch.from_numpy(words), "scales": torch.from_numpy(scales).half()}
        return found | {"biases": torch.from_numpy(biases).half()}, exact

    return pack


def mlx_floats(pack: Pack) -> Pack:
    """Floats of 4 bits with a scale by group, whose bytes lie in words."""

    def packed(weight: np.ndarray) -> Packed:
        found, exact = pack(weight)
        words = found["weight_packed"].numpy().view(np.uint32)
        return {"weight": torch.from_numpy(words), "scales": found["weight_scale"].view(torch.uint8)}, exact

    return packed


def torchao(group: int | None) -> Pack:
    """Whole numbers by row; or of 4 bits by group, with zero points."""

    def pack(weight: np.ndarray) -> Packed:
        groups = weight.reshape(len(weight), -1, group or weight.shape[1])
        top = 127 if group is None else 7
        low, high = (-np.abs(groups).max(2), np.abs(groups).max(2)) if group is None else (groups.min(2), groups.max(2))
        scales = ((high - low) / (2 * top + (group is not None))).astype(np.float32).astype(np.float64)
        zeros = np.zeros_like(scales) if group is None else np.round(-top - 1 - low / scales)
        numbers = np.clip(np.round(groups / scales[..., None] + zeros[..., None]), -top - 1, top)
        exact = ((numbers - zeros[..., None]) * scales[..., None]).reshape(weight.shape)
        stored = torch.from_numpy(numbers.reshape(weight.shape).astype(np.int8))
        found = {"_weight_qdata": stored, "_weight_scale": torch.from_numpy(scales).float()}
        return found | ({} if group is None else {"_weight_zero_point": torch.from_numpy(zeros.astype(np.int8))}), exact

    return pack


def torchao_config(group: int | None) -> dict[str, Any]:
    by_group = {"_type": "PerGroup", "_data": {"group_size": group}}
    given = {"weight_granularity": by_group} if group else {"granularity": {"_type": "PerRow", "_data": {"dim": -1}}}
    kind = "Int8DynamicActivationIntxWeightConfig" if group else "Int8WeightOnlyConfig"
    quant_type = {"default": {"_type": kind, "_data": given, "_version": 2}}
    return {"quant_method": "torchao", "quant_type": quant_type, "modules_to_not_convert": ["lm_head", MLP]}


def mlx_config(bits: int, mode: str = "affine", group: int = MLX_GROUP) -> dict[str, Any]:
    floats = dict.fromkeys(("lm_head", "model.embed_tokens"), False)
    floats |= {f"{MLP}.{name}_proj": False for name in ("gate", "up", "down")}
    return {"quant_method": "mlx", "bits": bits, "group_size": group, "mode": mode, **floats}


def quark_config(**weight: Any) -> dict[str, Any]:
    spec = {"is_dynamic": False, "symmetric": True, "observer_cls": "PerTensorMinMaxObserver", "ch_axis": None}
    layer = {"weight": spec | weight, "input_tensors": None, "output_tensors": None, "bias": None}
    values: dict[str, Any] = {"layer_type_quant_config": {}, "layer_quant_config": {}, "algo_config": None}
    export = {"weight_format": "real_quantized", "pack_method": "reorder", "kv_cache_group": []}
    excluded = {"exclude": ["lm_head", f"{MLP}.*"]}
    return {"quant_method": "quark", "global_quant_config": layer, "export": export} | excluded | values


def int8_by_row(weight: np.ndarray) -> Packed:
    scales = (np.abs(weight).max(1) / 127).astype(np.float32)
    numbers = np.round(weight / scales[:, None]).astype(np.int8)
    found = {"weight": torch.from_numpy(numbers), "weight_scale": torch.from_numpy(scales)}
    return found | {"weight_zero_point": torch.zeros(len(weight), dtype=torch.int32)}, numbers * scales[:, None].astype(
        np.float64
    )


def renamed(pack: Pack, **names: str) -> Pack:
    """The same tensors by other names."""

    def packed(weight: np.ndarray) -> Packed:
        found, exact = pack(weight)
        return {names.get(name, name): tensor for name, tensor in found.items()}, exact

    return packed


def in_type(pack: Pack, dtype: torch.dtype) -> Pack:
    """The same bytes as numbers of another type, as FSDP wants them."""

    def packed(weight: np.ndarray) -> Packed:
        found, exact = pack(weight)
        return found | {"weight": found["weight"].view(-1).view(dtype).view(-1, 1)}, exact

    return packed


def mixed(pack_nvfp4: Pack) -> Pack:
    """What is square in FP8 (queries, and what attention makes), all else in NVFP4."""
    return lambda weight: by_one(weight) if weight.shape == (64, 64) else pack_nvfp4(weight)


def by_one(weight: np.ndarray) -> Packed:
    scale = np.float32(np.abs(weight).max() / 448)
    numbers = torch.from_numpy(weight / scale).to(torch.float8_e4m3fn)
    return {"weight": numbers, "weight_scale": torch.tensor(scale)}, numbers.double().numpy() * scale


MIXED = modelopt(
    "MIXED_PRECISION",
    quantized_layers={
        "model.layers.*.self_attn.q_proj": {"quant_algo": "FP8"},
        "model.layers.*.self_attn.o_proj": {"quant_algo": "FP8"},
        "*.self_attn.k_proj": {"quant_algo": "NVFP4", "group_size": 16},
        "*.self_attn.v_proj": {"quant_algo": "NVFP4", "group_size": 16},
        **{f"model.layers.{layer}.mlp*": {"quant_algo": "nvfp4"} for layer in (0, 2)},
    },
)
