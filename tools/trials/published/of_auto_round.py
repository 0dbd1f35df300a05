"""Checkpoints by auto-round in its own packings and in those of others, and what their weights mean."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from auto_round import AutoRound
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

CASES = {
    "own": ("W4A16", "auto_round"),
    "gptq": ("W4A16", "auto_gptq"),
    "awq": ("W4A16", "auto_awq"),
    "llm-compressor": ("W4A16", "llm_compressor"),
    "w8": ("W8A16", "auto_round"),
    "w2": ("W2A16", "auto_round"),
    "nvfp4": ("NVFP4", "llm_compressor"),
    "mxfp4": ("MXFP4", "llm_compressor"),
    "fp8": ("FP8_STATIC", "llm_compressor"),
}


def main(source: Path, out: Path) -> None:
    for name, (scheme, form) in CASES.items():
        try:
            model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
            made = AutoRound(
                model,
                AutoTokenizer.from_pretrained(source),
                scheme=scheme,
                iters=0,
                disable_opt_rtn=True,
                device_map="cpu",
            )
            quantised, _ = made.quantize()
            means = {
                f"{key}.weight": module.weight.detach().float().contiguous()
                for key, module in quantised.named_modules()
                if isinstance(module, torch.nn.Linear) and "layers." in key
            }
            made.save_quantized(str(out / name), format=form, inplace=False)
        except Exception as error:  # not every kind can be made on a CPU
            print(f"{name}: not made: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
            continue
        save_file(means, out / f"{name}.safetensors")


main(*map(Path, sys.argv[1:]))
