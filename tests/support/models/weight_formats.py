"""Checkpoints in the formats in which quantised weights are published, written by packers of their own.

A packer rounds a weight and returns the tensors of its format and the numbers that they mean, in float64 and by the
format's definition: number for number, without what the decoders are made of.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.layers import Kind

from . import other_formats as other

Stored = dict[str, Tensor]
Pack = Callable[[np.ndarray], tuple[Stored, np.ndarray]]
GROUP = 32
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
NF4 = np.linspace(-1, 1, 16) ** 3  # any table will do: the checkpoint has it with it


class Format(NamedTuple):
    """A format of checkpoints."""

    config: dict[str, Any]
    pack: Pack


def words(numbers: np.ndarray, bits: int) -> Tensor:
    """Numbers without sign of the last axis in words of 32 bits, the first in the lowest bits."""
    if 32 % bits:  # they go on from one word to the next: bit after bit
        ones = (numbers[..., None] >> np.arange(bits) & 1).astype(np.uint8).reshape(*numbers.shape[:-1], -1)
        ones = np.concatenate([ones, np.zeros((*ones.shape[:-1], -ones.shape[-1] % 32), np.uint8)], -1)
        return torch.from_numpy(np.packbits(ones, axis=-1, bitorder="little").view(np.int32))
    per = 32 // bits
    padded = np.zeros((*numbers.shape[:-1], -(-numbers.shape[-1] // per) * per), np.uint64)
    padded[..., : numbers.shape[-1]] = numbers
    parts = padded.reshape(*padded.shape[:-1], -1, per)
    whole = (parts << np.arange(0, 32, bits, dtype=np.uint64)).sum(-1)
    return torch.from_numpy(np.ascontiguousarray(whole.astype(np.uint32)).view(np.int32))


def rounded(
    weight: np.ndarray, bits: int, group: int, symmetric: bool, order: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(numbers without sign, scales and zero points by group, what they mean), rows as they are."""
    rows, columns = weight.shape
    order = np.arange(columns) // group if order is None else order
    count, top = order.max() + 1, (1 << bits) - 1
    numbers, exact = np.zeros((rows, columns), np.int64), np.zeros((rows, columns))
    scales, zeros = np.zeros((rows, count)), np.zeros((rows, count), np.int64)
    for index in range(count):
        part = weight[:, order == index]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        scale = np.abs(part).max(1) * 2 / top if symmetric else (high - low) / top
        scale = scale.astype(np.float16).astype(np.float64)
        zero = np.full(rows, (top + 1) // 2) if symmetric else np.clip(np.round(-low / scale), 0, top).astype(np.int64)
        found = np.clip(np.round(part / scale[:, None]) + zero[:, None], 0, top).astype(np.int64)
        numbers[:, order == index], scales[:, index], zeros[:, index] = found, scale, zero
        exact[:, order == index] = (found - zero[:, None]) * scale[:, None]
    return numbers, scales, zeros, exact


def half(numbers: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers.astype(np.float16)))


def pack_quantized(bits: int, group: int | None, symmetric: bool, actorder: bool = False) -> Format:
    def pack(weight: np.ndarray) -> tuple[Stored, np.ndarray]:
        order = shuffled(weight.shape[1], group or weight.shape[1]) if actorder else None
        numbers, scales, zeros, exact = rounded(weight, bits, group or weight.shape[1], symmetric, order)
        found = {
            "weight_packed": words(numbers, bits),
            "weight_scale": half(scales),
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            found["weight_zero_point"] = words(zeros.T, bits).t().contiguous()
        if order is not None:
            found["weight_g_idx"] = torch.from_numpy(order.astype(np.int32))
        return found, exact

    args = {"num_bits": bits, "type": "int", "symmetric": symmetric, "group_size": group}
    args |= {"strategy": "group" if group else "channel", "actorder": "group" if actorder else None}
    return Format(compressed("pack-quantized", args), pack)


def compressed(kind: str, weights: dict[str, Any]) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        "ignore": ["lm_head", "re:.*layers\\.1\\.mlp.*"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
    }


def shuffled(columns: int, group: int) -> np.ndarray:
    return np.random.default_rng(columns).permutation(np.arange(columns) // group)


def gptq(bits: int, version: str = "gptq", desc_act: bool = False, group: int = GROUP) -> Format:
    def pack(weight: np.ndarray) -> tuple[Stored, np.ndarray]:
        columns = weight.shape[1]
        order = shuffled(columns, GROUP) if desc_act else np.arange(columns) // (columns if group == -1 else group)
        numbers, scales, zeros, exact = rounded(weight, bits, group, False, order)
        less = 1 if version == "gptq" else 0
        return {
            "qweight": words(numbers, bits).t().contiguous(),
            "qzeros": words((zeros.T - less) & ((1 << bits) - 1), bits),
            "scales": half(scales.T),
            "g_idx": torch.from_numpy(order.astype(np.int32)),
            "bias": torch.zeros(len(weight), dtype=torch.float16),
        }, exact

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": desc_act, "sym": False}
    return Format(config | {"checkpoint_format": version, "dynamic": {r"-:.*\.layers\.1\.mlp.*": {}}}, pack)


def auto_round(inner: Format, packing: str) -> Format:
    """Intel's name for the tensors of others."""
    plain = {f"model.layers.1.mlp.{name}_proj": {"bits": 16, "data_type": "fp"} for name in ("gate", "up", "down")}
    config = {"quant_method": "auto-round", "bits": 4, "group_size": GROUP, "sym": True, "data_type": "int"}
    config |= {"packing_format": f"auto_round:auto_{packing}", "block_name_to_quantize": "model.layers"}
    return Format(config | {"extra_config": plain}, inner.pack)


def awq() -> Format:
    def pack(weight: np.ndarray) -> tuple[Stored, np.ndarray]:
        numbers, scales, zeros, exact = rounded(weight, 4, GROUP, False)

        def mixed(rows: np.ndarray) -> Tensor:
            parts = rows.reshape(len(rows), -1, 8)
            return words(parts[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(rows.shape), 4)

        return {"qweight": mixed(numbers.T), "qzeros": mixed(zeros.T), "scales": half(scales.T)}, exact

    config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
    return Format(config | {"modules_to_not_convert": ["layers.1.mlp"]}, pack)


def grid(weight: np.ndarray, block: tuple[int, int], most: float) -> np.ndarray:
    """The scale of each number, that of its block."""
    scales = np.zeros(weight.shape)
    for row in range(0, len(weight), block[0]):
        for column in range(0, weight.shape[1], block[1]):
            at = np.s_[row : row + block[0], column : column + block[1]]
            scales[at] = np.float32(np.abs(weight[at]).max() / most)
    return scales


def eight_bits(
    config: dict[str, Any], block: tuple[int, int] | None, kind: str, name: str, flat: bool = False
) -> Format:
    """Blocks of (0: all) rows and columns; `flat`: as one number, not as [1]."""

    def pack(weight: np.ndarray) -> tuple[Stored, np.ndarray]:
        size = (block[0] or len(weight), block[1] or weight.shape[1]) if block else weight.shape
        scales = grid(weight, size, 448 if kind == "float" else 101)
        stored = torch.from_numpy(np.ascontiguousarray(scales[:: size[0], :: size[1]])).float()
        whole = torch.from_numpy(weight / scales)
        numbers = whole.to(torch.float8_e4m3fn) if kind == "float" else whole.round().to(torch.int8)
        exact = numbers.double().numpy() * scales
        if name == "SCB":
            return {"weight": numbers, "SCB": (stored * 127).view(-1), "weight_format": torch.tensor(0).byte()}, exact
        return {"weight": numbers, name: stored if block else stored.view(() if flat else 1)}, exact

    return Format(config, pack)


def int8_with_zero_points() -> Format:
    def pack(weight: np.ndarray) -> tuple[Stored, np.ndarray]:
        numbers, scales, zeros, exact = rounded(weight, 8, weight.shape[1], False)
        found = {"weight": torch.from_numpy((numbers - 128).astype(np.int8)), "weight_scale": half(scales)}
        return found | {"weight_zero_point": torch.from_numpy((zeros - 128).astype(np.int8))}, exact

    args = {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "channel"}
    return Format(compressed("int-quantized", args), pack)


def four_bits(config: dict[str, Any], kind: str) -> Format:
    """kind: mx, nv (compressed-tensors), modelopt, mlx (nvfp4's, with no scale of all scales)."""

    def pack(weight: np.ndarray) -> tuple[Stored, np.ndarray]:
        size = 32 if kind == "mx" else 16
        groups = weight.reshape(len(weight), -1, size)
        wanted = np.abs(groups).max(2) / 6
        whole = np.float32(1.0 if kind in ("mx", "mlx") else wanted.max() / 448)
        if kind == "mx":
            exponents = np.ceil(np.log2(wanted))
            stored, scales = torch.from_numpy((exponents + 127).astype(np.uint8)), 2.0**exponents
        else:
            stored = torch.from_numpy(wanted / whole).to(torch.float8_e4m3fn)
            scales = stored.double().numpy() * whole
        codes = np.abs((groups / scales[:, :, None])[..., None] - np.array(E2M1)).argmin(-1).reshape(weight.shape)
        exact = np.array(E2M1)[codes] * np.repeat(scales, size, 1)
        found = {"weight_packed": torch.from_numpy((codes[:, ::2] + 16 * codes[:, 1::2]).astype(np.uint8))}
        found["weight_scale"] = stored
        if kind == "nv":
            inverse = np.float32(1 / whole)
            found["weight_global_scale"] = torch.tensor([inverse])
            exact = np.array(E2M1)[codes] * np.repeat(stored.double().numpy() / inverse, size, 1)
        if kind == "modelopt":
            found |= {"weight": found.pop("weight_packed"), "weight_scale_2": torch.tensor(whole)}
        return found, exact

    return Format(config, pack)


def nf4(nested: bool, storage: str = "uint8") -> Format:
    def pack(weight: np.ndarray) -> tuple[Stored, np.ndarray]:
        flat = weight.reshape(-1, 64)
        absmax = np.abs(flat).max(1).astype(np.float32)
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(weight.shape)}
        found, scales = {"weight.absmax": torch.from_numpy(absmax)}, absmax.astype(np.float64)
        if nested:
            offset, table = float(absmax.mean()), np.linspace(-1, 1, 256).astype(np.float32)
            outer = np.float32(np.abs(absmax - offset).max())
            codes = np.abs((absmax - offset)[:, None] / outer - table).argmin(1)
            scales = table[codes].astype(np.float64) * outer + offset
            found["weight.absmax"] = torch.from_numpy(codes.astype(np.uint8))
            found["weight.nested_absmax"] = torch.full((-(-len(codes) // 256),), float(outer))
            found["weight.nested_quant_map"] = torch.from_numpy(table)
            state |= {"nested_blocksize": 256, "nested_offset": offset, "nested_dtype": "float32"}
        codes = np.abs(flat[..., None] / scales[:, None, None] - NF4.astype(np.float32)).argmin(-1)
        exact = (NF4.astype(np.float32)[codes] * scales[:, None]).reshape(weight.shape)
        line = codes.reshape(-1)
        found["weight"] = torch.from_numpy((16 * line[::2] + line[1::2]).astype(np.uint8)).view(-1, 1)
        found["weight.quant_map"] = torch.from_numpy(NF4.astype(np.float32))
        told = np.frombuffer(json.dumps(state).encode(), np.uint8).copy()
        return found | {"weight.quant_state.bitsandbytes__nf4": torch.from_numpy(told)}, exact

    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    skipped = {"llm_int8_skip_modules": ["lm_head", "model.layers.1.mlp"], "bnb_4bit_quant_storage": storage}
    made = pack if storage == "uint8" else other.in_type(pack, getattr(torch, storage))
    return Format(config | skipped | {"bnb_4bit_use_double_quant": nested}, made)


BYTES = {"num_bits": 8, "symmetric": True}
FP8: dict[str, Any] = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.1.mlp", "lm_head"]}
SKIPS: dict[str, Any] = {"modules_to_not_convert": ["model.layers.1.mlp"]}
IGNORES: dict[str, Any] = {"ignore": ["lm_head", "model.layers.1.mlp*"]}
FORMATS: dict[str, Format] = {
    "w4a16": pack_quantized(4, GROUP, True),
    "w4a16_zero_points": pack_quantized(4, GROUP, False),
    "w4a16_channel": pack_quantized(4, None, False),
    "w4a16_g_idx": pack_quantized(4, GROUP, False, actorder=True),
    "w8a16": pack_quantized(8, None, True),
    "w8a8": eight_bits(
        compressed("int-quantized", BYTES | {"type": "int", "strategy": "channel"}), (1, 0), "int", "weight_scale"
    ),
    "w8a8_zero_points": int8_with_zero_points(),
    "fp8_channel": eight_bits(
        compressed("float-quantized", BYTES | {"type": "float", "strategy": "channel"}), (1, 0), "float", "weight_scale"
    ),
    "fp8_tensor": eight_bits(
        compressed("float-quantized", BYTES | {"type": "float", "strategy": "tensor"}), None, "float", "weight_scale"
    ),
    "gptq": gptq(4),
    "gptq_3": gptq(3),
    "gptq_8": gptq(8),
    "auto_round": auto_round(gptq(4), "gptq"),
    "auto_round_awq": auto_round(awq(), "awq"),
    "gptq_g_idx": gptq(4, desc_act=True),
    "gptq_v2": gptq(4, "gptq_v2"),
    "gptq_one_group": gptq(4, group=-1),
    "awq": awq(),
    "fp8": eight_bits(FP8 | {"weight_block_size": [40, 48]}, (40, 48), "float", "weight_scale_inv"),
    "fp8_old": eight_bits(FP8, None, "float", "weight_scale"),
    "fp8_one_scale": eight_bits(FP8, None, "float", "weight_scale_inv", flat=True),
    "fbgemm_fp8": eight_bits({"quant_method": "fbgemm_fp8"} | SKIPS, (1, 0), "float", "weight_scale"),
    "mxfp4": four_bits(compressed("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "group_size": 32}), "mx"),
    "nvfp4": four_bits(compressed("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "group_size": 16}), "nv"),
    "modelopt_nvfp4": four_bits({"quant_method": "modelopt", "quant_algo": "NVFP4"} | IGNORES, "modelopt"),
    "modelopt_fp8": eight_bits(
        {"quant_method": "modelopt", "quant_algo": "FP8"} | IGNORES, None, "float", "weight_scale", flat=True
    ),
    "modelopt_fp8_rows": Format(other.modelopt("FP8_PER_CHANNEL_PER_TOKEN"), other.by_row),
    "modelopt_fp8_blocks": Format(other.modelopt("fp8_pb_wo"), other.by_block),
    "modelopt_mxfp8": Format(other.modelopt("MXFP8"), other.mxfp8),
    "modelopt_mixed": Format(other.MIXED, other.mixed(four_bits({}, "modelopt").pack)),
    "torchao": Format(other.torchao_config(None), other.torchao(None)),
    "torchao_groups": Format(other.torchao_config(32), other.torchao(32)),
    "mlx": Format(other.mlx_config(4), other.mlx(4)),
    "mlx_3": Format(other.mlx_config(3), other.mlx(3)),
    "mlx_mxfp4": Format(other.mlx_config(4, "mxfp4"), other.mlx_floats(four_bits({}, "mx").pack)),
    "mlx_nvfp4": Format(other.mlx_config(4, "nvfp4", 16), other.mlx_floats(four_bits({}, "mlx").pack)),
    "quark_fp8": Format(other.quark_config(dtype="fp8_e4m3", qscheme="per_tensor"), other.by_one),
    "quark_fp8_rows": Format(other.quark_config(dtype="fp8_e4m3", qscheme="per_channel", ch_axis=0), other.by_row),
    "quark_int8": Format(other.quark_config(dtype="int8", qscheme="per_channel", ch_axis=0), other.int8_by_row),
    "quark_mxfp4": Format(
        other.quark_config(dtype="fp4", qscheme="per_group", ch_axis=-1, group_size=32, scale_format="e8m0"),
        other.renamed(four_bits({}, "mx").pack, weight_packed="weight"),
    ),
    "bnb_nf4": nf4(nested=False),
    "bnb_nf4_bf16": nf4(nested=False, storage="bfloat16"),
    "bnb_nf4_nested": nf4(nested=True),
    "bnb_int8": eight_bits(
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_skip_modules": ["lm_head", "layers.1.mlp"]},
        (1, 0),
        "int",
        "SCB",
    ),
}

# Two roundings, where float64 has one.
APPROXIMATE = (
    "nvfp4",
    "modelopt_nvfp4",
    "modelopt_mixed",
    "bnb_nf4_nested",
    "bnb_int8",
)


def write(source: Path, name: str, folder: Path) -> tuple[Path, Path]:
    """(the checkpoint in a format, one with what its numbers mean in float32); the MLP of layer 1 stays as it is."""
    form = FORMATS[name]
    packed, plain = (Path(shutil.copytree(source, folder / kind)) for kind in ("packed", "plain"))
    values = json.loads((source / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps(values | {"quantization_config": form.config}))
    found = load_file(source / "model.safetensors")
    exact = dict(found)
    for key, spec in read_architecture(values).specs().items():
        if spec.kind is Kind.WEIGHT and "layers" in key and "layers.1.mlp" not in key:
            stored, meant = form.pack(found.pop(key).double().numpy())
            found = {key.removesuffix("weight") + part: tensor for part, tensor in stored.items()} | found
            exact[key] = torch.from_numpy(meant).float()
    save_file(found, packed / "model.safetensors", metadata={"format": "pt"})
    save_file(exact, plain / "model.safetensors", metadata={"format": "pt"})
    return packed, plain
