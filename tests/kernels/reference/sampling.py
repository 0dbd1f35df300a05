"""The words that the filters of kernels/cpu/sampling.py leave, by a full sort in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from actorserve.kernels.cpu.sampling import Parameters


def reference_order(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """(weights in descending order, float64, and their words) of one row; equals in the order of the words."""
    weights = ((logits - logits.amax()) / temperature).exp()
    ordered, words = torch.sort(weights, descending=True, stable=True)
    return ordered.double(), words


def reference_typical(weights: Tensor, typical_p: float) -> Tensor:
    """bool [words]: of words that weigh more than 0 what typical-p keeps, as transformers' TypicalLogitsWarper."""
    shares = weights / weights.sum()
    surprise = -shares.log()
    distance = (surprise - (shares * surprise).nansum()).abs()
    ordered, words = torch.sort(distance)
    last = (shares[words].cumsum(0) < typical_p).sum().clamp(max=len(weights) - 1)
    return (distance <= ordered[last]) & (weights > 0)


def reference_kept(logits: Tensor, parameters: Parameters) -> Tensor:
    """bool [rows, words] of `logits` [rows, words] float32; of a greedy row the first of the largest words."""
    kept = torch.zeros(logits.shape, dtype=torch.bool)
    for row, own in enumerate(logits):
        temperature, top_k, top_p, min_p, sigmas, typical_p = (float(values[row]) for values in parameters[:6])
        if temperature == 0:
            kept[row, own.argmax()] = True
            continue
        if sigmas > 0:
            deviation = own[own.isfinite()].double().std(correction=0)
            own = own.masked_fill(own < own.max() - sigmas * deviation, float("-inf"))
        weights, words = reference_order(own, temperature)
        if 0 < top_k < len(own):
            weights = torch.where(weights >= weights[int(top_k) - 1], weights, 0)
        stays = (weights > 0) & (weights >= min_p)
        if top_p < 1:
            stays &= weights.cumsum(0) - weights < top_p * weights.sum()
        stays[0] = True
        if typical_p < 1:
            stays &= reference_typical(torch.where(stays, weights, 0), typical_p)
        kept[row, words[stays]] = True
    return kept
