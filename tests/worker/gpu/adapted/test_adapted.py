"""Models by layers of transformers on a GPU, in Triton's interpreter where there is none: they draw what transformers
draws, and what cannot be had there is refused by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.actors.model.checks.combinations import check_adapted  # noqa: E402
from actorserve.actors.model.info import resolve_model  # noqa: E402
from actorserve.actors.model.memory.kv import KVSpec, LayerAttention  # noqa: E402
from actorserve.actors.options.config import Config, ConfigError  # noqa: E402
from actorserve.actors.worker import inspection  # noqa: E402
from actorserve.actors.worker.adapter.hooks import Unfit  # noqa: E402
from actorserve.actors.worker.adapter.verify import TOLERANCE, reference_logits, texts_for  # noqa: E402
from actorserve.actors.worker.gpu.adapted import load  # noqa: E402
from actorserve.actors.worker.gpu.adapted.load import load_on_gpu  # noqa: E402
from actorserve.actors.worker.gpu.adapted.model import AdaptedGpuModel  # noqa: E402
from actorserve.actors.worker.gpu.adapted.shape import shape_of  # noqa: E402
from actorserve.actors.worker.gpu.adapted.trial import DeviceTrial, verify_on_device  # noqa: E402
from actorserve.actors.worker.gpu.buffers import Sizes  # noqa: E402
from actorserve.actors.worker.gpu.drafts.speculation import DraftingRunner  # noqa: E402
from actorserve.actors.worker.gpu.memory import make_pools  # noqa: E402
from actorserve.actors.worker.gpu.runner import GpuRunner  # noqa: E402
from actorserve.kernels.triton.drafts import Lookup  # noqa: E402
from actorserve.kernels.triton.quantised_kv import E4M3  # noqa: E402
from tests.support.models.census import write_tiny  # noqa: E402
from tests.support.models.greedy import assert_greedy, reference  # noqa: E402
from tests.support.selection import slow  # noqa: E402

from ...adapter.test_twin import GEMMA4_26B, GEMMA4_E2B  # noqa: E402
from ...driver import LENGTH, Sequence, config_for  # noqa: E402
from ..test_runner import BLOCKS, ROWS, TOKENS, GpuDriver, prompt  # noqa: E402

Folders = Callable[[str], Path]
ROOM = 1 << 30
DRAFTS = 2
# What a tiny model of a kind has otherwise: one layer of heads that pools have wider, or one that sees all and one that
# sees a window; OPT's positions are learned.
FIELDS: dict[str, dict[str, Any]] = {
    "gpt_neox": {"hidden_size": 96, "num_hidden_layers": 1},
    "opt": {"num_hidden_layers": 1},
    "stablelm": {"num_hidden_layers": 1},
    "cohere2": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9},
}
PUBLISHED = {"Gemma 4 26B-A4B": ("gemma4_text", GEMMA4_26B), "Gemma 4 E2B": ("gemma4_text", GEMMA4_E2B)}  # made small


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """kind → the folder of a tiny checkpoint."""
    root = tmp_path_factory.mktemp("adapted")

    def made(name: str) -> Path:
        if not (root / name).exists():
            kind, fields = PUBLISHED.get(name, (name, None))
            write_tiny(kind, root / name, fields, **FIELDS.get(name, {}))
        return root / name

    return made


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *given: (ROOM, ROOM))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *given: (9, 0))


def config_of(folder: Path, **options: Any) -> Config:
    return config_for(folder, **{"block_size": 16, "model_impl": "transformers", **options})


def make_adapted(config: Config, lookup: Lookup | None = None) -> GpuRunner:
    model = load_on_gpu(config, resolve_model(config), DEVICE)
    sizes = Sizes(ROWS, TOKENS, LENGTH, config.block_size, 0 if lookup is None else lookup.drafts)
    given = model, np.zeros((ROWS, LENGTH), np.int32), sizes, [1, 2, 4]
    runner = GpuRunner(*given) if lookup is None else DraftingRunner(*given, lookup=lookup)
    runner.pools = make_pools(model.shape, BLOCKS, config.block_size, model.dtype, DEVICE)
    return runner


@pytest.mark.parametrize(
    "kind",
    [
        "gpt_neox",
        *slow("opt", "cohere2"),
        *slow("stablelm", "phi", "gpt2", "starcoder2", "glm", "nemotron", "exaone4", "olmoe", "granitemoe", "cohere"),
        *slow("gemma2", "gpt_oss", "gemma3n_text", "qwen3_moe", "persimmon"),
        *slow(*PUBLISHED, "mimo_v2_flash"),  # heads of whose layers differ
        "minicpm3",  # which keeps latents, as those of the next line do
        *slow("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "longcat_flash", "youtu", "axk1"),
    ],
)
def test_it_draws_what_transformers_draws(kind: str, folders: Folders) -> None:
    """Chunks and rows that decode in one step, some that fill up, and rows that come back after a preemption. Logits of
    all positions are compared as it is loaded."""
    folder = folders(kind)
    runner = make_adapted(config_of(folder))
    sequences = [Sequence(prompt(9 + 11 * n, n), 4) for n in range(3)]
    answers = GpuDriver(runner, preempt=0.1, seed=6).run(sequences)
    assert_greedy(reference(folder), [one.prompt for one in sequences], answers, 4)


def test_drafts_are_found_in_the_text(folders: Folders) -> None:
    folder = folders("stablelm")
    runner = make_adapted(config_of(folder), Lookup(1, 3, DRAFTS))
    circle = [*[7, 8, 9, 10] * 4, 7, 8]
    driver = GpuDriver(runner, drafts=DRAFTS)
    answers = driver.run([Sequence(circle, 9)])
    assert_greedy(reference(folder), [circle], answers, 9)
    assert driver.accepted


def test_latents_are_kept_once(folders: Folders) -> None:
    """With what turns behind them, as wide as kernels take it; those of odd ranks have zeros behind both."""
    config = config_of(folders("minicpm3"))
    model = load_on_gpu(config, resolve_model(config), DEVICE)
    own: Any = model.passes.model.config
    (pool,) = {(one.kv_heads, one.key_dim, one.value_dim, one.values_in_keys) for one in model.shape.kv.layers if one}
    assert pool == (1, -(-(own.kv_lora_rank + own.qk_rope_head_dim) // 16) * 16, own.kv_lora_rank, True)


def test_latents_are_floats(folders: Folders) -> None:
    config = config_of(folders("minicpm3"), kv_cache_dtype="fp8")
    with pytest.raises(ConfigError, match="--kv-cache-dtype fp8: the model keeps latents"):
        load_on_gpu(config, resolve_model(config), DEVICE)


@pytest.mark.parametrize("rank", [*slow(12), 20])
def test_latents_of_any_rank(rank: int, folders: Folders, tmp_path: Path) -> None:
    """Logits of all positions are compared as it is loaded."""
    write_tiny("minicpm3", tmp_path, kv_lora_rank=rank)
    config = config_of(tmp_path)
    model = load_on_gpu(config, resolve_model(config), DEVICE)
    assert {(one.key_dim, one.value_dim) for one in model.shape.kv.layers if one} == {(32, 32 if rank > 16 else 16)}


@pytest.mark.slow
def test_keys_and_values_of_8_bits(folders: Folders) -> None:
    """Logits are near transformers', and not the same."""
    config, whole = config_of(folders("stablelm")), reference(folders("stablelm"))
    trial = DeviceTrial(load_on_gpu(config, resolve_model(config), DEVICE))
    trial.pools = make_pools(trial.model.shape, trial.blocks, 16, E4M3, DEVICE)
    texts = texts_for(whole)
    with torch.inference_mode():
        for wanted, found in zip(reference_logits(whole, texts), trial.run(texts), strict=True):
            off = (wanted - found.cpu()).abs()
            assert TOLERANCE < float(off.max() / wanted.std()) and float(off.mean() / wanted.std()) < 0.1


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("rwkv", r"is not right on this GPU \(--device cpu tries other ways, too\): "),
        ("bloom", r"needs attention of transformers' own.*--device cpu"),
        ("bart", r"counts positions by itself.*--device cpu"),
        ("jetmoe", r"makes keys and values anew of what it keeps.*--device cpu"),
    ],
)
def test_kinds_of_a_cpu_alone(kind: str, words: str, folders: Folders) -> None:
    config = config_of(folders(kind))
    with pytest.raises(ConfigError, match=f"model: .* cannot be served: it {words}"):
        load_on_gpu(config, resolve_model(config), DEVICE)


NARROW = LayerAttention(heads=4, kv_heads=2, key_dim=40, value_dim=24, scale=1.0)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ((NARROW, replace(NARROW, value_dim=600)), "has heads of 608 numbers, and on a GPU 576 are most"),
        (
            (replace(NARROW, heads=258),),
            "has 258 heads of queries over 2 of keys, of which on a GPU up to 128 share one",
        ),
    ],
)
def test_shapes_of_a_cpu_alone(layers: tuple[LayerAttention | None, ...], words: str) -> None:
    """And what others have: heads of multiples of 16 numbers, of values no more than of keys."""
    own = KVSpec(layers=(NARROW, replace(NARROW, source=0, window=9), replace(NARROW, value_dim=72)))
    sizes = [(layer.key_dim, layer.value_dim) for layer in shape_of(own, 64, 99).kv.layers if layer]
    assert sizes == [(48, 32), (48, 32), (80, 80)]
    with pytest.raises(Unfit, match=f"^{words}"):
        shape_of(KVSpec(layers=layers), 64, 99)


def test_a_model_that_is_wrong_there_is_refused(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is tried, by what its logits are."""
    right = AdaptedGpuModel.own_logits
    monkeypatch.setattr(AdaptedGpuModel, "own_logits", lambda self, normed: right(self, normed) * 1.01)
    config = config_of(folders("gpt_neox"))
    with pytest.raises(ConfigError, match=r"is not right on this GPU .*logits are off by"):
        load_on_gpu(config, resolve_model(config), DEVICE)


NGRAM = {"method": "ngram", "num_speculative_tokens": DRAFTS}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"deterministic": True}, "--deterministic: .*bits follow the batch"),
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size: .*on a GPU have none of it"),
        ({"enable_lora": True}, "--enable-lora: .*on a GPU have none of it"),
        ({"speculative_config": json.dumps({**NGRAM, "method": "suffix"})}, "--speculative-config: .*method: ngram"),
        ({"quantization": "int8"}, "--quantization int8: .*have floats on a GPU; leave the option out, or --device"),
        ({"block_size": 8}, "--block-size 8: on a GPU"),
        ({"dtype": "auto", "speculative_config": json.dumps(NGRAM)}, None),
    ],
)
def test_options_of_a_cpu_alone(options: dict[str, Any], words: str | None, folders: Folders) -> None:
    config = config_of(folders("gpt_neox"), **options)
    info = resolve_model(config)
    if words is None:
        check_adapted(config, info, on_gpu=True)
        return
    with pytest.raises(ConfigError, match=words):
        load_on_gpu(config, info, DEVICE)


def test_quantised_weights(folders: Folders, tmp_path: Path) -> None:
    """They are floats there, if it is asked for."""
    source = folders("gpt_neox")
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    own = json.loads((source / "config.json").read_text())
    own["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
    (tmp_path / "config.json").write_text(json.dumps(own))
    config = config_of(tmp_path)
    with pytest.raises(ConfigError, match=r"model: its weights are gptq: .*--quantization none makes floats of them"):
        check_adapted(config, resolve_model(config), on_gpu=True)
    config = config_of(tmp_path, quantization="none")
    check_adapted(config, resolve_model(config), on_gpu=True)


# --- what check says --------------------------------------------------------------------------------------------------


def test_what_check_says(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """By which way, and how much memory; heads of 24 numbers take the room of 32."""
    monkeypatch.setattr(inspection, "uses_gpu", lambda config: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(load, "verify_on_device", lambda twin, device: verify_on_device(twin, DEVICE))
    monkeypatch.setattr(load, "reason_against_graphs", lambda *given: "")
    folder = folders("gpt_neox")
    config = config_of(folder, dtype="float16")
    facts = {key: one for part in inspection.inspect(config, resolve_model(config)) for key, one in part.items()}
    parameters = sum(parameter.numel() for parameter in reference(folder).parameters())
    assert facts["way"] == "layers of transformers, flat: all rows at once, by CUDA graphs"
    assert (facts["device"], facts["dtype"], facts["parameters"]) == ("a GPU", "float16", parameters)
    assert facts["weights_bytes"] == 2 * parameters and facts["layers"] == 1
    assert facts["kv_bytes_per_token"] == 2 * 4 * 32 * 2
