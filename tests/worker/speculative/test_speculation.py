"""Drafts change the number of steps and nothing else: tokens, logprobs, what preemption leaves behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.request import Sampling
from actorserve.actors.worker.logprobs import LogprobsWriter
from actorserve.actors.worker.memory import make_pools
from actorserve.actors.worker.models.weights import load_model
from actorserve.actors.worker.speculative.draft_model import DraftModelProposer
from actorserve.actors.worker.speculative.ngram import NgramProposer
from actorserve.actors.worker.speculative.verifier import DraftBatch, Ints, Proposer, Tokens
from actorserve.kernels.cpu.paged_kv import PagedKV
from actorserve.shm.table.logprobs import Logprobs
from tests.support.models.checkpoints import KINDS, VOCABULARY
from tests.support.selection import slow

from ..driver import GREEDY, LENGTH, Driver, Sequence, config_for, make_runner

Folders = Callable[..., Path]

SAMPLINGS = [
    GREEDY,
    Sampling(12, temperature=0.7, top_k=20),
    Sampling(13, temperature=0.5, top_p=0.8),
    Sampling(14),
    Sampling(17, temperature=1.5, top_n_sigma=1.0),
    Sampling(18, temperature=0.8, typical_p=0.5),
    Sampling(15, temperature=0.3, frequency_penalty=0.5),
    Sampling(16, temperature=0.0, min_tokens=9, suppress=[5, 6]),
]
# The others compute several tokens of a row at once as one of these does: see what it keeps of them, and from how far.
QUICK = (
    "llama",
    "qwen2_windows",
    "deepseek_v2",
    "llama4",
    "gpt_oss",
)


class Oracle:
    """Knows what will be drawn, and drafts it with mistakes."""

    follows = False

    def __init__(self, answers: list[list[int]], right: float = 0.7) -> None:
        self.answers = answers  # whole sequences; a row's is the one that begins as the row does
        self.right = right
        self.random = np.random.default_rng(1)

    def place(self, row: int, computed: int) -> None:
        pass

    def propose(self, work: DraftBatch, tokens: Tokens) -> Ints:
        known = work.starts + work.pending
        for row, size, room in zip(work.rows.tolist(), known.tolist(), work.room.tolist(), strict=True):
            so_far = tokens[row, :size].tolist()
            line = next(answer for answer in self.answers if answer[:size] == so_far)[size : size + room]
            assert len(line) == room
            wrong = self.random.random(room) > self.right
            tokens[row, size : size + room] = (line + wrong * self.random.integers(1, 50, room)) % VOCABULARY
        return work.room


def drafter(config: Config, group: Any = None) -> DraftModelProposer:
    """That model, for runners of make_runner's size; the second of a group has none."""
    if group is not None and group.rank:
        return DraftModelProposer(None, None, 8, 5, group)
    model = load_model(config, resolve_model(config))
    pools = make_pools(model.kv, 128, config.block_size, model.dtype)
    return DraftModelProposer(model, PagedKV(model.kv, pools, config.block_size), 8, 5, group)


def prompt(length: int, seed: int = 1) -> list[int]:
    return list(np.random.default_rng(seed).integers(3, VOCABULARY, length).tolist())


NEAR = ("qwen2_moe", "llama_biased")  # with the others' prompts two of their words are equally likely


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
@pytest.mark.parametrize("preempt", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
def test_the_tokens_are_those_without_drafts(kind: str, preempt: float, checkpoints: Folders) -> None:
    """Of all families, greedy and drawn, with other wishes beside them; over blocks in disorder."""
    config = config_for(checkpoints(kind), block_size=16)

    def sequences() -> list[Sequence]:
        seed = 7 if kind in NEAR else 0
        return [Sequence(prompt(5 + 11 * n, n + seed), 20, sampling) for n, sampling in enumerate(SAMPLINGS)]

    plain = make_runner(config, rows=len(SAMPLINGS))
    expected = Driver(plain, preempt=preempt).run(sequences())
    oracle = Oracle([s.prompt + tokens for s, tokens in zip(sequences(), expected, strict=True)])
    proposers: list[Proposer] = [oracle]
    if kind == "llama":  # a model is told tokens, whoever has thought of them
        proposers.append(NgramProposer(1, 3))
    for proposer in proposers:
        driver = Driver(make_runner(config, rows=len(SAMPLINGS), proposer=proposer), preempt=preempt, drafts=5, seed=7)
        assert driver.run(sequences()) == expected
        assert driver.drafted > 0
        if proposer is oracle:
            assert driver.drafted > driver.accepted > 10


def test_rows_with_other_wishes_have_no_drafts(checkpoints: Folders) -> None:
    config = config_for(checkpoints("llama"), block_size=16)
    driver = Driver(make_runner(config, proposer=NgramProposer(1, 3)), drafts=5)
    driver.run([Sequence(prompt(40), 40, Sampling(1, temperature=0.0, frequency_penalty=0.1))])
    assert driver.drafted == 0
    driver.run([Sequence(prompt(10) * 4, 40)])
    assert driver.drafted > 0


def test_each_token_that_is_kept_is_told_with_its_own_logprob(checkpoints: Folders) -> None:
    config = config_for(checkpoints("llama"), block_size=16)
    asked = Sampling(3, temperature=0.8, logprobs=2)
    found = []
    answers: list[list[int]] = []
    for drafts in (0, 5):
        runner = make_runner(config, proposer=Oracle(answers) if drafts else None)
        told: dict[int, tuple[float, int]] = {}

        def write(
            raw: tuple[Ints, object],
            rows: Ints,
            tokens: np.ndarray,
            positions: Ints,
            told: dict[int, tuple[float, int]] = told,
        ) -> None:
            which, logits = raw
            words = logits.log_softmax(-1)  # type: ignore[attr-defined]
            assert len(words) == len(which) == len(set(positions[which].tolist()))
            for at, index in enumerate(which.tolist()):
                assert rows[index] in range(8) and positions[index] not in told
                told[int(positions[index])] = (float(words[at, tokens[index]]), int(tokens[index]))

        runner.logprobs._most[:] = 2
        runner.logprobs._rows_with_logprobs.add(0)
        runner.logprobs.write = write  # type: ignore[method-assign]
        runner.logprobs.place = lambda row, *_, told=runner.logprobs: told._most.__setitem__(row, 2)  # type: ignore[method-assign]
        sequence = Sequence(prompt(30), 40, asked)
        (tokens,) = Driver(runner, budget=64, drafts=drafts).run([sequence])
        answers.append(sequence.prompt + tokens)
        assert [told[30 + at][1] for at in range(40)] == tokens
        found.append([told[30 + at][0] for at in range(40)])
    assert found[0] == pytest.approx(found[1], abs=1e-3)


def test_each_token_that_is_kept_is_told_with_those_of_its_list(checkpoints: Folders) -> None:
    config = config_for(checkpoints("llama"), block_size=16)
    asked = [Sampling(3, temperature=0.8, logprobs=0, logprob_token_ids=[9, 4, 11]), Sampling(4, temperature=0.8)]
    sequences = [Sequence(prompt(30), 40, asked[0]), Sequence(prompt(20), 40, asked[1])]
    found: list[list[list[float]]] = []
    answers: list[list[int]] = []
    for drafts in (0, 5):
        runner = make_runner(config, proposer=Oracle(answers) if drafts else None)
        fd = Logprobs.create(8, LENGTH)
        area = Logprobs(fd, 8, LENGTH)
        os.close(fd)
        runner.logprobs = LogprobsWriter(area, 8)
        driver = Driver(runner, budget=64, drafts=drafts)
        drawn = driver.run([Sequence(one.prompt, 40, one.sampling) for one in sequences])
        answers += [one.prompt + tokens for one, tokens in zip(sequences, drawn, strict=True)]
        found.append([area.read_listed(0, position, 3) for position in range(30, 70)])
    assert driver.accepted > 0 and answers[:2] == answers[2:]
    assert len({tuple(one) for one in found[0]}) > 10 and np.allclose(found[0], found[1], atol=1e-3)


def test_what_is_drawn_has_the_models_distribution(checkpoints: Folders) -> None:
    """Chi-square over many seeds: the third token, which with drafts comes out of a verified step."""
    config = config_for(checkpoints("llama", vocab_size=64), block_size=16)
    start = np.random.default_rng(5).integers(3, 60, 12).tolist()

    class Fixed:
        """The same drafts for everybody."""

        follows = False

        def place(self, row: int, computed: int) -> None:
            pass

        def propose(self, work: DraftBatch, tokens: Tokens) -> Ints:
            known = work.starts + work.pending
            for row, size, room in zip(work.rows.tolist(), known.tolist(), work.room.tolist(), strict=True):
                tokens[row, size : size + room] = common[:room]
            return work.room

    def third(proposer: Fixed | None, seeds: range) -> np.ndarray:
        runner = make_runner(config, rows=64, blocks=256, proposer=proposer)
        if runner.verifier is not None:
            runner.verifier._share[:] = 1e9  # nobody gives up
        counts = np.zeros(64)
        for first in range(seeds.start, seeds.stop, 64):
            lines = [Sequence(start, 3, Sampling(s, temperature=0.5)) for s in range(first, first + 64)]
            for line in Driver(runner, budget=2000, drafts=3 if proposer else 0, seed=first).run(lines):
                counts[line[2]] += 1
        return counts

    likely = Driver(make_runner(config)).run([Sequence(start, 4)])[0]
    common = np.array(likely[1:])
    size = 64 * 25
    plain, drafted = third(None, range(0, size)), third(Fixed(), range(10**6, 10**6 + size))
    both = plain + drafted
    used = both >= 10
    statistic = ((plain - drafted)[used] ** 2 / both[used]).sum()
    freedom = int(used.sum()) - 1
    assert freedom >= 5 and statistic < freedom + 4 * (2 * freedom) ** 0.5
    skewed = drafted.copy()
    skewed[common[1]] += 0.2 * size  # the test would see a draft that is accepted too often
    both = plain + skewed
    assert ((plain - skewed)[used] ** 2 / both[used]).sum() > freedom + 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize(("temperature", "least"), [*slow((0.0, 0.9)), (0.8, 0.8)])
@pytest.mark.parametrize("preempt", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
def test_a_model_that_drafts_for_itself_is_nearly_always_right(
    temperature: float, least: float, preempt: float, checkpoints: Folders
) -> None:
    """Also behind prompts in pieces, preemptions, and steps without room; its KV memory is its own."""
    config = config_for(checkpoints("qwen3"), block_size=16)

    def sequences() -> list[Sequence]:
        return [Sequence(prompt(5 + 19 * n, n), 40, Sampling(n, temperature=temperature)) for n in range(6)]

    expected = Driver(make_runner(config, rows=6), preempt=preempt).run(sequences())
    driver = Driver(make_runner(config, rows=6, proposer=drafter(config)), preempt=preempt, drafts=3, seed=7)
    assert driver.run(sequences()) == expected
    assert driver.drafted > 40 and driver.accepted > least * driver.drafted


def test_another_model_drafts_otherwise_and_the_text_stays(checkpoints: Folders) -> None:
    config = config_for(checkpoints("llama"), block_size=16)
    other = config_for(checkpoints("qwen2", num_hidden_layers=1), block_size=16)
    lines = [Sequence(prompt(90, 3), 30, sampling) for sampling in SAMPLINGS]
    expected = Driver(make_runner(config)).run(lines)
    driver = Driver(make_runner(config, proposer=drafter(other)), drafts=4)
    again = [Sequence(prompt(90, 3), 30, sampling) for sampling in SAMPLINGS]
    assert driver.run(again) == expected
    assert driver.drafted > 20 and driver.accepted < 0.5 * driver.drafted


def test_a_draft_model_that_was_left_behind_catches_up(checkpoints: Folders) -> None:
    """Its row has no room for a while, as when drafts do not pay; then its drafts are right again."""
    config = config_for(checkpoints("llama"), block_size=16)
    proposer = drafter(config)
    driver = Driver(make_runner(config, proposer=proposer), budget=64)
    sequence = Sequence(prompt(10), 150)
    with torch.inference_mode():
        while len(sequence.tokens) < 100:
            driver._step([sequence])
        assert proposer._computed[sequence.row] == 10
        driver.drafts = 3
        while not sequence.done:
            driver._step([sequence])
    (expected,) = Driver(make_runner(config)).run([Sequence(prompt(10), 150)])
    assert sequence.tokens == expected and driver.accepted > 0.9 * driver.drafted > 10


def test_what_the_others_of_a_group_are_told(checkpoints: Folders) -> None:
    """Of two workers the second has no draft model, and computes the same drafts' positions."""
    config = config_for(checkpoints("llama"), block_size=16)
    told: list[torch.Tensor] = []

    class First:
        rank = 0

        def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
            told.append(x.clone())
            return x

    class Second:
        rank = 1

        def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
            assert not x.any()
            return x + told.pop(0)

    answers = []
    for group in (First(), Second()):
        proposer = drafter(config, group)
        driver = Driver(make_runner(config, proposer=proposer), drafts=3)
        answers.append(driver.run([Sequence(prompt(20, n), 30) for n in range(4)]))
        assert driver.accepted > 20
    assert answers[0] == answers[1] and not told
