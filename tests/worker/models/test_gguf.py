"""Weights of GGUF files: types against formulas of their own, and answers against transformers on the same numbers."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.memory.machine import weight_bytes
from actorserve.actors.model.values import read_json
from actorserve.actors.options.config import Config, ConfigError
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.inspection import inspect
from actorserve.actors.worker.models.gguf_blocks import DECODERS
from actorserve.actors.worker.models.gguf_grids import vectors
from actorserve.actors.worker.models.gguf_tensors import open_gguf
from actorserve.actors.worker.models.sharding import shard
from actorserve.actors.worker.models.weights import load_model, open_checkpoint
from actorserve.actors.worker.quantization.int8 import Int8Linear
from actorserve.kernels.cpu.native.linear import Weights
from tests.support.compiler import cache_with_kernels
from tests.support.models.checkpoints import YARN_ROPE
from tests.support.models.gguf import files
from tests.support.models.gguf.files import Stored, convert, stored, write
from tests.support.models.gguf.formats import KINDS, meaning, random_blocks
from tests.support.models.greedy import assert_greedy, reference
from tests.support.selection import slow

from ..cpu.test_runner import prompt
from ..driver import Driver, Sequence, check_grouped, config_for, make_runner, prompt_logits
from .read_back import read_both

Folders = Callable[..., Path]
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "initializer_range": 0.15}
PLAIN = ("llama", "llama3", "llama_linear", "llama_biased", "llama_tied", "qwen2", "qwen3", "mistral", "phi3")
OTHERS: dict[str, dict[str, Any]] = {  # kinds whose names and fields differ more; with what files cannot say otherwise
    "gemma3": {"query_pre_attn_scalar": 32},
    "gemma2": {"query_pre_attn_scalar": 32},
    "qwen3_moe": {"mlp_only_layers": []},
    "qwen2_moe": {"decoder_sparse_step": 1, "use_sliding_window": False},
    "mixtral": {},
    "olmo2": {},
    "olmo3": {"rope_scaling": YARN_ROPE | {"rope_theta": 500_000.0, "attention_factor": 1.125}},
    "glm4": {},
    "granite": {},
    "ministral3": {},
    "smollm3": {"num_hidden_layers": 4, "no_rope_layer_interval": 4, "use_sliding_window": False},
    "seed_oss": {},
}
LENGTH, PROMPTS = 24, 16


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders of GGUF files are made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_with_kernels(tmp_path / "cache")))
    return tmp_path / "cache" / "actorserve" / "gguf"


def load(config: Config) -> CpuModel:
    return load_model(config, resolve_model(config))


def medium(name: str) -> str:
    """As llama.cpp mixes Q4_K_M: half of the more sensitive weights, and what makes logits, in Q6_K."""
    return "Q6_K" if "lm_head" in name or ".1.self_attn.v" in name or ".1.mlp.down" in name else "Q4_K"


MIXES: dict[str, Callable[[str], str]] = {"Q8_0": lambda name: "Q8_0", "Q4_K_M": medium}


# --- types ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_type_means_what_its_formula_says(kind: str) -> None:
    data = random_blocks(kind, 60)
    wanted = meaning(kind, data)
    found = DECODERS[kind](torch.frombuffer(bytearray(data), dtype=torch.uint8).view(60, -1))
    assert found.dtype == torch.float32 and np.isfinite(wanted).all() and wanted.std() > 0
    apart = np.abs(found.double().numpy() - wanted) / np.abs(wanted).max(1, keepdims=True)
    assert apart.max() < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_alone_means_what_it_does_among_others(kind: str) -> None:
    """Wherever it begins: a piece of a weight may end with one."""
    blocks = torch.frombuffer(bytearray(random_blocks(kind, 5)), dtype=torch.uint8).view(5, -1)
    alone = [DECODERS[kind](blocks[at : at + 1]) for at in range(5)]
    assert torch.equal(torch.cat(alone), DECODERS[kind](blocks))


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("IQ2_XXS", "05826b5d3e472a3a"),
        ("IQ2_XS", "06e47aaca60b4dc1"),
        ("IQ2_S", "e1aa1473412b0552"),
        ("IQ3_XXS", "46e35f5a997efdee"),
        ("IQ3_S", "bd1af4945a1717c6"),
        ("IQ1", "07540ffc1aeaf6ad"),
    ],
)
def test_grids_are_those_of_the_format(name: str, digest: str) -> None:
    """Of llama.cpp's tables, as whole numbers in 8 bits."""
    numbers = vectors(name).to(torch.int8).numpy()
    assert hashlib.sha256(numbers.tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("kind", KINDS)
def test_a_type_means_what_the_formats_own_package_says(kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    data = np.frombuffer(random_blocks(kind, 200, 1), np.uint8)
    try:
        wanted = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind]).reshape(200, -1)
    except NotImplementedError:
        pytest.skip(f"this version of the package does not decode {kind}")
    found = DECODERS[kind](torch.from_numpy(data.copy()).view(200, -1)).numpy()
    assert np.allclose(found, wanted, rtol=1e-6, atol=0)


def test_weights_in_nvfp4_have_factors(checkpoints: Folders, tmp_path: Path) -> None:
    """One for each tensor stands beside it; that of what is multiplied by it is not used, as nothing is rounded."""
    source = checkpoints("llama")
    fields, tensors, _ = files.parts_of(source, lambda name: "F32")
    name = "blk.0.attn_output.weight"
    rows, columns = tensors[name].shape
    data = random_blocks("NVFP4", rows * columns // 64)
    tensors[name] = Stored(KINDS["NVFP4"].number, (rows, columns), data)
    tensors["blk.0.attn_output.scale"] = stored("F32", np.array([0.25]))
    tensors["blk.0.attn_output.input_scale"] = stored("F32", np.array([3.0]))
    config = config_for(write(tmp_path / "model.gguf", fields, tensors), quantization="none")
    find_model(config)
    folder = Path(resolve_model(config).folder)
    read = open_checkpoint(folder, read_architecture(read_json(folder / "config.json")))
    found = read("model.layers.0.self_attn.o_proj.weight", slice(8, 40), None)
    wanted = 0.25 * meaning("NVFP4", data).reshape(rows, columns)
    assert np.allclose(found.numpy(), wanted[8:40], rtol=1e-6)
    tensors["blk.1.attn_output.scale"] = stored("F32", np.array([0.25]))  # of a weight that is none in NVFP4
    with pytest.raises(ConfigError, match=r"has blk\.1\.attn_output\.scale"):
        find_model(config_for(write(tmp_path / "other.gguf", fields, tensors)))


# --- models --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*PLAIN, "phi3_short", "phi3_long"])
def test_every_family_is_as_its_checkpoint(kind: str, checkpoints: Folders, tmp_path: Path) -> None:
    """In float32 and float16: shapes, names, order of rows, rotation and windows."""
    folder = checkpoints(kind)
    convert(folder, tmp_path / "model.gguf", lambda name: "F16" if "mlp" in name else "F32")
    known, found = load(config_for(folder)), load(config_for(tmp_path / "model.gguf"))
    assert found.shape.windows == known.shape.windows and found.shape.tied == known.shape.tied
    assert torch.allclose(found.rotations[0], known.rotations[0], rtol=0, atol=2e-4), "angles of float32 factors"
    for mine, theirs in zip(found.layers, known.layers, strict=True):
        assert torch.equal(mine.qkv(torch.eye(64)), theirs.qkv(torch.eye(64)))
        halved = theirs.down(torch.eye(96))
        assert torch.allclose(mine.down(torch.eye(96)), halved, rtol=2e-3, atol=2e-3)
    assert torch.equal(found.embeddings, known.embeddings)


@pytest.mark.parametrize("kind", OTHERS)
def test_files_of_other_families_are_as_their_checkpoints(kind: str, checkpoints: Folders, tmp_path: Path) -> None:
    """All that is computed with, and every weight: of what files have otherwise, experts, norms and rows of heads."""
    folder = checkpoints(kind, **OTHERS[kind])
    convert(folder, tmp_path / "model.gguf", lambda name: "F32")
    wanted, found, _ = read_both(folder, tmp_path / "model.gguf")
    for name, weight in wanted.items():
        assert torch.allclose(found[name], weight, rtol=0, atol=2e-7 if "norm" in name else 0), name


QUICK = ("gemma3", "qwen3_moe")  # the others' weights and shapes are compared above


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS]
)
def test_other_families_are_those_of_transformers_on_the_same_numbers(
    kind: str, checkpoints: Folders, tmp_path: Path
) -> None:
    """Logits, and greedy answers in batches with chunks."""
    folder = checkpoints(kind, **OTHERS[kind])
    means = convert(folder, tmp_path / "model.gguf", lambda name: "F16" if "expert" in name else "Q8_0")
    plain = Path(shutil.copytree(folder, tmp_path / "plain"))
    save_file(means, plain / "model.safetensors", metadata={"format": "pt"})
    theirs = reference(plain)
    runner = make_runner(config_for(tmp_path / "model.gguf", block_size=16))
    asked = [prompt(length, length) for length in (5, 40, 75)]
    logits = prompt_logits(runner, asked[2])
    with torch.inference_mode():
        wanted = theirs(torch.tensor([asked[2]])).logits[0]
    torch.testing.assert_close(logits, wanted, rtol=2e-4, atol=2e-4)
    answers = Driver(runner, seed=1).run([Sequence(tokens, 12) for tokens in asked])
    assert_greedy(theirs, asked, answers, 12)


def test_an_expert_is_read_without_the_others(
    checkpoints: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files have all of a layer in one tensor: of it only the rows that are asked for are decoded."""
    source = checkpoints("mixtral", intermediate_size=64)
    means = convert(source, tmp_path / "model.gguf", lambda name: "Q8_0")
    config = config_for(tmp_path / "model.gguf")
    folder = Path(resolve_model(config).folder)
    read = open_checkpoint(folder, read_architecture(read_json(folder / "config.json")))
    decoded, decode = [0], DECODERS["Q8_0"]

    def counted(blocks: torch.Tensor) -> torch.Tensor:
        decoded[0] += len(blocks)
        return decode(blocks)

    monkeypatch.setitem(DECODERS, "Q8_0", counted)
    name = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
    assert torch.equal(read(name, slice(16, 48), None), torch.from_numpy(means[name])[16:48])
    assert decoded[0] == 32 * 64 // 32


@pytest.mark.parametrize("mix", [*slow("Q8_0"), "Q4_K_M"])
def test_answers_are_those_of_transformers_on_the_same_numbers(mix: str, checkpoints: Folders, tmp_path: Path) -> None:
    """--dtype float32 computes with what is decoded; greedy, 16 prompts, in batches with chunks."""
    source = checkpoints("llama", **WIDE)
    means = convert(source, tmp_path / "model.gguf", MIXES[mix])
    plain = Path(shutil.copytree(source, tmp_path / "plain"))
    save_file(means, plain / "model.safetensors", metadata={"format": "pt"})
    theirs = reference(plain)
    prompts = [prompt(7 + 5 * number, number) for number in range(PROMPTS)]
    runner = make_runner(config_for(tmp_path / "model.gguf"), rows=PROMPTS)
    found = Driver(runner, seed=1).run([Sequence(tokens, LENGTH) for tokens in prompts])
    assert_greedy(theirs, prompts, found, LENGTH)
    assert len({tuple(answer) for answer in found}) == PROMPTS, "they differ, or nothing is said"


@pytest.mark.parametrize("mix", ["Q8_0", *slow("Q4_K_M")])
def test_quantised_files_are_int8_on_a_cpu(mix: str, checkpoints: Folders, tmp_path: Path) -> None:
    """The same as --quantization int8 of the same numbers, bit for bit, but for embeddings: these have 16 bits."""
    source = checkpoints("qwen3", **WIDE, tie_word_embeddings=True, num_attention_heads=8)
    means = convert(source, tmp_path / "model.gguf", MIXES[mix])
    plain = Path(shutil.copytree(source, tmp_path / "plain"))
    table = "model.embed_tokens.weight"
    save_file(means, plain / "model.safetensors", metadata={"format": "pt"})
    config = config_for(tmp_path / "model.gguf", dtype="auto", device="cpu")
    ours = load(config)
    known = load(config_for(plain, quantization="int8"))
    assert isinstance(ours.layers[0].qkv, Int8Linear) and isinstance(ours.head, Int8Linear)
    x = torch.randn(5, 256)
    for mine, theirs in zip(ours.layers, known.layers, strict=True):
        for name in ("qkv", "out", "gate_up", "down"):
            wide = x.new_ones(2, 1024)[:, : getattr(mine, name).inputs]
            assert torch.equal(getattr(mine, name)(wide), getattr(theirs, name)(wide))
    assert ours.embeddings.dtype == torch.float16
    assert torch.allclose(ours.embeddings.float(), torch.from_numpy(means[table]), rtol=1e-3, atol=1e-6)
    assert torch.allclose(ours.logits(x), known.logits(x), rtol=0, atol=0.05 * float(known.logits(x).std()))
    asked = load(config_for(tmp_path / "model.gguf", quantization="int8"))
    assert isinstance(asked.layers[0].qkv, Int8Linear)


@pytest.mark.parametrize(("mix", "kinds"), [("Q4_K_M", {Weights.GROUPED}), *slow(("Q4_0", {Weights.GROUPED}))])
@pytest.mark.usefixtures("native_kernels")
def test_four_bits_are_multiplied_as_they_are(
    mix: str, kinds: set[Weights], checkpoints: Folders, tmp_path: Path
) -> None:
    """With heads whose numbers are paired in the file, too, and six bits beside them."""
    source = checkpoints("llama", **WIDE)
    convert(source, tmp_path / "model.gguf", medium if mix == "Q4_K_M" else lambda name: "Q4_0")
    ours = load(config_for(tmp_path / "model.gguf", dtype="auto", device="cpu"))
    check_grouped(ours, load(config_for(tmp_path / "model.gguf", quantization="none")), kinds)


def test_parts_of_a_group_are_cut_out_of_blocks(checkpoints: Folders, tmp_path: Path) -> None:
    """Rows and columns of two ranks, of which the columns of q8_0 begin inside no block and those of K types may."""
    source = checkpoints("llama", **WIDE)
    means = convert(source, tmp_path / "model.gguf", medium)
    config = config_for(tmp_path / "model.gguf")
    shape = load(config).shape
    read = open_gguf(Path(resolve_model(config).folder), shape)
    assert read is not None

    class Second:
        rank, size = 1, 2

    get = shard(read, shape, Second())
    for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj", "mlp.up_proj"):
        whole = torch.from_numpy(means[f"model.layers.0.{name}.weight"])
        wanted = whole[:, 128:] if name in ("self_attn.o_proj", "mlp.down_proj") else whole[128:]
        assert torch.equal(get(f"model.layers.0.{name}.weight"), wanted), name


def test_what_check_says_of_it(checkpoints: Folders, tmp_path: Path) -> None:
    source = checkpoints("llama", **WIDE)
    convert(source, tmp_path / "model.gguf", MIXES["Q8_0"])
    config = config_for(tmp_path / "model.gguf", dtype="auto", device="cpu")
    facts: dict[str, object] = {}
    for some in inspect(config, find_model(config)):
        facts |= some
    shape = load(config).shape
    assert facts["dtype"] == "gguf and float32" and facts["weights_bytes"] == weight_bytes(shape, torch.float32)
    assert weight_bytes(shape, torch.float32) < sum(np.prod(sizes) for sizes in shape.tensors().values()) * 1.4


def test_a_file_in_parts_and_a_folder_with_one(checkpoints: Folders, tmp_path: Path) -> None:
    from tests.support.models.gguf import files

    source = checkpoints("llama")
    whole = tmp_path / "whole.gguf"
    convert(source, whole, lambda name: "F32")
    parts = tmp_path / "parts"
    parts.mkdir()
    files.split(source, parts / "m", 3)
    answers = [
        Driver(make_runner(config_for(place))).run([Sequence(prompt(9, 1), 12)])
        for place in (whole, parts, parts / "m-00002-of-00003.gguf")
    ]
    assert answers[0] == answers[1] == answers[2]
    (parts / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(ConfigError, match=r"lacks m-00003-of-00003.gguf; 1 of 3 parts are missing"):
        resolve_model(config_for(parts))


def test_a_file_that_is_another_meanwhile(checkpoints: Folders, tmp_path: Path, cache: Path) -> None:
    """A worker that starts again takes no weights of another model; who starts anew finds the new one."""
    path = tmp_path / "model.gguf"
    convert(checkpoints("llama"), path, lambda name: "F32")
    config = config_for(path)
    info = resolve_model(config)
    assert resolve_model(config) == info and len(list(cache.iterdir())) == 1, "it is made once"
    convert(checkpoints("llama"), path, lambda name: "F16")
    with pytest.raises(ConfigError, match=r"model\.gguf has changed since it was first read; start the server again"):
        load_model(config, info)
    assert resolve_model(config).folder != info.folder and load(config).shape.stored_dtype == "float16"


def test_tensors_that_do_not_fit(checkpoints: Folders, tmp_path: Path) -> None:
    source = Path(shutil.copytree(checkpoints("llama"), tmp_path / "source"))
    values = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(values | {"num_hidden_layers": 4}))
    convert(source, tmp_path / "model.gguf", lambda name: "F32")
    with pytest.raises(ConfigError, match=r"lacks model\.layers\.3\.input_layernorm\.weight"):
        find_model(config_for(tmp_path / "model.gguf"))
