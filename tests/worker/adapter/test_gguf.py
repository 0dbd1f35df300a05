"""GGUF files of models that layers of transformers compute: they are as their checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import save_file

from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.adapter import verify
from actorserve.actors.worker.adapter.improve import LinearModule
from actorserve.actors.worker.adapter.load import load_adapted
from actorserve.actors.worker.adapter.model import AdaptedModel
from actorserve.actors.worker.quantization.int8 import Int8Linear
from tests.support.compiler import cache_with_kernels
from tests.support.models.gguf import experts, gemma, states
from tests.support.models.gguf.adapted import KINDS, convert, source
from tests.support.models.gguf.files import tiny_model
from tests.support.models.greedy import generate, greedy, reference
from tests.support.selection import slow
from tests.worker.cpu.test_runner import prompt
from tests.worker.driver import Driver, Sequence, config_for, make_runner

ON_CPU = {"device": "cpu"}
QUICK = ("exaone4", "falcon_40b", "falcon_mamba", "glm4_moe", "gpt2", "qwen3_next")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_with_kernels(tmp_path / "cache")))


def load(path: Path, **options: Any) -> AdaptedModel:
    config = config_for(path, **ON_CPU, **options)
    find_model(config)
    return load_adapted(config, resolve_model(config))


def logits_of(model: AdaptedModel) -> torch.Tensor:
    trial, text = verify.Trial(model), torch.arange(3, 3 + verify.DECODED + 15)
    with torch.inference_mode():
        return trial.run([text])[0]


def both(kind: str, folder: Path, types: str, **changes: Any) -> tuple[Path, Path]:
    """(a file, a checkpoint of the same numbers)."""
    made, file, plain = source(kind, folder / "source", **changes), folder / "model.gguf", folder / "plain"
    means = convert(kind, made, file, lambda name: types)
    shutil.copytree(made, plain)
    save_file(means, plain / "model.safetensors", {"format": "pt"})
    values = json.loads((plain / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps(values | states.folded(values)))
    return file, plain


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_a_file_is_as_its_checkpoint(kind: str, tmp_path: Path) -> None:
    """Config, names and the order of rows: in 8 bits that are decoded."""
    file, plain = both(kind, tmp_path, "Q8_0")
    found, wanted = load(file, quantization="none"), load(plain, model_impl="transformers")
    assert found.tier is wanted.tier and found.kv == wanted.kv
    # of which files have exponents of what checkpoints have
    near = 1e-4 if kind.endswith("mamba") or kind in ("apertus", *states.KINDS) else 0.0
    assert torch.allclose(logits_of(found), logits_of(wanted), rtol=0, atol=near)


@pytest.mark.parametrize(
    ("kind", "types", "changes"),
    [("gpt2", "Q4_K", {"n_embd": 256, "n_layer": 2}), *slow(("stablelm", "Q8_0", {}), ("exaone4", "Q8_0", {}))],
)
def test_answers_are_those_of_transformers(kind: str, types: str, changes: dict[str, Any], tmp_path: Path) -> None:
    file, plain = both(kind, tmp_path, types, **changes)
    theirs = reference(plain)
    prompts = [prompt(3 + 2 * number, number) for number in range(16)]
    runner = make_runner(config_for(file, **ON_CPU, quantization="none"), rows=16, blocks=256)
    answers = Driver(runner, budget=64).run([Sequence(ids, 8) for ids in prompts])
    for ids, answer in zip(prompts, answers, strict=True):
        assert len(answer) == 8 and answer == greedy(theirs, ids, answer)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["apertus", *states.KINDS, *gemma.KINDS, *experts.KINDS])
def test_texts_are_those_of_generate(kind: str, tmp_path: Path) -> None:
    """What generate() writes is the likeliest here, too, with chunks and rows that decode side by side."""
    file, plain = both(kind, tmp_path, "F32")
    theirs, model = reference(plain), load(file)
    prompts = [prompt(size, size) for size in verify.PROMPTS]
    drawn = [generate(theirs, ids, verify.DECODED) for ids in prompts]
    texts = [torch.tensor(ids + text) for ids, text in zip(prompts, drawn, strict=True)]
    with torch.inference_mode():
        logits = verify.Trial(model).run(texts)
    found = [own.argmax(-1).tolist()[size - 1 : -1] for own, size in zip(logits, verify.PROMPTS, strict=True)]
    assert found == drawn


def test_multipliers_of_falcon_h1_are_in_its_weights(tmp_path: Path) -> None:
    """Files say nothing of them: weights are multiplied, so that logits are those of the checkpoint."""
    file, _ = both("falcon_h1", tmp_path, "F32")
    found, wanted = logits_of(load(file)), logits_of(load(tmp_path / "source"))
    assert torch.allclose(found, wanted, rtol=0, atol=1e-3 * float(wanted.std()))


def test_quantised_files_become_int8(tmp_path: Path) -> None:
    file, plain = both("stablelm", tmp_path, "Q8_0")
    model = load(file, dtype="auto")
    linears = [module for module in model.model.modules() if isinstance(module, LinearModule)]
    assert linears and all(isinstance(linear.product, Int8Linear) for linear in linears)
    assert torch.equal(logits_of(model), logits_of(load(plain, model_impl="transformers", quantization="int8")))


def test_a_file_of_queries_keys_and_values_in_one(tmp_path: Path) -> None:
    """As older converters wrote Phi-2."""

    def fused(tensors: dict[str, Any]) -> None:
        for layer in range(2):
            for kind in ("weight", "bias"):
                parts = [tensors.pop(f"blk.{layer}.attn_{name}.{kind}") for name in "qkv"]
                whole = (3 * parts[0].shape[0], *parts[0].shape[1:])
                data = b"".join(part.data for part in parts)
                tensors[f"blk.{layer}.attn_qkv.{kind}"] = parts[0]._replace(shape=whole, data=data)

    _, plain = both("phi", tmp_path, "F32")
    convert("phi", tmp_path / "source", tmp_path / "fused.gguf", lambda name: "F32", fused)
    assert torch.equal(logits_of(load(tmp_path / "fused.gguf")), logits_of(load(plain)))


def test_what_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"architecture plamo .* not supported in GGUF; these are: llama, .* more"):
        load(tiny_model(tmp_path, {"general.architecture": "plamo"}))
    file, _ = both("stablelm", tmp_path, "F32")
    folder = Path(resolve_model(config_for(file, **ON_CPU)).folder)
    known = json.loads((folder / "gguf.json").read_text())
    known["tensors"].append([0, "blk.0.attn_q_norm.weight", "F32", [16], 0, 64])
    (folder / "gguf.json").write_text(json.dumps(known))
    with pytest.raises(ConfigError, match=r"has model\.layers\.0\.self_attn\.q_norm\.weight, for which the model has"):
        load(file)
