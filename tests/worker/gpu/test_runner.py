"""The GPU's runner against the CPU's and against transformers: on a GPU where there is one, else in the interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.actors.model.config_json import read_architecture  # noqa: E402
from actorserve.actors.model.info import read_json, resolve_model  # noqa: E402
from actorserve.actors.options.config import Config  # noqa: E402
from actorserve.actors.protocol.request import Sampling  # noqa: E402
from actorserve.actors.protocol.step import NewRow, Step  # noqa: E402
from actorserve.actors.worker.gpu.buffers import Sizes  # noqa: E402
from actorserve.actors.worker.gpu.drafts.draft_model import ModelDraftingRunner  # noqa: E402
from actorserve.actors.worker.gpu.drafts.speculation import DraftingRunner  # noqa: E402
from actorserve.actors.worker.gpu.executor import GpuModel  # noqa: E402
from actorserve.actors.worker.gpu.graphs import StepSize, mixed_sizes  # noqa: E402
from actorserve.actors.worker.gpu.layers import scratch  # noqa: E402
from actorserve.actors.worker.gpu.layers.fused import FusedLayers  # noqa: E402
from actorserve.actors.worker.gpu.layers.varied_layers import make_model  # noqa: E402
from actorserve.actors.worker.gpu.lora.sites import GpuLoraSites  # noqa: E402
from actorserve.actors.worker.gpu.memory import kv_block_bytes, make_pools  # noqa: E402
from actorserve.actors.worker.gpu.runner import GpuRunner  # noqa: E402
from actorserve.actors.worker.logprobs import LOG_SUMS, LogprobsWriter  # noqa: E402
from actorserve.actors.worker.models.weights import open_checkpoint  # noqa: E402
from actorserve.kernels.triton.attention import paged_prefill  # noqa: E402
from actorserve.kernels.triton.attention.decode_launch import TABLE  # noqa: E402
from actorserve.kernels.triton.drafts import Lookup  # noqa: E402
from actorserve.kernels.triton.linear.gemv import MOST_ROWS  # noqa: E402
from actorserve.kernels.triton.logits import log_sums  # noqa: E402
from actorserve.kernels.triton.quantised_kv import E4M3  # noqa: E402
from actorserve.shm.table.logprobs import Logprobs  # noqa: E402
from actorserve.shm.table.table import make_ref  # noqa: E402
from tests.support.gpu.recorded_graphs import RecordedGraph, capture_steps, recording  # noqa: E402
from tests.support.models.checkpoints import VOCABULARY  # noqa: E402
from tests.support.selection import slow  # noqa: E402

from ..driver import GREEDY, LENGTH, Driver, Sequence, config_for, make_runner  # noqa: E402

if TYPE_CHECKING:
    from actorserve.actors.worker.cpu.prompt_embeds import RowEmbeds
    from actorserve.actors.worker.vision.rows import VisionRows

Folders = Callable[..., Path]
ROWS, BLOCKS, TOKENS = 6, 64, 96
SLOW_LAYERS = ("gemma2", "glm4", "granite", "ministral3", "olmo2", "olmo3", "seed_oss", "smollm3")
TYPES = {kind: {"layer_types": ["sliding_attention", "full_attention"]} for kind in ("gemma3", "gpt_oss", "olmo3")}


def load_model(folder: Path, deterministic: bool = False, lora: GpuLoraSites | None = None) -> GpuModel:
    shape = read_architecture(read_json(folder / "config.json"))
    read = open_checkpoint(folder, shape)
    get = lambda name: read(name, slice(None), None)  # noqa: E731
    return make_model(shape, get, torch.float32, LENGTH, DEVICE, deterministic=deterministic, lora=lora)


def make_gpu_runner(
    config: Config,
    capture: bool = False,
    kind: torch.dtype = torch.float32,
    graphs: bool = True,
    lookup: Lookup | None = None,
    draft: Path | GpuModel | None = None,
    deterministic: bool = False,
    lora: GpuLoraSites | None = None,
    model: GpuModel | None = None,
    vision: VisionRows | None = None,
    embeds: RowEmbeds | None = None,
) -> GpuRunner:
    """With `graphs` steps are filled up to their sizes; `capture` makes them, or records what stands for them. `model`,
    `draft`: where they are loaded already."""
    model = model or load_model(Path(resolve_model(config).folder), deterministic, lora)
    shape = model.shape
    log = np.zeros((ROWS, LENGTH), np.int32)
    mixed = mixed_sizes(ROWS, TOKENS // 3, lookup is not None) if graphs else []
    sizes = Sizes(ROWS, TOKENS, LENGTH, config.block_size, lookup.drafts if lookup else 0, lora.count if lora else 0)
    if draft is not None and lookup is not None:
        other = load_model(draft) if isinstance(draft, Path) else draft
        runner: GpuRunner = ModelDraftingRunner(model, log, sizes, [1, 2, 4], mixed=mixed, lookup=lookup, draft=other)
        assert isinstance(runner, ModelDraftingRunner)
        runner.draft_pools = make_pools(other.shape, BLOCKS, config.block_size, kind, DEVICE)
    elif lookup is None:
        runner = GpuRunner(model, log, sizes, [1, 2, 4], mixed=mixed, vision=vision, embeds=embeds)
    else:
        runner = DraftingRunner(model, log, sizes, [1, 2, 4], mixed=mixed, lookup=lookup, vision=vision, embeds=embeds)
    runner.pools = make_pools(shape, BLOCKS, config.block_size, kind, DEVICE)
    if capture:
        capture_steps(runner)
    return runner


class GpuDriver(Driver):
    """A GpuRunner's pools have another shape."""

    def __init__(self, runner: GpuRunner, **options: float) -> None:
        runner.block_size = runner.sizes.block_size  # type: ignore[attr-defined]
        super().__init__(runner, **options)  # type: ignore[arg-type]

    def num_blocks(self, runner: object) -> int:
        return BLOCKS


def prompt(length: int, seed: int) -> list[int]:
    return list(np.random.default_rng(seed).integers(3, VOCABULARY, length).tolist())


SLOW = [
    pytest.param(kind, marks=pytest.mark.slow)
    for kind in (
        *("llama3", "llama_biased", "llama_tied", "mistral", "phi3", "phi3_long", "qwen2", "qwen2_windows"),
        *("qwen2_moe", "qwen3_moe", "qwen3_moe, deterministic"),
    )
]
SLOW += [
    pytest.param(f"{kind}{way}", marks=pytest.mark.slow)
    for kind in ("gemma3", "gemma2", "qwen3")
    for way in ("", ", deterministic")
    if kind != "qwen3" or way
]


@pytest.mark.parametrize("kind", ["qwen3", *SLOW])
def test_it_draws_what_the_cpu_draws(checkpoints: Folders, kind: str) -> None:
    """Greedy and sampled rows, chunks and decoding mixed at random, rows that come back after a preemption: all of it
    by graphs, in which nothing of the host runs."""
    kind, _, way = kind.partition(", ")
    layers = {"qwen3": 1, "gemma2": 2, "gemma3": 2, "qwen3_moe": 1}
    changes = {"num_hidden_layers": layers[kind]} if kind in layers else {}
    config = config_for(checkpoints(kind, **changes, **TYPES.get(kind, {})), block_size=16)
    samplings = [
        Sampling(0, temperature=0.0),
        Sampling(11, temperature=0.8, top_k=20),
        Sampling(12, top_p=0.7),
        Sampling(13),
        Sampling(14, temperature=1.5, top_n_sigma=1.2, typical_p=0.8, dynatemp_range=0.6, xtc_probability=0.5),
        Sampling(0, temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.7, logit_bias=[(5, 9.0), (8, 8.5)]),
    ]

    def sequences() -> list[Sequence]:
        return [Sequence(prompt(9 + 4 * n, n), 3, sampling) for n, sampling in enumerate(samplings)]

    wanted = Driver(make_runner(config, rows=ROWS), seed=5).run(sequences())
    runner = make_gpu_runner(config, capture=True, deterministic=way == "deterministic")
    replayed = steps_of(runner)
    assert GpuDriver(runner, preempt=0.05, seed=6).run(sequences()) == wanted
    assert len({tuple(tokens) for tokens in wanted}) == len(wanted)
    assert {type(size) for size in replayed} == {int, StepSize}, "steps of all kinds"
    assert all(kind._graphs.keys() == set(kind.sizes) for kind in runner._graphs().values())


def steps_of(runner: GpuRunner) -> list[Any]:
    """The sizes of forward passes, as they come; each has a graph."""
    sizes = []
    for kind in (runner.decoding, runner.mixed):

        def step(size: Any, graphs: Any = kind._graphs) -> None:
            sizes.append(size)
            graphs[size].replay()

        kind.step = step  # type: ignore[method-assign]
    return sizes


def test_without_graphs_the_same_is_drawn(checkpoints: Folders) -> None:
    """Steps as large as they are, kernel by kernel; prompts beyond the largest graph, and logprobs of prompts."""
    config = config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16)
    prompts = [prompt(TOKENS // 3 + 3, 1), prompt(3, 2), prompt(9, 3)]

    def sequences() -> list[Sequence]:
        return [Sequence(tokens, 3, Sampling(number)) for number, tokens in enumerate(prompts)]

    wanted = Driver(make_runner(config, rows=ROWS), seed=1).run(sequences())
    for graphs in (False, True):
        assert GpuDriver(make_gpu_runner(config, graphs=graphs), budget=60, seed=2).run(sequences()) == wanted


def test_tokens_that_fill_up_write_nothing(checkpoints: Folders) -> None:
    """They are nobody's in each step, whatever a larger one before had in their places."""
    runner = make_gpu_runner(config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16))
    runner.log[0, :30] = prompt(30, 1)
    new = NewRow.make(0, make_ref(1, 0), 30, 30, 0, [3, 4], Sampling(0))
    with torch.inference_mode():
        runner.run(Step.make(1, 1, [new], [0], [16]))
        assert runner._inputs.slots[:16].tolist() == [*range(48, 64)]
        runner.run(Step.make(1, 2, [], [0], [5]))
    assert runner._inputs.slots[:16].tolist() == [*range(64, 69), *[-1] * 11]
    assert runner._inputs.ids[:16].tolist() == [*prompt(30, 1)[16:21], *[0] * 11]


def test_what_a_step_of_decoding_asks_of_torch(checkpoints: Folders) -> None:
    """Beside its graphs two copies, of its numbers and its tokens: views of parts would take longer than its plan."""
    runner = make_gpu_runner(config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16))
    for kind in runner._graphs().values():
        kind._graphs = dict.fromkeys(kind.sizes, RecordedGraph())  # type: ignore[arg-type]
    new = [NewRow.make(row, make_ref(1, row), 10, 10, 9, [row], Sampling(0)) for row in range(3)]
    with torch.inference_mode():
        runner.run(Step.make(1, 1, new, range(3), [1] * 3))
        with recording() as asked:
            runner.launch(Step.make(1, 2, [], range(3), [1] * 3))
    assert len(asked.steps) == 2


def test_fused_weights_and_a_part_of_a_head_that_turns(checkpoints: Folders) -> None:
    """A prompt and a token of what no quick kind above has."""
    config = config_for(checkpoints("phi3_long", num_hidden_layers=1), block_size=16)
    wanted = Driver(make_runner(config, rows=ROWS)).run([Sequence(prompt(18, 1), 2)])
    assert GpuDriver(make_gpu_runner(config)).run([Sequence(prompt(18, 1), 2)]) == wanted


@pytest.mark.parametrize(
    "kind",
    [
        "qwen2_moe",
        "gpt_oss",
        *slow("qwen3_moe", "mixtral", "qwen3_moe, 16"),
    ],
)
def test_experts(kind: str, checkpoints: Folders) -> None:
    """Chunks, rows that decode, and some that fill up; Qwen2-MoE's with a layer without experts before,
    gpt-oss' with sinks, biases and a window in the first."""
    kind, _, budget = kind.partition(", ")
    config = config_for(
        checkpoints(kind, num_hidden_layers=1 + (kind != "qwen3_moe"), **TYPES.get(kind, {})), block_size=16
    )

    def sequences() -> list[Sequence]:
        return [Sequence(prompt(26 - 17 * n, n), 2) for n in range(2)]

    wanted = Driver(make_runner(config, rows=ROWS)).run(sequences())
    runner = make_gpu_runner(config)
    assert runner.model.layers[-1].moe is not None
    assert GpuDriver(runner, budget=int(budget or 50)).run(sequences()) == wanted


@pytest.mark.parametrize(
    "kind",
    [
        "gemma3",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW_LAYERS),
    ],
)
def test_other_layers(kind: str, checkpoints: Folders) -> None:
    """A prompt in two chunks and a token of each family that has layers of its own, over the border of a window."""
    layers = 3 if kind == "smollm3" else 2
    config = config_for(checkpoints(kind, num_hidden_layers=layers, **TYPES.get(kind, {})), block_size=16)
    wanted = Driver(make_runner(config, rows=ROWS)).run([Sequence(prompt(30, 1), 2)])
    assert GpuDriver(make_gpu_runner(config), budget=20).run([Sequence(prompt(30, 1), 2)]) == wanted


def test_keys_of_a_chunk_are_divided(checkpoints: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few tokens behind many, beside a row that decodes: what is drawn is what a CPU draws."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr(paged_prefill, "LEAST", 16)  # on a GPU it is compiled in
    counts: list[int] = []
    split_count = paged_prefill.split_count

    def spy(*arguments: Any) -> int:
        counts.append(split_count(*arguments))
        return counts[-1]

    monkeypatch.setattr(paged_prefill, "split_count", spy)
    config = config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16)
    prompts = [prompt(50, 1), prompt(3, 2)]
    wanted = Driver(make_runner(config, rows=ROWS), seed=1).run([Sequence(tokens, 2) for tokens in prompts])
    assert (
        GpuDriver(make_gpu_runner(config, graphs=False), budget=20, seed=2).run(
            [Sequence(tokens, 2) for tokens in prompts]
        )
        == wanted
    )
    assert DEVICE.type != "cpu" or max(counts) > 1


def test_logprobs_are_those_of_the_cpu(checkpoints: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the prompt and of what is drawn, before anything that the request asks to be changed."""
    sums: list[int] = []

    def counted(logits: torch.Tensor) -> torch.Tensor:
        sums.append(len(logits))
        return log_sums(logits)

    config = config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16)
    areas = []
    makers: list[tuple[Any, Any]] = [(partial(make_runner, rows=ROWS), Driver), (make_gpu_runner, GpuDriver)]
    for make, drive in makers:
        area = Logprobs(Logprobs.create(ROWS, LENGTH), ROWS, LENGTH)
        runner = make(config)
        runner.log = np.zeros((ROWS, LENGTH), np.int32)
        getattr(runner, "sampler", runner).logprobs = LogprobsWriter(area, ROWS)  # a CPU's runner samples itself
        if make is make_gpu_runner:  # the kernel is in use where the device is, here in the interpreter
            monkeypatch.setitem(LOG_SUMS, "cpu", counted)
        sampling = Sampling(3, temperature=0.5, logprobs=2, prompt_logprobs=1, frequency_penalty=1.0)
        drive(runner, seed=2).run([Sequence(prompt(19, 1), 3, sampling), Sequence(prompt(8, 2), 3)])
        areas.append([area.read(0, position, 1 if position < 19 else 2) for position in range(1, 19 + 3)])
    for wanted, found in zip(*areas, strict=True):
        assert [number for number, _ in found] == [number for number, _ in wanted]
        assert [logprob for _, logprob in found] == pytest.approx([logprob for _, logprob in wanted], abs=1e-4)
        assert found[0][1] < 0, "one was written"
    assert sum(sums) >= 18 + 3 or DEVICE.type == "cuda", "of the prompt, too"


def test_keys_and_values_of_8_bits(checkpoints: Folders) -> None:
    """Half the bytes, and logits that are near: what is drawn first after a prompt has nearly the same logprob."""
    config = config_for(checkpoints("qwen3", initializer_range=0.05, num_hidden_layers=1), block_size=16)
    told = []
    for kind in (torch.float32, E4M3):
        area = Logprobs(Logprobs.create(ROWS, LENGTH), ROWS, LENGTH)
        runner = make_gpu_runner(config, kind=kind, graphs=False)
        runner.sampler.logprobs = LogprobsWriter(area, ROWS)
        GpuDriver(runner, budget=20, seed=2).run([Sequence(prompt(33, 1), 1, Sampling(0, temperature=0.0, logprobs=5))])
        told.append([logprob for _, logprob in area.read(0, 33, 5)])
    assert told[0] != told[1], "it is not the same memory"
    assert told[1] == pytest.approx(told[0], abs=0.05)
    shape = runner.model.shape
    assert kv_block_bytes(shape, 16, E4M3) * 4 * shape.head_dim == kv_block_bytes(shape, 16, torch.float32) * (
        shape.head_dim + 1
    )


@pytest.mark.parametrize("kind", ["qwen3", pytest.param("qwen2", marks=pytest.mark.slow)])
def test_products_with_norms_gates_and_additions_in_them(checkpoints: Folders, kind: str) -> None:
    """Steps of few tokens take them, others do not; what is drawn is the same."""
    config = config_for(checkpoints(kind, num_hidden_layers=2), block_size=16)
    runner = make_gpu_runner(config)
    runner.model.fused = FusedLayers.of(runner.model.layers, DEVICE)
    assert runner.model.fused is not None
    sizes: list[int] = []
    fits = runner.model.fused.fits
    runner.model.fused.fits = lambda tokens: sizes.append(tokens) or fits(tokens)  # type: ignore[func-returns-value,method-assign]

    def sequences() -> list[Sequence]:
        return [Sequence(prompt(9 + 7 * n, n), 3) for n in range(2)]

    wanted = Driver(make_runner(config, rows=ROWS), seed=5).run(sequences())
    assert GpuDriver(runner, seed=6).run(sequences()) == wanted
    assert min(sizes) <= MOST_ROWS < max(sizes)


def test_what_has_no_such_products(checkpoints: Folders) -> None:
    """Weights of another kind, float16, and members of a group."""
    layer = make_gpu_runner(config_for(checkpoints("qwen3"), block_size=16)).model.layers[0]
    plain: Any = layer.down
    layer.down = plain._replace(weight=plain.weight.half())
    assert FusedLayers.of([layer], DEVICE) is None
    layer.down = lambda x: x
    assert FusedLayers.of([layer], DEVICE) is None
    layer.down = plain
    assert FusedLayers.of([layer], DEVICE) is not None
    layer.group = SimpleNamespace()  # type: ignore[assignment]
    assert FusedLayers.of([layer], DEVICE) is None


@pytest.mark.parametrize("kind", ["qwen3", pytest.param("qwen2_windows", marks=pytest.mark.slow)])
def test_a_token_has_the_same_bits_in_every_batch(
    checkpoints: Folders, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone with the prompt at once; among others, cut into chunks down to one token, and after preemptions."""
    for entry in ("float32", "16 bits"):  # a decode step would divide these few keys
        monkeypatch.setitem(TABLE, entry, TABLE[entry]._replace(least=16, least_alone=16))
    config = config_for(checkpoints(kind, num_hidden_layers=1, initializer_range=0.1), block_size=16)

    def told(count: int, **drive: Any) -> list[Any]:
        """Of the first of so many sequences."""
        area = Logprobs(Logprobs.create(ROWS, LENGTH), ROWS, LENGTH)
        runner = make_gpu_runner(config, deterministic=True)
        runner.sampler.logprobs = LogprobsWriter(area, ROWS)
        asked = Sampling(0, temperature=0.0, logprobs=3, prompt_logprobs=2)
        sequences = [Sequence(prompt(24 - 15 * n, n), 2, asked if not n else GREEDY) for n in range(count)]
        (tokens, *_) = GpuDriver(runner, **drive).run(sequences)
        return [tokens, *(area.read(0, position, 2 if position < 24 else 3) for position in range(1, 24 + 2))]

    assert told(2, budget=9, preempt=0.15, seed=3) == told(1, budget=1000)


def test_a_long_row_beside_others_has_graphs_of_its_own(checkpoints: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """In which it is divided, and they are not; the same is drawn."""
    monkeypatch.setattr(scratch, "LONG", 16)
    config = config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16)

    def sequences(longest: int) -> list[Sequence]:
        return [Sequence(prompt(length, length), 8) for length in (longest, 6, 5, 4)]

    runner = make_gpu_runner(config)
    assert runner.uneven.sizes == [2, 4] and "decoding, some rows long" in runner._graphs()
    steps: list[int] = []
    run = runner.uneven.step

    def step(size: int) -> None:
        steps.append(size)
        run(size)

    monkeypatch.setattr(runner.uneven, "step", step)
    for longest, used in ((90, True), (7, False)):
        steps.clear()
        assert GpuDriver(runner).run(sequences(longest)) == Driver(make_runner(config, rows=ROWS)).run(
            sequences(longest)
        )
        assert bool(steps) == used
    assert not make_gpu_runner(config, deterministic=True).uneven.sizes
