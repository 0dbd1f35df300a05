"""Logits and logprobs have the same bits whatever else a step computes: with weights of 8 bits, and with
`--deterministic` in float32, bfloat16 and float16.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actorserve.actors.model.info import resolve_model
from actorserve.actors.protocol.request import Sampling
from actorserve.actors.worker.cpu.batch import BlockTables, prepare_inputs, row_positions
from actorserve.actors.worker.cpu.batch_invariant import SIZES, BatchInvariantLinear, agreeing_sizes, in_tiles
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.cpu.layers import native
from actorserve.actors.worker.cpu.layers.elementwise import (
    GRAIN,
    exact_gelu_tanh,
    exact_silu,
    exact_soft_cap,
    gelu_tanh,
    rotate,
    rotate_by_rows,
    soft_cap,
)
from actorserve.actors.worker.cpu.layers.norm import RMSNorm
from actorserve.actors.worker.logprobs import LogprobsWriter
from actorserve.actors.worker.memory import make_pools
from actorserve.actors.worker.models.weights import load_model
from actorserve.actors.worker.speculative.ngram import NgramProposer
from actorserve.actors.worker.speculative.verifier import Proposer
from actorserve.kernels.cpu.paged_kv import PagedKV
from actorserve.kernels.cpu.penalties import log_sums, top_logprobs
from actorserve.shm.table.logprobs import Logprobs
from tests.support.compiler import need_compiler
from tests.support.selection import pairwise, slow

from .cpu.test_runner import prompt
from .driver import LENGTH as ROOM
from .driver import Driver, Sequence, config_for, make_runner

Folders = Callable[..., Path]


@pytest.fixture(params=["1 torch", "3 torch", "3 native"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """So many compute, by kernels of torch or of our own; three cut no tensor of these tests at the end of a row."""
    before = torch.get_num_threads()
    count, kernels = request.param.split()
    torch.set_num_threads(int(count))
    if kernels == "native":
        need_compiler()
    native.start(kernels, int(count))
    yield int(count)
    native.stop()
    torch.set_num_threads(before)


# --- the same bits in every step -----------------------------------------------------------------------------------

LENGTH = 56  # of each sequence: beyond two blocks of each size
MOST = 32  # sequences at once
Part = tuple[int, int, int]  # a sequence, the first of its positions that is computed, and how many are


def run_steps(model: CpuModel, ids: torch.Tensor, steps: list[list[Part]], block: int) -> torch.Tensor:
    """Logits [sequence, position, word] of what these steps compute, each sequence in scattered blocks of its own."""
    count = -(-LENGTH // block)
    blocks = np.random.default_rng(len(steps)).permutation(MOST * count).reshape(MOST, count).astype(np.int64)
    tables = BlockTables(blocks, np.ones(MOST, np.bool_))
    pools = make_pools(model.kv, MOST * count, block, model.dtype)
    library = native.current()
    kv = PagedKV(model.kv, pools, block, model.batch_invariant, model.dtype, library)
    found = torch.full((MOST, LENGTH, model.shape.vocab_size), float("nan"))
    for step in steps:
        rows, starts, counts = (np.array(column, np.int64) for column in zip(*step, strict=True))
        owners, positions = row_positions(rows, counts, starts)
        inputs = prepare_inputs(model.attention, kv, tables, rows, counts, starts, ids.numpy()[owners, positions])
        found[owners, positions] = model.logits(inputs.forward(model, kv))
    return found


def random_steps(random: np.random.Generator, sequences: int) -> list[list[Part]]:
    """Prompts that come in chunks of any size beside others that go on token by token, until all are at their ends."""
    done, steps = dict.fromkeys(range(sequences), 0), []
    while any(position < LENGTH for position in done.values()):
        step = []
        for number in random.permutation(sequences).tolist():
            if done[number] < LENGTH and random.random() < 0.7:
                size = int(min(random.choice([1, 1, 1, 5, 16, 40]), LENGTH - done[number]))
                step.append((number, done[number], size))
                done[number] += size
        if step:
            steps.append(step)
    return steps


WIDE = {  # o_proj has exactly 65,536 numbers, and the MLP no multiple of a vector
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 333,
    "num_hidden_layers": 2,
}
DEEP = WIDE | {"intermediate_size": 777}  # sums that oneDNN cuts in bfloat16
INT8: dict[str, Any] = {"quantization": "int8"}
FLOAT32: dict[str, Any] = {"deterministic": True}
BFLOAT16, FLOAT16 = FLOAT32 | {"dtype": "bfloat16"}, FLOAT32 | {"dtype": "float16"}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llama", WIDE, INT8),
    ("llama", WIDE, FLOAT32),
    *((kind, {}, FLOAT32) for kind in ("qwen2_windows", "qwen3_moe")),
    ("llama", DEEP, BFLOAT16),
    ("deepseek_v3", {}, INT8),
    ("deepseek_v32", {}, INT8),
    ("gemma3", {}, BFLOAT16),
]
SLOW: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((kind, {}, INT8) for kind in ("mistral", "llama_tied", "qwen3", "qwen3_moe", "llama_biased", "phi3_long")),
    *((kind, {}, FLOAT32) for kind in ("mistral", "qwen3", "llama_tied", "llama_biased", "phi3_long", "olmo3")),
    ("qwen3", {}, BFLOAT16),
    ("llama", DEEP, FLOAT16),
    ("gemma2", {}, INT8),
    ("gpt_oss", {}, INT8),
    ("gpt_oss", {}, FLOAT32),
    ("llama4", {}, INT8),
    ("deepseek_v2", {}, FLOAT32),
    ("deepseek_v3", {}, BFLOAT16),
    ("glm_moe_dsa", {}, FLOAT32),
    *((kind, {}, FLOAT32) for kind in ("gemma2", "gemma3", "granite", "olmo2", "glm4", "smollm3")),
]
MANY = (2, 7, 32), (2, 32)  # how many decode together, and are in steps of all kinds
FEW = (3, 12), (9,)
NAMES = [f"{kind}-{options.get('quantization', options.get('dtype', 'float32'))}" for kind, _, options in CASES]


@pytest.mark.parametrize(("kind", "changes", "options"), CASES, ids=NAMES)
def test_logits_have_the_same_bits_alone_and_in_any_crowd(
    kind: str, changes: dict[str, Any], options: dict[str, Any], checkpoints: Folders
) -> None:
    """Products of any number of rows are those of the wide ones, so that crowds of all sizes are asked of these."""
    crowds = MANY if changes else FEW
    check_bits(checkpoints(kind, initializer_range=0.1, **changes), options, *crowds)


@pytest.mark.parametrize(
    ("options", "threads"), pairwise([INT8, FLOAT32, BFLOAT16], ["3 torch", "3 native"]), indirect=["threads"], ids=str
)
def test_several_threads_change_none(threads: int, options: dict[str, Any], checkpoints: Folders) -> None:
    check_bits(checkpoints("llama", initializer_range=0.1, **DEEP), options, (7, 12), (9,))


PLAIN: list[Any] = [
    ("llama", DEEP),
    ("qwen2_windows", {}),
    *slow(*((kind, {}) for kind in ("qwen3", "mistral", "llama_biased", "llama_tied"))),
]


@pytest.mark.parametrize(("kind", "changes"), PLAIN)
@pytest.mark.parametrize("threads", ["3 native"], indirect=True)
def test_plain_models_have_the_same_bits_by_native_kernels_unasked(
    threads: int, kind: str, changes: dict[str, Any], checkpoints: Folders
) -> None:
    folder = checkpoints(kind, initializer_range=0.1, **changes)
    assert load_plain(folder).row_invariant and not load_plain(folder).batch_invariant
    check_bits(folder, {}, (2, 5, 21, 32), (2, 9, 32))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="products in bfloat16 are torch's here")
@pytest.mark.parametrize("threads", ["3 native"], indirect=True)
def test_so_they_have_in_bfloat16_when_asked(threads: int, checkpoints: Folders) -> None:
    options = {"dtype": "bfloat16", "deterministic": True}
    folder = checkpoints("llama", initializer_range=0.1, **DEEP)
    model = load_plain(folder, **options)
    assert model.batch_invariant and model.precision == torch.bfloat16 and model.dtype == torch.float32
    check_bits(folder, options, (2, 5, 21, 32), (2, 9, 32))


def load_plain(folder: Path, **options: Any) -> CpuModel:
    config = config_for(folder, **options)
    model = load_model(config, resolve_model(config))
    assert isinstance(model, CpuModel)
    return model


@pytest.mark.parametrize("threads", ["3 native"], indirect=True)
def test_others_do_not_promise_it(threads: int, checkpoints: Folders) -> None:
    assert not load_plain(checkpoints("qwen3"), dtype="bfloat16").row_invariant
    assert not load_plain(checkpoints("qwen3"), dtype="float16").row_invariant
    assert not load_plain(checkpoints("gemma2")).row_invariant
    assert not load_plain(checkpoints("qwen3_moe")).row_invariant
    native.stop()
    assert not load_plain(checkpoints("qwen3")).row_invariant
    assert load_plain(checkpoints("qwen3"), quantization="int8").row_invariant


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "changes", "options"), [*SLOW, *(case for case in CASES if not case[1])])
def test_logits_of_more_families_have_the_same_bits(
    kind: str, changes: dict[str, Any], options: dict[str, Any], checkpoints: Folders
) -> None:
    check_bits(checkpoints(kind, initializer_range=0.1, **changes), options, *MANY)


def check_bits(folder: Path, options: dict[str, Any], together: tuple[int, ...], mixed: tuple[int, ...]) -> None:
    """Alone at once; alone token by token; 2 to 32 that decode together; chunks and decoding in one step."""
    config = config_for(folder, **options)
    torch.manual_seed(5)
    with torch.inference_mode():
        model = load_model(config, resolve_model(config))
        ids = torch.randint(3, model.shape.vocab_size, (MOST, LENGTH))
        most = max(*together, *mixed)
        alone = run_steps(model, ids, [[(number, 0, LENGTH)] for number in range(most)], 16)
        assert torch.isfinite(alone[:most]).all()
        by_token = run_steps(model, ids, [[(0, position, 1)] for position in range(LENGTH)], 32)
        assert torch.equal(by_token[0], alone[0])
        for crowd in together:
            prompts = [[(number, 0, LENGTH - 3) for number in range(crowd)]]
            decoding = [[(number, LENGTH - left, 1) for number in range(crowd)] for left in (3, 2, 1)]
            found = run_steps(model, ids, prompts + decoding, 8)
            assert torch.equal(found[:crowd], alone[:crowd]), crowd
        random = np.random.default_rng(1)
        for crowd in mixed:
            found = run_steps(model, ids, random_steps(random, crowd), 24)
            assert torch.equal(found[:crowd], alone[:crowd]), crowd


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_logits_are_those_without_it(dtype: str, checkpoints: Folders) -> None:
    """To within what rounding to this type leaves open."""
    folder = checkpoints("qwen3", initializer_range=0.1)
    exact, plain, same = (
        load_model(config_for(folder, **options), resolve_model(config_for(folder)))
        for options in ({}, {"dtype": dtype}, {"dtype": dtype, "deterministic": True})
    )
    ids = torch.randint(3, exact.shape.vocab_size, (MOST, LENGTH))
    with torch.inference_mode():
        logits = [run_steps(model, ids, [[(0, 0, LENGTH)]], 16)[0] for model in (exact, plain, same)]
    assert (logits[2] - logits[0]).norm() <= 1.2 * (logits[1] - logits[0]).norm() + 1e-5 * logits[0].norm()


# --- what a client sees --------------------------------------------------------------------------------------------


def told_logprobs(config: Any, budget: int, preempt: float, proposer: Proposer | None, crowd: int) -> list[bytes]:
    """The records of all tokens of 8 sequences, `crowd` of which run at a time."""
    fd = Logprobs.create(8, ROOM)
    area = Logprobs(fd, 8, ROOM)
    runner = make_runner(config, rows=8, proposer=proposer)
    runner.logprobs = LogprobsWriter(area, 8)
    driver = Driver(runner, budget, preempt, seed=crowd, drafts=5 if proposer else 0)
    sequences = [
        Sequence(prompt(5 + 4 * n, n) * 2, 20, Sampling(n, temperature=n / 4, logprobs=3, prompt_logprobs=2))
        for n in range(8)
    ]
    for first in range(0, 8, crowd):
        done = [Sequence([], 0)] * first  # whose slots are taken
        driver.run([*done, *sequences[first : first + crowd]])
    assert proposer is None or driver.drafted > 0
    size = area.start(0, 1)
    return [area.map[area.start(n, 1) : area.start(n, 0) + size * sequences[n].known] for n in range(8)]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_logprobs_of_prompts_and_answers(dtype: str, checkpoints: Folders) -> None:
    """In chunks of any size, behind preemptions and with drafts: what is told of each token is the same bytes."""
    config = config_for(checkpoints("qwen3", initializer_range=0.1), block_size=16, deterministic=True, dtype=dtype)
    alone = told_logprobs(config, 256, 0.0, None, 1)
    assert all(any(records) for records in alone)
    for budget, preempt, proposer, crowd in (
        (64, 0.0, None, 8),
        (11, 0.04, None, 3),
        (48, 0.05, NgramProposer(1, 3), 8),
    ):
        assert told_logprobs(config, budget, preempt, proposer, crowd) == alone


# --- what it is made of --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("outputs", "inputs", "biased"), [(512, 256, False), (333, 1501, True), (40, 16, False)])
def test_a_product_of_any_number_of_rows(
    threads: int, dtype: torch.dtype, outputs: int, inputs: int, biased: bool
) -> None:
    torch.manual_seed(outputs)
    weight, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype) if biased else None
    linear, x = BatchInvariantLinear(weight, bias), torch.randn(150, inputs).to(dtype)
    expected = linear(x)
    near = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(expected.double(), near, rtol=2e-2, atol=1e-2 * inputs**0.5)
    for rows in (1, 2, 3, 5, 8, 31, 64, 65, 100):
        for first in (0, 1, 50):
            assert torch.equal(linear(x[first : first + rows]), expected[first : first + rows]), rows
    residual = torch.randn(150, outputs).to(dtype)
    before = residual.clone()
    linear.add_to(residual, x)
    assert torch.equal(residual, before + expected)


def summed(x: torch.Tensor, weight: torch.Tensor, order: Iterable[int]) -> torch.Tensor:
    """The product as one sum after the other, in this order: which one a library has depends on the processor."""
    total = torch.zeros(len(x), len(weight))
    for column in order:
        total += x[:, column, None].float() * weight[:, column].float()
    return total.to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sizes_that_sum_in_another_order_are_not_used(dtype: torch.dtype) -> None:
    """Even where nearly all results are rounded to the same 16 bits."""
    torch.manual_seed(2)
    weight = torch.randn(24, 320).to(dtype)
    ascending, descending = range(320), range(319, -1, -1)

    def product(x: torch.Tensor, largest: int) -> torch.Tensor:
        return summed(x, weight, ascending if len(x) <= largest else descending)

    assert agreeing_sizes(lambda x: product(x, 64), weight) == SIZES
    assert agreeing_sizes(lambda x: product(x, 16), weight) == (4, 8, 16)

    def uneven(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([product(x[:1], 1), summed(x[1:], weight, descending)])

    assert agreeing_sizes(uneven, weight) == (1,), "the first row is summed otherwise than the others"
    x = torch.randn(9, 320).to(dtype)
    assert torch.equal(in_tiles(uneven, x, (1,)), product(x, 64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_number_for_itself(threads: int, dtype: torch.dtype) -> None:
    """Also where a tensor is large enough for several threads, whose parts do not end with a row."""
    torch.manual_seed(3)
    both = torch.randn(97, 2 * 777).to(dtype)
    gate = both.chunk(2, -1)[0]
    assert gate.numel() > 2 * GRAIN
    whole = exact_silu(gate)
    torch.testing.assert_close(whole, torch.nn.functional.silu(gate))
    heads, turns = torch.randn(97, 9, 90).to(dtype), torch.polar(torch.ones(97, 1, 45), torch.randn(97, 1, 45))
    turned, plain = heads.clone(), heads.clone()
    rotate_by_rows(turned, turns)
    rotate(plain, turns)
    torch.testing.assert_close(turned, plain)
    norm = RMSNorm(torch.rand(777).to(dtype), 1e-5, batch_invariant=True)
    normed = norm(gate)
    torch.testing.assert_close(normed, RMSNorm(norm.gain, 1e-5)(gate))
    for row in range(97):
        assert torch.equal(exact_silu(both[row : row + 1].chunk(2, -1)[0])[0], whole[row])
        one = heads[row : row + 1].clone()
        rotate_by_rows(one, turns[row : row + 1])
        assert torch.equal(one[0], turned[row])
        assert torch.equal(norm(gate[row : row + 1])[0], normed[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gates_and_caps_of_other_families(threads: int, dtype: torch.dtype) -> None:
    """What they are, of small and of very large numbers, and the same bits alone."""
    torch.manual_seed(9)
    gate = torch.cat([4 * torch.randn(96, 777), torch.tensor([[-1e4, -50.0, 0.0, 1e4] * 195])[:, 3:]]).to(dtype)
    whole = exact_gelu_tanh(gate)
    torch.testing.assert_close(whole, gelu_tanh(gate), rtol=1e-5 if dtype == torch.float32 else 8e-3, atol=1e-6)
    logits = gate.float()
    capped, wanted = logits.clone(), 30 * torch.tanh(logits.double() / 30)
    exact_soft_cap(capped, 30.0)
    torch.testing.assert_close(capped.double(), wanted, rtol=0, atol=2e-5)
    soft_cap(plain := logits.clone(), 30.0)
    torch.testing.assert_close(plain.double(), wanted, rtol=0, atol=2e-5)
    for row in range(97):
        assert torch.equal(exact_gelu_tanh(gate[row : row + 1])[0], whole[row])
        exact_soft_cap(one := logits[row : row + 1].clone(), 30.0)
        assert torch.equal(one[0], capped[row])


@pytest.mark.parametrize("words", [333, 50_257])
def test_logprobs_of_many_words(threads: int, words: int) -> None:
    """A row of more words than one thread takes by itself is summed as among others."""
    torch.manual_seed(words)
    logits, tokens = 3 * torch.randn(9, words), torch.randint(words, (9,))
    told, _, _ = top_logprobs(logits, tokens, 20, log_sums(logits))
    exact = torch.log_softmax(logits.double(), -1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(told[:, 0].double(), exact, rtol=1e-6, atol=1e-6)
    for row in range(9):
        alone = logits[row : row + 1]
        assert torch.equal(top_logprobs(alone, tokens[row : row + 1], 20, log_sums(alone))[0][0], told[row])
