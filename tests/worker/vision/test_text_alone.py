"""Models with more than texts of which the text part is served."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from actorserve.actors.model.info import resolve_model
from tests.support.models.greedy import greedy
from tests.support.models.weight_formats import FORMATS
from tests.worker.cpu.test_runner import prompt
from tests.worker.driver import Driver, Sequence, config_for, make_runner

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "intermediate_size_mlp": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 384,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "attention_chunk_size": 16,
    "max_position_embeddings": 512,
    "interleave_moe_layer_step": 2,
    "initializer_range": 0.1,
}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "intermediate_size": 128,
    "vision_output_dim": 64,
    "projector_input_dim": 64,
    "projector_output_dim": 64,
}


@pytest.fixture(scope="module")
def llama4(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A checkpoint as Llama 4 is published, and transformers' model of it."""
    from transformers import Llama4Config, Llama4ForConditionalGeneration

    torch.manual_seed(0)
    model = Llama4ForConditionalGeneration(Llama4Config(text_config=TEXT, vision_config=VISION)).float().eval()
    folder = tmp_path_factory.mktemp("llama4")
    model.save_pretrained(folder)
    return folder, model


def test_texts_of_llama_4_are_those_of_the_whole_model(llama4: tuple[Path, Any]) -> None:
    folder, theirs = llama4
    config = config_for(folder, device="cpu", skip_tokenizer_init=True)
    info = resolve_model(config)
    assert info.vision is None and info.media == [] and info.vocab_size == 384
    prompts = [prompt(size, size) for size in (5, 23, 40)]
    answers = Driver(make_runner(config), preempt=0.05).run([Sequence(ids, 8) for ids in prompts])
    for ids, answer in zip(prompts, answers, strict=True):
        assert len(answer) == 8 and answer == greedy(theirs, ids, answer)


@pytest.mark.parametrize(
    ("kind", "text", "vision"),
    [
        ("llava_onevision", "qwen2", "siglip_vision_model"),
        ("llava_next_video", "llama", "clip_vision_model"),
        ("vipllava", "llama", "clip_vision_model"),
        ("video_llava", "llama", "clip_vision_model"),
        ("lighton_ocr", "qwen3", "pixtral"),
    ],
)
def test_texts_of_others(kind: str, text: str, vision: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForImageTextToText

    torch.manual_seed(0)
    text_config = {**TEXT, "model_type": text, "num_hidden_layers": 2}
    vision_config = {**VISION, "model_type": vision}
    config = AutoConfig.for_model(kind, text_config=text_config, vision_config=vision_config)
    theirs = AutoModelForImageTextToText.from_config(config).float().eval()
    theirs.save_pretrained(tmp_path)
    options = config_for(tmp_path, device="cpu", skip_tokenizer_init=True)
    assert resolve_model(options).media == []
    prompts = [[token % 300 for token in prompt(size, size)] for size in (5, 23)]
    answers = Driver(make_runner(options)).run([Sequence(ids, 6) for ids in prompts])
    for ids, answer in zip(prompts, answers, strict=True):
        assert len(answer) == 6 and answer == greedy(theirs, ids, answer)


def test_texts_of_a_quantised_checkpoint(llama4: tuple[Path, Any], tmp_path: Path) -> None:
    """Attention is; lists name layers as the whole model has them."""
    import copy

    folder, theirs = Path(shutil.copytree(llama4[0], tmp_path / "packed")), copy.deepcopy(llama4[1])
    tensors, exact = load_file(folder / "model.safetensors"), theirs.state_dict()
    for name in [name for name in tensors if re.fullmatch(r"language.*layers\.\d+\.self_attn\.\w+_proj\.weight", name)]:
        stored, meant = FORMATS["fp8_one_scale"].pack(tensors.pop(name).double().numpy())
        tensors |= {name.removesuffix("weight") + part: tensor for part, tensor in stored.items()}
        (own,) = [one for one in exact if one.endswith(name.partition("layers.")[2]) and "vision" not in one]
        exact[own].copy_(torch.from_numpy(meant))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    values = json.loads((folder / "config.json").read_text())
    plain = [f"language_model.model.layers.{layer}.feed_forward" for layer in range(4)]
    quantised = {"quant_method": "fp8", "modules_to_not_convert": [*plain, "vision_model", "lm_head"]}
    (folder / "config.json").write_text(json.dumps(values | {"quantization_config": quantised}))
    config = config_for(folder, device="cpu", skip_tokenizer_init=True, quantization="none")
    prompts = [prompt(size, size) for size in (5, 23)]
    answers = Driver(make_runner(config)).run([Sequence(ids, 6) for ids in prompts])
    for ids, answer in zip(prompts, answers, strict=True):
        assert answer == greedy(theirs, ids, answer)
