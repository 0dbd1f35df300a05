"""What a row's parameters do: seeds, min_tokens, mixed batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from actorserve.actors.protocol.request import Sampling
from actorserve.actors.worker.cpu.runner import CpuRunner
from tests.support.models.checkpoints import VOCABULARY
from tests.support.selection import slow

from ..driver import Driver, Sequence, config_for, make_runner

Folders = Callable[..., Path]


@pytest.fixture
def runner(checkpoints: Folders) -> CpuRunner:
    return make_runner(config_for(checkpoints("llama"), block_size=16), rows=8)


def prompt(length: int, seed: int = 1) -> list[int]:
    return list(np.random.default_rng(seed).integers(3, VOCABULARY, length).tolist())


SAMPLINGS = [
    Sampling(11),
    Sampling(12, temperature=0.7, top_k=20),
    Sampling(13, top_p=0.8),
    Sampling((1 << 64) - 1, min_p=0.05),
    Sampling(15, temperature=1.5, top_k=300, top_p=0.9, min_p=0.01),
    Sampling(16, temperature=0.0),
    Sampling(17, temperature=2.0, top_n_sigma=1.3),
    Sampling(18, temperature=1.2, typical_p=0.6, top_p=0.9),
]


@pytest.mark.parametrize("preempt", [*slow(0.0), 0.15])
def test_a_seed_draws_the_same_alone_and_in_a_batch(runner: CpuRunner, preempt: float) -> None:
    def sequences() -> list[Sequence]:
        return [Sequence(prompt(20 + 9 * number, number), 30, sampling) for number, sampling in enumerate(SAMPLINGS)]

    together = Driver(runner, preempt=preempt, seed=3).run(sequences())
    alone = [Driver(runner, budget=64, seed=4).run([sequence])[0] for sequence in sequences()]
    assert together == alone
    assert len({tuple(tokens) for tokens in together}) == len(together)


def test_another_seed_draws_otherwise(runner: CpuRunner) -> None:
    first, second, again = (Sequence(prompt(20), 30, Sampling(seed)) for seed in (1, 2, 1))
    drawn = Driver(runner).run([first, second, again])
    assert drawn[0] == drawn[2] != drawn[1]


def test_suppressed_words_are_masked_until_min_tokens(runner: CpuRunner) -> None:
    """Greedy: the words that it would take are suppressed for the first 5 tokens, and no longer."""
    plain = Sequence(prompt(20), 12, Sampling(0, temperature=0.0))
    (tokens,) = Driver(runner).run([plain])
    until = 5
    masked = Sampling(0, temperature=0.0, min_tokens=until, suppress=tokens[:3])
    for preempt in (0.0, 0.3):
        (drawn,) = Driver(runner, preempt=preempt, seed=5).run([Sequence(prompt(20), 12, masked)])
        assert not set(drawn[:until]) & set(tokens[:3])
    later = Sampling(0, temperature=0.0, min_tokens=1, suppress=[tokens[3]])
    (drawn,) = Driver(runner).run([Sequence(prompt(20), 12, later)])
    assert drawn == tokens, "after min_tokens nothing is masked"
    every = Sampling(0, temperature=0.0, min_tokens=1, suppress=[tokens[0]])
    (drawn,) = Driver(runner).run([Sequence(prompt(20), 12, every), Sequence(prompt(20), 12)])[:1]
    assert drawn[0] != tokens[0]


def test_the_mask_goes_with_its_row(runner: CpuRunner) -> None:
    """The next sequence in a row knows nothing of the last one's mask."""
    (tokens,) = Driver(runner).run([Sequence(prompt(20), 4)])
    masked = Sampling(0, temperature=0.0, min_tokens=100, suppress=tokens[:1])
    Driver(runner).run([Sequence(prompt(20), 4, masked)])
    assert Driver(runner).run([Sequence(prompt(20), 4)]) == [tokens]


def test_a_vocabulary_that_fills_no_block(checkpoints: Folders) -> None:
    """Vocabularies are padded for sampling: never may a padding word be drawn."""
    runner = make_runner(config_for(checkpoints("llama", vocab_size=389)), rows=8)
    drawn = Driver(runner).run([Sequence(prompt(5), 60, Sampling(seed, temperature=50.0)) for seed in range(8)])
    words = {token for tokens in drawn for token in tokens}
    assert max(words) < 389 and len(words) > 200


def test_dummy_weights_are_those_of_their_seed(checkpoints: Folders) -> None:
    def tokens(seed: int) -> list[int]:
        config = config_for(checkpoints("qwen3"), load_format="dummy", seed=seed)
        return Driver(make_runner(config)).run([Sequence(prompt(20), 20, Sampling(1))])[0]

    assert tokens(0) == tokens(0) != tokens(1)


def test_nothing_is_read_from_beyond_the_log(runner: CpuRunner) -> None:
    """What a slot's earlier use left behind `known` is not taken for this one's tokens."""
    (expected,) = Driver(runner).run([Sequence(prompt(20), 10)])
    runner.log[:] = 7
    assert Driver(runner).run([Sequence(prompt(20), 10)]) == [expected]


def test_a_full_batch_of_other_rows_changes_nothing(runner: CpuRunner) -> None:
    (expected,) = Driver(runner).run([Sequence(prompt(33), 20)])
    crowd = [Sequence(prompt(10 + number, number), 25, Sampling(number)) for number in range(7)]
    assert Driver(runner, seed=9).run([Sequence(prompt(33), 20), *crowd])[0] == expected


def test_kv_memory_is_taken_when_it_is_written(checkpoints: Folders) -> None:
    """A pool of 256 MiB costs nothing until then, and holds zeros."""
    from actorserve.actors.model.info import resolve_model
    from actorserve.actors.worker.memory import make_pools
    from actorserve.actors.worker.models.weights import load_model

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    config = config_for(checkpoints("llama"))
    shape = load_model(config, resolve_model(config)).shape
    size = shape.kv.block_bytes(32, torch.float32.itemsize)
    before = resident()
    pools = make_pools(shape.kv, (256 << 20) // size, 32, torch.float32)
    assert resident() - before < 16 << 20
    (pool,) = pools
    assert isinstance(pool, torch.Tensor) and not pool[0, 0, 0].any()
