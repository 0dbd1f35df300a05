"""What `sample` draws from, as logarithms, for the rows that are told of it (post_sampling_probs).

By torch's own operations on whatever device the logits are, rows that draw alike at once; nothing of it runs for rows
that do not ask. What a row's filters are is known on the host, which waits for nothing of the device. Sums are of
floats here and of integers in ../sampling.py: on the border of a filter a word may be told that is not drawn, and the
other way.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...cpu.sampling import NEVER, OF_XTC, Parameters, uniform

TOGETHER = 8  # rows to be given at a time: of each some numbers of 8 bytes as long as the vocabulary are there


def log_weights_(logits: Tensor, parameters: Parameters) -> None:
    """Make of `logits` [rows, words] float32, in place, log w of what is drawn from: 0 for the likeliest word, -inf for
    those that cannot be drawn. A greedy row, and one without a finite best word, has one word alone."""
    logits.nan_to_num_(nan=NEVER, posinf=float("inf"), neginf=NEVER)
    excludes = uniform(parameters.seed ^ OF_XTC, parameters.position) < parameters.xtc_probability
    alike: dict[tuple[float, ...], list[int]] = {}
    for row, kind in enumerate(zip(*parameters[:-2], excludes, strict=True)):  # without the seed and the position
        alike.setdefault(kind, []).append(row)
    for rows in alike.values():
        own = logits if len(rows) == len(logits) else torch.stack([logits[row] for row in rows])
        made = _of_rows(own, parameters.of(np.array(rows[:1])), bool(excludes[rows[0]]))
        for row, weights in zip(rows, made, strict=True):
            logits[row].copy_(weights)


def _of_rows(logits: Tensor, parameters: Parameters, excludes: bool) -> Tensor:
    """Of rows that all draw as the one in `parameters`, and leave out their top choices (XTC) or do not."""
    only = torch.full_like(logits, NEVER).scatter_(1, logits.argmax(1, keepdim=True), 0)
    if parameters.temperature[0] == 0:
        return only
    best = logits.amax(1, keepdim=True)
    weights = _weights(logits, best, parameters)
    if excludes:
        weights = _without_top(weights, float(parameters.xtc_threshold[0]))
    if parameters.dynatemp_range[0] > 0:
        weights = _warmed(weights, parameters)
    return torch.where(best.isfinite(), weights.log_(), only)


def _weights(logits: Tensor, best: Tensor, parameters: Parameters) -> Tensor:
    """w, and 0 of what the filters remove."""
    if parameters.top_n_sigma[0] > 0:
        logits = logits.masked_fill(logits < best - float(parameters.top_n_sigma[0]) * _deviation(logits), NEVER)
    temperature = 1.0 if parameters.dynatemp_range[0] > 0 else float(parameters.temperature[0])
    weights = (logits - best).div_(temperature).exp_()
    top_k, typical_p = int(parameters.top_k[0]), float(parameters.typical_p[0])
    if 0 < top_k < weights.shape[1]:
        weights.masked_fill_(weights < weights.topk(top_k, sorted=False).values.amin(1, keepdim=True), 0)
    if parameters.top_p[0] < 1:
        weights = _nucleus(weights, float(parameters.top_p[0]))
    weights.masked_fill_(weights < float(parameters.min_p[0]), 0)
    return _typical(weights, typical_p) if typical_p < 1 else weights


def _deviation(logits: Tensor) -> Tensor:
    """Of all finite logits of a row."""
    there = logits.isfinite()
    exact, number = torch.where(there, logits, 0).double(), there.sum(1, keepdim=True)
    mean = exact.sum(1, keepdim=True) / number
    return torch.where(there, exact - mean, 0).square_().sum(1, keepdim=True).div_(number).sqrt_().float()


def _nucleus(weights: Tensor, top_p: float) -> Tensor:
    """Of words that weigh the same as the last that stays, the first stay."""
    values = weights.sort(descending=True).values
    last = _reached(values, top_p)
    smallest = values.gather(1, last)
    ties = weights == smallest
    staying = last + 1 - (weights > smallest).sum(1, keepdim=True)
    return torch.where((weights > smallest) | (ties & (ties.cumsum(1) <= staying)), weights, 0)


def _typical(weights: Tensor, typical_p: float) -> Tensor:
    """The words whose log w is nearest to its mean, and all that are as far away as the last of these."""
    logs = weights.log()
    there = logs > NEVER
    whole = weights.sum(1, keepdim=True, dtype=torch.float64)
    mean = torch.where(there, weights * logs, 0).sum(1, keepdim=True, dtype=torch.float64) / whole
    distances = torch.where(there, (logs - mean.float()).abs_(), float("inf"))
    nearest = distances.sort()
    reach = nearest.values.gather(1, _reached(weights.gather(1, nearest.indices), typical_p))
    return weights.masked_fill(distances > reach, 0)


def _reached(weights: Tensor, share: float) -> Tensor:
    """int64 [rows, 1]: the first index up to which these hold that share of their sum."""
    held = weights.cumsum(1, dtype=torch.float64)
    return torch.searchsorted(held, held[:, -1:] * share).clamp_(max=held.shape[1] - 1)


def _without_top(weights: Tensor, threshold: float) -> Tensor:
    """Without what is likelier than the least likely word that has at least this share of the weight."""
    likely = (weights > 0) & (weights >= weights.sum(1, keepdim=True, dtype=torch.float64) * threshold)
    return weights.masked_fill(weights > torch.where(likely, weights, float("inf")).amin(1, keepdim=True), 0)


def _warmed(weights: Tensor, parameters: Parameters) -> Tensor:
    """Raised from those of the temperature 1 to those of one between `low` and `high`, by how even they are."""
    middle, reach = float(parameters.temperature[0]), float(parameters.dynatemp_range[0])
    low, high = max(0.0, middle - reach), middle + reach
    logs = (weights / weights.amax(1, keepdim=True)).double().log_()
    shares = weights.double() / weights.sum(1, keepdim=True, dtype=torch.float64)
    number = (weights > 0).sum(1, keepdim=True).clamp_(min=2)
    entropy = -torch.where(shares > 0, shares * shares.log(), 0).sum(1, keepdim=True)
    even = (entropy / number.log()).clamp_(min=0)
    temperature = low + (high - low) * even ** float(parameters.dynatemp_exponent[0])
    likeliest = torch.where(logs == 0, 0.0, NEVER)  # what a temperature of 0 leaves
    return torch.where(temperature > 0, logs / temperature, likeliest).exp_().float()
