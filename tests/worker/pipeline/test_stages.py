"""A model in stages, in one process: every family's tokens are those of the model as one, whatever the plans are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from actorserve.actors.model.checks.device import check_device
from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.info import read_json, resolve_model
from actorserve.actors.model.pipeline.stages import divide, plan_stages, worker_shapes
from actorserve.actors.options.config import Config, ConfigError, make_config
from actorserve.actors.options.objects.speculative import is_by_itself, most_drafts
from actorserve.actors.protocol.request import Sampling
from actorserve.actors.protocol.step import Step
from actorserve.actors.worker.cpu.memory.kv_memory import kv_type
from actorserve.actors.worker.cpu.runner import CpuRunner
from actorserve.actors.worker.memory import make_pools
from actorserve.actors.worker.models.weights import load_decoder
from actorserve.actors.worker.pipeline.link import Arriving
from actorserve.actors.worker.pipeline.runner import EarlyStageRunner, make_stage_runner
from tests.support.compiler import cache_with_kernels
from tests.support.models import heads
from tests.support.models.checkpoints import KINDS as CHECKPOINTS
from tests.support.models.checkpoints import VOCABULARY
from tests.support.models.gguf.files import convert
from tests.support.models.own_code import internlm2

from ..cpu import test_ling as ling
from ..driver import LENGTH, Driver, Sequence, config_for, make_runner

Folders = Callable[..., Path]
KINDS = ("llama_tied", "deepseek_v3", "llama4", "gemma3")
WHOLE = {"deepseek_v32", "glm_moe_dsa"}  # which are not divided so
OTHERS = tuple(sorted(CHECKPOINTS.keys() - set(KINDS) - WHOLE))


class Arrived(NamedTuple):
    """Tokens of a step, in the queue by the time when they are waited for."""

    queue: deque[tuple[int, np.ndarray]]
    step: int

    def wait(self) -> np.ndarray:
        step, tokens = self.queue.popleft()
        assert step == self.step
        return tokens


class Hub:
    """What lies between the stages."""

    def __init__(self, count: int) -> None:
        self.hidden: list[deque[tuple[int, Tensor]]] = [deque() for _ in range(count)]
        self.tokens: deque[tuple[int, np.ndarray]] = deque()


class Link:
    """A StageLink within a process, where stages run one after the other."""

    def __init__(self, hub: Hub, index: int, count: int) -> None:
        self.hub, self.index, self.count = hub, index, count
        self.step = 0

    def begin(self, step: Step) -> None:
        self.step = step.step

    def take_waited(self) -> float:
        return 0.0

    def send(self, hidden: Tensor) -> None:
        self.hub.hidden[self.index + 1].append((self.step, hidden))

    def receive(self, tokens: int, width: int, dtype: torch.dtype) -> Tensor:
        step, hidden = self.hub.hidden[self.index].popleft()
        assert step == self.step and hidden.shape == (tokens, width) and hidden.dtype == dtype
        return hidden

    def send_tokens(self, tokens: np.ndarray) -> None:
        self.hub.tokens.append((self.step, tokens.copy()))

    def expect_tokens(self, count: int) -> Arriving:
        return Arrived(self.hub.tokens, self.step)


class Pipeline:
    """The runners of all stages, as a Driver takes one."""

    def __init__(self, config: Config, rows: int = 8, blocks: int = 128) -> None:
        info, count = resolve_model(config), config.pipeline_parallel_size
        hub, self.log = Hub(count), np.zeros((rows, LENGTH), np.int32)
        self.stages: list[CpuRunner] = []
        for index in range(count):
            link = Link(hub, index, count)
            model = load_decoder(config, info, None, link)
            pools = make_pools(model.kv, blocks, config.block_size, kv_type(config, model))
            self.stages.append(make_stage_runner(link, model, pools, self.log, config.block_size, rows))
        self.outcome = None
        self.computed, self.kv, self.block_size = self.stages[-1].computed, self.stages[-1].kv, config.block_size

    def run(self, step: Step) -> np.ndarray:
        return [stage.run(step) for stage in self.stages][-1]


def sequences() -> list[Sequence]:
    """Greedy and drawn, of different lengths."""
    random = np.random.default_rng(7)
    samplings = [Sampling(0, temperature=0.0), Sampling(3), Sampling(4, temperature=0.7, top_k=9)]
    prompts = [random.integers(3, VOCABULARY, length).tolist() for length in (5, 40, 61)]
    return [Sequence(prompt, 12, sampling) for prompt, sampling in zip(prompts, samplings, strict=True)]


def check_alike(folder: Path, stages: int, **options: object) -> None:
    one = make_runner(config_for(folder, block_size=16, **options))
    several: CpuRunner = Pipeline(config_for(folder, block_size=16, pipeline_parallel_size=stages, **options))  # type: ignore[assignment]
    expected = Driver(one).run(sequences())
    assert Driver(several, preempt=0.1, seed=2).run(sequences()) == expected
    assert Driver(several, steady=True, seed=3).run(sequences()) == expected, "steps of the same rows, too"


@pytest.mark.parametrize("kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS)])
def test_stages_say_what_one_says(checkpoints: Folders, kind: str) -> None:
    check_alike(checkpoints(kind), 3 if kind == "llama_tied" else 2)


def of_internlm2(checkpoints: Folders, folder: Path) -> Path:
    internlm2.convert(checkpoints("llama"), folder / "made")
    return folder / "made"


def of_mimo(checkpoints: Folders, folder: Path) -> Path:
    qwen2 = checkpoints("qwen2")
    return heads.write_mimo(folder / "made", qwen2, heads.mtp(qwen2))


def of_ling(checkpoints: Folders, folder: Path) -> Path:
    return ling.first(checkpoints, folder)[1]


def of_ling_2(checkpoints: Folders, folder: Path) -> Path:
    return ling.second(checkpoints, folder)[1]


@pytest.mark.slow
@pytest.mark.parametrize("make", [of_internlm2, of_mimo, of_ling, of_ling_2])
def test_families_that_transformers_does_not_have(
    checkpoints: Folders, tmp_path: Path, make: Callable[[Folders, Path], Path]
) -> None:
    check_alike(make(checkpoints, tmp_path), 2)


@pytest.mark.parametrize(
    "options", [{"quantization": "int8"}, {"deterministic": True}, {"kv_cache_dtype": "turboquant_4bit_nc"}]
)
def test_whatever_the_weights_are_kept_in(checkpoints: Folders, options: dict[str, object]) -> None:
    check_alike(checkpoints("llama"), 2, **options)


@pytest.mark.usefixtures("native_kernels")
@pytest.mark.parametrize("form", ["Q4_K", "F16"])
def test_gguf_files_by_kernels_of_our_own(
    checkpoints: Folders, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights in 4 bits are multiplied as they are; what a step computes at once is a stage's layers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_with_kernels(tmp_path / "cache")))
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 3, "initializer_range": 0.15}
    folder = checkpoints("llama", **sizes)
    convert(folder, tmp_path / "model.gguf", lambda name: form)
    check_alike(tmp_path / "model.gguf", 2)
    if form == "F16":
        check_alike(folder, 2)


def test_a_stage_has_its_own_weights_and_layers(checkpoints: Folders) -> None:
    """And no others'."""
    several = Pipeline(config_for(checkpoints("llama_tied"), pipeline_parallel_size=3))
    first, middle, last = several.stages
    assert [len(stage.model.layers) for stage in several.stages] == [1, 1, 1]  # type: ignore[attr-defined]
    assert first.model.embeddings.numel() and not middle.model.embeddings.numel()  # type: ignore[attr-defined]
    assert isinstance(first, EarlyStageRunner) and isinstance(middle, EarlyStageRunner)
    with pytest.raises(AssertionError, match="the last stage"):
        middle.model.logits(torch.zeros(1, 64))
    assert last.model.logits(torch.zeros(1, 64)).shape == (1, VOCABULARY)


@pytest.mark.parametrize(
    ("layers", "head", "stages", "ends"),
    [
        ([10] * 26, 40, 4, [8, 16, 24, 26]),
        ([10] * 4, 0, 2, [2, 4]),
        ([10] * 3, 5, 3, [1, 2, 3]),
        ([1, 1, 1], 100, 2, [2, 3]),
        ([50, 1, 1, 1], 0, 2, [1, 4]),
        ([1, 1, 50], 0, 3, [1, 2, 3]),
    ],
)
def test_how_layers_are_divided(layers: list[int], head: int, stages: int, ends: list[int]) -> None:
    """So that the largest stage, and the last has what makes logits, is as small as can be; none is empty."""
    assert divide(layers, head, stages) == ends


def test_windows_have_tables_where_all_stages_have_as_many(checkpoints: Folders) -> None:
    """One block table and one budget are for all; blocks are those of one worker with as much memory."""
    config = make_config({"block_size": 8, "max_num_batched_tokens": 16, "pipeline_parallel_size": 2})
    alike = {"num_hidden_layers": 4, "layer_types": ["full_attention", "sliding_attention"] * 2}
    unlike = {**alike, "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"]}
    for changes, may_free in ((alike, True), (unlike, False)):
        folder = checkpoints("gemma3", **changes)
        shape = read_architecture(read_json(folder / "config.json"))
        parts = [stage.kv for stage in worker_shapes(config, shape)]
        plans = plan_stages(parts, config, 2048, 4)
        assert plans.may_free == may_free and {plan.windows is not None for plan in plans.each} == {may_free}
        assert plans.whole.sequence_blocks == plans.each[1].sequence_blocks
        assert plans.whole.block_bytes == sum(plan.block_bytes for plan in plans.each)
    (alone,) = plan_stages([shape.kv], config, 2048, 4, may_free=False).each
    assert plans.whole == alone


def test_more_stages_than_layers_are_refused(checkpoints: Folders) -> None:
    with pytest.raises(ConfigError, match=r"--pipeline-parallel-size: the model has 3 layers, .* at most 3"):
        Pipeline(config_for(checkpoints("llama"), pipeline_parallel_size=4))


NODES = {"master_addr": "node-a", "node_secret_file": "/secret"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"speculative_config": '{"method": "ngram", "num_speculative_tokens": 2}'}, "--speculative-config: not with"),
        ({"kv_offload": "host:64Mi", "nnodes": 2, **NODES}, "--kv-offload: not with --nnodes"),
        ({"enable_lora": True, "nnodes": 2, **NODES}, "--enable-lora: not with --nnodes"),
    ],
)
def test_options_that_do_not_go_with_stages(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_config({"pipeline_parallel_size": 2, **options})
    staged = make_config({"pipeline_parallel_size": 2, "speculative_config": "none"})
    assert not is_by_itself(staged) and not most_drafts(staged)
    with pytest.raises(ConfigError, match="--pipeline-parallel-size: stages are for a CPU"):
        check_device(staged, on_gpu=True)
