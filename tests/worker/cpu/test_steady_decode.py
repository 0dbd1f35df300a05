"""Steps that are the last one moved on give what steps do that are prepared anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from actorserve.actors.protocol.request import Sampling
from actorserve.actors.worker.cpu.runner import CpuRunner
from actorserve.actors.worker.cpu.steady_decode import SteadyDecode
from actorserve.actors.worker.speculative.verifier import DraftBatch, Ints, Tokens
from actorserve.kernels.cpu import decode as cpu_decode
from actorserve.kernels.cpu.attention import StepAttention
from tests.support.models.checkpoints import VOCABULARY
from tests.support.selection import slow

from ..driver import Driver, Sequence, config_for, make_runner

Folders = Callable[..., Path]
SAMPLINGS = [Sampling(11), Sampling(0, temperature=0.0), Sampling(13, top_p=0.8), Sampling(14, frequency_penalty=0.4)]


@pytest.fixture(autouse=True)
def numpy_products(monkeypatch: pytest.MonkeyPatch) -> None:
    if not cpu_decode.prepare_numpy():
        pytest.skip("this numpy has no OpenBLAS of its own")
    monkeypatch.setattr(cpu_decode, "MOST_THREADS", 1 << 10)


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """How often a step's attention could and could not be the last one's moved on."""
    counted: Counter[bool] = Counter()
    own = StepAttention.advance

    def counting(self: StepAttention) -> bool:
        moved = own(self)
        counted[moved] += 1
        return moved

    monkeypatch.setattr(StepAttention, "advance", counting)
    return counted


def sequences(count: int = 8) -> list[Sequence]:
    """Of different lengths, so that rows come and go."""
    random = np.random.default_rng(5)
    prompts = [random.integers(3, VOCABULARY, 10 + 7 * number).tolist() for number in range(count)]
    return [Sequence(prompt, 40 + 12 * at, SAMPLINGS[at % 4]) for at, prompt in enumerate(prompts)]


def anew(runner: CpuRunner, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    with monkeypatch.context() as patch:
        patch.setattr(SteadyDecode, "goes_on", lambda self, step: False)
        return Driver(runner, steady=True).run(sequences())


@pytest.mark.parametrize(("preempt", "least"), [*slow((0.0, 60)), (0.01, 40)])
def test_the_tokens_are_the_same(
    checkpoints: Folders, moves: Counter[bool], monkeypatch: pytest.MonkeyPatch, preempt: float, least: int
) -> None:
    runner = make_runner(config_for(checkpoints("llama"), block_size=16), rows=8)
    expected = anew(runner, monkeypatch)
    assert not moves
    for seed in range(3):
        moves.clear()
        assert Driver(runner, preempt=preempt, seed=seed, steady=True).run(sequences()) == expected
        assert moves[True] > least and moves[False] > 0, "both ways are taken"


def test_windows(checkpoints: Folders, moves: Counter[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """A row moves on until it reaches the window; from there on what it sees begins elsewhere in each step."""
    folder = checkpoints("mistral", sliding_window=48)
    runner = make_runner(config_for(folder, block_size=16), rows=8)
    expected = anew(runner, monkeypatch)
    assert Driver(runner, steady=True).run(sequences()) == expected
    assert moves[False] > moves[True]
    moves.clear()
    short = sequences(2)[:1]
    short[0].wanted = 30
    assert Driver(runner, steady=True).run(short) == [expected[0][:30]]
    assert moves[True] > 20


def test_another_way_through_attention(
    checkpoints: Folders, moves: Counter[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_decode, "MOST_THREADS", 0)
    runner = make_runner(config_for(checkpoints("llama"), block_size=16), rows=8)
    expected = anew(runner, monkeypatch)
    assert Driver(runner, steady=True).run(sequences()) == expected
    assert moves[False] and not moves[True]


class Seldom:
    """Drafts now and then, whatever comes to its mind."""

    def __init__(self, follows: bool = False) -> None:
        self.follows = follows
        self.random = np.random.default_rng(3)
        self.asked = 0

    def place(self, row: int, computed: int) -> None:
        """Nothing to remember."""

    def propose(self, work: DraftBatch, tokens: Tokens) -> Ints:
        self.asked += 1
        drafted = np.minimum(work.room, 2) * (self.random.random() < 0.1)
        for row, known, count in zip(work.rows, work.starts + work.pending, drafted, strict=True):
            tokens[row, known : known + count] = self.random.integers(3, VOCABULARY, count)
        return drafted


def test_drafts_come_and_go(checkpoints: Folders, moves: Counter[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_for(checkpoints("llama"), block_size=16)
    expected = anew(make_runner(config, rows=8), monkeypatch)
    proposer = Seldom()
    driver = Driver(make_runner(config, rows=8, proposer=proposer), steady=True, drafts=3)
    assert driver.run(sequences()) == expected
    assert moves[True] > 20 and driver.drafted > 20
    assert proposer.asked == driver.steps, "in each step, and once"


@pytest.mark.parametrize("follows", [True, False])
def test_who_keeps_up_is_asked_without_room_and_nobody_else(
    checkpoints: Folders, moves: Counter[bool], monkeypatch: pytest.MonkeyPatch, follows: bool
) -> None:
    config = config_for(checkpoints("llama"), block_size=16)
    expected = anew(make_runner(config, rows=8), monkeypatch)
    proposer = Seldom(follows)
    driver = Driver(make_runner(config, rows=8, proposer=proposer), steady=True)
    assert driver.run(sequences()) == expected
    assert moves[True] > 20
    assert proposer.asked == driver.steps if follows else 0 < proposer.asked < driver.steps / 2
