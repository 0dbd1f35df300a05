"""What filters make of one row's weights. top-p and typical-p keep words up to a share of the whole weight.

The last word that stays of these two is found without sorting the words: floats that are not negative are ordered as
their bits are, so the sums of weights by the upper bits say in which narrow range it lies, and only that is sorted.

Knows arrays only.
"""

from __future__ import annotations

import numpy as np

RANGE_BITS = 19  # bits of a float that are left to a range: neighbouring ranges differ by a sixteenth


def keep_nucleus(weights: np.ndarray, top_p: float) -> None:
    """Set to 0 what top-p removes, in place. Of words that weigh the same as the last that stays, the first stay."""
    ranges = weights.view(np.uint32) >> RANGE_BITS
    held = np.bincount(ranges, weights)[::-1].cumsum()[::-1]  # by range: the sum of weights from there upwards
    goal = top_p * float(held[0])
    edge = int(np.flatnonzero(held >= goal)[-1])
    inside = np.sort(weights[ranges == edge])[::-1]
    above = float(held[edge + 1]) if edge + 1 < held.size else 0.0
    last = min(int(np.searchsorted(above + inside.cumsum(dtype=np.float64), goal)), inside.size - 1)
    smallest = inside[last]
    staying = last + 1 - int(np.searchsorted(-inside, -smallest))  # of the words that weigh as much
    weights[np.flatnonzero(weights == smallest)[staying:]] = 0
    weights[weights < smallest] = 0


def keep_typical(weights: np.ndarray, typical_p: float) -> None:
    """Set to 0 what typical-p removes, in place. Of words as far away as the last that stays, all stay.

    With p the shares of the weights w and H their entropy, a word's distance is |-log p - H|: that of log w from its
    mean, weighted by w, so that neither p nor H is computed.
    """
    words = np.flatnonzero(weights)
    own = weights[words]
    logs = np.log(own)
    mean = np.multiply(own, logs, dtype=np.float64).sum() / own.sum(dtype=np.float64)
    distances = np.abs(logs - np.float32(mean))
    weights[words[distances > _reach(distances, own, typical_p)]] = 0


def exclude_top(weights: np.ndarray, threshold: float) -> None:
    """Set to 0, in place, what is likelier than the least likely word with at least this share of the weight. Words as
    likely as that one stay.
    """
    least = threshold * weights.sum(dtype=np.float64)
    likely = weights[(weights > 0) & (weights >= least)]
    if likely.size:
        weights[weights > likely.min()] = 0


def warm(weights: np.ndarray, low: float, high: float, exponent: float) -> None:
    """Raise weights, in place, from those of the temperature 1 to those of one between these, by how even they are."""
    words = np.flatnonzero(weights)
    if words.size < 2:
        return
    own = weights[words].astype(np.float64)
    shares = own / own.sum()
    evenness = -(shares * np.log(shares)).sum() / np.log(words.size)
    temperature = low + (high - low) * max(evenness, 0.0) ** exponent
    ratios = own / own.max()
    with np.errstate(under="ignore"):
        weights[words] = ratios ** (1 / temperature) if temperature > 0 else ratios == 1


def _reach(distances: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The smallest distance such that the words up to it hold this share of the weight."""
    ranges = distances.view(np.uint32) >> RANGE_BITS
    held = np.bincount(ranges, weights).cumsum()  # by range: the sum of weights up to its end
    goal = share * float(held[-1])
    edge = int(held.searchsorted(goal))
    inside = np.flatnonzero(ranges == edge)
    inside = inside[distances[inside].argsort()]
    nearer = float(held[edge - 1]) if edge else 0.0
    last = min(int(np.searchsorted(nearer + weights[inside].cumsum(dtype=np.float64), goal)), inside.size - 1)
    return float(distances[inside[last]])
