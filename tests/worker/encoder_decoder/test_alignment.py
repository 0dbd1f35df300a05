"""The path through what cross attention looks at, against transformers' own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from actorserve.actors.worker.encoder_decoder.alignment import begins, warp


@pytest.mark.parametrize(("tokens", "positions"), [(1, 1), (1, 9), (2, 5), (30, 80), (80, 30)])
def test_the_path_is_that_of_transformers(tokens: int, positions: int) -> None:
    from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

    for seed in range(3):
        costs = np.random.default_rng(seed).normal(size=(tokens, positions)).round(1)  # so that some are equal
        text, time = _dynamic_time_warping(costs)
        wanted = time[np.pad(np.diff(text), (1, 0), constant_values=1).astype(bool)]
        assert warp(costs) == wanted.tolist()
        weights = torch.rand(3, tokens, positions, generator=torch.Generator().manual_seed(seed)).softmax(-1)
        std, mean = torch.std(weights, dim=-2, keepdim=True, unbiased=False), weights.mean(dim=-2, keepdim=True)
        matrix = _median_filter((weights - mean) / std, 7).mean(dim=0)
        text, time = _dynamic_time_warping(-matrix.double().numpy())
        wanted = time[np.pad(np.diff(text), (1, 0), constant_values=1).astype(bool)]
        assert begins(weights, 7) == wanted.tolist()
