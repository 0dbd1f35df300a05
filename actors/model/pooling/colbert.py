"""ColBERT as its authors and vLLM name it: vectors of tokens come out of a linear layer whose weights lie among those
of the encoder, and nothing pools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ...options.config import ConfigError
from ..config_json import LARGEST
from ..values import Values
from .spec import DenseSpec

PUBLISHED = "HF_ColBERT"
NAMES = (PUBLISHED, *(f"ColBERT{encoder}Model" for encoder in ("", "ModernBert", "JinaRoberta", "Lfm2")))
Shapes = Callable[[Path], Mapping[str, tuple[int, ...]]]  # of a folder's tensors, by their names
WIDTH = 128  # of a vector, as the authors have it
WEIGHT, BIAS = "linear.weight", "linear.bias"


def projection(folder: Path, whole: Values, hidden: int, shapes: Shapes | None) -> DenseSpec:
    """The layer. ConfigError if the weights have none. Without `shapes`, as of a folder that has no weights (yet), it
    is of random numbers, and as wide as config.json says it.
    """
    if shapes is None:
        width = whole.whole("dim", 1, LARGEST) or WIDTH
        return DenseSpec(folder="", inputs=hidden, outputs=width, bias=False, activation="Identity")
    there = shapes(folder)
    if len(there.get(WEIGHT, ())) != 2:
        raise ConfigError(f"model: {folder} lacks {WEIGHT}, the layer that makes ColBERT's vectors of tokens")
    outputs, inputs = there[WEIGHT]
    return DenseSpec(folder=str(folder), inputs=inputs, outputs=outputs, bias=BIAS in there, activation="Identity")
