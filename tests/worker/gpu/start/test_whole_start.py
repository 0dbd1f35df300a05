"""The start of a GPU's worker as a whole, with a CPU in the device's place: from options to a runner with memory and
graphs, and on to tokens.

In a process of its own kernels do nothing, which shows what is called with what; in the interpreter they compute.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import Config, ConfigError
from actorserve.actors.protocol.messages import WorkerReady
from actorserve.actors.protocol.request import Sampling
from actorserve.actors.protocol.step import KVLayout
from actorserve.actors.protocol.topology import System
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.actors.worker.gpu import start as gpu_start
from actorserve.actors.worker.gpu.actor import GpuWorkerActor
from actorserve.actors.worker.gpu.adapted import load as adapted_load
from actorserve.actors.worker.gpu.adapted.runner import StatefulRunner
from actorserve.actors.worker.gpu.drafts.ahead import CachedDraftingRunner
from actorserve.actors.worker.gpu.drafts.blocks import BlockDraftingRunner
from actorserve.actors.worker.gpu.drafts.draft_model import ModelDraftingRunner
from actorserve.actors.worker.gpu.drafts.medusa import MedusaDraftingRunner
from actorserve.actors.worker.gpu.drafts.recurrent import RecurrentDraftingRunner
from actorserve.actors.worker.gpu.drafts.speculation import DraftingRunner
from actorserve.actors.worker.gpu.graphs import Graphs
from actorserve.actors.worker.gpu.memory import kv_block_bytes
from actorserve.actors.worker.gpu.runner import GpuRunner
from actorserve.actors.worker.vision.encoder import BadItem, VisionEncoder
from tests.support.gpu.no_device import EMPTY, Unwritten, compile_nothing
from tests.support.gpu.recorded_graphs import RecordedGraph, recording
from tests.support.gpu.scaled_products import are_there
from tests.support.models import heads
from tests.support.models.census import write_tiny
from tests.support.models.vision import families
from tests.support.warm import run_module

from ...driver import Driver, Sequence, config_for, make_runner
from ...test_actor import Scheduler
from ..test_runner import GpuDriver, prompt
from .test_compilations import all_kernels

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a server is tried on the GPU that is here")

Folders = Callable[..., Path]
ROOT = Path(__file__).parents[4]
ROWS, LENGTH, ROOM, TOKENS = 3, 96, 1 << 32, 24
DRAFTS = 2
TRIAL = "actorserve.actors.worker.gpu.adapted.trial"
MEDUSA, EAGLE3, DFLASH = HEADS = "medusa", "eagle3", "dflash"
NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_min": 1})
TWO_LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2}
KINDS: dict[str, dict[str, Any]] = {
    "qwen3": {"num_hidden_layers": 1},
    "qwen3_moe": {"num_hidden_layers": 1},
    "deepseek_v3": {"num_hidden_layers": 2},
    "glm_moe_dsa": {"num_hidden_layers": 2, "index_topk": 12, "indexer_types": ["full", "shared"]},
    "llama4": {"num_hidden_layers": 2, "no_rope_layer_interval": 2, "attention_chunk_size": 64},
    "gemma3": {**TWO_LAYERS, "sliding_window": 64},
    "gemma3, windows": {**TWO_LAYERS, "sliding_window": 9},  # so short that less memory is needed
    "qwen3_vl": {"num_hidden_layers": 2},
    "qwen3_next": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
}
SEEING, STATEFUL = ("qwen3_vl",), ("qwen3_next",)
APART = ("windows", "bit", "pictures", "states")  # settings of which tokens are compared elsewhere
SETTINGS: dict[str, tuple[str, dict[str, Any], type[GpuRunner]]] = {  # kind, options, what runs steps
    "plain": ("qwen3", {}, GpuRunner),
    "eager": ("qwen3", {"enforce_eager": True}, GpuRunner),
    "deterministic": ("qwen3", {"deterministic": True}, GpuRunner),
    "experts": ("qwen3_moe", {}, GpuRunner),
    "latents": ("deepseek_v3", {}, GpuRunner),
    "latents, deterministic": ("deepseek_v3", {"deterministic": True}, GpuRunner),
    "latents, adapters": ("deepseek_v3", {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}, GpuRunner),
    "latents, drafts": ("deepseek_v3", {"speculative_config": NGRAM}, DraftingRunner),
    "chosen": ("glm_moe_dsa", {}, GpuRunner),
    "chosen, deterministic": ("glm_moe_dsa", {"deterministic": True}, GpuRunner),
    "chunks": ("llama4", {}, GpuRunner),
    "varied": ("gemma3", {}, GpuRunner),
    "varied, deterministic": ("gemma3", {"deterministic": True}, GpuRunner),
    "windows": ("gemma3, windows", {}, GpuRunner),
    "adapters": ("qwen3", {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}, GpuRunner),
    "drafts": ("qwen3", {"speculative_config": NGRAM}, DraftingRunner),
    "varied, deterministic, drafts": ("gemma3", {"deterministic": True, "speculative_config": NGRAM}, DraftingRunner),
    "draft model": ("qwen3", {"deterministic": True, "draft": "gemma3"}, ModelDraftingRunner),
    "drafts of heads": ("qwen3", {"deterministic": True, "draft": MEDUSA}, MedusaDraftingRunner),
    "drafts of a head": ("qwen3", {"draft": EAGLE3}, RecurrentDraftingRunner),
    "drafts of blocks": ("qwen3", {"draft": DFLASH}, BlockDraftingRunner),
    "drafts of blocks, windows": ("gemma3, windows", {"draft": DFLASH, "deterministic": True}, BlockDraftingRunner),
    "drafts of a head, windows": ("gemma3, windows", {"draft": EAGLE3}, RecurrentDraftingRunner),
    "drafts of a head, eager": ("qwen3", {"draft": EAGLE3, "enforce_eager": True}, RecurrentDraftingRunner),
    "8-bit keys and values": ("qwen3", {"kv_cache_dtype": "fp8"}, GpuRunner),
    "8-bit keys and values, drafts": ("qwen3", {"kv_cache_dtype": "fp8", "speculative_config": NGRAM}, DraftingRunner),
    "8-bit weights": ("qwen3", {"quantization": "int8"}, GpuRunner),
    "8-bit experts": ("qwen3_moe", {"quantization": "int8"}, GpuRunner),
    "4-bit weights, adapters": ("qwen3", {"quantization": "int4", "enable_lora": True, "max_loras": 2}, GpuRunner),
    "8-bit inputs": ("qwen3", {"quantization": "w8a8_fp8", "dtype": "bfloat16"}, GpuRunner),
    "prompts of embeddings": ("qwen3", {"enable_prompt_embeds": True}, GpuRunner),
    "pictures": ("qwen3_vl", {}, GpuRunner),
    "pictures, drafts, eager": ("qwen3_vl", {"speculative_config": NGRAM, "enforce_eager": True}, DraftingRunner),
    "by transformers": ("qwen3", {"model_impl": "transformers"}, GpuRunner),
    "by transformers, drafts": ("qwen3", {"model_impl": "transformers", "speculative_config": NGRAM}, DraftingRunner),
    "by transformers, windows": ("gemma3, windows", {"model_impl": "transformers"}, GpuRunner),
    "by transformers, states": ("qwen3_next", {"model_impl": "transformers"}, StatefulRunner),
}
ROUNDED = "8-bit inputs"
if not are_there():
    del SETTINGS[ROUNDED]
VARIED = ("gemma3", "deepseek_v3", "glm_moe_dsa", "llama4")
QUICK = (
    "latents",
    "chosen",
    "chunks",
    "adapters",
    "drafts of heads",
    "drafts of a head",
    "drafts of blocks",
    "windows",
    "varied, deterministic, drafts",
    "draft model",
    "8-bit keys and values",
    *({ROUNDED} & SETTINGS.keys()),
    "prompts of embeddings",
    "pictures",
)


def in_place_of_a_gpu(patch: pytest.MonkeyPatch, captured: Callable[..., Any]) -> None:
    """A CPU stands where the device is; graphs are what `captured` makes of them."""
    cpu = torch.device("cpu")
    cuda = SimpleNamespace(set_device=lambda device: None)
    stand_in = SimpleNamespace(device=lambda *named: cpu, cuda=cuda, OutOfMemoryError=torch.OutOfMemoryError)
    patch.setattr(gpu_start, "torch", stand_in)
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", "graph_pool_handle"):
        patch.setattr(torch.cuda, name, lambda *given: None)
    for name in ("memory_allocated", "max_memory_allocated"):
        patch.setattr(torch.cuda, name, lambda *given: 0)
    patch.setattr(torch.cuda, "mem_get_info", lambda *given: (ROOM, ROOM))
    patch.setattr(torch.cuda, "get_device_name", lambda *given: "no GPU")
    patch.setattr(torch.cuda, "get_device_capability", lambda *given: (9, 0))
    patch.setattr(gpu_start, "report_late_compilations", lambda context: None)  # it would count other tests' kernels
    patch.setattr(Graphs, "_captured", captured)
    patch.setattr(adapted_load, "reason_against_graphs", lambda *given: "")


def recorded(graphs: Any, size: Any, pool: Any) -> RecordedGraph:
    """As on a GPU: run, then recorded."""
    graphs._run(size)
    with recording() as graph:
        graphs._run(size)
    return graph


def run_again(graphs: Any, size: Any, pool: Any) -> Any:
    """Where kernels do nothing a graph is the same once more."""
    graphs._run(size)
    return SimpleNamespace(replay=lambda: graphs._run(size))


class StartedDriver(GpuDriver):
    """Over the blocks that the worker has found room for."""

    def num_blocks(self, runner: Any) -> int:
        return len(runner.pools[0].keys)


def tiny(kind: str, *, root: Path, **changes: Any) -> Path:
    """A checkpoint of a kind that keeps states."""
    write_tiny(kind, root / kind, **changes)
    return root / kind


def config_of(checkpoints: Folders, kind: str, draft: str | None = None, **options: Any) -> Config:
    drafts: dict[str, Any]
    if draft in HEADS:
        drafts = {"method": draft, "model": heads_of(checkpoints(kind, **KINDS[kind]), draft)}
        options["speculative_config"] = json.dumps(drafts | {"num_speculative_tokens": DRAFTS})
    elif draft is not None:
        model = str(checkpoints(draft, **KINDS.get(draft, {})))
        drafts = {"method": "draft_model", "model": model, "num_speculative_tokens": DRAFTS}
        options["speculative_config"] = json.dumps(drafts)
    sizes = {"block_size": 16, "max_model_len": LENGTH, "max_num_seqs": ROWS, "max_num_batched_tokens": TOKENS}
    return config_for(checkpoints(kind, **KINDS.get(kind, {})), **sizes, **options)


def heads_of(folder: Path, method: str) -> str:
    """For this model of one layer."""
    own = folder.parent / f"{folder.name}-{method}"
    if not own.exists() and method == MEDUSA:
        heads.write_medusa(own, heads.medusa(folder, heads=DRAFTS))
    sizes: dict[str, Any] = {"num_attention_heads": 4}  # of 16 numbers each
    if not own.exists() and method == DFLASH:
        tensors = heads.dflash(folder, layers=1, config=sizes)
        heads.write_dflash(own, folder, tensors, {"target_layer_ids": [0, 0]}, **sizes)
    elif not own.exists():
        tensors = heads.eagle3(folder, drafted=200, own_embeddings=True, config=sizes)
        heads.write_eagle3(own, folder, tensors, eagle_aux_hidden_state_layer_ids=[0, 0, 1], **sizes)
    return str(own)


def started(config: Config) -> tuple[WorkerReady, GpuWorkerActor]:
    """A worker, and what it has told the scheduler."""
    scheduler = Scheduler(Memory(System(config, resolve_model(config))))
    with torch.inference_mode():
        actor = gpu_start.start(scheduler.born("worker"))
    actor.context.flush()
    (ready,) = scheduler.receive(1)
    assert isinstance(ready, WorkerReady)
    return ready, actor


def check(setting: str, config: Config, ready: WorkerReady, runner: GpuRunner) -> None:
    """The runner is the one that the options are about, and the scheduler knows what it has."""
    kind, _, runner_type = SETTINGS[setting]
    kind_of_model = "VariedModel" if kind.startswith(VARIED) else "GpuModel"
    kind_of_model = "AdaptedGpuModel" if config.model_impl == "transformers" else kind_of_model
    assert type(runner) is runner_type and type(runner.model).__name__ == kind_of_model
    assert runner.model.batch_invariant == config.deterministic
    layout = KVLayout(window=25, window_tables=1) if "windows" in setting else KVLayout()
    if isinstance(runner, StatefulRunner):
        layout = KVLayout(states=True, snapshots=runner.states.snapshots)
        assert runner.states.snapshots > 0 and len(runner.states.length) == ROWS + 1 + runner.states.snapshots
    assert ready.layout == layout
    check_memory(ready, runner, "windows" in setting)
    assert (runner.adapted is not None) == config.enable_lora
    assert (runner.pictures is not None) == (kind in SEEING)
    assert (runner.embeds is not None) == config.enable_prompt_embeds
    for graphs in runner._graphs().values():
        assert graphs._graphs.keys() == (set() if gpu_start.is_eager(config, runner.model) else set(graphs.sizes))


def check_memory(ready: WorkerReady, runner: GpuRunner, windows: bool) -> None:
    """Of `windows` a sequence needs 5 blocks in the second table: 9 + 16 + 24 tokens, and the first may be begun."""
    assert ready.num_blocks == ROWS * (LENGTH // 16 + 5 * windows)
    assert runner.model.table_of == ([1, 0] if windows else [0] * runner.model.shape.layers)
    assert runner.sizes[-2:] == ((2, 25) if windows else (1, 0))
    for model, pools in models_of(runner):
        assert len(pools) == model.shape.layers
        held = [part.untyped_storage() for own in pools for part in (*own[:2], *(own.scales or ()))]
        apart = {memory.data_ptr(): memory.nbytes() for memory in held}
        whole = len(pools[0].keys) * kv_block_bytes(model.shape, 16, pools[0].keys.dtype)
        assert sum(apart.values()) == whole // (1 + (windows and model is runner.model))
        spare = runner.draft_memory.spare if isinstance(runner, CachedDraftingRunner) else 0
        assert len(pools[0].keys) == ready.num_blocks + spare * (model is not runner.model)


def models_of(runner: GpuRunner) -> Iterator[tuple[Any, Any]]:
    """Each model with its KV memory."""
    yield runner.model, runner.pools
    if isinstance(runner, ModelDraftingRunner):
        assert not runner.draft.batch_invariant, "no draft changes a token"
        yield runner.draft, runner.draft_pools
    elif isinstance(runner, CachedDraftingRunner):
        shape, dtype, _ = runner.draft_memory
        yield SimpleNamespace(shape=shape, dtype=dtype), runner.draft_pools


def sequences() -> list[Sequence]:
    circle = [*[7, 8, 9, 10] * 4, 7, 8]
    asked = [Sampling(0, temperature=0.0), Sampling(5, temperature=0.3, top_k=2), Sampling(11, temperature=0.8)]
    return [Sequence(own, 4, sampling) for own, sampling in zip([circle, prompt(30, 1), circle], asked, strict=True)]


def driven(runner: GpuRunner) -> tuple[list[list[int]], int]:
    """(tokens, how many drafts there were)."""
    driver = StartedDriver(runner, preempt=0.03, seed=6, budget=TOKENS, drafts=runner.sizes.drafts)
    return driver.run(sequences()), driver.drafted


@pytest.mark.parametrize("settings", [QUICK, pytest.param([*SETTINGS], marks=pytest.mark.slow)], ids=["few", "all"])
def test_options_become_a_runner(checkpoints: Folders, tmp_path: Path, settings: Collection[str]) -> None:
    """No kernel is compiled after the worker has said that it is ready."""
    make: dict[str, Folders] = dict.fromkeys(KINDS, checkpoints)
    make |= dict.fromkeys(SEEING, partial(families.checkpoint, root=tmp_path))
    make |= dict.fromkeys(STATEFUL, partial(tiny, root=tmp_path))
    folders = {kind: str(make[kind](kind.partition(",")[0], **changes)) for kind, changes in KINDS.items()}
    done = run_module(
        "tests.worker.gpu.start.test_whole_start", json.dumps(folders), *settings, wait_s=280, TRITON_INTERPRET="0"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found.keys() == set(settings)
    late = {setting: one["after"] for setting, one in found.items() if one["after"]}
    assert late == {}, "compiled while requests run"
    assert all(one["before"] for one in found.values())
    assert all((one["drafted"] > 0) == ("draft" in setting) for setting, one in found.items()), found


@pytest.mark.slow
@pytest.mark.parametrize("setting", [name for name in SETTINGS if not any(word in name for word in APART)])
def test_from_options_to_tokens(checkpoints: Folders, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    """What a worker that was started so draws is what a CPU draws."""
    in_place_of_a_gpu(monkeypatch, recorded)
    kind, options, _ = SETTINGS[setting]
    config = config_of(checkpoints, kind, **options)
    ready, actor = started(config)
    check(setting, config, ready, actor.gpu)
    plain = config_for(checkpoints(kind, **KINDS[kind]), block_size=16)
    tokens, drafted = driven(actor.gpu)
    assert tokens == Driver(make_runner(plain, rows=ROWS), seed=5).run(sequences())
    assert (drafted > 0) == (actor.gpu.sizes.drafts > 0)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("narrow", {}, r"model: heads of 24 numbers"),
        ("qwen3", {"draft": "narrow"}, r"--speculative-config: model: .*heads of 24 numbers"),
        (
            "qwen3",
            {"model_impl": "transformers", "enable_lora": True},
            r"--enable-lora: Qwen3ForCausalLM .*--device cpu",
        ),
    ],
)
def test_models_of_a_cpu_alone(
    checkpoints: Folders, monkeypatch: pytest.MonkeyPatch, kind: str, options: dict[str, Any], words: str
) -> None:
    in_place_of_a_gpu(monkeypatch, recorded)

    def folders(kind: str, **changes: Any) -> Path:
        return checkpoints("qwen3", head_dim=24) if kind == "narrow" else checkpoints(kind, **changes)

    with pytest.raises(ConfigError, match=words):
        started(config_of(folders, kind, **options))


def test_a_start_whose_graphs_cannot_be_captured(checkpoints: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is first seen where they are measured."""

    def captured(graphs: Any, size: Any, pool: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    in_place_of_a_gpu(monkeypatch, captured)
    with pytest.raises(ConfigError, match=r"^CUDA graphs, prompts of .* is capturing\. --enforce-eager"):
        started(config_of(checkpoints, "qwen3"))


def test_a_tower_that_fails_ends_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before there is a request with a picture."""

    def fail(*given: Any) -> None:
        raise BadItem("it lacks an instruction")

    in_place_of_a_gpu(monkeypatch, recorded)
    monkeypatch.setattr(VisionEncoder, "try_out", fail)
    with pytest.raises(ConfigError, match=r"picture of .* on this GPU \(it lacks an instruction\)\. --device cpu"):
        started(config_of(partial(families.checkpoint, root=tmp_path), "qwen3_vl"))


def test_what_the_tower_takes_is_no_kv_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_place_of_a_gpu(monkeypatch, recorded)
    monkeypatch.setattr(gpu_start, "measure", lambda device, run: (0, 0))
    tried: list[bool] = []

    def all_of_it(config: Config, info: Any, pictures: Any, large: bool) -> int:
        tried.append(large)
        return ROOM

    monkeypatch.setattr(gpu_start, "try_tower", all_of_it)
    with pytest.raises(ConfigError, match="--gpu-memory-utilization: 0 bytes are left for KV memory"):
        started(config_of(partial(families.checkpoint, root=tmp_path), "qwen3_vl", enforce_eager=True))
    assert tried == [False, True]


@contextmanager
def written_by_nobody() -> Iterator[None]:
    """Memory that is new holds nonsense, as a device's does, where no kernel writes to it."""
    zeros, torch.empty = torch.empty, EMPTY
    with Unwritten():
        yield
    torch.empty = zeros


def main(folders: dict[str, str], settings: Collection[str]) -> None:
    torch.set_num_threads(1)
    names = compile_nothing()
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        in_place_of_a_gpu(patch, run_again)
        if any("transformers" in setting for setting in settings):
            patch.setattr(f"{TRIAL}.compare", lambda expected, found: None)  # nothing is computed
        for setting in settings:
            kind, options, _ = SETTINGS[setting]
            for kernel in all_kernels():
                kernel.device_caches.clear()
            names.clear()
            config = config_of(lambda kind, **changes: Path(folders[kind]), kind, **options)
            with written_by_nobody():
                ready, actor = started(config)
            check(setting, config, ready, actor.gpu)
            before = names.copy()
            names.clear()
            _, drafted = driven(actor.gpu)
            found[setting] = {"before": before, "after": names.copy(), "drafted": drafted}
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
