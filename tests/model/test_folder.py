"""A folder with wrong values, or without what is needed: one line that names file and field, before anybody starts."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actorserve import LLM
from actorserve.actors.model.checks.device import check_device
from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.generation import sampling_defaults
from actorserve.actors.model.info import DEMO_FOLDER, ModelInfo
from actorserve.actors.model.memory import machine
from actorserve.actors.model.values import Values
from actorserve.actors.options.config import Config, ConfigError, make_config
from actorserve.actors.protocol.request import default_of, sampling_parameters
from tests.support.server import Server

OPTIONS: dict[str, object] = {"device": "cpu", "max_model_len": 128, "max_num_seqs": 2}
CONFIG, GENERATION, INDEX = "config.json", "generation_config.json", "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the packaged model, to be damaged."""
    return Path(shutil.copytree(DEMO_FOLDER, tmp_path / "model"))


def find(folder: Path, **options: object) -> ModelInfo:
    return find_model(make_config({"model": str(folder)} | OPTIONS | options))


def refusal(folder: Path, **options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        find(folder, **options)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 500
    return said


def write(folder: Path, file: str, **changes: Any) -> None:
    values = json.loads((folder / file).read_text()) | changes
    (folder / file).write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


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


@pytest.mark.parametrize(("file", "field", "value"), CASES, ids=lambda value: repr(value)[:40])
def test_a_wrong_value_is_named_with_its_file(folder: Path, file: str, field: str, value: Any) -> None:
    if file == INDEX:
        (folder / INDEX).write_text("{}")
    if field in ("rope_scaling", "torch_dtype"):
        write(folder, file, rope_parameters=..., dtype=...)
    write(folder, file, **{field: value})
    said = refusal(folder)
    assert f"{folder / file}" in said and field in said


@pytest.mark.parametrize("name", ["n_positions", "seq_length", "model_max_length"])
def test_the_length_has_many_names(folder: Path, name: str) -> None:
    write(folder, CONFIG, max_position_embeddings=..., **{name: 99})
    assert "128 is more than the 99 positions of the model" in refusal(folder)


def test_an_encoder_is_told_at_once(folder: Path) -> None:
    """Not that a length is missing, which would do nothing."""
    values = {"architectures": ["T5ForQuestionAnswering"], "is_encoder_decoder": True}
    write(folder, CONFIG, max_position_embeddings=..., **values)
    assert "T5ForQuestionAnswering cannot be served: it has an encoder" in refusal(folder)


def test_what_a_decoder_begins_with_must_be_said(folder: Path) -> None:
    values = {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}
    write(folder, CONFIG, **values)
    assert "decoder_start_token_id" in refusal(folder)


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
    (folder / file).write_bytes(content)
    said = refusal(folder)
    assert str(folder / file) in said and words in said


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


# --- weights -------------------------------------------------------------------------------------------------------


def header(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write the file anew with another header."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    values = json.loads(data[8 : 8 + length])
    change(values)
    text = json.dumps(values).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: h.pop(NORM), "broken or cut off"),
        (lambda h: h[NORM].update(dtype="I8"), f"{NORM} has 512 bytes, which is not its shape"),
        (lambda h: h[NORM].update(shape=[1]), f"{NORM} has .* bytes, which is not its shape"),
        (lambda h: h[NORM].update(shape="x"), f"does not say type, shape and place of {NORM}"),
        (lambda h: h[NORM].update(data_offsets=[-4, 0]), f"does not say type, shape and place of {NORM}"),
        (lambda h: h.update({NORM: 5}), f"does not say type, shape and place of {NORM}"),
        (lambda h: h.update({"extra": h.pop(NORM)}), f"lacks {NORM}; it has extra, for which"),
        (lambda h: h.update({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}), "does not lie where"),
    ],
)
def test_a_header_that_is_wrong(folder: Path, change: Callable[[dict[str, Any]], object], words: str) -> None:
    header(folder, change)
    assert re.search(words, refusal(folder))


def test_files_that_are_cut_off_or_no_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    for content, words in (
        (data[:-1], "it has 6,"),
        (data + b"\0", "in place of"),
        (data[:100], "it ends inside its header"),
        (b"", "it ends inside its header"),
        ((200_000).to_bytes(8, "little") + b"[" * 200_000, "nested too deeply"),
        ((2).to_bytes(8, "little") + b"[]", "no JSON object"),
        ((1 << 63).to_bytes(8, "little") + b"{}", "it ends inside its header"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "it ends inside its header"),
    ):
        path.write_bytes(content)
        said = refusal(folder)
        assert f"{path} is broken or cut off: " in said and words in said, said
    path.unlink()
    (folder / "weights.pth").write_bytes(data)
    assert "has neither model.safetensors nor" in refusal(folder) and "but weights.pth" in refusal(folder)
    assert find(folder, load_format="dummy")


def test_weights_that_no_memory_holds(folder: Path) -> None:
    write(folder, CONFIG, num_hidden_layers=4096, intermediate_size=1 << 20)
    assert re.search(
        r"its weights take [\d,]+ bytes of memory, and [\d,]+ are free", refusal(folder, load_format="dummy")
    )


# --- tokenizer, template, device, memory -----------------------------------------------------------------------------


def test_what_else_is_seen_without_starting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, words in (
        ({"kv_cache_memory_bytes": 4096}, "--kv-cache-memory-bytes: 4,096 bytes of KV memory are less than one block"),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8: on a GPU only"),
        ({"quantization": "int8", "dtype": "bfloat16"}, "--quantization int8: what is not quantised is float32"),
        ({"tensor_parallel_size": 3}, "--tensor-parallel-size: the model has 8 attention heads, which 3"),
        ({"pipeline_parallel_size": 9}, "--pipeline-parallel-size: the model has"),
        ({"chat_template": "/none.jinja"}, "--chat-template: /none.jinja cannot be read"),
        ({"tokenizer": "/none"}, "--tokenizer: there is no folder /none"),
        ({"max_model_len": 10**6}, "--max-model-len: 1000000 is more than the"),
        (
            {"speculative_config": '{"method": "draft_model", "model": "/none", "num_speculative_tokens": 2}'},
            "--speculative-config: model: /none: there is no folder /none",
        ),
    ):
        assert words in refusal(folder, **options), options
    monkeypatch.setattr(machine, "DEVICES", folder)
    assert "--device cuda: there is no GPU here" in refusal(folder, device="cuda")
    for damaged in ("", "{", '{"model": {', "x"):
        (folder / "tokenizer.json").write_text(damaged)
        assert "tokenizer.json is no JSON object, or cut off" in refusal(folder)
    (folder / "tokenizer.json").unlink()
    assert "--tokenizer: " in refusal(folder) and "has none of tokenizer.json, tokenizer.model, *.tik" in refusal(
        folder
    )


def test_a_draft_model_is_looked_at_too(folder: Path) -> None:
    drafts = json.dumps({"method": "draft_model", "model": str(folder), "num_speculative_tokens": 2})
    assert find(DEMO_FOLDER, speculative_config=drafts)
    (folder / "model.safetensors").write_bytes(b"")
    assert f"--speculative-config: model: {folder}: " in refusal(DEMO_FOLDER, speculative_config=drafts)


@pytest.mark.parametrize(
    "given",
    [
        {"enable_prompt_embeds": True},
        {"logits_processor_pattern": "a.*"},
        {"worker_cls": "a:B"},
        {"enable_eplb": True, "enable_expert_parallel": True, "tensor_parallel_size": 2},
        {"speculative_config": '{"method": "suffix", "num_speculative_tokens": 2}'},
    ],
)
def test_what_a_gpus_worker_does_not_do_is_refused_there(given: dict[str, Any]) -> None:
    """Also with --device auto, where only the worker knows which device it is."""
    option = "--" + next(iter(given)).replace("_", "-")
    with pytest.raises(ConfigError, match=rf"^{option}: .*\(--device cpu\)"):
        check_device(Config(**given), on_gpu=True)
    check_device(Config(**given), on_gpu=False)


@pytest.mark.parametrize("value", [5, [1], [{"name": "default"}], [{"name": [], "template": "x"}]])
def test_templates_in_tokenizer_config(folder: Path, value: Any) -> None:
    (folder / "chat_template.jinja").unlink()
    write(folder, "tokenizer_config.json", chat_template=value)
    assert "tokenizer_config.json: chat_template is neither" in refusal(folder)
    write(folder, "tokenizer_config.json", chat_template=[{"name": "default", "template": "x"}])
    assert find(folder)


def test_a_template_file_that_is_no_text(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    assert f"model: {folder / 'chat_template.jinja'} cannot be read" in refusal(folder)


def test_a_gpu_that_may_be_there_is_the_workers_to_judge(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "nvidiactl").touch()
    monkeypatch.setattr(machine, "DEVICES", folder)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert machine.may_have_gpu() and find(folder, device="auto", kv_cache_dtype="fp8")
    drafts = '{"method": "draft_model", "model": "/none", "num_speculative_tokens": 2}'
    check_device(make_config({"speculative_config": drafts}), on_gpu=True)
    with pytest.raises(ConfigError, match=r"^--speculative-config: method: ngram only with several GPUs"):
        check_device(make_config({"speculative_config": drafts, "tensor_parallel_size": 2}), on_gpu=True)
    mtp = '{"method": "mtp", "num_speculative_tokens": 2}'
    for head in (*(drafts.replace("draft_model", method) for method in ("medusa", "eagle", "eagle3")), mtp):
        check_device(make_config({"speculative_config": head}), on_gpu=True)
        with pytest.raises(ConfigError, match=r"^--speculative-config: method: ngram only with several GPUs"):
            check_device(make_config({"speculative_config": head, "tensor_parallel_size": 2}), on_gpu=True)
    check_device(make_config({"enable_lora": True}), on_gpu=True)
    check_device(make_config({"deterministic": True}), on_gpu=True)
    with pytest.raises(ConfigError, match=r"^--kv-cache-dtype int8: on a CPU only; on a GPU auto or fp8"):
        check_device(make_config({"kv_cache_dtype": "int8"}), on_gpu=True)
    assert find(folder, device="cpu", deterministic=True)
    assert "on a GPU only" in refusal(folder, device="cpu", kv_cache_dtype="fp8")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not machine.may_have_gpu() and "no GPU here" in refusal(folder, device="cuda")


# --- as a user sees it ---------------------------------------------------------------------------------------------


def test_launch_says_it_once_as_its_last_line_and_starts_nobody(folder: Path) -> None:
    write(folder, GENERATION, top_p=7)
    with Server(str(folder), "--device", "cpu", wait=False) as server:
        assert server.wait() == 2
        (line,) = server.read_all().splitlines()
    assert re.fullmatch(rf"actorserve: error: model: {folder}/{GENERATION} says top_p = 7; a number above 0 .*", line)


@pytest.mark.parametrize("in_process", [False, True])
def test_llm_says_the_same(folder: Path, in_process: bool) -> None:
    write(folder, GENERATION, top_p=7)
    with pytest.raises(ConfigError) as caught:
        LLM(str(folder), device="cpu", in_process=in_process)
    assert str(caught.value) == refusal(folder)


def test_a_model_without_template_is_served_with_a_warning(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with Server(str(folder), "--device", "cpu", "--worker", "scripted") as server:
        assert "the model has no chat template: /v1/completions works" in server.output


def test_checks_need_no_torch(folder: Path) -> None:
    program = (
        "import sys; from actorserve.actors.options.config import make_config; "
        "from actorserve.actors.model.checks.model import find_model; find_model(make_config({'model': sys.argv[1]})); "
        "assert not {'torch', 'transformers', 'numpy', 'tokenizers', 'huggingface_hub'} & set(sys.modules)"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", program, str(folder)]) == 0


def test_sampling_defaults_of_an_option(folder: Path) -> None:
    before = find(folder).sampling_defaults
    given = '{"temperature": 0.25, "top_k": 7}'
    found = find(folder, override_generation_config=given).sampling_defaults
    assert found == {**before, "temperature": 0.25, "top_k": 7}
    alone = find(folder, override_generation_config=given, generation_config="none").sampling_defaults
    assert alone == {"temperature": 0.25, "top_k": 7}
    for wrong, said in (
        ('{"temperature": -1}', "--override-generation-config says temperature = -1"),
        ('{"colour": 1}', "--override-generation-config: colour is none of"),
        ("[]", "--override-generation-config: .* is no JSON object"),
    ):
        with pytest.raises(ConfigError, match=said):
            find(folder, override_generation_config=wrong)
