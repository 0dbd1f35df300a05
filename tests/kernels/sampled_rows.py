"""How rows are sampled, in tests of samplers, and how far what is drawn is from a distribution."""

from __future__ import annotations

import numpy as np

from actorserve.kernels.cpu.sampling import Parameters

LATER = ("xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent")


def parameters(rows: int, **values: float) -> Parameters:
    """The same filters in all rows, positions 0 … rows-1 of one seed."""
    return Parameters(
        temperature=np.full(rows, values.get("temperature", 1.0), np.float32),
        top_k=np.full(rows, values.get("top_k", 0), np.int64),
        top_p=np.full(rows, values.get("top_p", 1.0), np.float64),
        min_p=np.full(rows, values.get("min_p", 0.0), np.float32),
        top_n_sigma=np.full(rows, values.get("top_n_sigma", 0.0), np.float32),
        typical_p=np.full(rows, values.get("typical_p", 1.0), np.float64),
        **{name: np.full(rows, values.get(name, 0.0), np.float32) for name in LATER},
        seed=np.ones(rows, np.uint64),
        position=np.arange(rows),
    )


def mixed(rows: int, seed: int = 7) -> Parameters:
    """All kinds of filters in one batch."""
    random = np.random.default_rng(seed)
    return Parameters(
        temperature=random.choice([0.0, 0.5, 1.0, 1.8], rows).astype(np.float32),
        top_k=random.choice([0, 0, 5, 50, 400], rows),
        top_p=random.choice([1.0, 1.0, 0.5, 0.95], rows),
        min_p=random.choice([0.0, 0.0, 0.1], rows).astype(np.float32),
        top_n_sigma=random.choice([0.0, 0.0, 0.8, 2.5], rows).astype(np.float32),
        typical_p=random.choice([1.0, 1.0, 0.3, 0.9], rows),
        xtc_probability=random.choice([0.0, 0.0, 0.0, 0.5], rows).astype(np.float32),
        xtc_threshold=random.choice([0.05, 0.2], rows).astype(np.float32),
        dynatemp_range=random.choice([0.0, 0.0, 0.0, 0.6], rows).astype(np.float32),
        dynatemp_exponent=random.choice([0.5, 1.0], rows).astype(np.float32),
        seed=random.integers(0, 1 << 63, rows).astype(np.uint64) * 2 + 1,
        position=random.integers(0, 5000, rows),
    )


def chi_square(drawn: np.ndarray, probabilities: np.ndarray) -> float:
    """Standardised statistic, near a normal variable; words that are expected fewer than 5 times are one class."""
    counts = np.bincount(drawn, minlength=probabilities.size).astype(float)
    assert counts[probabilities == 0].sum() == 0, "a filtered word was drawn"
    wanted = probabilities * drawn.size
    rare = wanted < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(wanted[~rare], wanted[rare].sum())
    seen = wanted > 0
    freedom = seen.sum() - 1
    if freedom == 0:
        return 0.0
    statistic = ((observed[seen] - wanted[seen]) ** 2 / wanted[seen]).sum()
    return float((statistic - freedom) / np.sqrt(2 * freedom))
