"""Adapters on a GPU: rows with some of each kind, and with none, against PEFT; on a GPU where there is one, else in the
interpreter."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from collections.abc import Sequence as Several
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.actors.model.config_json import read_architecture  # noqa: E402
from actorserve.actors.model.info import read_json, resolve_model  # noqa: E402
from actorserve.actors.model.lora.adapter import AdapterError, read_adapter  # noqa: E402
from actorserve.actors.options.config import Config  # noqa: E402
from actorserve.actors.protocol.request import Sampling  # noqa: E402
from actorserve.actors.worker.gpu import load as gpu_load  # noqa: E402
from actorserve.actors.worker.gpu.layers import scratch  # noqa: E402
from actorserve.actors.worker.gpu.layers.stored import StoredGpuLinear  # noqa: E402
from actorserve.actors.worker.gpu.lora.resident import GpuLayout, SlotAdapters  # noqa: E402
from actorserve.actors.worker.gpu.lora.start import make_maker, make_sites  # noqa: E402
from actorserve.actors.worker.gpu.runner import GpuRunner  # noqa: E402
from actorserve.actors.worker.logprobs import LogprobsWriter  # noqa: E402
from actorserve.actors.worker.lora.build import AdapterMaker  # noqa: E402
from actorserve.actors.worker.lora.sites import RowAdapters  # noqa: E402
from actorserve.actors.worker.lora.start import make_maker as make_cpu_maker  # noqa: E402
from actorserve.actors.worker.lora.start import native_layout  # noqa: E402
from actorserve.actors.worker.models.weights import open_weights  # noqa: E402
from actorserve.kernels.triton.drafts import Lookup  # noqa: E402
from actorserve.shm.table.logprobs import Logprobs  # noqa: E402
from tests.support.models.adapters import KINDS, LINEARS, logprobs_of, write_adapter  # noqa: E402
from tests.support.models.weight_formats import write  # noqa: E402

from ..driver import LENGTH, Driver, Sequence, config_for, make_runner  # noqa: E402
from .test_runner import ROWS, GpuDriver, make_gpu_runner, prompt  # noqa: E402

Folders = Callable[..., Path]
OFF = 1e-4


class Scene:
    """A runner whose slots have these adapters, by ids from 1 on."""

    def __init__(
        self, folder: Path, adapters: Several[Path], slots: int, few_bits: Path | None = None, **options: Any
    ) -> None:
        """`few_bits`: the same numbers in a checkpoint that has them in these."""
        self.folder, self.adapters = folder, adapters
        given = {"block_size": 16, "enable_lora": True, "max_loras": slots, "max_cpu_loras": slots, "max_lora_rank": 8}
        self.config: Config = config_for(few_bits or folder, **given)
        sites = make_sites(self.config, DEVICE)
        assert sites is not None
        if few_bits is not None:
            options["model"] = gpu_load.load_model(self.config, resolve_model(self.config), DEVICE, lora=sites)
        self.runner: GpuRunner = make_gpu_runner(self.config, lora=sites, **options)
        self.maker = make_maker(self.config, resolve_model(self.config), self.runner.model)
        assert self.runner.adapted is not None
        self.slots = self.runner.adapted.slots
        for number, path in enumerate(adapters, 1):
            self.load(number, path)
        self.area = Logprobs(Logprobs.create(ROWS, LENGTH), ROWS, LENGTH)
        self.runner.sampler.logprobs = LogprobsWriter(self.area, ROWS)

    def load(self, adapter: int, path: Path) -> None:
        slot = self.slots.take(adapter)
        assert slot is not None
        with torch.inference_mode():
            self.slots.write(slot, self.maker.make(read_adapter(str(path), self.config.max_lora_rank)))

    def check(self, sequences: list[Sequence], **drive: Any) -> GpuDriver:
        """What they say has the logprobs that PEFT finds."""
        driver = GpuDriver(self.runner, **drive)
        driver.run(sequences)
        for slot, sequence in enumerate(sequences):
            ids = sequence.prompt + sequence.tokens
            path = self.adapters[sequence.adapter - 1] if sequence.adapter else None
            exact = logprobs_of(self.folder, path, ids)
            first = 1 if sequence.sampling.prompt_logprobs > 0 else len(sequence.prompt)
            for position in range(first, len(ids)):
                rank, found = self.area.read(slot, position, 0)[0]
                assert rank > 0 and abs(found - float(exact[position - 1, ids[position]])) < OFF, (slot, position)
        return driver


def written(folder: Path, target: Path, kinds: Several[str]) -> list[Path]:
    return [write_adapter(folder, target / kind, seed, **KINDS[kind]) for seed, kind in enumerate(kinds)]


def counted_steps(runner: GpuRunner) -> list[bool]:
    """Of forward passes whether they have adapters, as they come; each is by a graph."""
    found: list[bool] = []
    assert runner.adapted is not None
    for of in (runner, runner.adapted):
        for kind in (of.decoding, of.mixed):

            def step(size: Any, graphs: Any = kind._graphs, adapted: bool = of is not runner) -> None:
                found.append(adapted)
                graphs[size].replay()

            kind.step = step  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize(
    "kinds",
    [("rslora", "dora"), pytest.param(("plain", "rslora", "dora", "patterns", "some"), marks=pytest.mark.slow)],
    ids=len,
)
def test_all_kinds_in_one_batch_by_graphs(checkpoints: Folders, tmp_path: Path, kinds: Several[str]) -> None:
    """Chunks and decoding mixed at random. Graphs know neither which slots there are nor what they hold: an adapter
    takes the slot of another behind their capture; steps without any adapter have graphs of their own."""
    few = len(kinds) == 2
    folder = checkpoints("qwen3", initializer_range=0.1, num_hidden_layers=1 if few else 2)
    paths = written(folder, tmp_path, kinds)
    scene = Scene(folder, paths[:-1], len(paths) - 1, capture=True)
    assert scene.slots.take(9) is None, "no slot is free"
    steps = counted_steps(scene.runner)
    told = Sampling(0, temperature=0.0, logprobs=1)
    scene.check([Sequence(prompt(5 + 4 * n, n), 2, told, adapter=n) for n in range(len(paths))], preempt=0.05, seed=3)
    assert any(steps)
    scene.slots.give_up(1)
    scene.adapters = paths
    scene.load(len(paths), paths[-1])
    scene.check([Sequence(prompt(9, 7 + n), 2, told, adapter=n * len(paths)) for n in range(2)])
    steps.clear()
    scene.check([Sequence(prompt(9, 7), 2, told)])
    assert steps and not any(steps), "without adapters they are as if there were none"


@pytest.mark.parametrize("name", ["awq", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fp8", "nvfp4"))])
def test_a_base_of_few_bits(name: str, checkpoints: Folders, tmp_path: Path) -> None:
    """Adapters add to products with the bits of a checkpoint, and DoRA's gains are of what these mean."""
    packed, plain = write(checkpoints("qwen3", initializer_range=0.1, num_hidden_layers=2), name, tmp_path)
    paths = written(plain, tmp_path, ("rslora", "dora"))
    scene = Scene(plain, paths, 2, few_bits=packed, capture=True)
    base: Any = scene.runner.model.layers[0].qkv
    assert isinstance(base.base, StoredGpuLinear)
    told = Sampling(0, temperature=0.0, logprobs=1)
    scene.check([Sequence(prompt(size, size), 2, told, adapter=n) for n, size in enumerate((9, 80, 17))], seed=3)


def test_a_long_row_is_divided_with_adapters_too(
    checkpoints: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By graphs of its own, of which it has the same as without."""
    monkeypatch.setattr(scratch, "LONG", 16)
    folder = checkpoints("qwen3", initializer_range=0.1, num_hidden_layers=1)
    scene, sizes = Scene(folder, written(folder, tmp_path, ["rslora"]), 1), list[int]()
    adapted = scene.runner.adapted
    assert adapted is not None and scene.runner._graphs()["decoding, some rows long, adapters"] is adapted.uneven
    run = adapted.uneven.step

    def step(size: int) -> None:
        sizes.append(size)
        run(size)

    monkeypatch.setattr(adapted.uneven, "step", step)
    told = Sampling(0, temperature=0.0, logprobs=1)
    lengths = enumerate((90, 6, 5, 4))
    scene.check([Sequence(prompt(length, length), 8, told, adapter=n % 2) for n, length in lengths])
    assert sizes and set(sizes) <= {2, 4}


def tokens_of_the_cpu(folder: Path, adapters: Several[Path], sequences: list[Sequence]) -> list[list[int]]:
    """What a CPU's worker draws."""
    config = config_for(folder, block_size=16, enable_lora=True)
    runner = make_runner(config, rows=ROWS)
    maker = make_cpu_maker(config, resolve_model(config), runner.model)
    loaded = {number: maker.make(read_adapter(str(path), 64)) for number, path in enumerate(adapters, 1)}
    runner.lora = RowAdapters(maker.sites, loaded, ROWS)
    return Driver(runner, seed=5).run(sequences)


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["drafts", "deterministic", "biases", "shared experts", "other layers", "latents", "eager"]
)
def test_what_a_cpu_draws(checkpoints: Folders, tmp_path: Path, way: str) -> None:
    """Rows with drafts, verified in one step; DoRA over biases; an MLP beside experts; norms behind."""
    kinds = {"biases": "qwen2", "shared experts": "qwen2_moe", "other layers": "gemma2", "latents": "deepseek_v3"}
    kind = kinds.get(way, "qwen3")
    folder = checkpoints(kind, initializer_range=0.1, num_hidden_layers=2)
    modules = LINEARS[:4] if way == "shared experts" else LINEARS
    given: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": modules}
    if way == "shared experts":
        given["target_modules"] = r".*(q_proj|v_proj|shared_expert\.(gate|up|down)_proj)"
    if way == "latents":
        given["target_modules"] = r".*(q_[ab]_proj|kv_a_proj_with_mqa|o_proj)"
    paths = [write_adapter(folder, tmp_path / str(dora), 3, use_dora=dora, **given) for dora in (False, True)]
    length = 24 if way == "drafts" else 4  # until they repeat themselves
    circle = [*[7, 8, 9, 10] * 4, 7, 8]

    def sequences() -> list[Sequence]:
        return [Sequence(circle if n % 2 else prompt(30, n), length, adapter=n % 3) for n in range(5)]

    wanted = tokens_of_the_cpu(folder, paths, sequences())
    options: dict[str, Any] = {"deterministic": way == "deterministic", "graphs": way != "eager"}
    if way == "drafts":
        options["lookup"] = Lookup(1, 4, 3)
    driver = GpuDriver(Scene(folder, paths, 2, **options).runner, preempt=0.05, seed=6, drafts=3 * (way == "drafts"))
    assert driver.run(sequences()) == wanted
    assert (driver.drafted > 0) == (way == "drafts")


def read_until_told(adapters: SlotAdapters, woken: threading.Semaphore) -> list[tuple[int, str]]:
    assert woken.acquire(timeout=60)
    return [(news.adapter, news.problem) for news in adapters.take_read()]


def test_slots_are_taken_waited_for_and_given_up(checkpoints: Folders, tmp_path: Path) -> None:
    """One that cannot be read leaves its slot, and one that was dropped meanwhile; who waits has the next."""
    folder = checkpoints("qwen3", num_hidden_layers=1)
    (good,) = written(folder, tmp_path, ["plain"])
    scene = Scene(folder, [], 1, graphs=False)
    woken = threading.Semaphore(0)
    adapters = SlotAdapters(scene.slots, scene.maker, 8, woken.release)
    adapters.read(1, str(tmp_path / "none"))
    adapters.read(2, str(good))
    assert scene.slots.slot_of == {1: 0}, "the second waits"
    (failed,) = read_until_told(adapters, woken)
    assert failed[0] == 1 and "there is no folder" in failed[1]
    assert scene.slots.slot_of == {2: 0} and read_until_told(adapters, woken) == [(2, "")] and adapters.there == [2]
    adapters.drop(1)  # as the scheduler does of one that it was told of
    adapters.read(3, str(good))
    adapters.read(4, str(good))
    adapters.drop(3)
    adapters.drop(2)
    assert scene.slots.slot_of == {4: 0} and adapters.there == []
    adapters.drop(4)
    adapters.read(4, str(good))  # again: what was read for the first time counts no more
    told = read_until_told(adapters, woken) + read_until_told(adapters, woken)
    assert told == [(4, "")] and adapters.there == [4]


@pytest.mark.parametrize(
    ("kind", "module", "words"),
    [
        ("qwen3", "lm_head", r"lm_head cannot be adapted: what makes logits is not adapted on a GPU \(--device cpu\)"),
        ("qwen3_moe", "experts", r"experts are not adapted on a GPU \(--device cpu\)"),
        ("qwen3_moe", "gate", r"what chooses experts is not adapted"),
        ("deepseek_v2", "kv_b_proj", r"what makes keys and values of latents is not adapted on a GPU"),
    ],
)
def test_what_is_refused_by_name(checkpoints: Folders, tmp_path: Path, kind: str, module: str, words: str) -> None:
    folder = checkpoints(kind, num_hidden_layers=1)
    given: dict[str, Any] = {"target_modules": ["q_proj", module]}
    if module == "experts":
        given = {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.down_proj"]}
    path = write_adapter(folder, tmp_path / "a", 1, r=2, lora_alpha=2, **given)
    scene = Scene(folder, [], 1, graphs=False)
    with pytest.raises(AdapterError, match=words):
        scene.maker.check(read_adapter(str(path), 8))


def test_members_of_a_group_have_their_parts(checkpoints: Folders, tmp_path: Path) -> None:
    """Rows of B, or columns of A, one behind the other; what DoRA makes longer is that of whole weights."""
    folder = checkpoints("qwen3", num_hidden_layers=1, initializer_range=0.1)
    (path,) = written(folder, tmp_path, ["dora"])
    adapter = read_adapter(str(path), 8)
    scene = Scene(folder, [], 1, graphs=False)
    info, whole, sites = resolve_model(scene.config), scene.maker.make(adapter), scene.slots.sites
    parts = []
    for rank in range(2):
        place: Any = SimpleNamespace(rank=rank, size=2)
        shape = read_architecture(read_json(folder / "config.json"))
        own, _ = open_weights(scene.config, info, shape, place)
        layout = native_layout(GpuLayout, scene.config, info, sites, own, place)
        parts.append(AdapterMaker(sites, layout).make(adapter))
    for site in sites.linears:
        one, other, all_of_it = parts[0][site.number], parts[1][site.number], whole[site.number]
        columns_are_cut = site.modules[0].endswith(("o_proj", "down_proj"))
        a = torch.cat([one.a, other.a], 1) if columns_are_cut else one.a
        assert torch.equal(a, all_of_it.a) and one.gain is not None and other.gain is not None
        for mine, yours, together in zip(one.parts, other.parts, all_of_it.parts, strict=True):
            assert torch.equal(mine if columns_are_cut else torch.cat([mine, yours]), together)
        assert all_of_it.gain is not None
        if columns_are_cut:
            assert torch.equal(one.gain, all_of_it.gain) and torch.equal(other.gain, all_of_it.gain)
