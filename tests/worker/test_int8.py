"""Weights of 8 bits: near to float32, and the same in every batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.cpu.batch import BlockTables, prepare_inputs, row_positions
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.memory import make_pool
from actorserve.actors.worker.models.weights import load_model
from actorserve.actors.worker.quantization.int8 import Int8Linear
from actorserve.kernels.cpu.attention import PagedKV

from .cpu.test_runner import prompt
from .driver import Driver, Sequence, config_for, make_runner

Folders = Callable[..., Path]


def inputs(rows: int, size: int) -> torch.Tensor:
    """Rows of very different sizes, as they are in a residual stream, each with a few large numbers."""
    x = torch.randn(rows, size) * torch.logspace(-2, 2, rows)[:, None]
    x[:, ::97] *= 8
    return x


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("outputs", "size"), [(384, 200), (129, 1024)])
def test_products_are_near(outputs: int, size: int, biased: bool) -> None:
    torch.manual_seed(outputs)
    weight, bias = torch.randn(outputs, size) * 0.05, torch.randn(outputs) if biased else None
    x = inputs(7, size)
    exact = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    found = Int8Linear(weight, bias)(x)
    apart = (found - exact).norm(dim=1) / exact.norm(dim=1)
    assert 0 < apart.max() < 0.06, "for each row, whatever the others are"


def test_a_row_is_the_same_in_every_batch() -> None:
    torch.manual_seed(1)
    linear, x = Int8Linear(torch.randn(300, 256), None), inputs(9, 256)
    together = linear(x)
    for row in range(9):
        assert torch.equal(linear(x[row : row + 1])[0], together[row])
    assert torch.equal(linear(torch.zeros(2, 256)), torch.zeros(2, 300))


def test_it_is_added_to_the_residual() -> None:
    torch.manual_seed(2)
    linear, x, residual = Int8Linear(torch.randn(64, 48), torch.randn(64)), torch.randn(3, 48), torch.randn(3, 64)
    before = residual.clone()
    linear.add_to(residual, x)
    assert torch.equal(residual, before + linear(x))


def test_a_model_of_8_bits(checkpoints: Folders) -> None:
    """Its logits are near those in float32, and its texts do not depend on the batch."""
    folder = checkpoints("qwen3", initializer_range=0.1)
    options = {"block_size": 16, "quantization": "int8"}
    model = load_model(config_for(folder, **options), resolve_model(config_for(folder)))
    assert isinstance(model, CpuModel) and isinstance(model.layers[0].qkv, Int8Linear)
    exact = load_model(config_for(folder), resolve_model(config_for(folder)))
    x = torch.randn(40, model.shape.hidden_size)
    assert (model.logits(x) - exact.logits(x)).norm() < 0.03 * exact.logits(x).norm()
    sequences = [Sequence(prompt(9 + 7 * number, number), 12) for number in range(4)]
    together = Driver(make_runner(config_for(folder, **options)), seed=3).run(sequences)
    alone = [
        Driver(make_runner(config_for(folder, **options)), budget=64, seed=4).run([Sequence(s.prompt, 12)])[0]
        for s in sequences
    ]
    assert together == alone


def test_another_type_beside_it_is_refused(checkpoints: Folders) -> None:
    config = config_for(checkpoints("llama"), quantization="int8", dtype="bfloat16")
    with pytest.raises(ConfigError, match="--quantization int8: what is not quantised is float32 on a CPU, not"):
        load_model(config, resolve_model(config))


# --- the same bits in every step -----------------------------------------------------------------------------------

LENGTH = 72  # of each sequence
MOST = 32  # sequences at once
Part = tuple[int, int, int]  # a sequence, the first of its positions that is computed, and how many are


def run_steps(model: CpuModel, ids: torch.Tensor, steps: list[list[Part]], block: int) -> torch.Tensor:
    """Logits [sequence, position, word] of what these steps compute, each sequence in scattered blocks of its own."""
    count = -(-LENGTH // block)
    blocks = np.random.default_rng(len(steps)).permutation(MOST * count).reshape(MOST, count).astype(np.int64)
    tables = BlockTables(blocks, np.ones(MOST, np.bool_))
    pool = make_pool(model.shape, MOST * count, block, model.dtype)
    kv = PagedKV(pool, block, aligned=model.shape.quantization.batch_invariant)
    found = torch.full((MOST, LENGTH, model.shape.vocab_size), float("nan"))
    for step in steps:
        rows, starts, counts = (np.array(column, np.int64) for column in zip(*step, strict=True))
        owners, positions = row_positions(rows, counts, starts)
        inputs = prepare_inputs(model, kv, tables, rows, counts, starts, ids.numpy()[owners, positions])
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


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("llama", WIDE), ("qwen3", {}), ("mistral", {}), ("llama_biased", {}), ("llama_tied", {}), ("phi3_long", {})],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_logits_have_the_same_bits_alone_and_in_any_crowd(
    kind: str, changes: dict[str, Any], checkpoints: Folders
) -> None:
    """Alone at once; alone token by token; 2 to 32 that decode together; chunks and decoding in one step."""
    folder = checkpoints(kind, initializer_range=0.1, **changes)
    config = config_for(folder, quantization="int8")
    torch.manual_seed(5)
    with torch.inference_mode():
        model = load_model(config, resolve_model(config))
        ids = torch.randint(3, model.shape.vocab_size, (MOST, LENGTH))
        alone = run_steps(model, ids, [[(number, 0, LENGTH)] for number in range(MOST)], 16)
        assert torch.isfinite(alone).all()
        by_token = run_steps(model, ids, [[(0, position, 1)] for position in range(LENGTH)], 32)
        assert torch.equal(by_token[0], alone[0])
        for crowd in (2, 3, 7, 21, 32):
            prompts = [[(number, 0, LENGTH - 3) for number in range(crowd)]]
            decoding = [[(number, LENGTH - left, 1) for number in range(crowd)] for left in (3, 2, 1)]
            found = run_steps(model, ids, prompts + decoding, 8)
            assert torch.equal(found[:crowd], alone[:crowd]), crowd
        random = np.random.default_rng(1)
        for crowd in (2, 9, 32):
            found = run_steps(model, ids, random_steps(random, crowd), 24)
            assert torch.equal(found[:crowd], alone[:crowd]), crowd


def test_a_row_that_is_no_number_makes_none_of_others() -> None:
    torch.manual_seed(6)
    linear, x = Int8Linear(torch.randn(70, 128), None), inputs(5, 128)
    expected = linear(x)
    x[1, 3], x[2, 5], x[4] = float("nan"), float("inf"), 0
    found = linear(x)
    assert torch.equal(found[[0, 3]], expected[[0, 3]])
    assert not torch.isfinite(found[1]).any() and not torch.isfinite(found[2]).any() and not found[4].any()


def test_what_is_multiplied_are_whole_numbers() -> None:
    """The sums are those of integers, to the last bit of their product with the scales."""
    torch.manual_seed(7)
    weight, x = torch.randn(33, 200), inputs(6, 200)
    linear = Int8Linear(weight, None)
    largest = x.abs().amax(1, keepdim=True)
    whole = (x / (largest / linear.steps)).round().long()
    scale = (weight.abs().amax(1) / 127).double()
    rounded = (weight.double() / scale[:, None]).round().long()
    exact = (whole @ rounded.T).double() * scale * (largest / linear.steps).double()
    torch.testing.assert_close(linear(x).double(), exact, rtol=1e-6, atol=0)
