"""What wrappers launch follows from shapes alone, so that a CUDA graph can capture them and serve any data.

Each runs on tensors without data, where whatever looks at a number raises; and what it launched for one batch is
launched again over another batch in the same memory, rows and tokens among it that only fill up.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

os.environ["TRITON_INTERPRET"] = "0" if torch.cuda.is_available() else "1"  # read when kernels are imported

from actorserve.kernels.pages import Pages, Scoring
from actorserve.kernels.triton import logits as gpu_logits
from actorserve.kernels.triton import rms_norm, rotary_kv, silu_mul
from actorserve.kernels.triton import sampling as gpu_sampling
from actorserve.kernels.triton.attention import indexer, paged_decode, paged_prefill
from actorserve.kernels.triton.attention.tiles import Scratch
from tests.kernels.triton.capture import captured, replayable

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, WORDS, LONGEST, BLOCK = 4, 70, 200, 16
Memory = dict[str, Tensor]


class Wrapper(NamedTuple):
    module: ModuleType
    memory: Callable[[int], Memory]  # of batch 0, 1 …, all of the same shapes
    run: Callable[[Memory], object]


def integers(*numbers: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(numbers, dtype=dtype)


def attention_memory(batch: int) -> Memory:
    """Batch 1 has rows that are not there; all rows may be long, so that blocks are enough for any lengths."""
    blocks = torch.randperm(ROWS * -(-LONGEST // BLOCK)).int().view(ROWS, -1)
    keys, values = torch.randn(2, blocks.numel(), 2, BLOCK, 64)
    lengths = (integers(200, 1, 17, 130), integers(0, 199, 0, 3))[batch]
    starts = (integers(0, 9, 10, 10, 12), integers(2, 2, 13, 13, 14))[batch]
    memory = {"queries": torch.randn(16, 4, 64), "keys": keys, "values": values, "blocks": blocks, "lengths": lengths}
    return memory | {"starts": starts, "out": torch.zeros(16, 4, 64)}


def pages_of(memory: Memory) -> Pages:
    return Pages(memory["keys"], memory["values"], memory["blocks"], memory["lengths"])


def decode(memory: Memory, splits: int = 1) -> None:
    queries, pages = memory["queries"][:ROWS], pages_of(memory)
    scratch = Scratch.make(queries, splits)
    paged_decode.paged_decode(queries, pages, Scoring(0.1), scratch, memory["out"][:ROWS])


def prefill(memory: Memory) -> None:
    pages = pages_of(memory)
    paged_prefill.paged_prefill(memory["queries"], memory["starts"], pages, Scoring(0.1), memory["out"])


def choosing_memory(batch: int) -> Memory:
    """Batch 1 has a token of nobody, and others of other rows."""
    blocks, keys = torch.randperm(ROWS * 4).int().view(ROWS, -1), torch.randn(ROWS * 4, 1, BLOCK, 20)
    lengths = (integers(64, 1, 17, 8), integers(0, 9, 64, 3))[batch]
    owners = (integers(0, 1, 2, 3), integers(0, 0, 3, 1))[batch]
    chosen = {"owners": owners, "lengths": lengths, "counts": lengths.clamp(max=8), "slots": torch.zeros(ROWS, 8).int()}
    return {
        "queries": torch.randn(ROWS, 3, 20),
        "weights": torch.randn(ROWS, 3),
        "keys": keys,
        "blocks": blocks,
    } | chosen


def choose(memory: Memory) -> None:
    chosen = indexer.ChosenTokens(*(memory[name] for name in indexer.ChosenTokens._fields))
    indexer.choose_tokens(memory["queries"], memory["weights"], memory["keys"], memory["blocks"], chosen)


def choose_in_parts(memory: Memory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexer, "UNDIVIDED", 0)
        patch.setattr(indexer, "LANES", 16)
        choose(memory)


def rotary_memory(batch: int) -> Memory:
    slots = (integers(5, 40, 17, 0, dtype=torch.int64), integers(-1, 3, -1, 30, dtype=torch.int64))[batch]
    keys, values = torch.zeros(2, 3, 2, BLOCK, 32)
    cos, sin = torch.rand(2, 50, 16)
    memory = {"merged": torch.randn(ROWS, 8, 32), "positions": torch.randint(50, (ROWS,)), "slots": slots}
    return memory | {"keys": keys, "values": values, "cos": cos, "sin": sin, "gains": torch.rand(2, 32)}


def rotate(memory: Memory) -> None:
    turns, pools = (
        rotary_kv.RotaryTables(memory["cos"], memory["sin"]),
        rotary_kv.Pools(memory["keys"], memory["values"]),
    )
    q, k, v = memory["merged"].split([4, 2, 2], 1)
    rotary_kv.rotate_and_write(
        q, k, v, memory["positions"], memory["slots"], turns, pools,
        norms=rotary_kv.Norms(memory["gains"][0], memory["gains"][1], 1e-5),
    )  # fmt: skip


def matrices(batch: int) -> Memory:
    """In batch 1 the last rows are what an earlier batch, or nobody, left there."""
    x, residual = torch.randn(2, ROWS, 40)
    x[2:] = (0.0, float("nan"))[batch]
    return {"x": x, "residual": residual, "gain": torch.rand(40), "out": torch.zeros(ROWS, 40)}


def logits_memory(batch: int) -> Memory:
    """Batch 1 has rows of nobody, and others that ask for something else."""
    rows = (integers(4, 0, 1, 2, dtype=torch.int64), integers(1, -1, 3, -1, dtype=torch.int64))[batch]
    memory = {"logits": torch.randn(ROWS, WORDS) * 2, "rows": rows}
    return memory | {"logprobs": torch.zeros(ROWS), "out": torch.full((ROWS,), 9), "kept": integers(9, 9, 9, 9)}


def sampling_memory(batch: int) -> Memory:
    parameters = {
        "temperature": torch.tensor([0.0, 1.0, 0.5, 2.0, 1.0]).roll(batch),
        "top_k": torch.tensor([0, 5, 0, 0, 50]).roll(batch),
        "top_p": torch.tensor([1.0, 1.0, 0.5, 1.0, 0.9], dtype=torch.float64).roll(batch),
        "min_p": torch.tensor([0.0, 0.0, 0.0, 0.2, 0.0]).roll(batch),
        "top_n_sigma": torch.tensor([0.0, 0.0, 1.5, 0.0, 0.7]).roll(batch),
        "typical_p": torch.tensor([1.0, 1.0, 0.5, 0.9, 1.0], dtype=torch.float64).roll(batch),
        "xtc_probability": torch.tensor([0.0, 1.0, 0.0, 0.5, 0.0]).roll(batch),
        "xtc_threshold": torch.full((5,), 0.02),
        "dynatemp_range": torch.tensor([0.0, 0.0, 0.5, 0.0, 0.5]).roll(batch),
        "dynatemp_exponent": torch.ones(5),
        "seed": torch.randint(1 << 60, (5,)),
        "position": torch.randint(1 << 20, (5,)),
    }
    return logits_memory(batch) | parameters


def draw(memory: Memory) -> None:
    parameters = gpu_sampling.RowParameters(*(memory[name] for name in gpu_sampling.RowParameters._fields))
    workspace = gpu_sampling.Workspace.make(ROWS, WORDS, memory["logits"].device)
    gpu_sampling.sample(
        memory["logits"], memory["rows"], parameters, workspace, memory["out"], kept=memory["kept"]
    )  # fmt: skip


def adjusting_memory(batch: int) -> Memory:
    asked = torch.tensor([1.0, 1.0, 1.3, 1.0, 0.8]).roll(batch)
    return logits_memory(batch) | {
        "repetition": asked, "frequency": asked - 1, "presence": 1 - asked,
        "prompted": torch.randint(-(1 << 31), 1 << 31, (5, -(-WORDS // 32))).int(),
        "counts": torch.randint(3, (5, WORDS), dtype=torch.int16),
        "words": torch.stack([torch.randperm(WORDS)[:3] for _ in range(5)]).int(), "biases": torch.randn(5, 3),
        "bits": torch.randint(-(1 << 31), 1 << 31, (2, 3)).int(),
        "which": (integers(0, -1, 1, -1, dtype=torch.int64), integers(-1, 1, -1, 0, dtype=torch.int64))[batch],
    }  # fmt: skip


def adjust(memory: Memory) -> None:
    penalties = gpu_logits.RowPenalties(*(memory[name] for name in gpu_logits.RowPenalties._fields))
    bias, mask = gpu_logits.Bias(memory["words"], memory["biases"]), gpu_logits.Mask(memory["bits"], memory["which"])
    gpu_logits.adjust(memory["logits"], memory["rows"], penalties, bias, mask)
    gpu_logits.log_sums(memory["logits"], memory["logprobs"])


WRAPPERS = {
    "paged_decode": Wrapper(paged_decode, attention_memory, decode),
    "paged_decode, divided": Wrapper(paged_decode, attention_memory, lambda memory: decode(memory, 2)),
    "paged_prefill": Wrapper(paged_prefill, attention_memory, prefill),
    "choose_tokens": Wrapper(indexer, choosing_memory, choose),
    "choose_tokens, divided": Wrapper(indexer, choosing_memory, choose_in_parts),
    "rotate_and_write": Wrapper(rotary_kv, rotary_memory, rotate),
    "rms_norm": Wrapper(rms_norm, matrices, lambda m: rms_norm.rms_norm(m["x"], m["gain"], 1e-5, m["out"])),
    "add_rms_norm": Wrapper(
        rms_norm, matrices, lambda m: rms_norm.add_rms_norm(m["x"], m["residual"], m["gain"], 1e-5, m["out"])
    ),
    "silu_mul": Wrapper(silu_mul, matrices, lambda m: silu_mul.silu_mul(m["x"], m["out"][:, :20])),
    "sample": Wrapper(gpu_sampling, sampling_memory, draw),
    "adjust, log_sums": Wrapper(gpu_logits, adjusting_memory, adjust),
}


def memory_of(wrapper: Wrapper, batch: int) -> Memory:
    torch.manual_seed(batch)
    return {name: tensor.to(DEVICE) for name, tensor in wrapper.memory(batch).items()}


@pytest.mark.parametrize("name", WRAPPERS)
def test_launches_follow_from_shapes(name: str) -> None:
    """There are no numbers in memory of the device "meta": .item(), .tolist(), .cpu(), bool() raise."""
    wrapper = WRAPPERS[name]
    memory = memory_of(wrapper, 0)
    with captured(wrapper.module) as nowhere:
        wrapper.run({name: tensor.to("meta") for name, tensor in memory.items()})
    with captured(wrapper.module) as there:
        wrapper.run(memory)
    assert nowhere and [launch.fixed for launch in nowhere] == [launch.fixed for launch in there]


@pytest.mark.parametrize("name", WRAPPERS)
def test_what_was_captured_serves_another_batch(name: str) -> None:
    wrapper = WRAPPERS[name]
    memory, other = memory_of(wrapper, 0), memory_of(wrapper, 1)
    replay = replayable(lambda: wrapper.run(memory), wrapper.module)
    for name, tensor in other.items():
        memory[name].copy_(tensor)
    replay()
    before = {name: tensor.clone() for name, tensor in other.items()}
    wrapper.run(other)
    changed = [
        name for name, tensor in other.items() if not torch.equal(tensor.nan_to_num(7), before[name].nan_to_num(7))
    ]
    assert changed, "nothing was done"
    for name, tensor in other.items():
        torch.testing.assert_close(memory[name], tensor, rtol=0, atol=0, equal_nan=True)


def test_rows_and_tokens_that_fill_up() -> None:
    """What has a length of 0 gives zeros; what has no slot, no state, or no token, changes nothing, and is told so."""
    memory = memory_of(WRAPPERS["paged_decode"], 1)
    memory["queries"][[0, 2]] = float("nan")
    for splits in (1, 2):
        decode(memory, splits)
        assert not memory["out"][[0, 2]].any() and memory["out"][[1, 3]].all()
    prefill(memory | {"out": memory["out"].fill_(7)})
    assert (memory["out"][:2] == 7).all() and not memory["out"][14:].any()
    memory = memory_of(WRAPPERS["rotate_and_write"], 1)
    memory["merged"][[0, 2]] = float("nan")
    rotate(memory)
    assert not memory["keys"].isnan().any() and (memory["keys"] != 0).sum() == 2 * 2 * 32
    memory = memory_of(WRAPPERS["add_rms_norm"], 1)
    WRAPPERS["add_rms_norm"].run(memory)
    assert memory["out"][:2].isfinite().all() and memory["out"][2:].isnan().all()
    memory = memory_of(WRAPPERS["sample"], 1)
    memory["logits"][[1, 3]] = float("nan")
    draw(memory)
    assert memory["out"][[1, 3]].tolist() == memory["kept"][[1, 3]].tolist() == [0, 0]
    memory = memory_of(WRAPPERS["adjust, log_sums"], 1)
    memory["logits"][[1, 3]] = float("nan")
    adjust(memory)
    assert memory["logits"][[1, 3]].isnan().all() and memory["logprobs"][[0, 2]].isfinite().all()
