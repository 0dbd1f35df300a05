"""What else is seen before anybody starts: templates, the device, drafts, memory; and as a user sees it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from actorserve import LLM
from actorserve.actors.model.checks import combinations
from actorserve.actors.model.checks.combinations import check_hidden_states, check_prompt_embeds
from actorserve.actors.model.checks.device import check_device
from actorserve.actors.model.info import DEMO_FOLDER, resolve_model
from actorserve.actors.model.memory import machine
from actorserve.actors.model.vision.spec import VisionSpec
from actorserve.actors.options.config import Config, ConfigError, make_config
from tests.model.damaged import GENERATION, find, refusal, write
from tests.support.server import Server


def test_what_else_is_seen_without_starting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, words in (
        ({"kv_cache_memory_bytes": 4096}, "--kv-cache-memory-bytes: 4,096 bytes of KV memory are less than one block"),
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
    assert "--tokenizer: " in refusal(folder) and "has none of tokenizer.json, tokenizer.model, spi" in refusal(folder)


def test_a_draft_model_is_looked_at_too(folder: Path) -> None:
    drafts = json.dumps({"method": "draft_model", "model": str(folder), "num_speculative_tokens": 2})
    assert find(DEMO_FOLDER, speculative_config=drafts)
    (folder / "model.safetensors").write_bytes(b"")
    assert f"--speculative-config: model: {folder}: " in refusal(DEMO_FOLDER, speculative_config=drafts)


@pytest.mark.parametrize(
    "given",
    [
        {"logits_processor_pattern": "a.*"},
        {"worker_cls": "a:B"},
        {"enable_return_hidden_states": True},
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


def test_who_tells_no_hidden_states() -> None:
    for given, reason in (
        ({"runner": "pooling"}, "/pooling (token_embed)"),
        ({"model_impl": "transformers"}, "own layers"),
    ):
        said = refusal(DEMO_FOLDER, enable_return_hidden_states=True, **given)
        assert said.startswith("--enable-return-hidden-states: ") and reason in said, said
    assert find(DEMO_FOLDER, enable_return_hidden_states=True)
    elsewhere = Config(remote_engines=["10.0.0.1:7000"])
    with pytest.raises(ConfigError, match=r"^--enable-return-hidden-states: .* on the server's machine"):
        check_hidden_states(elsewhere, resolve_model(Config(model=str(DEMO_FOLDER))))


def test_prompts_of_embeddings_on_a_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a CPU alone has beside them is refused; the option by itself is not."""
    monkeypatch.setattr(combinations, "check_gpu", lambda config: config.device != "cpu")
    model = structs.replace(resolve_model(Config(model=str(folder))), hidden=64)
    seeing = structs.replace(model, vision=VisionSpec(kind="llava", placeholders=(1,), hidden=64))
    ngram, suffix = (f'{{"method": "{method}", "num_speculative_tokens": 2}}' for method in ("ngram", "suffix"))
    check_prompt_embeds(Config(enable_prompt_embeds=True, speculative_config=ngram), model)
    for given, words in ((model, "ngram on a GPU"), (seeing, "alone with a model that sees or hears")):
        config = Config(enable_prompt_embeds=True, speculative_config=suffix)
        with pytest.raises(ConfigError, match=rf"^--enable-prompt-embeds: (?=.*{words}).*\(--device cpu\)"):
            check_prompt_embeds(config, given)
        check_prompt_embeds(structs.replace(config, device="cpu"), given)


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
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(origin=f"{folder}/torch.py"))
    assert not machine.may_have_gpu(), "a driver is of no use to a torch for CPUs"
    (folder / "lib").mkdir()
    (folder / "lib" / "libtorch_cuda.so").touch()
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
    for kept in ("int8", "nvfp4", "turboquant_4bit_nc"):
        with pytest.raises(ConfigError, match=f"^--kv-cache-dtype {kept}: on a CPU only; on a GPU auto or fp8"):
            check_device(make_config({"kv_cache_dtype": kept}), on_gpu=True)
    assert find(folder, device="cpu", deterministic=True)
    assert find(folder, device="cpu", kv_cache_dtype="fp8")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not machine.may_have_gpu() and "no GPU here" in refusal(folder, device="cuda")


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
