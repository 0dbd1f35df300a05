"""A folder with wrong values, or without what is needed: one line that names file and field, before anybody starts."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.model.generation import sampling_defaults
from actorserve.actors.model.values import Values
from actorserve.actors.options.config import ConfigError
from actorserve.actors.protocol.request import default_of
from actorserve.actors.protocol.sampling.fields import sampling_parameters
from tests.model.damaged import CONFIG, GENERATION, INDEX, find, refusal, write


def test_fields_of_config_json_may_be_otherwise(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent / "kept"))
    longer = {"max_position_embeddings": 4096, "rope_scaling": {"factor": 2.0, "rope_type": "linear"}}
    changed = find(folder, hf_overrides=json.dumps(longer), max_model_len=4000)
    assert changed.max_model_len == 4000 and Path(changed.folder) != folder
    assert {file.name for file in Path(changed.folder).iterdir()} >= {file.name for file in folder.iterdir()}
    assert find(folder, hf_overrides=longer, max_model_len=4000).folder == changed.folder, "it is made once"
    assert find(folder).folder == str(folder)
    assert "--hf-overrides: 5 is no JSON object" in refusal(folder, hf_overrides="5")
    assert "rms_norm_eps" in refusal(folder, hf_overrides={"rms_norm_eps": "x"})


def test_a_field_that_no_model_of_this_kind_has(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that config.json lacks, and transformers' class of it has, is taken."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent / "unknown"))
    said = refusal(folder, hf_overrides={"sliding_windw": 5, "attention_dropout": 0.0})
    assert said.startswith("--hf-overrides: neither config.json nor transformers' ")
    assert "has a field sliding_windw" in said
    find(folder, hf_overrides={"is_matryoshka": False})


WRONG: list[tuple[str, str, list[Any]]] = [  # file, field, values
    (GENERATION, "temperature", ["hot", math.nan, math.inf, -1, 3, True, [0.5], {}]),
    (GENERATION, "top_p", [0, 1.5, -0.5, math.nan, "1"]),
    (GENERATION, "top_k", [-2, 1.5, 10**20, "40"]),
    (GENERATION, "min_p", [2, math.nan]),
    (GENERATION, "top_n_sigma", [-1.5, "1", math.nan]),
    (GENERATION, "typical_p", [0, 1.5]),
    (GENERATION, "repetition_penalty", [0, -1, 10**400, math.nan]),
    (GENERATION, "max_new_tokens", [0, -5, 10**20]),
    (GENERATION, "do_sample", ["yes", 1]),
    (GENERATION, "eos_token_id", ["a", ["a", 10**20], 10**20, -1, [True], 1.5, {}, [[2]], 2048]),
    (CONFIG, "max_position_embeddings", [-1, 0, "long", 10**20, True]),
    (CONFIG, "text_config", ["x", [1], 5]),
    (CONFIG, "architectures", [[5], "LlamaForCausalLM", {}, [["LlamaForCausalLM"]], ..., []]),
    (CONFIG, "num_hidden_layers", [10**9, 0, -1, "4", ..., 1.5]),
    (CONFIG, "vocab_size", [0, 10**12, "2048", ..., True]),
    (CONFIG, "hidden_size", [10**12, None, [1]]),
    (CONFIG, "intermediate_size", ["x"]),
    (CONFIG, "num_attention_heads", [0, "8"]),
    (CONFIG, "num_key_value_heads", [-1, "4"]),
    (CONFIG, "head_dim", [-32, "x"]),
    (CONFIG, "rms_norm_eps", ["x", math.nan, -1]),
    (CONFIG, "hidden_act", [5, ["silu"]]),
    (CONFIG, "rope_scaling", ["yarn", [1]]),
    (CONFIG, "tie_word_embeddings", ["yes"]),
    (CONFIG, "torch_dtype", [16]),
    (INDEX, "weight_map", [..., {}, [], "x", {"model.norm.weight": 5}, {"model.norm.weight": "../../etc/passwd"}]),
]
CASES = [(file, field, value) for file, field, values in WRONG for value in values]


def index_alone(folder: Path) -> None:
    """An index, and no single file, beside which none counts."""
    (folder / INDEX).write_text("{}")
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(("file", "field", "value"), CASES, ids=lambda value: repr(value)[:40])
def test_a_wrong_value_is_named_with_its_file(folder: Path, file: str, field: str, value: Any) -> None:
    if file == INDEX:
        index_alone(folder)
    if (newer := {"rope_scaling": "rope_parameters", "torch_dtype": "dtype"}.get(field)) is not None:
        write(folder, file, **{newer: ...})
    write(folder, file, **{field: value})
    said = refusal(folder)
    assert f"{folder / file}" in said and field in said


@pytest.mark.parametrize("name", ["n_positions", "seq_length", "model_max_length"])
def test_the_length_has_many_names(folder: Path, name: str) -> None:
    write(folder, CONFIG, max_position_embeddings=..., **{name: 99})
    assert "128 is more than the 99 positions of the model" in refusal(folder)


def test_yarn_as_the_cards_of_qwen_say_it_takes_longer_texts(folder: Path) -> None:
    """Beside the positions that were trained, which stay the length of who says nothing."""
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    write(folder, CONFIG, max_position_embeddings=32, rope_parameters=..., rope_scaling=rope)
    assert find(folder, max_model_len=None).max_model_len == 32
    assert find(folder, max_model_len=128).max_model_len == 128
    write(folder, CONFIG, rope_scaling={**rope, "factor": 3.0})
    assert "128 is more than the 96 positions of the model" in refusal(folder)


def test_positions_of_dual_chunk_attention_are_not_served_in_silence(folder: Path) -> None:
    """As Qwen2.5-1M has it."""
    chunks = {"chunk_size": 96, "local_size": 8, "original_max_position_embeddings": 96}
    write(folder, CONFIG, max_position_embeddings=512, dual_chunk_attention_config=chunks)
    assert find(folder, max_model_len=None).max_model_len == 96
    said = refusal(folder)
    assert "128 is more than the 96 positions" in said and "dual chunk attention" in said
    assert find(folder, hf_overrides='{"dual_chunk_attention_config": null}', max_model_len=None).max_model_len == 512


def test_an_encoder_is_told_at_once(folder: Path) -> None:
    """Not that a length is missing, which would do nothing."""
    values = {"architectures": ["T5ForQuestionAnswering"], "is_encoder_decoder": True}
    write(folder, CONFIG, max_position_embeddings=..., **values)
    assert "T5ForQuestionAnswering cannot be served: it has an encoder" in refusal(folder)


def test_what_a_decoder_begins_with_must_be_said(folder: Path) -> None:
    values = {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}
    write(folder, CONFIG, **values)
    assert "decoder_start_token_id" in refusal(folder)


def test_a_decoder_begins_as_texts_do_where_nothing_else_is_said(folder: Path) -> None:
    """As generate() of transformers has it: T5Gemma's."""
    values = {"architectures": ["T5GemmaForConditionalGeneration"], "is_encoder_decoder": True}
    write(folder, CONFIG, **values)
    write(folder, GENERATION, bos_token_id=5)
    encoder = find(folder).encoder
    assert encoder is not None and encoder.start == [5]


DECODER = {"max_position_embeddings": 32, "vocab_size": 2048}


@pytest.mark.parametrize(
    "values",
    [
        {"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 32},  # LED
        {"encoder": {"max_position_embeddings": 64}, "decoder": DECODER},  # T5Gemma
        {"encoder": {"text_config": {"max_position_embeddings": 64}}, "decoder": DECODER},  # T5Gemma 2
    ],
)
def test_encoders_and_decoders_may_be_of_different_lengths(folder: Path, values: dict[str, Any]) -> None:
    kind = {"architectures": ["LEDForConditionalGeneration"], "is_encoder_decoder": True, "decoder_start_token_id": 2}
    write(folder, CONFIG, max_position_embeddings=..., **kind, **values)
    encoder = find(folder).encoder
    assert encoder is not None and (encoder.longest, encoder.decoder_longest) == (64, 32)


def test_a_model_that_listens_says_which_tokens_are_timestamps(folder: Path) -> None:
    values = {"architectures": ["WhisperForConditionalGeneration"], "is_encoder_decoder": True}
    sizes = {"max_source_positions": 100, "max_target_positions": 50, "num_mel_bins": 80}
    write(folder, CONFIG, decoder_start_token_id=1, **sizes, **values)
    assert "no_timestamps_token_id" in refusal(folder)


@pytest.mark.parametrize("file", [CONFIG, GENERATION, INDEX, "tokenizer_config.json"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 200_000, "nested too deeply"),
        (b"", "cannot be read"),
        (b"\xff\xfe{}", "cannot be read"),
        (b"[]", "holds no JSON object"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "cannot be read"),
    ],
)
def test_a_file_that_is_no_object(folder: Path, file: str, content: bytes, words: str) -> None:
    if file == INDEX:
        index_alone(folder)
    (folder / file).write_bytes(content)
    said = refusal(folder)
    assert str(folder / file) in said and words in said


def test_an_index_beside_the_single_file_does_not_count(folder: Path) -> None:
    (folder / INDEX).write_text("nothing")
    assert find(folder).folder == str(folder)


def test_a_file_that_never_ends_is_not_read(folder: Path) -> None:
    (folder / GENERATION).unlink()
    os.mkfifo(folder / GENERATION)
    assert "generation_config.json is no file" in refusal(folder)
    (folder / GENERATION).unlink()
    with (folder / GENERATION).open("wb") as file:
        file.truncate(1 << 30)
    assert "generation_config.json has 1,073,741,824 bytes" in refusal(folder)
    (folder / GENERATION).unlink()
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    assert "model.safetensors is no file" in refusal(folder)


def test_defaults_that_are_not_wanted_are_not_read(folder: Path) -> None:
    write(folder, GENERATION, temperature="hot")
    assert "--generation-config none leaves" in refusal(folder)
    assert find(folder, generation_config="none").sampling_defaults == {}
    write(folder, GENERATION, temperature=None, top_k=50.0)
    assert find(folder).sampling_defaults == {"top_p": 0.9, "top_k": 50}


def test_defaults_have_the_ranges_of_requests() -> None:
    def accepts(field: str, value: float) -> bool:
        try:
            return bool(sampling_defaults(Values("f", {field: value})))
        except ConfigError:
            return False

    limits = {name: one.range for name, one in sampling_parameters().items() if one.configurable and one.range}
    assert {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"} <= limits.keys()
    for field, limit in limits.items():
        step = 1 if isinstance(default_of(field), int) else 0.01
        ends = (limit.least - step, limit.least, limit.least + step, limit.most, limit.most + step)
        assert [accepts(field, value) for value in ends] == [False, not limit.above, True, True, False], field
