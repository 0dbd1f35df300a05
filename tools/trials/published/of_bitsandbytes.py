"""Checkpoints by bitsandbytes, through transformers, and what their weights mean."""

from __future__ import annotations

import sys
from pathlib import Path

import bitsandbytes
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

CASES = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4-nested": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "nf4-bf16": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_quant_storage": torch.bfloat16},
    "int8": {"load_in_8bit": True},
}


def meaning(module: torch.nn.Module) -> torch.Tensor | None:
    """The weight of a quantised linear."""
    weight = getattr(module, "weight", None)
    if isinstance(module, bitsandbytes.nn.Linear4bit):
        return bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state).float()
    if isinstance(module, bitsandbytes.nn.Linear8bitLt):
        return weight.data.float() * weight.SCB.float()[:, None] / 127
    return None


def main(source: Path, out: Path) -> None:
    for name, options in CASES.items():
        given = BitsAndBytesConfig(**options)
        model = AutoModelForCausalLM.from_pretrained(
            source, quantization_config=given, dtype=torch.float32, device_map="cpu"
        )
        means = {f"{key}.weight": own for key, module in model.named_modules() if (own := meaning(module)) is not None}
        model.save_pretrained(out / name)
        save_file({key: own.contiguous() for key, own in means.items()}, out / f"{name}.safetensors")


main(*map(Path, sys.argv[1:]))
