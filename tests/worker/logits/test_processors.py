"""Penalties, bias, masks, budgets of thinking and logprobs, against transformers on the same weights in float32."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from actorserve.actors.grammar.compiler import unpack
from actorserve.actors.protocol.request import Rendition, Sampling, ThinkBudget
from actorserve.actors.protocol.sampling.fields import WatermarkingConfig
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.cpu.runner import CpuRunner
from actorserve.actors.worker.logits.processors import LogitsProcessors
from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.table import slot_of
from tests.grammars.drawing import allowed, model
from tests.support.models.checkpoints import VOCABULARY
from tests.support.models.greedy import reference
from tests.support.selection import slow

from ..driver import LENGTH, Driver, Sequence, config_for, make_runner, plain_memory

Folders = Callable[..., Path]
GREEDY = Sampling(0, temperature=0.0)
ROWS, COUNT = 8, 25
PREEMPT = pytest.mark.parametrize("preempt", [*slow(0.0), 0.2])  # with many steps between preemptions


def asking(**fields: Any) -> Sampling:
    return Sampling(0, temperature=0.0, **fields)


class Bench:
    """A runner with an area for logprobs and renditions by slot, and transformers' model beside it."""

    def __init__(self, folder: Path) -> None:
        self.model = reference(folder)
        plain = make_runner(config_for(folder, block_size=16), rows=ROWS)
        fd = Logprobs.create(ROWS, LENGTH)
        self.area = Logprobs(fd, ROWS, LENGTH)
        os.close(fd)
        self.renditions: dict[int, Rendition] = {}
        read = lambda ref: self.renditions.get(slot_of(ref), Rendition())  # noqa: E731
        self.runner = CpuRunner(
            self._model_of(plain), [memory.pool for memory in plain_memory(plain)], plain.log, 16, ROWS, read, self.area
        )

    @staticmethod
    def _model_of(runner: CpuRunner) -> CpuModel:
        assert isinstance(runner.model, CpuModel)
        return runner.model

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """[positions, words] of transformers."""
        with torch.inference_mode():
            out: torch.Tensor = self.model(torch.tensor([tokens])).logits[0].float()
        return out

    def run(self, sequences: list[Sequence], preempt: float = 0.0) -> list[list[int]]:
        return Driver(self.runner, preempt=preempt, seed=3).run(sequences)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    from tests.support.models.checkpoints import checkpoint

    return Bench(checkpoint("llama", tmp_path_factory.mktemp("adjust")))


@pytest.fixture(autouse=True)
def no_renditions(bench: Bench) -> None:
    bench.renditions.clear()


def prompt(number: int) -> list[int]:
    return list(np.random.default_rng(number).integers(3, VOCABULARY, 15 + 4 * number).tolist())


def expected(bench: Bench, tokens: list[int], sampling: Sampling) -> list[int]:
    """Greedy by transformers' logits and plain loops over the words."""
    answer: list[int] = []
    for _ in range(COUNT):
        logits = bench.logits(tokens + answer)[-1].tolist()
        repeated, counted = tokens + answer, answer
        if sampling.repeat_last_n >= 0:
            repeated = counted = repeated[max(0, len(repeated) - sampling.repeat_last_n) :]
        for word in range(len(logits)):
            times = counted.count(word)
            if word in repeated:
                logits[word] = (
                    logits[word] / sampling.repetition_penalty
                    if logits[word] > 0
                    else logits[word] * sampling.repetition_penalty
                )
            logits[word] -= sampling.frequency_penalty * times + (sampling.presence_penalty if times else 0)
            logits[word] += dict(sampling.logit_bias).get(word, 0)
            if sampling.allowed_token_ids and word not in sampling.allowed_token_ids:
                logits[word] = float("-inf")
        answer.append(max(range(len(logits)), key=logits.__getitem__))
    return answer


ASKED = [
    GREEDY,
    asking(repetition_penalty=1.4),
    asking(frequency_penalty=1.1, presence_penalty=0.7),
    asking(repetition_penalty=0.8, frequency_penalty=-0.3),
    asking(presence_penalty=-1.5),
    asking(logit_bias=[(5, 6.0), (77, -100.0), (9, 4.5)]),
    asking(allowed_token_ids=list(range(100, 160)), repetition_penalty=1.2),
    asking(allowed_token_ids=[7]),
]


@PREEMPT
def test_penalties_are_those_of_a_loop_over_transformers(bench: Bench, preempt: float) -> None:
    drawn = bench.run([Sequence(prompt(i), COUNT, sampling) for i, sampling in enumerate(ASKED)], preempt)
    wanted = [expected(bench, prompt(i), sampling) for i, sampling in enumerate(ASKED)]
    assert drawn == wanted
    plain = bench.run([Sequence(prompt(i), COUNT) for i in range(len(ASKED))])
    assert sum(one != other for one, other in zip(drawn, plain, strict=True)) == len(ASKED) - 1
    assert drawn[7] == [7] * COUNT


LOOKING_BACK: list[dict[str, Any]] = [
    {"repetition_penalty": 1.7, "repeat_last_n": 1},
    {"repetition_penalty": 1.4, "frequency_penalty": 0.4, "repeat_last_n": 8},
    {"frequency_penalty": 1.1, "presence_penalty": 0.7, "repeat_last_n": 30},
    {"presence_penalty": 2.0, "repeat_last_n": (1 << 31) - 1},
    {"repetition_penalty": 1.4, "presence_penalty": 0.4, "repeat_last_n": 0},
]


@PREEMPT
def test_penalties_look_back_on_so_many_tokens_alone(bench: Bench, preempt: float) -> None:
    """Of prompt and answer, wherever in it a sequence comes back; beside rows that look back on all."""
    asked = [*(asking(**fields) for fields in LOOKING_BACK), asking(repetition_penalty=1.4, presence_penalty=0.4)]
    drawn = bench.run([Sequence(prompt(i), COUNT, sampling) for i, sampling in enumerate(asked)], preempt)
    assert drawn == [expected(bench, prompt(i), sampling) for i, sampling in enumerate(asked)]
    (plain,) = bench.run([Sequence(prompt(4), COUNT)])
    assert drawn[4] == plain and drawn[4] != expected(bench, prompt(4), asked[5])


@pytest.mark.parametrize("last", [1, 3, 40, 1000])
def test_what_penalties_look_back_on_is_a_loop_over_the_tokens(last: int) -> None:
    """Of random tokens and logits, for each length of an answer, and of a row that takes the answer so far."""
    random, words = np.random.default_rng(last), 12
    tokens, begin = random.integers(0, words, 60).tolist(), 20
    sampling = Sampling(0, repetition_penalty=1.5, frequency_penalty=0.25, presence_penalty=0.5, repeat_last_n=last)
    going, comes = LogitsProcessors(1, words), LogitsProcessors(1, words)
    going.place(0, sampling, Rendition(), np.array(tokens[:begin]), [])
    for end in range(begin, len(tokens)):
        comes.place(0, sampling, Rendition(), np.array(tokens[:begin]), tokens[begin:end])
        given = random.normal(size=words).astype(np.float32)
        wanted = given.tolist()
        seen = tokens[max(0, end - last) : end]
        for word in set(seen):
            wanted[word] *= 1 / 1.5 if wanted[word] > 0 else 1.5
            wanted[word] -= 0.25 * seen.count(word) + 0.5
        for one in (going, comes):
            logits = torch.from_numpy(given[None].copy())
            one.apply(logits, np.array([0]))
            assert logits[0].tolist() == pytest.approx(wanted, abs=1e-6)
        going.advance(np.array([0]), np.array([tokens[end]]))


@PREEMPT
def test_logprobs_are_those_of_transformers(bench: Bench, preempt: float) -> None:
    """Of prompts and answers, also where the logits are changed before a token is drawn from them."""
    asked = [
        Sampling(5, logprobs=20, prompt_logprobs=3),
        asking(logprobs=0),
        asking(prompt_logprobs=20),
        asking(logprobs=4, repetition_penalty=1.5, logit_bias=[(3, 50.0)]),
        Sampling(7, temperature=2.0, top_k=5, logprobs=2),
    ]
    sequences = [Sequence(prompt(i), COUNT, sampling) for i, sampling in enumerate(asked)]
    bench.run(sequences, preempt)
    for slot, (sequence, sampling) in enumerate(zip(sequences, asked, strict=True)):
        tokens, begin = sequence.prompt + sequence.tokens, len(sequence.prompt)
        logprobs = torch.log_softmax(bench.logits(tokens), -1)
        for position in range(1, len(tokens)):
            most = sampling.prompt_logprobs if position < begin else sampling.logprobs
            if most < 0:
                continue
            (rank, own), *best = bench.area.read(slot, position, most)
            truth = logprobs[position - 1]
            order = torch.argsort(truth, descending=True).tolist()
            assert own == pytest.approx(truth[tokens[position]].item(), abs=1e-4)
            assert rank == order.index(tokens[position]) + 1
            assert [word for word, _ in best] == order[:most]
            assert [value for _, value in best] == pytest.approx(truth[order[:most]].tolist(), abs=1e-4)


LISTS = ([7, 3, 7], [0], list(range(2, 130)), [VOCABULARY - 1, 5])


@PREEMPT
def test_logprobs_of_listed_tokens_are_those_of_transformers(bench: Bench, preempt: float) -> None:
    """Each row has its own list, beside rows without one, in its order, and of logits as the model made them."""
    asked = [asking(logprobs=0, logprob_token_ids=ids, repetition_penalty=1.5) for ids in LISTS]
    asked.insert(1, asking(logprobs=4))
    sequences = [Sequence(prompt(i), COUNT, sampling) for i, sampling in enumerate(asked)]
    bench.run(sequences, preempt)
    for slot, (sequence, sampling) in enumerate(zip(sequences, asked, strict=True)):
        tokens, ids = sequence.prompt + sequence.tokens, sampling.logprob_token_ids
        logprobs = torch.log_softmax(bench.logits(tokens), -1)
        for position in range(len(sequence.prompt), len(tokens)):
            truth = logprobs[position - 1]
            assert bench.area.read_listed(slot, position, len(ids)) == pytest.approx(truth[ids].tolist(), abs=1e-4)
            (_, own), *best = bench.area.read(slot, position, sampling.logprobs)
            assert own == pytest.approx(truth[tokens[position]].item(), abs=1e-4)
            assert [word for word, _ in best] == truth.topk(sampling.logprobs).indices.tolist()


def test_listed_tokens_take_the_memory_of_their_list(bench: Bench) -> None:
    """Four bytes for each, behind one another; it is given back with the rest."""
    bench.run([Sequence(prompt(1), 4)])
    bench.run([Sequence(prompt(1), 4, asking(logprobs=0, logprob_token_ids=[9, 8]))])
    at, ends = len(prompt(1)), len(prompt(1)) + 4
    assert all(value < 0 for position in range(at, ends) for value in bench.area.read_listed(0, position, 2))
    rest = bench.area.listed_start + ends * 2 * 4
    assert not any(bench.area.map[rest : bench.area.listed_start + bench.area.listed_stride])
    bench.run([Sequence(prompt(1), 4, asking(logprobs=1))])
    assert bench.area.read_listed(0, at, 2) == [0.0, 0.0] and bench.area.read(0, at, 0) != [(0, 0.0)]


def test_memory_of_logprobs_is_given_back(bench: Bench) -> None:
    bench.run([Sequence(prompt(1), 4, asking(logprobs=3))])
    assert bench.area.read(0, len(prompt(1)), 0) != [(0, 0.0)]
    bench.run([Sequence(prompt(1), 4)])
    assert bench.area.read(0, len(prompt(1)), 0) == [(0, 0.0)]


@PREEMPT
def test_bad_words_are_never_drawn(bench: Bench, preempt: float) -> None:
    (plain,) = bench.run([Sequence(prompt(2), COUNT)])
    single, pair = [plain[4]], plain[7:9]
    bench.renditions[0] = Rendition(bad_words=[single, pair, [1, 2, 3]])
    (drawn,) = bench.run([Sequence(prompt(2), COUNT)], preempt)
    assert drawn[:4] == plain[:4] and single[0] not in drawn
    assert pair not in [drawn[i : i + 2] for i in range(len(drawn))]
    bench.renditions[0] = Rendition(bad_words=[pair])
    (drawn,) = bench.run([Sequence(prompt(2), COUNT)], preempt)
    assert drawn[:8] == plain[:8] and drawn[8] != plain[8], "only behind its beginning the word's end is masked"


@PREEMPT
@pytest.mark.parametrize("end", [[300], [300, 301, 302]])
def test_thinking_ends_with_its_budget(bench: Bench, end: list[int], preempt: float) -> None:
    (plain,) = bench.run([Sequence(prompt(3), COUNT)])
    assert not set(end) & set(plain)
    for opened, start, budget in ((True, [1], 6), (False, plain[:1], 6), (True, [1], 0), (False, [1], 3)):
        bench.renditions[0] = Rendition(opened, budget=ThinkBudget(budget, start, end))
        (drawn,) = bench.run([Sequence(prompt(3), COUNT)], preempt)
        at = budget + (not opened)
        if opened or start == plain[:1]:
            assert drawn[:at] == plain[:at] and drawn[at : at + len(end)] == end
        else:
            assert drawn == plain


@pytest.mark.parametrize(
    ("end", "closing"),
    [
        ([300], [301, 301, 302, 300]),
        ([300, 303], [301, 302, 300, 303]),
        ([300, 303], [301, 300, 302, 300, 303]),  # its words have what the end begins with
        ([300, 301, 303], [300, 301, 302, 300, 301, 303]),
    ],
)
def test_what_closes_thinking_is_written_before_its_end(bench: Bench, end: list[int], closing: list[int]) -> None:
    (plain,) = bench.run([Sequence(prompt(3), COUNT)])
    bench.renditions[0] = Rendition(True, budget=ThinkBudget(6, [1], end, closing))
    (drawn,) = bench.run([Sequence(prompt(3), COUNT)])
    assert drawn[:6] == plain[:6] and drawn[6 : 6 + len(closing)] == closing
    assert not set(closing) & set(drawn[6 + len(closing) :]), "once, and then the model goes on"


def test_thinking_that_ends_by_itself_is_left_alone(bench: Bench) -> None:
    (plain,) = bench.run([Sequence(prompt(4), COUNT)])
    bench.renditions[0] = Rendition(True, budget=ThinkBudget(10, [1], plain[3:5]))
    assert bench.run([Sequence(prompt(4), COUNT)]) == [plain]
    cut = plain[3:5]
    bench.renditions[0] = Rendition(True, budget=ThinkBudget(4, [1], cut))
    assert bench.run([Sequence(prompt(4), COUNT)]) == [plain], "its end has begun when the budget is used up"
    bench.renditions[0] = Rendition(True, budget=ThinkBudget(4, [1], cut, [301, *cut]))
    assert bench.run([Sequence(prompt(4), COUNT)]) == [plain], "likewise where something else would close it"


def test_a_crowd_changes_nothing(bench: Bench) -> None:
    """What a row asks for is its own: others draw what they draw alone."""
    crowd = [Sequence(prompt(i), COUNT, replace_seed(sampling, i)) for i, sampling in enumerate(ASKED)]
    together = bench.run(crowd)
    for index, sequence in enumerate(crowd):
        assert bench.run([Sequence(sequence.prompt, COUNT, sequence.sampling)]) == [together[index]]


def replace_seed(sampling: Sampling, seed: int) -> Sampling:
    return msgspec.structs.replace(sampling, seed=seed, temperature=1.0)


def test_masks_in_bits_are_what_is_done_to_logits() -> None:
    """Of rows with grammars, bad words, budgets, allowed tokens and ends that are too early, as they go on."""
    of = model("demo")
    constraint = of.grammars.make(msgspec.json.encode({"regex": "[a-f]{3,6}"}))
    impossible = [[word] for word in allowed_first(of, unpack(constraint))]
    ends: dict[str, Any] = {"min_tokens": 3, "suppress": of.ends}
    asked = [
        (Sampling(0), Rendition(grammar=constraint)),
        (Sampling(0), Rendition(grammar=constraint, bad_words=impossible)),
        (Sampling(0, **ends), Rendition(bad_words=[[5], [6, 7]])),
        (Sampling(0, allowed_token_ids=[*range(3, 90)], **ends), Rendition(True, budget=ThinkBudget(2, [1], [8, 9]))),
    ]
    processors, beside = (LogitsProcessors(4, of.vocab_size, of.matchers) for _ in range(2))
    for row, (sampling, rendition) in enumerate(asked):
        for one in (processors, beside):
            one.place(row, sampling, rendition, np.array([4]), [])
    rows = np.arange(4)
    random = np.random.default_rng(1)
    for _ in range(5):
        logits = torch.zeros(4, of.vocab_size)
        failed = processors.apply(logits, rows)
        bits, failed_too = beside.fill_masks(rows)
        there = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")
        assert not there[:, of.vocab_size :].any() and failed.tolist() == failed_too.tolist() == []
        assert np.array_equal(there[:, : of.vocab_size] == 1, logits.numpy() > float("-inf"))
        drawn = np.array([random.choice(np.flatnonzero(own)) for own in there])
        drawn[2] = 6
        for one in (processors, beside):
            one.advance(rows, drawn)


def allowed_first(of: Any, grammar: str) -> list[int]:
    """The words with which what the grammar allows may begin."""
    matchers = of.matchers()
    matchers.place(0, grammar)
    words: list[int] = allowed(matchers, 0).tolist()
    return words


WATERMARKS: list[dict[str, Any]] = [
    {"bias": 6.0},
    {"bias": 5.0, "greenlist_ratio": 0.5, "hashing_key": 987654321, "context_width": 3},
    {"bias": 4.0, "seeding_scheme": "selfhash"},
    {"bias": 6.0, "seeding_scheme": "selfhash", "context_width": 4, "hashing_key": (1 << 63) - 1},
]


def watermarked(bench: Bench, tokens: list[int], config: dict[str, Any]) -> list[int]:
    """Greedy with transformers' own processor."""
    from transformers import WatermarkLogitsProcessor

    process = WatermarkLogitsProcessor(VOCABULARY, "cpu", **config)
    answer: list[int] = []
    for _ in range(COUNT):
        ids = torch.tensor([tokens + answer])
        answer.append(int(process(ids, bench.logits(tokens + answer)[-1:])[0].argmax()))
    return answer


@PREEMPT
def test_watermarks_are_those_of_transformers(bench: Bench, preempt: float) -> None:
    """Beside rows that want none, which draw what they drew."""
    asked = [asking(watermarking_config=WatermarkingConfig(**config)) for config in WATERMARKS]
    sequences = [Sequence(prompt(i), COUNT, sampling) for i, sampling in enumerate([*asked, GREEDY])]
    drawn = bench.run(sequences, preempt)
    assert drawn[:-1] == [watermarked(bench, prompt(i), config) for i, config in enumerate(WATERMARKS)]
    plain = bench.run([Sequence(prompt(i), COUNT) for i in range(len(WATERMARKS) + 1)])
    assert [one == other for one, other in zip(drawn, plain, strict=True)] == [False] * len(WATERMARKS) + [True]


def test_a_watermark_changes_nothing_of_what_is_forbidden(bench: Bench) -> None:
    allowed_words = [*range(100, 140)]
    sampling = asking(allowed_token_ids=allowed_words, watermarking_config=WatermarkingConfig(bias=50.0))
    (drawn,) = bench.run([Sequence(prompt(1), COUNT, sampling)])
    assert set(drawn) <= set(allowed_words) and len(set(drawn)) > 1
