"""Checkpoints by NVIDIA's Model Optimizer, and what their weights mean."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

BLOCK = 128
CASES = {
    "fp8": "FP8_DEFAULT_CFG",
    "fp8-rows": "FP8_PER_CHANNEL_PER_TOKEN_CFG",
    "fp8-blocks": "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG",
}


def meaning(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the library's tensors of 8 bits are."""
    found = {}
    for name, weight in stored.items():
        if not name.endswith(".weight") or weight.dtype != torch.float8_e4m3fn:
            continue
        scale = stored[f"{name}_scale"].float()
        blocks = {"block_sizes": {-1: BLOCK, -2: BLOCK}} if scale.dim() > 2 else {}
        if scale.dim() > 2:
            scale = scale.view(scale.shape[0], scale.shape[2])
        elif scale.dim() == 1 and scale.numel() > 1:
            scale = scale[:, None]
        own = FP8QTensor(weight.shape, torch.float32, weight)
        found[name] = own.dequantize(dtype=torch.float32, scale=scale, **blocks).contiguous()
    return found


def main(source: Path, out: Path) -> None:
    tokens = torch.randint(3, 300, (4, 32))
    for name, config in CASES.items():
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
        try:
            mtq.quantize(model, copy.deepcopy(getattr(mtq, config)), lambda own: own(tokens))
            export_hf_checkpoint(model, export_dir=out / name)
            means = meaning(load_file(out / name / "model.safetensors"))
        except Exception as error:  # not every kind can be made on a CPU
            print(f"{name}: not made: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            continue
        save_file(means, out / f"{name}.safetensors")


main(*map(Path, sys.argv[1:]))
