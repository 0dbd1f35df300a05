"""Words that a grammar does not allow: logits[row, word] = -inf where the word's bit is 0.

Word w of a row is bit w % 32 of its number w // 32.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# For each byte of bits the highest value of its eight words: a minimum is several times as fast as a masked fill.
BYTES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
CEILINGS = torch.from_numpy(np.where(BYTES, np.inf, -np.inf).astype(np.float32))


def apply_mask(logits: Tensor, bits: np.ndarray, rows: np.ndarray | None = None) -> None:
    """In place, on `logits` [all, vocabulary]: `bits` (int32 [n, vocabulary / 32, rounded up]) are of its `rows`.

    rows None: of all rows.
    """
    vocabulary = logits.shape[1]
    count = logits.shape[0] if rows is None else rows.size
    if bits.dtype != np.int32 or bits.shape != (count, -(-vocabulary // 32)):
        raise ValueError(f"bits {bits.dtype}{list(bits.shape)} do not fit {count} rows of {vocabulary} words")
    if not count:
        return
    places = torch.from_numpy(bits.view(np.uint8)).to(logits.device).flatten()
    highest = CEILINGS.to(logits.device).index_select(0, places.long()).view(count, -1)[:, :vocabulary]
    if rows is None or (count == logits.shape[0] and np.array_equal(rows, np.arange(count))):
        torch.minimum(logits, highest, out=logits)
    else:
        index = torch.from_numpy(rows).to(logits.device)
        logits[index] = torch.minimum(logits[index], highest)
