"""Adjusting logits and logprobs by kernels, against what the worker does on a CPU."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.kernels.cpu.penalties import Penalties, log_sums, penalize  # noqa: E402
from actorserve.kernels.triton.grammar_mask import apply_mask  # noqa: E402
from actorserve.kernels.triton.logits import (  # noqa: E402
    COUNTED,
    Bias,
    Mask,
    RowPenalties,
    adjust,
    count_tokens,
    count_type,
)
from actorserve.kernels.triton.logits import log_sums as device_log_sums  # noqa: E402

STATES = 7
NO_RESERVE = 0x4000  # of Linux' mmap; Python names it from 3.13 on


def as_bits(words: torch.Tensor) -> torch.Tensor:
    """int32 [rows, words / 32] of bool [rows, words]."""
    padded = torch.nn.functional.pad(words, (0, -words.shape[1] % 32)).view(len(words), -1, 32)
    return (padded.long() << torch.arange(32)).sum(-1).int()


class State:
    """What seven rows ask for, at random; some ask for nothing."""

    def __init__(self, words: int) -> None:
        random = torch.Generator().manual_seed(words)
        self.words = words
        numbers = torch.rand(3, STATES, generator=random) * 2
        self.prompted = torch.rand(STATES, words, generator=random) < 0.3
        self.counts = torch.randint(0, 3, (STATES, words), generator=random, dtype=torch.int32)
        numbers[0] += 0.5
        numbers[:, 2] = torch.tensor([1.0, 0.0, 0.0])
        numbers[:, 3] = torch.tensor([1.0, 0.0, 0.7])
        numbers[:, 4] = torch.tensor([1.0, -0.4, 0.0])
        self.numbers = numbers
        most = min(words, 5)
        self.bias_words = torch.stack([torch.randperm(words, generator=random)[:most] for _ in range(STATES)]).int()
        self.bias_words[1, most // 2 :] = -1
        self.bias_words[2] = -1
        self.bias_values = torch.randn(STATES, most, generator=random) * 5
        self.bits = torch.randint(-(2**31), 2**31, (3, -(-words // 32)), generator=random).int()

    def penalties(self) -> RowPenalties:
        numbers = (*self.numbers, as_bits(self.prompted), self.counts.short())
        return RowPenalties(*(values.to(DEVICE) for values in numbers))

    def bias(self) -> Bias:
        return Bias(self.bias_words.to(DEVICE), self.bias_values.to(DEVICE))

    def mask(self, which: list[int]) -> Mask:
        return Mask(self.bits.to(DEVICE), torch.tensor(which, device=DEVICE))

    def by_cpu(self, logits: torch.Tensor, rows: list[int], parts: str, which: list[int]) -> torch.Tensor:
        """The logits, adjusted by functions of the CPU."""
        logits = logits.clone()
        own = [index for index, row in enumerate(rows) if row >= 0]
        states = torch.tensor([rows[index] for index in own])
        part = logits[own]
        if "p" in parts:
            numbers = Penalties(*(values[states].numpy() for values in self.numbers))
            penalize(part, self.prompted[states], self.counts[states], numbers)
        if "b" in parts:
            for index, state in enumerate(states.tolist()):
                used = self.bias_words[state] >= 0
                part[index].index_add_(0, self.bias_words[state][used], self.bias_values[state][used])
        bound = np.array([index for index, at in enumerate(own) if which[at] >= 0], np.int64)
        if "m" in parts and bound.size:
            apply_mask(part, self.bits[[which[own[index]] for index in bound]].numpy(), bound)
        logits[own] = part
        return logits


def random_logits(rows: int, words: int) -> torch.Tensor:
    return torch.randn(rows, words, generator=torch.Generator().manual_seed(1)) * 3


@pytest.mark.parametrize("words", [1, 45, 2048, 4133])
@pytest.mark.parametrize("parts", ["p", "b", "m", "pbm"])
def test_adjustments(words: int, parts: str) -> None:
    """Rows in any order, one that only fills up the batch, one whose state asks for nothing."""
    state, rows, which = State(words), [5, -1, 2, 0, 3, 4, 1], [1, 2, -1, 0, 2, -1, 1]
    logits = random_logits(len(rows), words)
    found = logits.to(DEVICE).clone()
    adjust(
        found,
        torch.tensor(rows, device=DEVICE),
        state.penalties() if "p" in parts else None,
        state.bias() if "b" in parts else None,
        state.mask(which) if "m" in parts else None,
    )
    torch.testing.assert_close(found.cpu(), state.by_cpu(logits, rows, parts, which), rtol=1e-6, atol=1e-6)
    assert torch.equal(found[1].cpu(), logits[1]), "a row of nobody is changed"
    assert torch.equal(found[2].cpu(), logits[2]), "a row that asks for nothing is changed"


def test_parts_of_wider_matrices() -> None:
    state, words = State(70), 70
    wide = torch.full((STATES, 100), float("nan"), device=DEVICE)
    logits = wide[:, :words]
    logits.copy_(random_logits(STATES, words))
    before, rows, which = logits.cpu().clone(), list(range(STATES)), [0, 1, 2, 0, 1, 2, 0]
    penalties = state.penalties()
    counts = torch.full((STATES, 90), 50, dtype=torch.int16, device=DEVICE)
    counts[:, :words] = penalties.counts
    adjust(
        logits,
        torch.arange(STATES, device=DEVICE),
        penalties._replace(counts=counts[:, :words]),
        state.bias(),
        state.mask(which),
    )
    torch.testing.assert_close(logits.cpu(), state.by_cpu(before, rows, "pbm", which), rtol=1e-6, atol=1e-6)
    assert wide[:, words:].isnan().all()


def test_rows_beyond_32_bits() -> None:
    """The number of a row times the numbers between rows passes 2³¹; of the memory only what is touched is there."""
    apart, words = (1 << 30) + 64, 70

    def spread(dtype: torch.dtype) -> torch.Tensor:
        if DEVICE == "cuda":
            memory = torch.empty(2 * apart + 100, dtype=dtype, device=DEVICE)
        else:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
            memory = torch.frombuffer(mmap.mmap(-1, dtype.itemsize * (2 * apart + 100), flags=flags), dtype=dtype)
        return torch.as_strided(memory, (3, words), (apart, 1))

    state, rows = State(words), [0, 2, 1]
    logits, counts, prompted = spread(torch.float32), spread(torch.int16), spread(torch.int32)[:, :3]
    logits.copy_(random_logits(3, words))
    counts.copy_(state.counts[3:6])
    prompted.copy_(as_bits(state.prompted[3:6]))
    wanted = state.by_cpu(logits.cpu(), [row + 3 for row in rows], "pb", [-1] * 3)
    repetition, frequency, presence = (values[3:6].to(DEVICE) for values in state.numbers)
    penalties = RowPenalties(repetition, frequency, presence, prompted, counts)
    bias = Bias(*(values[3:6] for values in state.bias()))
    adjust(logits, torch.tensor(rows, device=DEVICE), penalties, bias)
    torch.testing.assert_close(logits.cpu(), wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(device_log_sums(logits).cpu(), wanted.logsumexp(-1))


@pytest.mark.parametrize("words", [1, 100, 4096, 9001])
def test_what_makes_logprobs(words: int) -> None:
    """As on a CPU; and a row that comes alone has the same bits."""
    logits = random_logits(6, words)
    logits[1] += 500  # exp of it is infinite
    logits[2, 1::2] = float("-inf")
    logits[3] -= 500  # exp of it is 0
    logits[4] = float("-inf")
    found = device_log_sums(logits.to(DEVICE))
    torch.testing.assert_close(found.cpu(), log_sums(logits), rtol=1e-6, atol=1e-6)
    assert torch.equal(device_log_sums(logits[5:].to(DEVICE)), found[5:])


def test_no_rows() -> None:
    state = State(40)
    logits, nothing = torch.zeros(0, 40, device=DEVICE), torch.zeros(0, dtype=torch.int64, device=DEVICE)
    adjust(logits, nothing, state.penalties(), state.bias(), Mask(state.bits.to(DEVICE), nothing))
    assert device_log_sums(logits).shape == (0,)


def test_misfits_are_refused() -> None:
    state, logits, rows = State(40), torch.zeros(2, 40), torch.arange(2)
    penalties, bias = state.penalties(), state.bias()

    def refused(what: str, **parts: Any) -> None:
        with pytest.raises(ValueError, match=what):
            adjust(**({"logits": logits, "rows": rows} | parts))

    refused("logits .*float16", logits=logits.half())
    refused("rows", rows=torch.arange(3))
    refused("rows .*int32", rows=rows.int())
    refused("frequency", penalties=penalties._replace(frequency=penalties.frequency[:3]))
    refused("counts .*int64", penalties=penalties._replace(counts=penalties.counts.long()))
    refused("prompted", penalties=penalties._replace(prompted=penalties.prompted[:, :1]))
    refused("bits", mask=Mask(state.bits[:, :1], rows))
    refused("which", mask=Mask(state.bits, rows[:1]))
    refused("values", bias=bias._replace(values=bias.values[:, :2]))
    refused("words .*int64", bias=bias._replace(words=bias.words.long()))
    with pytest.raises(ValueError, match=r"logits .*float16"):
        device_log_sums(logits.half())
    with pytest.raises(ValueError, match="out"):
        device_log_sums(logits, torch.zeros(2, dtype=torch.float64))


def test_counts_are_as_wide_as_a_sequence_is_long() -> None:
    assert [count_type(tokens) for tokens in (100, 32_767, 32_768, 1 << 20)] == 2 * [torch.int16] + 2 * [torch.int32]


@pytest.mark.parametrize(("dtype", "most"), [(torch.int32, 32_767), (torch.int64, 40_000)])
def test_counts_of_drawn_tokens(dtype: torch.dtype, most: int) -> None:
    """More rows than a program takes, some of them none; the others' counts stay. Some look back on a token no longer,
    which may be the one that is drawn."""
    states = COUNTED + 9
    random = torch.Generator().manual_seed(3)
    counts = torch.randint(1, 4, (states, 21), generator=random, dtype=count_type(most))
    rows = torch.randperm(states, generator=random)[: COUNTED + 5]
    rows[3] = rows[COUNTED] = -1
    tokens = torch.randint(0, 21, rows.shape, generator=random).to(dtype)
    leaving = torch.randint(-1, 21, rows.shape, generator=random)
    leaving[7], leaving[8], leaving[9] = -1, tokens[8], (tokens[9] + 1) % 21
    counts[rows[7], int(tokens[7])] = most - 1
    counts[rows[9], int(leaving[9])] = most
    wanted = counts.clone()
    wanted[rows[rows >= 0], tokens[rows >= 0].long()] += 1
    gone = (rows >= 0) & (leaving >= 0)
    wanted[rows[gone], leaving[gone]] -= 1
    found = counts.to(DEVICE)
    count_tokens(rows.to(DEVICE), tokens.to(DEVICE), leaving.to(DEVICE), found)
    assert torch.equal(found.cpu(), wanted)
    with pytest.raises(ValueError, match="do not fit"):
        count_tokens(rows, tokens[:2], leaving, counts)
    with pytest.raises(ValueError, match=r"leaving .*int32"):
        count_tokens(rows, tokens, leaving.int(), counts)
    with pytest.raises(ValueError, match=r"counts .*int64"):
        count_tokens(rows, tokens, leaving, counts.long())
