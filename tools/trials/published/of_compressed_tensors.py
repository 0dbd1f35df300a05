"""Checkpoints by compressed-tensors, and what their weights mean."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (
    QuantizationConfig,
    QuantizationStatus,
    apply_quantization_config,
    preset_name_to_scheme,
)
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

CASES = (
    "W4A16",
    "W4A16_ASYM",
    "W8A16",
    "W8A8",
    "FP8",
    "FP8_DYNAMIC",
    "FP8_BLOCK",
    "NVFP4",
    "NVFP4A16",
    "MXFP4",
    "MXFP8",
)


def main(source: Path, out: Path) -> None:
    for name in CASES:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
        try:
            scheme = preset_name_to_scheme(name, ["Linear"])
            config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"])
            apply_quantization_config(model, config)
            for module in model.modules():
                args = getattr(getattr(module, "quantization_scheme", None), "weights", None)
                if args is None:
                    continue
                observe(module, args)
                module.quantization_status = QuantizationStatus.FROZEN
            compressor = ModelCompressor.from_pretrained_model(model)
            compressor.compress_model(model)
            model.save_pretrained(out / name)
            compressor.update_config(out / name)
            means = meaning(out / name)
        except Exception as error:
            print(f"{name}: not made: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
            continue
        save_file(means, out / f"{name}.safetensors")


def observe(module, args) -> None:
    """Scales by the largest numbers."""
    weight = module.weight.detach().float()
    rows, columns = weight.shape
    strategy = str(getattr(args.strategy, "value", args.strategy))
    if strategy in ("group", "tensor_group"):
        parts = weight.view(rows, -1, args.group_size)
        low, high = parts.amin(2), parts.amax(2)
    elif strategy == "channel":
        low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    elif strategy == "block":
        height, width = args.block_structure
        parts = weight.view(rows // height, height, columns // width, width)
        low, high = parts.amin((1, 3)), parts.amax((1, 3))
    else:
        low, high = weight.amin().view(1), weight.amax().view(1)
    more = {}
    if hasattr(module, "weight_global_scale"):
        from compressed_tensors.quantization.utils import generate_gparam

        whole = generate_gparam(weight.amin().view(1), weight.amax().view(1))
        module.weight_global_scale.data.copy_(whole)
        more["global_scale"] = whole
    scale, zero = calculate_qparams(low, high, args, **more)
    module.weight_scale.data = scale.to(module.weight_scale.dtype).view(module.weight_scale.shape)
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data = zero.to(module.weight_zero_point.dtype).view(module.weight_zero_point.shape)


def meaning(folder: Path) -> dict[str, torch.Tensor]:
    """What the library makes of a checkpoint."""
    given = CompressedTensorsConfig(run_compressed=False)
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=given, dtype=torch.float32)
    named = {name: own for name, own in model.named_parameters() if "layers." in name and name.endswith("_proj.weight")}
    return {name: own.detach().float().contiguous() for name, own in named.items()}


main(*map(Path, sys.argv[1:]))
