"""ColBERT as its authors and vLLM name it: vectors of tokens come out of a linear layer whose weights lie among those
of the encoder, and nothing pools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ...options.config import ConfigError
from .spec import DenseSpec

PUBLISHED = "HF_ColBERT"
NAMES = (PUBLISHED, *(f"ColBERT{encoder}Model" for encoder in ("", "ModernBert", "JinaRoberta", "Lfm2")))
Shapes = Callable[[Path], Mapping[str, tuple[int, ...]]]  # of a folder's tensors, by their names
WEIGHT, BIAS = "linear.weight", "linear.bias"


def projection(folder: Path, shapes: Shapes) -> DenseSpec:
    """The layer. ConfigError if the weights have none."""
    there = shapes(folder)
    if len(there.get(WEIGHT, ())) != 2:
        raise ConfigError(f"model: {folder} lacks {WEIGHT}, the layer that makes ColBERT's vectors of tokens")
    outputs, inputs = there[WEIGHT]
    return DenseSpec(folder=str(folder), inputs=inputs, outputs=outputs, bias=BIAS in there, activation="Identity")
