"""Checkpoints by mlx-lm, and what their weights mean."""

from __future__ import annotations

import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.nn import QuantizedEmbedding, QuantizedLinear
from mlx_lm import convert, load
from safetensors.numpy import save_file

CASES = {"q2": (2, 64), "q3": (3, 64), "q4": (4, 64), "q5": (5, 32), "q6": (6, 64), "q8": (8, 32)}


def main(source: Path, out: Path) -> None:
    for name, (bits, group) in CASES.items():
        convert(str(source), mlx_path=str(out / name), quantize=True, q_bits=bits, q_group_size=group)
        model, _ = load(str(out / name))
        means = {}
        for key, module in model.named_modules():
            if isinstance(module, QuantizedLinear | QuantizedEmbedding):
                exact = module.scales.astype(mx.float32), module.biases.astype(mx.float32)
                whole = mx.dequantize(module.weight, *exact, module.group_size, module.bits)
                means[f"{key}.weight"] = np.array(whole.astype(mx.float32))
        save_file(means, out / f"{name}.safetensors")


main(*map(Path, sys.argv[1:]))
