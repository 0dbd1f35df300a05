"""Models that keep states of their rows on a GPU, in Triton's interpreter where there is none: they draw what
transformers draws wherever rows come, go and go on from snapshots, and memory has room for all of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.actors.model.info import resolve_model  # noqa: E402
from actorserve.actors.model.memory.kv import KVSpec, LayerAttention, StateSpec  # noqa: E402
from actorserve.actors.model.memory.windows import WindowPlan  # noqa: E402
from actorserve.actors.options.config import Config, ConfigError  # noqa: E402
from actorserve.actors.protocol.request import Sampling  # noqa: E402
from actorserve.actors.protocol.step import KVLayout, Step, StepDone  # noqa: E402
from actorserve.actors.worker import inspection  # noqa: E402
from actorserve.actors.worker.adapter.model import Tier  # noqa: E402
from actorserve.actors.worker.gpu.adapted import load  # noqa: E402
from actorserve.actors.worker.gpu.adapted.groups import Group, GroupRules  # noqa: E402
from actorserve.actors.worker.gpu.adapted.load import describe_on_gpu, load_on_gpu  # noqa: E402
from actorserve.actors.worker.gpu.adapted.model import AdaptedGpuModel  # noqa: E402
from actorserve.actors.worker.gpu.adapted.runner import StatefulRunner  # noqa: E402
from actorserve.actors.worker.gpu.adapted.shape import NOWHERE, AdaptedShape, shape_of  # noqa: E402
from actorserve.actors.worker.gpu.adapted.trial import verify_on_device  # noqa: E402
from actorserve.actors.worker.gpu.buffers import Sizes  # noqa: E402
from actorserve.actors.worker.gpu.memory import blocks_in, check_given_bytes, make_pools, plan_memory  # noqa: E402
from actorserve.actors.worker.kept_memory.on_gpu import is_plain  # noqa: E402
from tests.scheduler import engine_model  # noqa: E402
from tests.scheduler.engine_model import MAX_TOKENS, Bench  # noqa: E402
from tests.support.models.census import write_tiny  # noqa: E402
from tests.support.models.greedy import assert_greedy, reference  # noqa: E402
from tests.support.models.own_code.bailing_v3 import FLASH, TINY, UNEVEN  # noqa: E402
from tests.support.models.own_code.bailing_v3 import write as write_ling  # noqa: E402
from tests.support.selection import slow  # noqa: E402

from ...driver import LENGTH, Sequence, config_for, sizes_of_passes  # noqa: E402
from ..test_runner import BLOCKS, ROWS, TOKENS, GpuDriver, prompt  # noqa: E402

Folders = Callable[[str], Path]
ROOM = 1 << 30
TWO: dict[str, Any] = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
FIELDS: dict[str, dict[str, Any]] = {  # kinds have a layer of each sort, where that is all that there is to be said
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid"), TWO),
    "recurrent_gemma": {"num_hidden_layers": 6, "attention_window_size": 20},  # of which the third and the last attend
    "jamba": {"max_position_embeddings": 1024},  # longer prompts than those of the others
    "lfm2": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """kind → the folder of a tiny checkpoint."""
    root = tmp_path_factory.mktemp("states")

    def made(name: str) -> Path:
        if not (root / name).exists():
            write_tiny(name, root / name, **FIELDS.get(name, {}))
        return root / name

    return made


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *given: (ROOM, ROOM))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *given: (9, 0))


def config_of(folder: Path, **options: Any) -> Config:
    return config_for(folder, **{"block_size": 16, "model_impl": "transformers", **options})


def loaded(folder: Path, **options: Any) -> AdaptedGpuModel:
    config = config_of(folder, **options)
    return load_on_gpu(config, resolve_model(config), DEVICE)


def make_stateful(
    model: AdaptedGpuModel,
    log: np.ndarray,
    sizes: Sizes,
    blocks: int,
    snapshots: int,
    windows: WindowPlan | None = None,
) -> StatefulRunner:
    assert model.groups is not None
    runner = StatefulRunner(model.groups, model, log, sizes, [1, 2, 4])
    runner.pools = make_pools(model.shape, blocks, sizes.block_size, model.dtype, DEVICE, windows)
    with torch.inference_mode():
        runner.profile_steps()  # as at a start, with one place for states
    runner.give_states(snapshots)
    return runner


@pytest.mark.parametrize(
    "kind",
    [
        "qwen3_next",
        "mamba2",
        "kimi_linear",
        *slow("qwen3_5_text", "qwen3_5_moe_text", "lfm2", "granitemoehybrid", "falcon_h1", "nemotron_h", "bamba"),
        *slow("bailing_hybrid"),
        *slow(
            "jamba", "mamba", "zamba2", "recurrent_gemma", "minimax", "olmo_hybrid", "lfm2_moe", "zaya", "falcon_mamba"
        ),
    ],
)
def test_it_draws_what_transformers_draws(kind: str, folders: Folders) -> None:
    """Chunks and rows that decode in one step, prompts of one token, and rows that another has had. Logits of all
    positions are compared as it is loaded."""
    folder = folders(kind)
    sizes = Sizes(ROWS, TOKENS, LENGTH, 16)
    runner = make_stateful(loaded(folder), np.zeros((ROWS, LENGTH), np.int32), sizes, BLOCKS, 0)
    runner.states.put(*next(iter(runner.states._memory)), torch.arange(ROWS), torch.tensor(7.0))  # of nobody
    sequences = [Sequence(prompt(size, size), 4) for size in (9, 20, 1, 31)]
    answers = GpuDriver(runner, preempt=0.1, seed=6).run(sequences)
    assert_greedy(reference(folder), [one.prompt for one in sequences], answers, 4)


@pytest.mark.parametrize("fields", slow(TINY, FLASH, UNEVEN))
def test_layers_that_are_completed_here(fields: dict[str, Any], tmp_path: Path) -> None:
    """Ling 3.0: logits of all positions are those that its layers make on a CPU, which their own tests compare."""
    write_ling(tmp_path, fields)
    config = config_of(tmp_path, model_impl="auto")
    found = load_on_gpu(config, resolve_model(config), DEVICE)
    assert all(layer.values_in_keys for layer in found.shape.kv.layers if layer)


@pytest.mark.parametrize("kind", ["mamba2", *slow("qwen3_next", "lfm2")])
def test_states_are_of_the_types_that_layers_store(kind: str, folders: Folders) -> None:
    """Which a trial in float32 does not show: those of convolutions are the model's, others stay wide."""
    sizes = Sizes(ROWS, TOKENS, LENGTH, 16)
    model = loaded(folders(kind), dtype="bfloat16")
    runner = make_stateful(model, np.zeros((ROWS, LENGTH), np.int32), sizes, BLOCKS, 0)
    answers = GpuDriver(runner, preempt=0.1, seed=6).run([Sequence(prompt(size, size), 4) for size in (9, 31)])
    assert [len(tokens) for tokens in answers] == [4, 4]
    found = {spec.name: runner.states.memory(spec.layer, spec.name) for spec in model.shape.kv.states}
    assert found["conv.0"].dtype == torch.bfloat16 and found["conv.0"].any()
    assert all(memory.dtype == torch.float32 for name, memory in found.items() if name.startswith("recurrent"))


# --- with a scheduler ------------------------------------------------------------------------------------------------

BLOCK, BUDGET, SNAPSHOTS = 16, 40, 3
WINDOWED = ("recurrent_gemma",)


class StatefulWorker:
    """A runner in place of the model of a worker."""

    def __init__(self, bench: StatefulBench) -> None:
        windows = bench.plan_of_memory.windows
        sizes = Sizes(ROWS, bench.config.max_num_batched_tokens, bench.config.max_model_len or 0, BLOCK)
        if windows is not None:
            sizes = sizes._replace(tables=len(windows.tables), window=windows.window)
            bench.model.table_of = windows.table_of(bench.model.shape.kv)
        log = bench.table.as_numpy().tokens
        self.runner = make_stateful(bench.model, log, sizes, bench.blocks_made, bench.layout.snapshots, windows)
        self.restored = 0

    def run(self, step: Step, alive: set[int]) -> StepDone:
        self.restored += sum(new.snapshot >= 0 for new in step.new_rows)
        with torch.inference_mode():
            return StepDone.make(step, self.runner.run(step), 0.001)


class StatefulBench(Bench):
    """The bench of the scheduler's own tests, whose worker computes."""

    def __init__(self, model: AdaptedGpuModel, config: Config, blocks: int = 2 * 70 // BLOCK) -> None:
        self.model, self.config, length = model, config, config.max_model_len or 0
        self.plan_of_memory = plan = plan_memory(config, model.shape, length, model.dtype)
        windows, snapshots = plan.windows, min(SNAPSHOTS, plan.snapshots(config, ROOM))
        layout = KVLayout(states=True, snapshots=snapshots)
        if windows is not None:
            layout = KVLayout(True, snapshots, windows.window, len(windows.tables) - 1)
            blocks += 4
        self.blocks_made, budget = blocks, config.max_num_batched_tokens
        super().__init__(num_blocks=blocks, layout=layout, max_num_seqs=ROWS, max_num_batched_tokens=budget)
        self.sampling = Sampling(seed=1, temperature=0.0)

    def lose_worker(self) -> None:
        self.planned.clear()
        self.worker: Any = StatefulWorker(self)
        self.workers += 1


@pytest.mark.parametrize("kind", ["mamba2", *slow("qwen3_next", "recurrent_gemma", "kimi_linear")])
def test_rows_go_on_from_snapshots_and_behind_deaths(
    kind: str, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is too small for all; a prefix is found with its states, by a scheduler's successor as well, and of a
    worker that is new nothing is."""
    monkeypatch.setattr(engine_model, "BLOCK", BLOCK)
    folder = folders(kind)
    sizes = {"max_model_len": MAX_TOKENS, "max_num_seqs": ROWS, "max_num_batched_tokens": BUDGET}
    config = config_of(folder, **sizes)
    bench = StatefulBench(load_on_gpu(config, resolve_model(config), DEVICE), config)
    assert (bench.plan_of_memory.windows is not None) == (kind in WINDOWED)
    prompts = [prompt(50, 1) + prompt(5 + 4 * n, n) for n in range(4)]
    refs = [bench.submit(own, 4, ignore_eos=True) for own in prompts[:3]]
    for turn in range(30):
        if turn == 9:
            bench.new_scheduler()
        if turn == 14:
            bench.new_worker()
        bench.plan()
        if turn % 2:
            bench.work()
    bench.run()
    assert bench.scheduler.preemptions + bench.scheduler.planner.memory.preemptions > 0
    restored = bench.worker.restored
    refs.append(bench.submit(prompts[3], 4, ignore_eos=True))
    bench.run()
    assert bench.worker.restored == restored + 1 and bench.table.cached(refs[3]) == 48
    assert_greedy(reference(folder), prompts, [bench.answer(ref) for ref in refs], 4)
    assert bench.scheduler.pool.free == bench.num_blocks


@pytest.mark.parametrize("kind", ["mamba", *slow("jamba")])
def test_a_prompt_of_a_model_that_goes_on_by_token_is_one_pass(
    kind: str, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which snapshots would cut, and each token behind the first cut is a pass."""
    monkeypatch.setattr(engine_model, "BLOCK", BLOCK)
    monkeypatch.setattr(engine_model, "MAX_TOKENS", 1024)
    config = config_of(folders(kind), max_model_len=1024, max_num_seqs=ROWS, max_num_batched_tokens=640)
    bench = StatefulBench(load_on_gpu(config, resolve_model(config), DEVICE), config, blocks=40)
    computed = sizes_of_passes(bench.model.passes, monkeypatch)
    bench.submit(prompt(600, 1), 3, ignore_eos=True)
    bench.run()
    assert computed == [600, 1, 1]


# --- groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("together", "by_token", "groups"),
    [
        (True, False, [(0, 2, 0, 1, 5), (2, 3, 2, 1, 0), (3, 4, 3, 1, 8), (4, 5, 4, 3, 0), (5, 6, 7, 2, 4)]),
        (True, True, [(0, 2, 0, 1, 5), (2, 3, 2, 1, 0), (3, 4, 3, 1, 8), (4, 5, 4, 3, 0), *[(5, 6, 7, 1, 4, 1)]]),
        (False, False, [(0, 1, 0, 1, 7), (1, 2, 1, 1, 5), (2, 3, 2, 1, 0), (3, 4, 3, 1, 8), (4, 5, 4, 3, 0)]),
    ],
)
def test_what_is_computed_side_by_side(together: bool, by_token: bool, groups: list[tuple[int, ...]]) -> None:
    """Rows that go on by a token, but for those that have no states yet; then chunks, one by one."""
    counts, starts = np.array([1, 1, 1, 1, 3, 2]), np.array([7, 5, 0, 8, 0, 4])
    found = GroupRules(together, by_token).of(counts, starts)
    assert found[: len(groups)] == [Group(*own) for own in groups]
    tokens = [token for group in found for token in range(9)[group.tokens]]
    assert tokens == [*range(9)]
    if by_token:
        assert found[-1] == Group(5, 6, 8, 1, 5)


# --- memory ----------------------------------------------------------------------------------------------------------

ATTENDING = LayerAttention(heads=4, kv_heads=2, key_dim=32, value_dim=32, scale=1.0)
STATES = (
    StateSpec(layer=0, name="recurrent.0", shape=(4, 8), dtype="float32"),
    StateSpec(layer=2, name="conv.0", shape=(6,), dtype="bfloat16"),
)


def shape_with_states() -> AdaptedShape:
    """Of four layers, the last of which reads the keys of the second."""
    reading = LayerAttention(heads=4, kv_heads=2, key_dim=32, value_dim=32, scale=1.0, source=1)
    return shape_of(KVSpec(layers=(None, ATTENDING, None, reading), states=STATES), 64, 99)


def test_layers_that_attend_have_memory_and_no_others() -> None:
    shape = shape_with_states()
    assert [layer.source for layer in shape.kv.layers if layer] == [None, 0] and shape.layers == 1
    assert shape.kv.states == STATES
    nowhere = shape_of(KVSpec(layers=(), states=STATES), 64, 99)
    assert nowhere.kv.layers == (NOWHERE,), "blocks are counted all the same"


def test_states_come_out_of_the_room_for_blocks() -> None:
    shape, row = shape_with_states(), 4 * 8 * 4 + 6 * 2
    given = {"max_num_seqs": 3, "max_model_len": 64, "block_size": 16}
    config = config_of(Path("nowhere"), **given)
    plan = plan_memory(config, shape, 64, torch.bfloat16)
    assert plan.row_bytes == row and not is_plain(plan, drafts=False), "no block says what states are"
    room = 4 * row + 8 * plan.block_bytes  # one place is nobody's
    snapshots = plan.snapshots(config, room)
    assert snapshots == int((room - 4 * row) * 0.25) // row
    assert blocks_in(config, plan, 64, room) == (room - (4 + snapshots) * row) // plan.block_bytes
    with pytest.raises(
        ConfigError, match=f"--max-num-seqs: the states of 3 sequences take {4 * row} bytes of the {row}"
    ):
        blocks_in(config, plan, 64, row)
    with pytest.raises(ConfigError, match="--gpu-memory-utilization: 0 bytes are left for KV memory"):
        blocks_in(config, plan, 64, -row)
    config = config_of(Path("nowhere"), kv_cache_memory_bytes=room, enable_prefix_caching=False, **given)
    taken = 12 * plan.block_bytes + 4 * row
    assert plan.snapshots(config, room) == 0
    assert check_given_bytes(config, plan, 12, taken, taken) == ""
    assert f"{taken:,} bytes are more than the" in check_given_bytes(config, plan, 12, taken, taken - 1)


def test_drafts_are_refused_and_states_are_of_the_type_that_is_computed_in(folders: Folders) -> None:
    folder = folders("mamba2")
    drafts = '{"method": "ngram", "num_speculative_tokens": 2}'
    config = config_of(folder, speculative_config=drafts)
    with pytest.raises(ConfigError, match="--speculative-config: the model keeps states of its sequences"):
        load_on_gpu(config, resolve_model(config), DEVICE)
    config = config_of(folder, dtype="float16")
    known = describe_on_gpu(config, resolve_model(config), DEVICE)
    assert known.found.verdict.tier is Tier.ROWS
    assert {spec.dtype for spec in known.shape.kv.states if spec.name.startswith("conv")} == {"float16"}


def test_what_check_says(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers are counted, and states are no blocks."""
    monkeypatch.setattr(inspection, "uses_gpu", lambda config: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(load, "verify_on_device", lambda twin, device: verify_on_device(twin, DEVICE))
    monkeypatch.setattr(load, "reason_against_graphs", lambda *given: "there is no GPU")
    folder = folders("mamba2")
    config = config_of(folder, dtype="float16", max_num_seqs=2, kv_cache_memory_bytes=1 << 20)
    facts = {key: one for part in inspection.inspect(config, resolve_model(config)) for key, one in part.items()}
    eager = "without CUDA graphs: there is no GPU"
    assert facts["way"] == f"layers of transformers, rows: with states of rows, {eager}"
    assert facts["layers"] == reference(folder).config.num_hidden_layers
    assert facts["kv_bytes_per_token"] == 2 * 16 * 2, "what blocks are counted in"
    known = describe_on_gpu(config, resolve_model(config), DEVICE)
    plan = plan_memory(config, known.shape, LENGTH, torch.float16)
    assert 0 < facts["blocks"] == min(2 * LENGTH // 16, ((1 << 20) - plan.state_bytes(config, 1 << 20)) // (64 * 16))
