"""Rows with adapters of all kinds in one flat batch: what PEFT computes of each alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.lora.adapter import AdapterError, read_adapter
from actorserve.actors.options.config import Config
from actorserve.actors.worker.cpu.batch import BlockTables, prepare_inputs
from actorserve.actors.worker.cpu.decoder import Decoder
from actorserve.actors.worker.cpu.layers import native
from actorserve.actors.worker.cpu.memory.kv_memory import kv_type
from actorserve.actors.worker.lora.sites import RowAdapters
from actorserve.actors.worker.lora.start import make_maker
from actorserve.actors.worker.memory import make_pools
from actorserve.actors.worker.models.weights import load_decoder
from actorserve.kernels.cpu.paged_kv import PagedKV
from tests.support.models.adapters import KINDS, LINEARS, logprobs_of, write_adapter
from tests.support.models.checkpoints import VOCABULARY
from tests.support.selection import slow

from ..driver import config_for

Folders = Callable[..., Path]
BLOCKS, BLOCK = 8, 32


class Bench:
    """A model with its adapters, and one block for each row."""

    def __init__(self, folder: Path, adapters: Sequence[Path], **options: object) -> None:
        self.config: Config = config_for(folder, enable_lora=True, **options)
        native.start(self.config.cpu_kernels, 1)
        info = resolve_model(self.config)
        self.model: Decoder = load_decoder(self.config, info)
        self.maker = make_maker(self.config, info, self.model)
        loaded = {
            number: self.maker.make(read_adapter(str(path), self.config.max_lora_rank))
            for number, path in enumerate(adapters, 1)
        }
        self.rows = RowAdapters(self.maker.sites, loaded, BLOCKS)
        pools = make_pools(self.model.kv, BLOCKS, BLOCK, kv_type(self.config, self.model))
        library = native.current()
        self.kv = PagedKV(self.model.kv, pools, BLOCK, self.model.batch_invariant, self.model.dtype, library)

    def logprobs(self, texts: Sequence[tuple[int, list[int]]]) -> list[Tensor]:
        """Of (adapter, ids) in one flat batch; 0: none."""
        rows, counts = np.arange(len(texts)), np.array([len(ids) for _, ids in texts])
        for row, (adapter, _) in enumerate(texts):
            self.rows.place(row, adapter)
        tables = BlockTables(np.arange(BLOCKS)[:, None], np.zeros(BLOCKS, np.bool_))
        ids = np.concatenate([ids for _, ids in texts])
        with torch.inference_mode():
            inputs = prepare_inputs(self.model.attention, self.kv, tables, rows, counts, np.zeros_like(rows), ids)
            self.rows.begin(rows, counts)
            hidden = inputs.forward(self.model, self.kv)
            with self.rows.drawing():
                logits = self.model.logits(hidden)
        return list(logits.log_softmax(-1).split(counts.tolist()))


def text(seed: int, length: int = 12) -> list[int]:
    return list(np.random.default_rng(seed).integers(3, VOCABULARY, length).tolist())


def off(found: Tensor, wanted: Any) -> float:
    return float((found - wanted).abs().max())


@pytest.fixture
def kernels() -> Any:
    yield
    native.stop()


@pytest.mark.parametrize("options", [{}, *slow({"cpu_kernels": "torch"}), {"model_impl": "transformers"}], ids=str)
def test_all_kinds_in_one_batch(options: dict[str, str], checkpoints: Folders, tmp_path: Path, kernels: None) -> None:
    """Rows of one adapter need not stand together, and a row without one has the bits that it has without any."""
    folder = checkpoints("qwen3", initializer_range=0.1)
    paths = [
        write_adapter(folder, tmp_path / kind, seed, **config) for seed, (kind, config) in enumerate(KINDS.items())
    ]
    bench = Bench(folder, paths, **options)
    texts = [(number % (len(paths) + 1), text(number, 9 + number)) for number in range(8)]
    found = bench.logprobs(texts)
    for (adapter, ids), own in zip(texts, found, strict=True):
        assert off(own, logprobs_of(folder, paths[adapter - 1] if adapter else None, ids)) < 1e-5
    alone = bench.logprobs([(0, ids) for _, ids in texts])
    assert torch.equal(alone[0], found[0])
    assert off(alone[1], found[1]) > 0.01


@pytest.mark.parametrize(
    "options", [{}, {"quantization": "int8"}, {"model_impl": "transformers"}, *slow({"cpu_kernels": "torch"})], ids=str
)
def test_layers_that_are_computed_as_a_whole(
    options: dict[str, str], checkpoints: Folders, tmp_path: Path, kernels: None
) -> None:
    """A step of few tokens goes through all layers in one call; a row has the bits there that it has in larger ones."""
    folder = checkpoints("qwen3", initializer_range=0.1)
    kinds = ("plain", "rslora", "patterns", "some")
    paths = [write_adapter(folder, tmp_path / kind, seed, **KINDS[kind]) for seed, kind in enumerate(kinds)]
    bench = Bench(folder, paths, **options)
    texts = [(number, text(number, 5)) for number in (3, 0, 1, 4, 1, 2)]
    few, many = bench.logprobs(texts), bench.logprobs([*texts, (2, text(7, 31)), (0, text(8, 30))])
    for number, ((adapter, ids), own) in enumerate(zip(texts, few, strict=True)):
        if "quantization" not in options:
            assert off(own, logprobs_of(folder, paths[adapter - 1] if adapter else None, ids)) < 1e-5
        if not options.keys() & {"model_impl", "cpu_kernels"}:
            assert torch.equal(own, many[number])


FAMILIES = [
    ("llama_biased", LINEARS),
    pytest.param("phi3", ["qkv_proj", "gate_up_proj", *LINEARS], marks=pytest.mark.slow),
    pytest.param("glm4", ["q_proj", "v_proj", "gate_up_proj"], marks=pytest.mark.slow),
    pytest.param("gemma2", LINEARS, marks=pytest.mark.slow),
    pytest.param("olmo2", LINEARS, marks=pytest.mark.slow),
    pytest.param("granite", LINEARS, marks=pytest.mark.slow),
    ("deepseek_v3", ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]),
    pytest.param("qwen3_moe", ["q_proj", "k_proj", "v_proj", "o_proj"], marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "modules"), FAMILIES)
def test_families(kind: str, modules: list[str], checkpoints: Folders, tmp_path: Path, kernels: None) -> None:
    """Fused layers, biases, norms behind, latents; with and without DoRA."""
    folder = checkpoints(kind, initializer_range=0.06)
    given: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": modules}
    paths = [
        write_adapter(folder, tmp_path / "lora", 1, safe=False, **given),
        write_adapter(folder, tmp_path / "dora", 2, use_dora=True, **given),
    ]
    texts = [(1, text(1)), (0, text(2)), (2, text(3)), (2, text(4, 3)), (1, text(5, 1))]
    for (adapter, ids), own in zip(texts, Bench(folder, paths).logprobs(texts), strict=True):
        assert off(own, logprobs_of(folder, paths[adapter - 1] if adapter else None, ids)) < 1e-5


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantised_weights(quantization: str, checkpoints: Folders, tmp_path: Path, kernels: None) -> None:
    """A row has the same bits alone and in a batch, and is as near to PEFT's as the model is to its own weights."""
    folder = checkpoints("llama", initializer_range=0.1)
    paths = [write_adapter(folder, tmp_path / kind, 1, **KINDS[kind]) for kind in ("rslora", "dora")]
    texts = [(1, text(1)), (0, text(1)), (2, text(1))]
    bench = Bench(folder, paths, quantization=quantization)
    found = bench.logprobs(texts)
    for own, one in zip(found, texts, strict=True):
        assert torch.equal(own, bench.logprobs([one])[0])
    apart = min(off(found[1], found[0]), off(found[1], found[2]))
    assert apart > 0.1
    if quantization == "int8":
        each = zip(found, [paths[0], None, paths[1]], strict=True)
        assert max(off(own, logprobs_of(folder, path, text(1))) for own, path in each) < apart / 5


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "falcon", "bloom"])
@pytest.mark.slow
def test_models_of_transformers(kind: str, tmp_path: Path, kernels: None) -> None:
    """Conv1D, fused layers, ways to compute a step that go row by row."""
    from tests.support.models.census import write_tiny

    modules = {"gpt2": ["c_attn", "c_proj", "c_fc"], "gpt_neox": ["query_key_value", "dense_h_to_4h"]}
    folder = tmp_path / kind
    write_tiny(kind, folder)
    given: dict[str, Any] = {"r": 4, "lora_alpha": 8, "fan_in_fan_out": kind == "gpt2"}
    given["target_modules"] = modules.get(kind, ["query_key_value", "dense_4h_to_h"])
    paths = [
        write_adapter(folder, tmp_path / "lora", 1, **given),
        write_adapter(folder, tmp_path / "dora", 2, use_dora=True, **given),
    ]
    texts = [(1, text(1)), (0, text(2)), (2, text(3))]
    for (adapter, ids), own in zip(texts, Bench(folder, paths).logprobs(texts), strict=True):
        assert off(own, logprobs_of(folder, paths[adapter - 1] if adapter else None, ids)) < 2e-5


def test_what_does_not_fit_the_model(checkpoints: Folders, tmp_path: Path, kernels: None) -> None:
    """By the name of the layer, or of the tensor with its shape."""
    other = checkpoints("llama", hidden_size=96)
    wrong = write_adapter(other, tmp_path / "wrong", **KINDS["plain"])
    tables = write_adapter(other, tmp_path / "tables", r=4, target_modules=["embed_tokens"])
    bench = Bench(checkpoints("llama"), [])
    with pytest.raises(AdapterError, match=r"q_proj\.lora_A\.weight is \[4, 96\]; the model needs \[4, "):
        bench.maker.check(read_adapter(str(wrong), 64))
    with pytest.raises(AdapterError, match=r"embed_tokens\S* is not supported: only lora_A, lora_B"):
        read_adapter(str(tables), 64)


def test_what_makes_logits_is_the_models(checkpoints: Folders, tmp_path: Path, kernels: None) -> None:
    """PEFT stores its weight beside its changes; another weight there is not taken."""
    folder = checkpoints("llama", initializer_range=0.1)
    path = write_adapter(folder, tmp_path / "head", **KINDS["head"])
    bench, file = Bench(folder, []), path / "adapter_model.safetensors"
    stored = load_file(file)
    (name,) = [key for key in stored if key.endswith("lm_head.base_layer.weight")]
    assert bench.maker.make(read_adapter(str(path), 64))
    for changed, reason in (
        (stored[name] * 1.1, "is another than the model's"),
        (stored[name][:-1].contiguous(), r"is \[383, 64\]; the model has \[384, 64\]"),
    ):
        save_file(stored | {name: changed}, file)
        with pytest.raises(AdapterError, match=reason):
            bench.maker.make(read_adapter(str(path), 64))
