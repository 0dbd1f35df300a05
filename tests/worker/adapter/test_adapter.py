"""Models of transformers: what is seen of them, which way of computing them is right, and who is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import (
    and_masks,
    causal_mask_function,
    chunked_causal_mask_function,
    or_masks,
    sliding_window_causal_mask_function,
)

from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.memory.kv import KVSpec
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.adapter import hooks, verify
from actorserve.actors.worker.adapter.facts import facts
from actorserve.actors.worker.adapter.hollow import hollow
from actorserve.actors.worker.adapter.hooks import Unfit
from actorserve.actors.worker.adapter.improve import LinearModule, NormModule, PartModule, improve
from actorserve.actors.worker.adapter.masks import Visibility, classify
from actorserve.actors.worker.adapter.model import AdaptedModel, Tier
from actorserve.actors.worker.adapter.probe import probe
from actorserve.actors.worker.adapter.twin import shrink
from actorserve.actors.worker.models.weights import load_decoder
from actorserve.actors.worker.quantization.int4 import Int4Linear
from actorserve.actors.worker.quantization.int8 import Int8Linear
from actorserve.actors.worker.speculative.ngram import NgramProposer
from tests.worker.cpu.test_runner import prompt
from tests.worker.driver import Driver, Sequence, config_for, make_runner

from .loaded import BY_TRANSFORMERS, Checkpoints, load

hooks.register()


def made(name: str, **fields: Any) -> Any:
    """A tiny model of this kind, with weights as for a trial."""
    config = shrink(AutoConfig.for_model(name, **fields))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    verify.randomise(model)
    return model


# --- what may be seen -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("predicate", "seen"),
    [
        (causal_mask_function, Visibility()),
        (sliding_window_causal_mask_function(7), Visibility(window=7)),
        (sliding_window_causal_mask_function(1000), Visibility()),
        (chunked_causal_mask_function(24, torch.zeros(1, dtype=torch.long)), Visibility(chunk=24)),
        (chunked_causal_mask_function(128, torch.zeros(1, dtype=torch.long)), Visibility(chunk=128)),
    ],
)
def test_a_mask_is_known_by_what_it_lets_see(predicate: Any, seen: Visibility) -> None:
    assert classify(predicate, 512) == seen


@pytest.mark.parametrize(
    "predicate",
    [
        or_masks(causal_mask_function, lambda batch, head, query, key: key == query + 1),
        and_masks(causal_mask_function, lambda batch, head, query, key: key != 5),
        lambda batch, head, query, key: key >= 0,
        lambda batch, head, query, key: (key <= query) & (key > query - 3 - query % 2),
    ],
)
def test_any_other_mask_is_not(predicate: Any) -> None:
    with pytest.raises(Unfit, match="sees"):
        classify(predicate, 512)


# --- what a model keeps -----------------------------------------------------------------------------------------------


def shapes(kv: KVSpec) -> list[tuple[object, ...]]:
    return [
        (layer.heads, layer.kv_heads, layer.key_dim, layer.value_dim, layer.window, layer.soft_cap, layer.sinks)
        for layer in kv.layers
        if layer is not None
    ]


def test_what_layers_keep_is_seen_without_weights() -> None:
    config = AutoConfig.for_model("gemma2", num_hidden_layers=2)  # of full size: 9B
    model = hollow(lambda: AutoModelForCausalLM.from_config(config))
    traits = probe(model, 8192)
    assert shapes(traits.kv) == [(8, 4, 256, 256, 4096, 50.0, False), (8, 4, 256, 256, None, 50.0, False)]
    assert traits.kv.layers[0].scale == 256**-0.5  # type: ignore[union-attr]


def test_a_latent_is_kept_as_it_is_and_sinks_are_seen() -> None:
    latent, sinks = probe(made("deepseek_v3"), 512), probe(made("gpt_oss"), 512)
    assert latent.gathered == {0, 1}
    assert {shape[1:4] for shape in shapes(latent.kv)} == {(1, 16, 8)}
    assert all(shape[6] for shape in shapes(sinks.kv)) and {shape[4] for shape in shapes(sinks.kv)} == {8, None}


def test_keys_of_an_indexer_are_kept_once_and_beside_those_of_attention() -> None:
    """Only by layers that choose by them."""
    model = made("hy_v4")
    traits = probe(model, 512)
    kinds = model.config.indexer_types
    choosing = [(layer, "indexer") for layer, kind in enumerate(kinds) if kind == "full"]
    assert set(kinds) == {"full", "shared"} and not traits.paged
    assert traits.beside == {place: len(kinds) + number for number, place in enumerate(choosing)}
    assert traits.kv.block_bytes(1, 1) == (16 + 8) * len(kinds) + 16 * len(choosing)


def test_layers_that_read_the_keys_of_others_keep_none() -> None:
    kv = probe(made("gemma3n_text"), 512).kv
    readers = [layer for layer in kv.layers if layer is not None and layer.source is not None]
    assert readers and sum(len(pool.layers) for pool in kv.pools()) + len(readers) == len(kv.layers)


# --- which way is right -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tier"),
    [
        ("olmo2", Tier.FLAT),
        ("diffllama", Tier.FLAT),
        ("bart", Tier.ROWS),
        ("mamba2", Tier.ROWS),
        ("mamba", Tier.TOKENS),
        ("axk2", Tier.SINGLE),
    ],
)
def test_the_first_right_way_is_taken(name: str, tier: Tier) -> None:
    verdict = verify.verify(made(name), lambda model: improve(model, torch.float32))
    assert verdict.tier is tier and verdict.improved


def test_a_wrong_way_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales that are off in one way of all are seen, and the next way is tried; if all are wrong there is none."""
    model, right = made("olmo2"), AdaptedModel.logits
    wrong: set[Tier] = {Tier.FLAT}

    def logits(adapted: AdaptedModel, x: torch.Tensor) -> torch.Tensor:
        return right(adapted, x) * (1.01 if adapted.tier in wrong else 1.0)

    monkeypatch.setattr(AdaptedModel, "logits", logits)
    verdict = verify.verify(model)
    assert verdict.tier is Tier.ROWS and "logits are off by" in verdict.reasons[Tier.FLAT]
    wrong |= set(Tier)
    with pytest.raises(Unfit, match="is not right in any way: flat: logits are off by"):
        verify.verify(model)


def test_a_part_that_is_not_better_is_left_out() -> None:
    def spoil(model: Any) -> None:
        model.lm_head.weight.data.mul_(-1)

    verdict = verify.verify(made("olmo2"), spoil)
    assert not verdict.improved and verdict.tier is Tier.FLAT


# --- parts of ours ----------------------------------------------------------------------------------------------------


def test_products_and_norms_are_ours_and_joined() -> None:
    model = made("qwen3")
    ids = torch.arange(3, 30)[None]
    with torch.inference_mode():
        before = model(ids).logits
        improve(model, torch.float32)
        after = model(ids).logits
    assert torch.allclose(before, after, atol=1e-4)
    layer = model.model.layers[0]
    assert isinstance(layer.mlp.gate_proj, PartModule) and layer.mlp.gate_proj.joined is layer.mlp.up_proj.joined
    assert isinstance(layer.self_attn.q_proj, PartModule) and isinstance(layer.mlp.down_proj, LinearModule)
    assert isinstance(layer.input_layernorm, NormModule)


def test_a_joined_product_follows_its_input() -> None:
    """Parts that are asked for in another order, or of another tensor, are those of that tensor."""
    model = made("qwen3")
    attention = model.model.layers[0].self_attn
    x, y = torch.randn(2, 3, 64), torch.randn(2, 3, 64)
    with torch.inference_mode():
        expected = [attention.k_proj(x), attention.q_proj(y), attention.q_proj(x), attention.q_proj(x)]
        improve(model, torch.float32)
        found = [attention.k_proj(x), attention.q_proj(y), attention.q_proj(x), attention.q_proj(x)]
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(expected, found, strict=True))


def test_int8_weights(checkpoints: Checkpoints) -> None:
    model = load(checkpoints("llama"), quantization="int8")
    parts = [module for module in model.model.modules() if isinstance(module, LinearModule)]
    assert parts and all(isinstance(part.product, Int8Linear) for part in parts)


def test_int4_weights(checkpoints: Checkpoints) -> None:
    """What is not quantised is float32."""
    runner = make_runner(config_for(checkpoints("llama"), **BY_TRANSFORMERS, quantization="int4", dtype="auto"))
    model = runner.model
    assert isinstance(model, AdaptedModel) and model.dtype == torch.float32
    parts = [module for module in model.model.modules() if isinstance(module, LinearModule)]
    assert parts and all(isinstance(part.product, Int4Linear) for part in parts)
    prompts = [prompt(size) for size in (5, 17)]
    answers = Driver(runner).run([Sequence(ids, 4) for ids in prompts])
    assert [len(answer) for answer in answers] == [4, 4]


# --- under the runner -------------------------------------------------------------------------------------------------


def test_the_answers_are_those_of_our_own_layers(checkpoints: Checkpoints) -> None:
    folder = checkpoints("qwen3")
    prompts = [prompt(size, size) for size in (5, 40, 17, 63)]
    answers = [
        Driver(make_runner(config_for(folder, **options)), preempt=0.05).run([Sequence(ids, 16) for ids in prompts])
        for options in (BY_TRANSFORMERS, {"model_impl": "native"})
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", ["qwen3", "diffllama", "gptj", "hy_v4"])
def test_drafts_of_ngrams_change_no_token(name: str, tmp_path: Path) -> None:
    """In flat batches, with gathered contexts, and one row at a time, also where an indexer chooses what it sees."""
    model = made(name)
    model.save_pretrained(tmp_path)
    config = config_for(tmp_path, **BY_TRANSFORMERS, skip_tokenizer_init=True)
    prompts = [prompt(size, size) * 3 for size in (3, 9, 5)]
    plain = Driver(make_runner(config)).run([Sequence(ids, 20) for ids in prompts])
    driver = Driver(make_runner(config, proposer=NgramProposer(1, 3)), drafts=4, preempt=0.05)
    assert driver.run([Sequence(ids, 20) for ids in prompts]) == plain
    assert driver.drafted > 0


def test_what_our_layers_lack_is_computed_by_theirs(checkpoints: Checkpoints, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoints("llama"), tmp_path / "gelu")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"hidden_act": "gelu"}))
    config = config_for(folder, device="cpu")
    assert isinstance(load_decoder(config, resolve_model(config)), AdaptedModel)
    with pytest.raises(ConfigError, match="the activation gelu is not supported"):
        resolve_model(config_for(folder, model_impl="native"))


# --- weights and sizes ------------------------------------------------------------------------------------------------


def test_sizes_of_weights_and_memory(checkpoints: Checkpoints) -> None:
    """Of our own layers and of theirs they are the same."""
    config = config_for(checkpoints("qwen3"), **BY_TRANSFORMERS)
    known, kv, dtype, *_ = facts(config, resolve_model(config))
    native = make_runner(config_for(checkpoints("qwen3"))).model
    assert kv.block_bytes(32, dtype.itemsize) == native.kv.block_bytes(32, native.dtype.itemsize)
    size = sum(tensor.stat().st_size for tensor in checkpoints("qwen3").glob("*.safetensors"))
    assert known["weights_bytes"] == 4 * known["parameters"] and abs(known["weights_bytes"] - size) < 8192


@pytest.mark.parametrize("name", ["hy_v4", "phimoe", "qwen3_next"])
def test_layers_are_counted(name: str, tmp_path: Path) -> None:
    """What is kept beside keys is none; routers that are linear may tell more than a product; states are no keys."""
    model = made(name)
    model.save_pretrained(tmp_path)
    config = config_for(tmp_path, **BY_TRANSFORMERS, skip_tokenizer_init=True)
    known, *_ = facts(config, resolve_model(config))
    assert known["layers"] == model.config.num_hidden_layers


def test_embeddings_that_make_logits_are_counted_once(checkpoints: Checkpoints) -> None:
    """Though they are in memory twice."""
    from safetensors.torch import load_file

    folder = checkpoints("llama_tied")
    config = config_for(folder, **BY_TRANSFORMERS)
    known, *_ = facts(config, resolve_model(config))
    tensors = load_file(folder / "model.safetensors")
    assert known["parameters"] == sum(tensor.numel() for tensor in tensors.values())
    twice = tensors["model.embed_tokens.weight"].numel()
    assert known["weights_bytes"] == 4 * (known["parameters"] + twice)


# --- who is refused ---------------------------------------------------------------------------------------------------
