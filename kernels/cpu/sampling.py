"""Drawing one token for each row of logits: greedy, top-nσ, temperature, top-k, top-p, min-p, typical-p, XTC, without
sorting the vocabulary.

top-nσ comes first, and sees the logits x before the temperature (Tang et al. 2025, "Top-nσ: Not All Logits Are You
Need"): it keeps words with x >= max x - n·σ, σ the standard deviation of all finite logits of the row (divided by their
number), and for the others it is as if they were masked. Then the distribution is that of transformers' warpers in the
order temperature, top-k, top-p, min-p, typical-p. With w = exp((x - max x) / temperature), in words of descending w:
    top-k keeps words with w >= the k-th largest (equals of the k-th stay, too);
    top-p keeps a word if the words before it hold less than top_p of what top-k left;
    min-p keeps words with w >= min_p.
Of what these left, p being the shares of w and H their entropy, typical-p (Meister et al. 2022, "Locally Typical
Sampling") takes the words with the smallest |-log p - H| until they hold typical_p of it, and all that are no farther
than the last of these.
Then, as in llama.cpp, XTC ("exclude top choices") leaves out all words that are likelier than the least likely one of
those that have at least xtc_threshold of the weight; whether it does so a second number u of the row says, which is
below xtc_probability. Of a row with a dynamic temperature the filters see w of the temperature 1; then w, as a part of
the largest that is left, is raised to 1 / (low + (high - low) · (H / log n) ^ dynatemp_exponent), low and high being
temperature ∓ dynatemp_range, low at least 0, and n the number of words that are left.
One uniform number u(seed, position) picks the word by the inverse of the cumulated w. Which way a row goes is decided
by its own logits and parameters alone, so that it draws the same in every batch:
    greedy      temperature 0, or logits that are not finite: the largest
    shaped      typical-p, XTC or a dynamic temperature, by what the others leave, found as in `threshold`
    vocabulary  no top-k and no top-p: cumulated over the vocabulary, in two levels (blocks of 64, then within one)
    candidates  top-k or top-p: over the 80 most likely, if these are sure to hold all that is kept
    threshold   otherwise: the smallest w that is kept is found by counting, then as in `vocabulary`

Knows tensors and arrays only: no requests.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .penalties import sum_rows
from .shares import exclude_top, keep_nucleus, keep_typical, warm

BLOCK = 64  # words summed together at the first level
NEVER = float("-inf")
CANDIDATES = 80  # so that a top-k of 64 is sure not to have equals beyond them
TWO_LEVELS = 512  # blocks from which candidates are sought in the best blocks only
FEW = 4  # rows whose last numbers numpy looks through one by one: a call of torch's takes longer than it computes
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
OF_XTC = np.uint64(0xD1B54A32D192ED03)  # what makes another seed of a row's


class Parameters(NamedTuple):
    """One value for each row. top_p and typical_p 1, and 0 of the others: no filter; temperature 0 is greedy. Without
    xtc_probability and dynatemp_range those behind them say nothing."""

    temperature: np.ndarray  # float32
    top_k: np.ndarray  # int64
    top_p: np.ndarray  # float64
    min_p: np.ndarray  # float32
    top_n_sigma: np.ndarray  # float32
    typical_p: np.ndarray  # float64
    xtc_probability: np.ndarray  # float32
    xtc_threshold: np.ndarray  # float32
    dynatemp_range: np.ndarray  # float32
    dynatemp_exponent: np.ndarray  # float32
    seed: np.ndarray  # uint64
    position: np.ndarray  # int64, where in its sequence the drawn token will stand

    def of(self, rows: np.ndarray) -> Parameters:
        """The parameters of some rows."""
        return Parameters(*(values[rows] for values in self))


def sample(logits: Tensor, parameters: Parameters) -> np.ndarray:
    """A token for each row of `logits` [rows, vocabulary] (float32, which is not changed), as int32."""
    if not parameters.temperature.any():
        return _greedy(logits)
    if parameters.top_n_sigma.any():
        rows = np.flatnonzero((parameters.top_n_sigma > 0) & (parameters.temperature != 0))
        logits = _within_sigmas(logits, rows, parameters.top_n_sigma)
    missing = -logits.shape[1] % BLOCK
    if missing:
        logits = F.pad(logits, (0, missing), value=NEVER)
    peaks = logits.view(logits.shape[0], -1, BLOCK).amax(-1)
    best = peaks.amax(-1, keepdim=True)
    greedy = (parameters.temperature == 0) | ~np.isfinite(best.numpy()[:, 0])
    shapes = (parameters.typical_p < 1) | (parameters.xtc_probability > 0) | (parameters.dynatemp_range > 0)
    shaped = ~greedy & shapes
    others = ~(greedy | shaped)
    filtered = (parameters.top_k > 0) | (parameters.top_p < 1)
    tokens = np.empty(logits.shape[0], np.int32)
    if greedy.any():
        tokens[greedy] = _greedy(logits[torch.from_numpy(greedy)])
    for rows, draw in (
        (np.flatnonzero(others & ~filtered), _vocabulary),
        (np.flatnonzero(others & filtered), _candidates),
        (np.flatnonzero(shaped), _shaped),
    ):
        if rows.size == tokens.size:
            return draw(logits, peaks, best, parameters)
        if rows.size:
            index = torch.from_numpy(rows)
            tokens[rows] = draw(logits[index], peaks[index], best[index], parameters.of(rows))
    return tokens


def log_weights(logits: Tensor, parameters: Parameters) -> Tensor:
    """log w of what `sample` draws from, float32 [rows, vocabulary]: of a greedy row of one word alone."""
    if parameters.top_n_sigma.any():
        logits = _within_sigmas(logits, np.flatnonzero(parameters.top_n_sigma > 0), parameters.top_n_sigma)
    best = logits.amax(-1, keepdim=True)
    greedy = (parameters.temperature == 0) | ~np.isfinite(best.numpy()[:, 0])
    weights = torch.zeros_like(logits)
    if (rows := np.flatnonzero(~greedy)).size:
        index = torch.from_numpy(rows)
        weights[index] = _shaped_weights(logits[index], best[index], parameters.of(rows))
    if (rows := np.flatnonzero(greedy)).size:
        index = torch.from_numpy(rows)
        weights[index, torch.from_numpy(_greedy(logits[index])).long()] = 1
    return weights.log_()


def _within_sigmas(logits: Tensor, rows: np.ndarray, sigmas: np.ndarray) -> Tensor:
    """Other logits, in which that is -inf which top-nσ removes of these rows.

    Row by row, so that what is computed of one stays in the cache and is the same bits in every batch.
    """
    logits = logits.clone()
    for row in rows.tolist():
        own = logits[row]
        best = own.amax()
        if best.isfinite():
            there = own if own.amin() > NEVER else own[own > NEVER]
            least = best - float(sigmas[row]) * there.std(correction=0)
            F.threshold(own, float(least.nextafter(torch.tensor(NEVER))), NEVER, inplace=True)  # keeps what is above
    return logits


def uniform(seed: np.ndarray, position: np.ndarray) -> np.ndarray:
    """A number in [0, 1) for each (seed, position): the finaliser of splitmix64 over the seed, then over the position.

    Counter-based: nothing is remembered, so a sequence that is computed again draws what it drew before.
    """
    with np.errstate(over="ignore"):
        state = _mix(_mix(seed + GOLDEN) + (position.astype(np.uint64) + np.uint64(1)) * GOLDEN)
    return (state >> np.uint64(11)) * 2.0**-53


def _mix(state: np.ndarray) -> np.ndarray:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ (state >> np.uint64(31)))


def _uniform(parameters: Parameters) -> Tensor:
    return torch.from_numpy(uniform(parameters.seed, parameters.position))


def _column(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))[:, None]


def _greedy(logits: Tensor) -> np.ndarray:
    """The first of the largest, by numpy, whose argmax goes through vectors as torch's does not.

    Measured (one thread, µs for 1 and 8 rows, numpy and torch): of 8,192 words 1.1 and 4 against 12 and 93, of 151,936
    8 and 170 against 209 and 1630.
    """
    return np.asarray(logits.numpy().argmax(-1), np.int32)


def _block_of(values: Tensor, block: Tensor) -> Tensor:
    """[rows, BLOCK]: the block of each row that `block` [rows, 1] names."""
    return torch.take_along_dim(values.view(values.shape[0], -1, BLOCK), block[:, :, None], 1)[:, 0]


def _as_tokens(index: Tensor) -> np.ndarray:
    return np.asarray(index.numpy(), np.int32)


def _weights(logits: Tensor, best: Tensor, parameters: Parameters) -> Tensor:
    """w: 1 for the most likely word."""
    return (logits - best).div_(_column(parameters.temperature)).exp_()


def _vocabulary(logits: Tensor, peaks: Tensor, best: Tensor, parameters: Parameters) -> np.ndarray:
    weights = _weights(logits, best, parameters)
    if parameters.min_p.any():
        weights.masked_fill_(weights < _column(parameters.min_p), 0)
    return _draw(weights, _uniform(parameters))


def _draw(weights: Tensor, u: Tensor) -> np.ndarray:
    """The word at which the cumulated weight passes u of the whole; blocks first, then words of one block."""
    sums = weights.view(weights.shape[0], -1, BLOCK).sum(-1)
    if len(weights) <= FEW:
        pairs = zip(weights.numpy(), sums.numpy(), u.numpy(), strict=True)
        return np.array([_draw_one(*values) for values in pairs], np.int32)
    sums = sums.double().cumsum_(-1)
    goal = u[:, None] * sums[:, -1:]
    block = _passing(sums, goal)
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp_(min=0)), 0)
    inside = _block_of(weights, block).double().cumsum_(-1)
    return _as_tokens((block * BLOCK + _passing(inside, goal - before))[:, 0])


def _draw_one(weights: np.ndarray, sums: np.ndarray, u: np.float64) -> int:
    """The same of one row: the same sums in the same order."""
    cumulated = sums.cumsum(dtype=np.float64)
    goal = u * cumulated[-1]
    block = _passing_one(cumulated, goal)
    inside = weights[block * BLOCK : (block + 1) * BLOCK].cumsum(dtype=np.float64)
    return block * BLOCK + _passing_one(inside, goal - cumulated[block - 1] if block else goal)


def _passing_one(cumulated: np.ndarray, goal: np.float64) -> int:
    """`_passing` of one row."""
    return min(int(cumulated.searchsorted(goal, "right")), int(cumulated.searchsorted(cumulated[-1])))


def _passing(cumulated: Tensor, goal: Tensor) -> Tensor:
    """[rows, 1]: the first index whose cumulated weight is above the goal; never past the last weight by rounding."""
    found = torch.searchsorted(cumulated, goal, right=True)
    last = torch.searchsorted(cumulated, cumulated[:, -1:].contiguous())
    return torch.minimum(found, last)


def _candidates(logits: Tensor, peaks: Tensor, best: Tensor, parameters: Parameters) -> np.ndarray:
    """Over the most likely tokens, in descending order; rows whose kept tokens may go beyond these, by threshold."""
    size = logits.shape[1]
    count = min(CANDIDATES, size)
    values, words = _most_likely(logits, peaks, count)
    weights = _weights(values, best, parameters)
    if len(logits) <= FEW:
        return _few_candidates(logits, best, parameters, weights.numpy(), words.numpy())
    cumulated = weights.double().cumsum_(-1)
    limited = (parameters.top_k > 0) & (parameters.top_k < size)
    by_k, top_p, min_p = _column(limited), _column(parameters.top_p), _column(parameters.min_p)
    kth = torch.where(by_k, weights.gather(1, _column(parameters.top_k.clip(1, count) - 1)), 0)
    whole = torch.where(weights >= kth, cumulated, 0).amax(-1, keepdim=True)  # of which top-p is a share
    free = np.flatnonzero(~limited)
    if free.size and count < size:
        index = torch.from_numpy(free)
        whole[index] = sum_rows(_weights(logits[index], best[index], parameters.of(free)))
    goal = top_p * whole
    last = weights[:, -1:]
    within_k = _column(parameters.top_k <= count) & (last < kth)
    held = torch.where(by_k, within_k, (cumulated[:, -1:] >= goal) | (last < min_p))
    kept = (cumulated - weights < goal) & (weights >= min_p) & (weights >= kth)
    kept[:, 0] = True
    cumulated = torch.where(kept, weights, 0).double().cumsum_(-1)
    choice = _passing(cumulated, _uniform(parameters)[:, None] * cumulated[:, -1:])
    tokens = _as_tokens(words.gather(1, choice)[:, 0])
    missed = np.flatnonzero(~held.numpy()[:, 0])
    if missed.size and count < size:
        index = torch.from_numpy(missed)
        tokens[missed] = _threshold(logits[index], best[index], parameters.of(missed))
    return tokens


def _few_candidates(
    logits: Tensor, best: Tensor, parameters: Parameters, weights: np.ndarray, words: np.ndarray
) -> np.ndarray:
    """The same row by row, of the weights of the most likely words."""
    size, tokens = logits.shape[1], np.empty(len(logits), np.int32)
    numbers = uniform(parameters.seed, parameters.position)
    for row, (own, top_k, top_p, min_p) in enumerate(
        zip(weights, parameters.top_k.tolist(), parameters.top_p, parameters.min_p, strict=True)
    ):
        limited, count = 0 < top_k < size, len(own)
        cumulated = own.cumsum(dtype=np.float64)
        kth = own[min(top_k, count) - 1] if limited else own[-1:].dtype.type(0)
        part = slice(row, row + 1)
        if limited or count == size:
            whole = cumulated[own >= kth][-1]
        else:
            whole = sum_rows(_weights(logits[part], best[part], parameters.of(np.array([row])))).numpy()[0, 0]
        goal, last = top_p * whole, own[-1]
        held = (top_k <= count and last < kth) if limited else (cumulated[-1] >= goal or last < min_p)
        if not held and count < size:
            tokens[row] = _threshold(logits[part], best[part], parameters.of(np.array([row])))[0]
            continue
        kept = (cumulated - own < goal) & (own >= min_p) & (own >= kth)
        kept[0] = True
        left = np.where(kept, own, 0).cumsum(dtype=np.float64)
        tokens[row] = words[row, _passing_one(left, numbers[row] * left[-1])]
    return tokens


def _shaped(logits: Tensor, peaks: Tensor, best: Tensor, parameters: Parameters) -> np.ndarray:
    """Rows with typical-p, XTC or a dynamic temperature."""
    return _draw(_shaped_weights(logits, best, parameters), _uniform(parameters))


def _shaped_weights(logits: Tensor, best: Tensor, parameters: Parameters) -> Tensor:
    """What these choose among what the other filters keep."""
    dynamic = parameters.dynatemp_range > 0
    filtered = parameters._replace(temperature=np.where(dynamic, np.float32(1), parameters.temperature))
    weights = _kept(logits, best, filtered)
    excludes = uniform(parameters.seed ^ OF_XTC, parameters.position) < parameters.xtc_probability
    for index, row in enumerate(weights.numpy()):
        if parameters.typical_p[index] < 1:
            keep_typical(row, float(parameters.typical_p[index]))
        if excludes[index]:
            exclude_top(row, float(parameters.xtc_threshold[index]))
        if dynamic[index]:
            middle, reach = float(parameters.temperature[index]), float(parameters.dynatemp_range[index])
            warm(row, max(0.0, middle - reach), middle + reach, float(parameters.dynatemp_exponent[index]))
    return weights


def _threshold(logits: Tensor, best: Tensor, parameters: Parameters) -> np.ndarray:
    """Rows with top-k or top-p, whatever they keep."""
    return _draw(_kept(logits, best, parameters), _uniform(parameters))


def _kept(logits: Tensor, best: Tensor, parameters: Parameters) -> Tensor:
    """w, and 0 of words below the smallest weight that top-k, top-p and min-p keep."""
    weights = _weights(logits, best, parameters)
    for row, top_k, top_p in zip(weights, parameters.top_k.tolist(), parameters.top_p.tolist(), strict=True):
        if 0 < top_k < len(row):
            row.masked_fill_(row < torch.topk(row, top_k, sorted=False).values.amin(), 0)
        if top_p < 1:
            keep_nucleus(row.numpy(), top_p)
    return weights.masked_fill_(weights < _column(parameters.min_p), 0)


def _most_likely(logits: Tensor, peaks: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row in descending order, and their words."""
    if peaks.shape[1] < TWO_LEVELS:
        return torch.topk(logits, count)
    blocks = torch.topk(peaks, count, sorted=False).indices  # the largest words lie in blocks with the largest peaks
    inside = torch.take_along_dim(logits.view(logits.shape[0], -1, BLOCK), blocks[:, :, None], 1).flatten(1)
    values, index = torch.topk(inside, count)
    return values, torch.gather(blocks, 1, index // BLOCK) * BLOCK + index % BLOCK
