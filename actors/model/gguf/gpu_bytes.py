"""What weights of a GGUF file take on a GPU, which has those of most types in few bits (worker/formats/gguf_bits.py).

Knows no torch.
"""

from __future__ import annotations

from pathlib import Path

from .folder import gguf_tensors
from .names import hub_tensors

SMALL, SUPER = 1 / 32, 1 / 256  # of a number: a byte for its block, and for a block of the K types
BYTES = {  # of a number, with its scales and minima
    "Q4_0": 0.5 + 2 * SMALL,
    "Q4_1": 0.5 + 4 * SMALL,
    "Q5_0": 1 + 2 * SMALL,
    "Q5_1": 1 + 4 * SMALL,
    "Q8_0": 1 + 2 * SMALL,
    "Q2_K": 0.5 + 4 * SMALL + 4 * SUPER,
    "Q3_K": 0.5 + 2 * SMALL + 2 * SUPER,
    "Q4_K": 0.5 + 2 * SMALL + 4 * SUPER,
    "Q5_K": 1 + 2 * SMALL + 4 * SUPER,
    "Q6_K": 1 + 2 * SMALL + 2 * SUPER,
    "IQ4_NL": 1 + 2 * SMALL,
    "IQ4_XS": 1 + SMALL + 2 * SUPER,
    "MXFP4": 0.5 + 2 * SMALL,
}


def gpu_bytes(folder: Path) -> dict[str, float]:
    """Of a number of each tensor that stays in few bits, by the hub's names; nothing of a folder of another kind."""
    if (found := gguf_tensors(folder)) is None:
        return {}
    architecture, tensors = found
    names = {name for _, name, _ in tensors}
    return {
        hub: BYTES[tensor.type.name]
        for _, name, tensor in tensors
        if tensor.type.name in BYTES
        for hub, _ in hub_tensors(architecture, name, tensor, names)
    }
