"""Models that see pictures, by their config.json: the text part, placeholders, positions, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from actorserve.actors.model.checks.combinations import check_vision
from actorserve.actors.model.config_json import find_architecture, read_architecture
from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.vision.texts import read_vision, text_name
from actorserve.actors.options.config import ConfigError, make_config

FLAT: dict[str, Any] = {  # as Qwen2.5-VL's files at the hub
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_theta": 5000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 32},
}
GEMMA: dict[str, Any] = {  # as gemma-3-4b's: most fields are left out
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "image_token_index": 262144,
    "mm_tokens_per_image": 256,
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "vision_config": {"image_size": 896},
}
LLAVA: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "image_token_index": 32000,
    "text_config": {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    "tie_word_embeddings": False,
    "vision_config": {"model_type": "clip_vision_model"},
}


def folder(path: Path, values: dict[str, Any]) -> Path:
    (path / "config.json").write_text(json.dumps(values))
    (path / "tokenizer.json").write_text("{}")
    return path


def look(path: Path, values: dict[str, Any], **options: Any) -> Any:
    own = {"model": str(folder(path, values)), "load_format": "dummy", "device": "cpu", **options}
    return resolve_model(make_config(own))


def test_fields_of_the_text_beside_all_others(tmp_path: Path) -> None:
    shape = read_architecture(FLAT)
    assert (shape.hidden_size, shape.rope.kind, shape.rope.theta, shape.tied) == (64, "default", 5000.0, True)
    assert shape.stored_dtype == "bfloat16" and shape.vision is not None
    assert shape.vision.placeholders == (151655, 151656) and shape.vision.axes == (0, 0, 1, 1, 1, 2, 2, 2)
    info = look(tmp_path, FLAT)
    assert (info.vocab_size, info.max_model_len, info.vision) == (64, 128, shape.vision)


def test_what_is_left_out_is_what_transformers_takes(tmp_path: Path) -> None:
    shape = read_architecture(GEMMA)
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.vocab_size) == (8, 4, 256, 262208)
    assert shape.tied and shape.windows[:6] == (1024,) * 5 + (None,)
    assert shape.vision is not None and shape.vision.whole_pictures and shape.vision.span == 256
    assert look(tmp_path, GEMMA).max_model_len == 131072
    llava = read_architecture(LLAVA)
    assert (llava.layers, llava.intermediate_size, llava.vocab_size, llava.tied) == (32, 11008, 32064, False)


@pytest.mark.parametrize("name", ["Llava", "LlavaOnevision", "LlavaNextVideo", "Qwen2VL", "Qwen2_5_VL", "LlavaNext"])
def test_whether_embeddings_make_logits(name: str) -> None:
    """Older files say it of the text part alone, and false may have been written beside it."""
    kinds = {"Qwen2VL": "qwen2_vl_text", "Qwen2_5_VL": "qwen2_5_vl_text"}
    text = {"model_type": kinds.get(name, "llama"), "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    for own in (True, False):
        config = getattr(transformers, f"{name}Config")(
            text_config={**text, "tie_word_embeddings": own}, tie_word_embeddings=False
        )
        values = {
            **{"architectures": [f"{name}ForConditionalGeneration"], "vision_config": {}, "tie_word_embeddings": False},
            **{"model_type": config.model_type, "text_config": {**text, "tie_word_embeddings": own}},
        }
        assert read_architecture(values).tied == config.tie_word_embeddings == (own and name != "LlavaNext")


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("model.language_model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"),
        ("language_model.model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("model.text_model.embed_tokens.weight", "model.embed_tokens.weight"),
        ("model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.q_proj.bias"),
        ("visual.blocks.0.attn.qkv.weight", None),
        ("model.vision_tower.encoder.layers.0.mlp.fc1.weight", None),
        ("multi_modal_projector.linear_1.weight", None),
        ("image_newline", None),
    ],
)
def test_tensors_of_the_text_part(name: str, own: str | None) -> None:
    assert text_name(name) == own


def test_a_section_that_is_not_half_of_a_head() -> None:
    wrong = {**FLAT, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 4]}}
    with pytest.raises(ConfigError, match="mrope_section"):
        read_vision(wrong)


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="quant_method = 'hqq', which is not supported"):
        look(tmp_path, {**FLAT, "quantization_config": {"quant_method": "hqq"}})
    with pytest.raises(ConfigError, match=r"--runner pooling: Qwen2_5_VL.* no vectors are made of it by layers of"):
        look(tmp_path, FLAT, runner="pooling", model_impl="transformers")
    pooled = look(tmp_path, FLAT, runner="pooling")
    assert pooled.pooling is not None and pooled.pooling.base == "Qwen2ForCausalLM"
    assert pooled.pooling.methods == ["last"]
    assert pooled.vision is not None and pooled.media == ["image", "video"]
    info = look(tmp_path, GEMMA)
    few = make_config({"model": str(tmp_path), "device": "cpu", "max_num_batched_tokens": 255})
    with pytest.raises(ConfigError, match="set it to 256 or more"):
        check_vision(few, info, info.vision)
    exact = make_config({"model": str(tmp_path), "device": "cpu", "deterministic": True})
    with pytest.raises(ConfigError, match=r"--deterministic: Gemma3For.* lets tokens of a picture see one another"):
        check_vision(exact, info, info.vision)
    assert pooled.vision is not None and not pooled.vision.whole_pictures
    check_vision(exact, pooled, pooled.vision)
    head = make_config(
        {
            "model": str(tmp_path),
            "device": "cpu",
            "speculative_config": {"method": "eagle3", "model": "x", "num_speculative_tokens": 2},
        }
    )
    with pytest.raises(ConfigError, match="method: ngram"):
        check_vision(head, info, info.vision)


def test_by_layers_of_transformers_it_sees_nothing(tmp_path: Path) -> None:
    assert find_architecture(GEMMA, "transformers") is None
    other = {**LLAVA, "text_config": {**LLAVA["text_config"], "model_type": "phi"}}
    assert find_architecture(other, "auto") is None  # whose text part is not known here
    info = look(tmp_path, other)
    assert info.vision is None and info.media == []
