"""Sizes of CUDA graphs, and how they are measured and captured, before a GPU is used."""

from __future__ import annotations

import logging
import os
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.actors.worker.gpu import memory as gpu_memory
from actorserve.actors.worker.gpu import start as gpu_start
from actorserve.actors.worker.gpu.graphs import (
    CaptureError,
    Graphs,
    StepSize,
    capture_sizes,
    mixed_sizes,
    size_for,
    smallest,
)
from actorserve.actors.worker.gpu.memory import OF_CAPTURE


def test_sizes_of_graphs() -> None:
    assert capture_sizes([], 20) == [1, 2, 4, 8, 16, 20]
    assert capture_sizes([], 3) == [1, 2, 3]
    assert capture_sizes([64, 4, 9, 4], 9) == [4, 9]
    assert capture_sizes([64], 9) == [9], "there is one for all rows at least"
    assert capture_sizes([], 256)[-3:] == [224, 240, 256]
    assert capture_sizes([], 500)[-3:] == [448, 480, 500]
    assert capture_sizes([], 4096)[-2:] == [480, 512], "above, steps are started kernel by kernel"
    assert len(capture_sizes([], 4096)) == 31


def test_a_step_takes_the_next_larger_graph() -> None:
    ran: list[int] = []
    graphs = Graphs([1, 4, 8], ran.append, torch.device("cpu"))
    assert [size_for(graphs.sizes, rows) for rows in (1, 2, 4, 5, 8, 9)] == [1, 4, 4, 8, 8, None]
    graphs.step(4)
    graphs.step(9)
    assert ran == [4, 9], "what was not captured is run as it is"


def test_sizes_of_graphs_for_prompts() -> None:
    sizes = mixed_sizes(256, 8192)
    assert len(sizes) <= 36 and sizes == sorted(sizes), "their number is bounded, whatever the options are"
    assert {size.tokens for size in sizes} == {16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048}
    assert all(size.decoding <= size.tokens and size.chunks <= 64 for size in sizes), "rows are within the tokens"
    assert max(size.tokens for size in mixed_sizes(256, 700)) == 700
    assert mixed_sizes(3, 12) == [(12, 3, 3)], "one class where all rows are few"
    assert smallest(sizes, StepSize(17, 1, 1)) == (32, 32, 8)
    assert smallest(sizes, StepSize(600, 33, 1)) == (768, 256, 8), "more rows that decode"
    assert smallest(sizes, StepSize(600, 1, 9)) == (768, 256, 64), "more chunks"
    assert smallest(sizes, StepSize(2048, 256, 64)) == (2048, 256, 64)
    assert smallest(sizes, StepSize(2049, 1, 1)) is smallest(sizes, StepSize(500, 1, 65)) is None
    assert len(mixed_sizes(4096, 1 << 20)) <= 36 and len(mixed_sizes(4096, 1 << 20, True)) <= 48


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize(
    ("why", "said"),
    [
        (
            "operation not permitted when stream is capturing\nHint: …",
            r"^CUDA graphs, prompts of .*16, .*--enforce-eager",
        ),
        (
            "CUDA out of memory. Tried to allocate 2 MiB",
            "^out of GPU memory at the start: .*prompts of .*out of memory",
        ),
        ("NCCL error: remote process exited", ""),
        ("an illegal memory access was encountered", ""),
    ],
)
def test_a_step_that_cannot_be_captured_is_named(
    why: str, said: str, measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the way out, also where graphs are only measured; memory has advice of its own, and of what is no fault of
    graphs there is none."""
    graphs = Graphs(mixed_sizes(3, 16), print, torch.device("cpu"))

    def captured(size: StepSize, pool: object) -> object:
        raise RuntimeError(why)

    monkeypatch.setattr(graphs, "_captured", captured)
    monkeypatch.setattr(gpu_memory, "measure", lambda device, run: (300, 0))
    context: Any = SimpleNamespace(log=logging.getLogger("worker"))
    runner: Any = SimpleNamespace(device=torch.device("cpu"), try_graphs=print)
    runner.own_bytes = lambda free: graphs.own_bytes(None, "prompts", free)
    runner.capture = lambda: graphs.capture(None, "prompts")
    with pytest.raises(CaptureError, match=f"^CUDA graphs, prompts of .*16, .*{why[:20]}") as error:
        gpu_memory.graph_bytes(runner) if measured else gpu_start._capture(context, runner)
    found = gpu_start.explained(context, error.value, with_weights=True)
    assert (found is None) == (not said)
    assert found is None or (re.search(said, str(found)) and "\n" not in str(found))


@pytest.mark.parametrize(
    ("taken", "each"),
    [
        ([30] * 8, 30),
        ([30, 4000, *[30] * 6], 30),  # somebody else's
        ([*[30] * 6, 4000, 30], 30),
        ([0, 32 << 20] * 4, 16 << 20),  # in pieces that have room for two
        ([-5] * 8, 0),
    ],
)
def test_what_graphs_take_themselves(monkeypatch: pytest.MonkeyPatch, taken: list[int], each: int) -> None:
    """The first of all sets things up, and others may take memory meanwhile."""
    graphs, left, still = Graphs([2, 4, 8], lambda size: None, torch.device("cpu")), [1 << 40], [500, *taken]

    def captured(size: int, pool: object) -> object:
        left[0] -= still.pop(0)
        return object()

    monkeypatch.setattr(graphs, "_captured", captured)
    assert graphs.own_bytes(None, "decoding", lambda: left[0]) == 3 * each and not still
    assert Graphs[int]([], print, torch.device("cpu")).own_bytes(None, "decoding", lambda: 5) == 0


def test_what_capturing_takes_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what is measured: where there are no graphs it goes to keys and values."""
    monkeypatch.setattr(gpu_memory, "measure", lambda device, run: (300, 0))
    runner: Any = SimpleNamespace(device=torch.device("cpu"), try_graphs=print, own_bytes=lambda free: 20)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    assert gpu_memory.graph_bytes(runner) == 320 + OF_CAPTURE


def test_graphs_are_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them goes: it would take the others' workspace along."""
    graphs = Graphs([2, 4], lambda size: None, torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(graphs, "_captured", lambda size, pool: size)
    assert graphs.capture(None, "decoding") == 2
    with pytest.raises(RuntimeError, match="CUDA graphs, decoding: they are captured"):
        graphs.capture(None, "decoding")
