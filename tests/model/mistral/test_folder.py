"""Folders in Mistral's own form: which form is read, and what params.json says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from actorserve.actors.model.config_json import find_architecture
from actorserve.actors.model.info import DEMO_FOLDER
from actorserve.actors.model.values import read_json
from actorserve.actors.model.weights.weight_files import check_weights
from tests.model.damaged import find, refusal, write
from tests.support.models.mistral.files import convert

PARAMS, WEIGHTS = "params.json", "consolidated.safetensors"
VISION = {
    **{"hidden_size": 32, "num_channels": 3, "max_image_size": 96, "image_size": 96, "patch_size": 8},
    **{"intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "rope_theta": 10000.0},
    **{"adapter_bias": False, "image_token_id": 10},
}
LATENT = {"q_lora_rank": 40, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20}
MERGED = {"mm_projector_id": "patch_merge", "spatial_merge_size": 2, "add_pre_mm_projector_layer_norm": True}


@pytest.fixture(autouse=True)
def _cached(cache: Path) -> None:
    """What is made is kept for the test alone."""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The packaged model in Mistral's form alone."""
    return convert(DEMO_FOLDER, tmp_path / "own")


def config_of(folder: Path, **options: object) -> dict[str, Any]:
    """config.json as it is read."""
    return read_json(Path(find(folder, **options).folder) / "config.json")


def test_a_folder_in_that_form_alone_needs_no_option(own: Path) -> None:
    model = find(own)
    assert model.architecture == "MistralForCausalLM"
    assert read_json(Path(model.folder) / "config.json")["dtype"] == "float16"
    assert Path(find(own).folder) == Path(model.folder)
    shape = find_architecture(read_json(Path(model.folder) / "config.json"), "auto")
    assert shape is not None and len(check_weights(Path(model.folder), shape)) == len(shape.tensors())


@pytest.mark.parametrize(
    ("options", "read"),
    [
        ({}, "Llama"),
        ({"config_format": "hf"}, "Llama"),
        ({"load_format": "hf"}, "Llama"),
        ({"load_format": "safetensors"}, "Llama"),
        ({"config_format": "mistral"}, "Mistral"),
        ({"load_format": "mistral"}, "Mistral"),
        ({"config_format": "mistral", "load_format": "safetensors"}, "Mistral"),
        ({"config_format": "mistral", "load_format": "mistral", "tokenizer_mode": "hf"}, "Mistral"),
        ({"config_format": "mistral", "load_format": "dummy"}, "Mistral"),
    ],
)
def test_a_folder_of_both_forms(options: dict[str, object], read: str, own: Path) -> None:
    shutil.copytree(DEMO_FOLDER, own, dirs_exist_ok=True)
    assert find(own, **options).architecture == f"{read}ForCausalLM"


def test_a_form_that_is_not_there_is_refused(own: Path, folder: Path) -> None:
    for option in ("config_format", "load_format"):
        name = f"--{option.replace('_', '-')}"
        assert refusal(folder, **{option: "mistral"}).startswith(f"{name} mistral: {folder} has no params.json")
        assert refusal(own, **{option: "hf"}).startswith(f"{name} hf: {own} has no config.json, but params.json")
    both = refusal(own, config_format="mistral", load_format="hf")
    assert both.startswith("--config-format mistral: --load-format hf asks for another form")
    assert find(own, load_format="safetensors").architecture == "MistralForCausalLM"


def test_a_draft_model_is_of_the_form_that_it_has(own: Path) -> None:
    drafts = {"method": "draft_model", "model": str(DEMO_FOLDER), "num_speculative_tokens": 2}
    assert find(own, config_format="mistral", load_format="mistral", speculative_config=json.dumps(drafts))


def test_weights_that_are_missing(own: Path) -> None:
    (own / WEIGHTS).unlink()
    assert "has neither consolidated.safetensors nor consolidated.safetensors.index.json" in refusal(own)
    assert find(own, load_format="dummy")


def test_what_has_changed_is_read_anew(own: Path) -> None:
    before = config_of(own)
    write(own, PARAMS, rope_theta=5000.0)
    save_file({name: one.bfloat16() for name, one in load_file(own / WEIGHTS).items()}, own / WEIGHTS)
    after = config_of(own)
    assert before["rope_parameters"]["rope_theta"] != after["rope_parameters"]["rope_theta"] == 5000.0
    assert (before["dtype"], after["dtype"]) == ("float16", "bfloat16")


def test_overrides_are_of_what_was_made(own: Path) -> None:
    changed = config_of(own, hf_overrides={"max_position_embeddings": 300})
    assert changed["max_position_embeddings"] == 300 and changed["model_type"] == "mistral"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dim": ...}, "says dim = None; a whole number"),
        ({"n_heads": 0}, "says n_heads = 0; a whole number"),
        ({"model_type": "mamba"}, "says model_type = 'mamba'; transformer"),
        ({"q_lora_rank": 4}, "says kv_lora_rank = None; a whole number"),
        ({**LATENT, "sliding_window": 64}, "says sliding_window = 64; none beside latents"),
        ({**LATENT, "moe": {"num_experts": 4, "route_every_n": 2}}, "moe says route_every_n = 2; 1"),
        ({**LATENT, "moe": {"num_experts": 4, "num_experts_per_tok": 5}}, "moe says num_experts_per_tok = 5; a whole"),
        ({"use_biases": True}, "says use_biases = True; none"),
        ({"multimodal": {"whisper_model_args": {"a": 1}}}, "whisper_model_args says encoder_args = None; an object"),
        (
            {"multimodal": {"whisper_model_args": {"a": 1}}, "vision_encoder": VISION},
            "multimodal = {'whisper_model_args",
        ),
        (
            {
                "multimodal": {
                    "whisper_model_args": {"encoder_args": {"causal": True, "audio_encoding_args": {"num_mel_bins": 8}}}
                }
            },
            "encoder_args says causal = True; false (Voxtral Realtime",
        ),
        ({"quantization": {"qformat_weight": "int3"}}, "quantization says qformat_weight = 'int3'; fp8_e4m3 is needed"),
        ({"quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "ROW"}}, "says qscheme_act = 'ROW'; TENSOR or"),
        ({"sliding_window": [8, 9]}, "says sliding_window = [8, 9]; a number, or a list of null and one number"),
        ({"llama_4_scaling": {"beta": 0.1}}, "llama_4_scaling says original_max_position_embeddings = None"),
        (
            {
                "yarn": {"original_max_position_embeddings": 64, "factor": 4},
                "llama_4_scaling": {"original_max_position_embeddings": 32, "beta": 0.1},
            },
            "an object with yarn's original_max_position_embeddings is needed",
        ),
        ({"vision_encoder": {**VISION, "patch_size": None}}, "vision_encoder says patch_size = None"),
        (
            {"vision_encoder": {**VISION, "mm_projector_id": "patch_merge"}},
            "says add_pre_mm_projector_layer_norm = None",
        ),
    ],
)
def test_values_that_cannot_be(changes: dict[str, Any], words: str, own: Path) -> None:
    write(own, PARAMS, **changes)
    said = refusal(own)
    assert words in said and PARAMS in said


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({"max_seq_len": ...}, {"max_position_embeddings": 128_000}),
        ({"max_position_embeddings": 400}, {"max_position_embeddings": 400}),
        ({"sliding_window": "64"}, {"sliding_window": 64}),
        ({"sliding_window": [64]}, {"sliding_window": 64, "model_type": "mistral"}),
        (
            {"sliding_window": [None, 64], "n_layers": 4},
            {"layer_types": ["full_attention", "sliding_attention"] * 2, "model_type": "ministral"},
        ),
        (
            {"yarn": {"original_max_position_embeddings": 64, "factor": 4, "beta": 20, "alpha": 2}},
            {
                "rope_parameters": {
                    **{"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0, "beta_fast": 20.0, "beta_slow": 2.0},
                    "original_max_position_embeddings": 64,
                }
            },
        ),
        ({"vision_encoder": VISION}, {"architectures": ["LlavaForConditionalGeneration"], "image_token_index": 10}),
        (
            {"vision_encoder": {**VISION, **MERGED}},
            {"architectures": ["Mistral3ForConditionalGeneration"], "spatial_merge_size": 2},
        ),
    ],
)
def test_what_params_say(changes: dict[str, Any], known: dict[str, Any], own: Path) -> None:
    write(own, PARAMS, **changes)
    config = config_of(own, load_format="dummy", max_model_len=64)
    assert {name: config.get(name) for name in known} == known


def test_the_length_that_only_the_other_form_says(own: Path) -> None:
    write(own, PARAMS, max_seq_len=...)
    (own / "config.json").write_text(json.dumps({"text_config": {"max_position_embeddings": 333}}))
    assert config_of(own, config_format="mistral")["max_position_embeddings"] == 333


def test_files_of_pictures_are_made(own: Path) -> None:
    write(own, PARAMS, vision_encoder={**VISION, **MERGED})
    made = Path(find(own, load_format="dummy").folder)
    assert read_json(made / "preprocessor_config.json")["size"] == {"longest_edge": 96}
    assert read_json(made / "processor_config.json")["spatial_merge_size"] == 2
