"""Checkpoints by torchao, through transformers, and what their weights mean."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torchao import quantization as ao
from transformers import AutoModelForCausalLM, TorchAoConfig

CASES = {
    "int8": lambda: ao.Int8WeightOnlyConfig(version=2),
    "int8-int8": lambda: ao.Int8DynamicActivationInt8WeightConfig(version=2),
    "fp8": lambda: ao.Float8WeightOnlyConfig(),
    "fp8-rows": lambda: ao.Float8DynamicActivationFloat8WeightConfig(granularity=ao.PerRow()),
    "int4-groups": lambda: ao.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=ao.PerGroup(32)
    ),
    "intx": lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=ao.PerGroup(32)),
}


def main(source: Path, out: Path) -> None:
    for name, make in CASES.items():
        try:
            given = TorchAoConfig(make())
            model = AutoModelForCausalLM.from_pretrained(source, quantization_config=given, dtype=torch.bfloat16)
            model.save_pretrained(out / name)
        except Exception as error:  # not every kind can be made on a CPU
            print(f"{name}: not made: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            continue
        means = {
            key: weight.dequantize().float().contiguous()
            for key, weight in model.state_dict().items()
            if hasattr(weight, "dequantize") and type(weight) is not torch.Tensor
        }
        save_file(means, out / f"{name}.safetensors")


main(*map(Path, sys.argv[1:]))
