"""Mistral Large 4: layers that read the keys of others, some keys without values, and an indexer in a few layers.

No config.json of it could be had: which layers share is up to this test, in the ways that transformers' class has.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.adapter import verify
from actorserve.actors.worker.adapter.twin import shrink
from tests.support.models.census import generated, served, tight
from tests.support.models.checkpoints import VOCABULARY, write_tokenizer

from ..loaded import load, logits_of

COUNT = 72
TURN = 4  # one layer of so many is not turned
KEYS = (0, 3)  # of twice as many layers those that have keys: one that is turned, and one that is not
INDEXERS = 4  # one layer of so many chooses tokens
IN_BLOCKS = re.compile(
    r"layers\.\d+\.(attention\.(wq|wo|wkv_b)|(feed_forward|(shared_)?experts(\.\d+)?)\.w[123])\.weight"
)


def sources() -> list[int]:
    """Of each layer the last one with keys that is turned as it is."""
    latest: dict[bool, int] = {}
    found = []
    for layer in range(COUNT):
        turned = (layer + 1) % TURN != 0
        if layer % (2 * TURN) in KEYS:
            latest[turned] = layer
        found.append(latest[turned])
    return found


def small_config() -> Any:
    indexers = ["shared" if layer % INDEXERS else "full" for layer in range(COUNT)]
    text = {"kv_source_layers": sources(), "indexer_types": indexers}
    return shrink(transformers.AutoConfig.for_model("mistral_large4", text_config=text), VOCABULARY)


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    made: Any = transformers.MistralLarge4ForConditionalGeneration._from_config(small_config()).float().eval()
    verify.randomise(made)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        made.model.language_model.rotary_emb.alpha.normal_(0, 0.5, generator=generator)
        for name, parameter in made.named_parameters():
            if "softmax_scaling" in name:
                parameter.normal_(1, 0.3, generator=generator)
    made.generation_config = transformers.GenerationConfig(pad_token_id=0, eos_token_id=None, bos_token_id=None)
    return made


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("mistral_large4")
    model.save_pretrained(found)
    write_tokenizer(found)
    return found


def test_a_small_one_has_all_kinds_of_layers() -> None:
    """Those that read keys have those whose keys they read, under their new numbers."""
    text = small_config().text_config
    assert {None, "store", "reuse", "reuse_but_indexer"} >= {*text.kv_sharing_modes} >= {"store", "reuse"}
    both = list(zip(text.kv_source_layers, text.no_rope_layers, strict=True))
    assert {source == layer for layer, (source, turned) in enumerate(both) if turned} == {True, False}
    assert {source == layer for layer, (source, turned) in enumerate(both) if not turned} == {True, False}
    assert all(text.no_rope_layers[source] == turned for source, turned in both)


def test_keys_without_values_take_no_room(folder: Path) -> None:
    kv = load(folder).kv
    alone = [layer for layer in kv.layers if layer is not None and not layer.value_dim]
    assert alone and all(layer.values_in_keys for layer in alone)
    numbers = sum(
        layer.key_dim + (0 if layer.values_in_keys else layer.value_dim) for layer in kv.layers if layer is not None
    )
    assert kv.block_bytes(1, 1) == numbers


def test_logits_are_those_of_the_whole_model(model: Any, folder: Path) -> None:
    """Tensors have the names that Mistral gives them."""
    assert "layers.0.attention.wkv_a_with_mqa.weight" in load_file(folder / "model.safetensors")
    text = torch.arange(3, 3 + verify.DECODED + 5)[None]
    with torch.inference_mode():
        wanted = model(input_ids=text, attention_mask=torch.ones_like(text)).logits[0].float()
    assert torch.allclose(logits_of(folder), wanted, rtol=0, atol=1e-3 * float(wanted.std()))


def test_answers_in_a_crowd_are_those_of_generate(model: Any, folder: Path) -> None:
    """In chunks, preempted, and once more by their prefixes."""
    rounds, preempted, cached, way = served(folder, **tight(folder))
    assert rounds == [generated(model)] * 2
    assert preempted and cached and way == "single"


def test_layers_that_draft_are_passed_over(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    save_file({**tensors, "mtp_dspark.norm.weight": torch.ones(2)}, other / "model.safetensors", {"format": "pt"})
    load(other)
    save_file({**tensors, "other.weight": torch.ones(2)}, other / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"it has other\.weight, for which the model has no use"):
        load(other)


def test_blocks_of_8_bits_are_read(folder: Path, tmp_path: Path) -> None:
    """Named as those of other models in blocks are; tensors have the names that Mistral gives them."""
    tensors = load_file(folder / "model.safetensors")
    blocks, plain = dict(tensors), dict(tensors)
    for name in [name for name in tensors if IN_BLOCKS.fullmatch(name)]:
        numbers = tensors[name].mul(64).to(torch.float8_e4m3fn)
        scales = torch.full([-(-size // 16) for size in numbers.shape], 1 / 64)
        blocks |= {name: numbers, f"{name}_scale_inv": scales}
        plain[name] = numbers.float() / 64
    quantised = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 16]}
    found = []
    for name, stored, more in (("blocks", blocks, {"quantization_config": quantised}), ("plain", plain, {})):
        own = shutil.copytree(folder, tmp_path / name)
        save_file(stored, own / "model.safetensors", {"format": "pt"})
        config = json.loads((own / "config.json").read_text())
        (own / "config.json").write_text(json.dumps(config | more))
        found.append(logits_of(own, quantization="none", dtype="float32"))
    assert len(blocks) > len(tensors) and torch.equal(*found)
