"""Whole runners where a GPU is pretended: no tensor of another device, captures that a GPU would take, no wait while a
step is started, and pinned memory that is left alone; and the tokens are a CPU's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from .test_runner import ROWS, GpuDriver, make_gpu_runner, prompt  # isort: skip  # before kernels are imported

from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.info import read_json
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.request import Sampling
from actorserve.actors.protocol.step import NewRow, Step
from actorserve.actors.worker.adapter.hooks import register
from actorserve.actors.worker.adapter.model import Tier
from actorserve.actors.worker.adapter.probe import probe
from actorserve.actors.worker.formats.as_stored import CheckpointBits
from actorserve.actors.worker.gpu import graphs, sampler
from actorserve.actors.worker.gpu.adapted.model import AdaptedGpuModel
from actorserve.actors.worker.gpu.adapted.trial import seen_shape, verify_on_device
from actorserve.actors.worker.gpu.buffers import Sizes
from actorserve.actors.worker.gpu.graphs import no_collection
from actorserve.actors.worker.gpu.layers.fused import FusedLayers
from actorserve.actors.worker.gpu.lora.sites import GpuLoraSites
from actorserve.actors.worker.gpu.runner import GpuRunner
from actorserve.actors.worker.logprobs import CHUNK, LogprobsWriter, pack_records
from actorserve.actors.worker.models.sharding import Alone
from actorserve.actors.worker.models.weights import read_parts
from actorserve.kernels.triton.quantised_kv import E4M3
from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.table import make_ref
from tests.support.gpu import pretended_device
from tests.support.gpu.pretended_device import OnDevice, PretendedDevice, on_the_host, pretended
from tests.support.models import heads
from tests.support.models.census import write_tiny
from tests.support.models.greedy import assert_greedy, reference
from tests.support.models.weight_formats import write
from tests.support.selection import slow

from ..driver import GREEDY, LENGTH, Driver, Sequence, config_for, make_runner
from ..speculative.test_blocks import case
from . import test_blocks, test_medusa, test_recurrent, test_runner
from .adapted import test_states as of_states
from .test_drafts import CIRCLE, LOOKUP

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is one that need not be pretended")

Folders = Callable[..., Path]
PACKED = ["awq", "gptq", "gptq_3", "w4a16", "w4a16_zero_points", "w8a8", "fp8", "mxfp4", "nvfp4"]
ONE_LAYER = {"num_hidden_layers": 1}
TWO_KINDS = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
SAMPLINGS = [
    Sampling(0, temperature=0.0),
    Sampling(5, temperature=0.6, top_k=9, top_p=0.9),
    Sampling(0, temperature=0.0, repetition_penalty=1.4, logit_bias=[(5, 2.0)], allowed_token_ids=[*range(3, 90)]),
]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedDevice]:
    with pretended() as found:
        for module in (test_runner, test_recurrent, test_medusa, test_blocks, of_states):
            monkeypatch.setattr(module, "DEVICE", pretended_device.DEVICE)
        monkeypatch.setattr(graphs, "MEASURED", 1)  # in the interpreter each takes seconds
        yield found


def hurried(runner: GpuRunner, device: PretendedDevice) -> GpuRunner:
    """Its steps are started without a wait."""
    launch = runner.launch

    def start(step: Step) -> Any:
        with device.hurrying():
            return launch(step)

    runner.launch = start  # type: ignore[method-assign]
    return runner


def sequences(wanted: int = 4) -> list[Sequence]:
    return [Sequence(prompt(9 + 8 * n, n), wanted, sampling) for n, sampling in enumerate(SAMPLINGS)]


@pytest.fixture
def folders(checkpoints: Folders) -> Folders:
    def made(kind: str, **changes: Any) -> Path:
        with on_the_host():
            return checkpoints(kind, **changes)

    return made


def tokens_of_a_cpu(folder: Path, own: list[Sequence]) -> list[list[int]]:
    with on_the_host():
        return Driver(make_runner(config_for(folder, block_size=16), rows=ROWS), seed=5).run(own)


def made(name: str, folder: Path) -> GpuRunner:
    """A runner with graphs of all its steps."""
    config, device = config_for(folder, block_size=16), pretended_device.DEVICE
    if name == "adapters":
        runner = make_gpu_runner(config, capture=True, lora=GpuLoraSites(2, 8, device))
    elif name == "fused":
        runner = make_gpu_runner(config)
        runner.model.fused = FusedLayers.of(runner.model.layers, device)
        assert runner.model.fused is not None
        runner.capture()
    else:
        given: dict[str, Any] = {"deterministic": name.endswith("deterministic")}
        given |= {"lookup": LOOKUP} if "drafts" in name else {}
        given |= {"draft": folder} if name == "drafts of a model" else {}
        runner = make_gpu_runner(config, capture=True, **given)
    return runner


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("qwen3", ONE_LAYER),
    "deterministic": ("qwen3", ONE_LAYER),
    "others, deterministic": ("gemma3", TWO_KINDS),
    "experts": ("qwen3_moe", ONE_LAYER),
    "sinks and experts": ("gpt_oss", TWO_KINDS),
    "latents": ("deepseek_v3", {"num_hidden_layers": 2}),
    "chunks": ("llama4", {"num_hidden_layers": 2, "no_rope_layer_interval": 2}),
    "fused": ("qwen3", ONE_LAYER),
    "drafts of n-grams": ("qwen3", ONE_LAYER),
    "drafts of a model": ("qwen3", ONE_LAYER),
    "adapters": ("qwen3", ONE_LAYER),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_steps_by_graphs(name: str, folders: Folders, device: PretendedDevice) -> None:
    """What they will take is measured first, by graphs that go."""
    kind, changes = KINDS[name]
    folder = folders(kind, **changes)
    runner = made(name, folder)
    assert isinstance(runner.sampler.normed, OnDevice)
    runner.own_bytes(lambda: 0)
    own = sequences(8 if "drafts" in name else 4)
    if name == "drafts of n-grams":
        own[0].prompt = CIRCLE
    driver = GpuDriver(hurried(runner, device), preempt=0.03, seed=6, drafts=runner.sizes.drafts)
    found = driver.run([Sequence(one.prompt, one.wanted, one.sampling) for one in own])
    assert (driver.drafted > 0) == ("drafts" in name)
    assert found == tokens_of_a_cpu(folder, own)


def test_steps_without_graphs(folders: Folders, device: PretendedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """As --enforce-eager has them; keys and values of 8 bits. Logprobs of a long prompt, which take more memory than
    those of all rows where rows are few, are tried, too."""
    told: list[int] = []

    def packed(logits: torch.Tensor, *given: Any) -> torch.Tensor:
        told.append(len(logits))
        return pack_records(logits, *given)

    monkeypatch.setattr(sampler, "pack_records", packed)
    config = config_for(folders("qwen3", **ONE_LAYER), block_size=16)
    runner = make_gpu_runner(config, graphs=False, kind=E4M3)
    runner.profile_steps()
    assert set(told) == {CHUNK} and ROWS < CHUNK
    assert all(map(len, GpuDriver(hurried(runner, device), seed=6).run(sequences(2))))


def test_layers_of_transformers(tmp_path: Path, device: PretendedDevice) -> None:
    """They are tried there, and compute there what a CPU does, by graphs of all steps: these do nothing for which the
    host would wait."""
    with on_the_host():
        write_tiny("opt", tmp_path / "opt", num_hidden_layers=1)
        config = config_for(tmp_path / "opt", block_size=16, model_impl="transformers")
        register()
        whole = reference(tmp_path / "opt")
        traits = probe(whole, LENGTH)
        shape = seen_shape(whole, traits)
    assert verify_on_device(whole, pretended_device.DEVICE).traits.kv == traits.kv
    own = copy.deepcopy(whole).to(pretended_device.DEVICE)
    model = AdaptedGpuModel(own, traits, shape, torch.float32, pretended_device.DEVICE, eager=False)
    runner = hurried(make_gpu_runner(config, capture=True, model=model), device)
    asked = [Sequence(prompt(9 + 8 * n, n), 3) for n in range(2)]
    found = GpuDriver(runner, seed=6).run([Sequence(one.prompt, one.wanted) for one in asked])
    with on_the_host():
        assert_greedy(whole, [one.prompt for one in asked], found, 3)


@pytest.mark.parametrize("graphs", [True, *slow(False)])
@pytest.mark.parametrize("kind", ["mamba2", *slow("qwen3_5_text")])
def test_states(kind: str, graphs: bool, tmp_path: Path, device: PretendedDevice) -> None:
    """They are there, as what says whose they are, and rows go on from copies of them; beside a row that begins with
    its only token, too, and in graphs that are filled up."""
    with on_the_host():
        write_tiny(kind, tmp_path / kind, **of_states.FIELDS.get(kind, {}))
        register()
        whole = reference(tmp_path / kind)
    traits = verify_on_device(whole, pretended_device.DEVICE).traits
    with on_the_host():
        shape = seen_shape(whole, traits)
    own = copy.deepcopy(whole).to(pretended_device.DEVICE)
    eager = not graphs
    model = AdaptedGpuModel(own, traits, shape, torch.float32, pretended_device.DEVICE, Tier.ROWS, eager)
    sizes = Sizes(ROWS, test_runner.TOKENS, LENGTH, 16)
    log = np.zeros((ROWS, LENGTH), np.int32)
    stateful = of_states.make_stateful(model, log, sizes, test_runner.BLOCKS, 2)
    if graphs:
        stateful.own_bytes(lambda: 0)
        stateful.capture()
    runner, decoding = hurried(stateful, device), Mock(wraps=stateful.decoding.step)
    runner.decoding.step = decoding  # type: ignore[method-assign]
    asked = prompt(37, 1)
    log[0, :37], log[1, 0] = asked, 7
    place = make_ref(1, 0), 37, 37
    first = NewRow.make(2, *place, 0, [3, 4, 5], GREEDY)
    runner.run(Step.make(1, 1, [first], [2], [32], saves=[(2, 1)]))
    other = NewRow.make(0, *place, 32, [3, 4, 6], GREEDY, snapshot=1)
    tokens = [runner.run(Step.make(1, 2, [other], [2, 0], [5, 5])).tolist()]
    tokens += [runner.run(Step.make(1, number, [], [2, 0], [1, 1])).tolist() for number in (3, 4)]
    assert all(one == two for one, two in tokens)
    third = NewRow.make(1, make_ref(1, 1), 1, 1, 0, [7], GREEDY)
    first_of_third = runner.run(Step.make(1, 5, [third], [2, 0, 1], [1, 1, 1])).tolist()
    then = runner.run(Step.make(1, 6, [], [2, 0, 1], [1, 1, 1])).tolist()
    replayed = [call.args[0] for call in decoding.call_args_list]
    assert replayed == ([2, 2, 4] if graphs else []), "not where a row has no states yet"
    answers = [[*(one for one, _ in tokens), first_of_third[0], then[0]], [first_of_third[2], then[2]]]
    with on_the_host():
        assert_greedy(whole, [asked], answers[:1], 5)
        assert_greedy(whole, [[7]], answers[1:], 2)


@pytest.mark.parametrize("name", ["eagle3", "eagle", "mtp", "dflash", "medusa"])
@pytest.mark.slow
def test_heads(name: str, checkpoints: Folders, tmp_path: Path, device: PretendedDevice) -> None:
    config, make = made_head(name, checkpoints, tmp_path)
    runner = make()
    runner.own_bytes(lambda: 0)
    own = [Sequence(prompt(5, 4), 6), Sequence(prompt(20, 2), 6)]
    driver = GpuDriver(hurried(runner, device), seed=6, drafts=3)
    found = driver.run([Sequence(one.prompt, one.wanted) for one in own])
    with on_the_host():
        assert found == Driver(make_runner(config, rows=ROWS), seed=5).run(own) and driver.drafted


def made_head(name: str, checkpoints: Folders, folder: Path) -> tuple[Config, Callable[[], Any]]:
    """The options, and what makes the runner, graphs and all."""
    with on_the_host():
        if name == "dflash":
            config = case(checkpoints, folder / "head", 3).config
            return config, lambda: test_blocks.make_blocks(config, graphs=True)
        if name == "medusa":
            own, target = folder / "heads", checkpoints("qwen3", **ONE_LAYER)
            heads.write_medusa(own, heads.medusa(target, heads=test_medusa.DRAFTS))
            several = test_medusa.Case(target, test_medusa.config_with(target, own), None)  # type: ignore[arg-type]
            return several.config, lambda: test_medusa.make_medusa(several, graphs=True)
        one = test_recurrent.make_case(name, checkpoints, folder, echoes=True)
        return one.config, lambda: test_recurrent.make_recurrent(one, graphs=True)


def test_logprobs(folders: Folders, device: PretendedDevice) -> None:
    """Of prompts, of what is drawn and drawn from, and of words that are listed: steps are started without a wait."""
    runner = make_gpu_runner(config_for(folders("qwen3", **ONE_LAYER), block_size=16))
    area = Logprobs(Logprobs.create(ROWS, LENGTH), ROWS, LENGTH)
    runner.log = np.zeros((ROWS, LENGTH), np.int32)
    runner.sampler.logprobs = LogprobsWriter(area, ROWS)
    asked = Sampling(0, temperature=0.0, logprobs=2, prompt_logprobs=1, logprob_token_ids=[4, 7])
    reshaped: dict[str, Any] = {"xtc_probability": 1.0, "xtc_threshold": 0.01, "dynatemp_range": 0.5}
    drawn = {"top_k": 20, "top_p": 0.9, "top_n_sigma": 1.0, "typical_p": 0.9, "presence_penalty": 1.0, **reshaped}
    as_drawn = Sampling(3, logprobs=2, post_sampling_probs=True, **drawn)
    both = [Sequence(prompt(19, 1), 3, asked), Sequence(prompt(8, 2), 3, as_drawn)]
    GpuDriver(hurried(runner, device), seed=2).run(both)
    told = [area.read(0, position, 1)[0] for position in range(1, 22)]
    assert all(logprob < 0 for _, logprob in told) and all(rank > 0 for rank, _ in told)
    told = [area.read(1, position, 1)[0] for position in range(8, 11)]
    assert all(-5 < logprob <= 0 for _, logprob in told) and all(rank > 0 for rank, _ in told)


def test_steps_ahead(folders: Folders, device: PretendedDevice) -> None:
    """Buffers of steps under way are not touched, and their tokens are looked at when they are there. What graphs will
    take is measured first, by some that go."""
    folder = folders("qwen3", **ONE_LAYER)
    runner = make_gpu_runner(config_for(folder, block_size=16))
    runner.own_bytes(lambda: 0)
    runner.capture()
    runner = hurried(runner, device)
    ids = prompt(9, 0)
    runner.log[0, : len(ids)] = ids
    new = NewRow.make(0, make_ref(1, 0), len(ids), len(ids), 0, [3], GREEDY)
    started = [runner.launch(Step.make(1, 1, [new], [0], [len(ids)]))]
    started += [runner.launch(Step.make(1, 2 + n, [], [0], [1])) for n in range(3)]
    found = [int(runner.finish(pending)[0]) for pending in started]
    assert [found] == tokens_of_a_cpu(folder, [Sequence(ids, 4)])


@pytest.mark.parametrize("name", PACKED)
def test_weights_are_put_in_order_on_the_device(
    name: str, folders: Folders, tmp_path: Path, device: PretendedDevice
) -> None:
    """As the checkpoint has them they go there; the same bits as on a CPU."""
    with on_the_host():
        packed, _ = write(folders("qwen3", initializer_range=0.1, num_hidden_layers=2), name, tmp_path)
        shape = read_architecture(read_json(packed / "config.json"), quantization="none")
        wanted = CheckpointBits(packed, shape, Alone(0, 2), False, read_parts)
    bits = CheckpointBits(packed, shape, Alone(0, 2), False, read_parts, pretended_device.DEVICE)
    layer = shape.layer_at(0)
    for linears in (layer.qkv, layer.gate_up):
        found = bits.of(linears, lambda: torch.empty(0))
        with on_the_host():
            own = wanted.of(linears, lambda: torch.empty(0))
        assert len(found) == len(own) > 0
        for one, other in zip(found, own, strict=True):
            for part, same in zip(one, other, strict=True):
                if isinstance(same, torch.Tensor):
                    assert isinstance(part, OnDevice) and torch.equal(part.held, same)
                else:
                    assert part == same


def test_what_is_found(device: PretendedDevice) -> None:
    """Each thing that it is there to find."""
    there = torch.zeros(4, device=pretended_device.DEVICE)
    with pytest.raises(AssertionError, match="on the host"):
        there.add_(torch.ones(4))
    with device.hurrying():
        for wait in (lambda: int(there[0]), there.cpu, lambda: there.copy_(torch.ones(4)), lambda: there[there > 0]):
            with pytest.raises(AssertionError, match="waits for the device"):
                wait()
    pinned = torch.ones(4).pin_memory()
    there.copy_(pinned, non_blocking=True)
    pinned.fill_(2)
    with pytest.raises(AssertionError, match="written to while"):
        torch.cuda.synchronize()
    pinned.copy_(there, non_blocking=True)
    assert pinned.tolist() != [1.0] * 4
    torch.cuda.synchronize()
    assert pinned.tolist() == [1.0] * 4
    pool, graph = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
    with no_collection(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        there.add_(1)
        with pytest.raises(AssertionError, match="within a capture"):
            there.sum().item()
    graph.replay()
    assert there.cpu().tolist() == [3.0] * 4
    del graph
    again: Any = torch.cuda.graph(torch.cuda.CUDAGraph(), pool=pool, capture_error_mode="thread_local")
    with pytest.raises(AssertionError, match="all gone"), no_collection(), again:
        pass
