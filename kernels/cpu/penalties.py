"""Logits of words that are in the prompt or in the answer already, made smaller; and logprobs. Reference and CPU path.

    repetition r    x / r where x > 0, x * r elsewhere, for words of prompt or answer   (Keskar et al. 2019, CTRL)
    frequency f     x - f * (times that the word is in the answer)                      (OpenAI's API)
    presence p      x - p if the word is in the answer
in this order. Of a row whose penalties look back on the last n tokens alone, as llama.cpp's do, the prompt has no words
here, and the answer is those tokens. Knows tensors and arrays only: no requests.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

PART = 64  # numbers of a row that are summed together


class Penalties(NamedTuple):
    """One value for each row, float32; repetition 1, frequency 0 and presence 0 change nothing."""

    repetition: np.ndarray
    frequency: np.ndarray
    presence: np.ndarray


def penalize(logits: Tensor, prompted: Tensor, counts: Tensor, penalties: Penalties) -> None:
    """Change `logits` [rows, words] float32 in place.

    `prompted` bool [rows, words]: the word is in the prompt; `counts` int32 [rows, words]: how often in the answer.
    """
    repetition, frequency, presence = (torch.from_numpy(np.ascontiguousarray(values))[:, None] for values in penalties)
    seen = counts > 0
    factor = torch.where(logits > 0, 1 / repetition, repetition)
    logits.mul_(torch.where(prompted | seen, factor, 1.0))
    logits.sub_(frequency * counts + presence * seen)


def sum_rows(values: Tensor) -> Tensor:
    """The sum of each row of float32 `values`, as float64 [rows, 1]; the same bits in every batch.

    Not by one sum, for which torch cuts a row that comes alone into parts for its threads, and those of many not.
    """
    whole = values.shape[1] // PART * PART
    parts: Tensor = values[:, :whole].unflatten(1, (-1, PART)).sum(-1).double().sum(-1, True)
    return parts if whole == values.shape[1] else parts.add_(values[:, whole:].sum(-1, True))


def log_sums(logits: Tensor) -> Tensor:
    """log Σ exp x of each row of float32 `logits`: float32 [rows]."""
    best = logits.amax(-1, keepdim=True)
    best.masked_fill_(best.isinf(), 0)
    return sum_rows((logits - best).exp_()).log_().add_(best).float()[:, 0]


def top_logprobs(logits: Tensor, tokens: Tensor, most: int, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of one token of each row, and of the `most` most likely tokens.

    `logits` [rows, words] float32, `tokens` int64 [rows], `sums` as `log_sums` gives them.
    Returns float32 [rows, 1 + most] logprobs, the token's first; int64 [rows, most] the words, most likely first;
    int64 [rows] the token's rank, 1 for the most likely.
    """
    own = logits.gather(1, tokens[:, None])
    rank = (logits > own).sum(-1) + 1
    values, words = torch.topk(logits, most)
    return torch.cat([own, values], 1) - sums[:, None], words, rank
