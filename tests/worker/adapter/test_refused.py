"""Models, weights and options that are refused, each by name."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, DynamicLayer

from actorserve.actors.cli import main
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.adapter.checkpoint.model_class import check_class, read_config
from tests.support.models.census import write_tiny
from tests.worker.driver import config_for

from .loaded import Checkpoints, load, logits_of


def tampered(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"), "lacks model.layers.1.mlp.up_proj.weight"),
        (lambda tensors: tensors.update(other=torch.zeros(2)), "has other, for which the model has no use"),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.zeros(7)}),
            r"has the shape of model.norm.weight \[7\] in place of \[64\]",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(
    checkpoints: Checkpoints, tmp_path: Path, change: Any, said: str
) -> None:
    folder = tampered(shutil.copytree(checkpoints("llama"), tmp_path / "tampered"), change)
    with pytest.raises(ConfigError, match=said):
        load(folder)


def test_pickled_weights(checkpoints: Checkpoints, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    folder = shutil.copytree(checkpoints("llama"), tmp_path / "pickled")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert torch.equal(*(logits_of(one) for one in (folder, checkpoints("llama"))))


def changed(folder: Path, target: Path, **values: Any) -> Path:
    shutil.copytree(folder, target)
    known = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**known, **values}))
    return target


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"architectures": ["NewForCausalLM"], "model_type": "brand_new"},
            "no class for the model_type brand_new; a newer",
        ),
        ({"architectures": ["LlamaForSequenceClassification"]}, "goes on with texts by LlamaForCausalLM alone"),
        ({"architectures": ["T5Model"], "model_type": "vit"}, "has no model of this kind that goes on with texts"),
        (
            {"architectures": ["T5EncoderModel"], "is_encoder_decoder": True},
            "cannot be served: of its kind transformers goes on with texts by LlamaForCausalLM alone",
        ),
        (
            {
                **{"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "vision_config": {}},
                **{"text_config": {"model_type": "phi3", "vocab_size": 384}},
            },
            r"\(Phi3ForCausalLM\) can be served; its text part is phi3: .* of these kinds are served: llama, mistral,",
        ),
        (
            {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": "x"},
            r"does not read its config.json \(Validation error for field 'n_embd': TypeError: .* expected int, got str",
        ),
    ],
)
def test_what_is_no_such_model_is_refused(
    checkpoints: Checkpoints, tmp_path: Path, values: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load(changed(checkpoints("llama"), tmp_path / "other", **values))
    assert "\n" not in str(caught.value) and values["architectures"][0] in str(caught.value)


@pytest.mark.parametrize(("kind", "name"), [("mpt", "MPTForCausalLM"), ("internlm3", "InternLM3ForCausalLM")])
def test_names_that_publishers_have(tmp_path: Path, kind: str, name: str) -> None:
    """In other letters, or the kind's own where transformers computes it by another's class."""
    write_tiny(kind, tmp_path / "tiny")
    info = resolve_model(config_for(changed(tmp_path / "tiny", tmp_path / "other", architectures=[name])))
    check_class(read_config(info, False), info, False)
    other = msgspec.structs.replace(info, architecture="OtherForCausalLM")
    with pytest.raises(ConfigError, match="OtherForCausalLM cannot be served"):
        check_class(read_config(other, False), other, False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tensor_parallel_size": 2, "enable_lora": True}, "--enable-lora: LlamaForCausalLM is computed by layers of"),
        ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size: LlamaForCausalLM is computed by layers of transf"),
        ({"enable_expert_parallel": True}, "--enable-expert-parallel: LlamaForCausalLM is computed by layers of trans"),
        ({"deterministic": True}, "--deterministic: LlamaForCausalLM"),
        ({"quantization": "gguf"}, "--quantization gguf"),
        (
            {"speculative_config": '{"method": "mtp", "num_speculative_tokens": 1}'},
            "--speculative-config: method: ngram or draft_model .* compute LlamaForCausalLM; heads go with",
        ),
        ({"quantization": "int8", "dtype": "bfloat16"}, "--quantization int8: what is not quantised is float32"),
        ({"quantization": "int4", "dtype": "bfloat16"}, "--quantization int4: what is not quantised is float32"),
    ],
)
def test_options_that_cannot_be(checkpoints: Checkpoints, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(checkpoints("llama"), **options)


class OwnLayer(DynamicLayer):
    """Of a cache, that is not one of transformers'."""


def test_a_cache_of_its_own_is_refused(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DYNAMIC_LAYER_TYPE_MAPPING, "full_attention", OwnLayer)
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM cannot be served: it keeps a cache of its own \(OwnLayer"):
        load(checkpoints("llama"))


def with_code(source: Path, target: Path, code: str) -> Path:
    """A model with a class of its own."""
    places = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    values = {"architectures": ["OwnForCausalLM"], "model_type": "own", "auto_map": places}
    folder = changed(source, target, **values)
    (folder / "own.py").write_text(code)
    return folder


def test_code_beside_the_weights_runs_only_if_it_is_trusted(
    checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = with_code(checkpoints("llama"), tmp_path / "own", CODE)
    with pytest.raises(ConfigError, match=r"OwnForCausalLM cannot be served: .*; --trust-remote-code runs the code"):
        load(folder)
    assert torch.allclose(logits_of(folder, trust_remote_code=True), 3 * logits_of(checkpoints("llama")))


def test_code_that_ends_the_process_is_a_refusal(
    checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = with_code(checkpoints("llama"), tmp_path / "ends", f"{CODE}raise SystemExit(3)\n")
    with pytest.raises(ConfigError, match=r"OwnForCausalLM cannot be served: .*its code ends the process, with 3"):
        load(folder, trust_remote_code=True)


def test_check_is_interrupted_without_a_word(
    checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While code of others runs, of which nobody knows how long it takes."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    wait = f"import threading\nopen({str(ready)!r}, 'w').write('!')\nthreading.Event().wait()\n"
    folder = with_code(checkpoints("llama"), tmp_path / "waits", CODE + wait)
    output = tmp_path / "output"
    check = copy_that_runs(output, "check", str(folder), "--device", "cpu", "--trust-remote-code")
    assert ready.read_text() == "!"
    os.kill(check, signal.SIGINT)
    _, status = os.waitpid(check, 0)
    assert os.waitstatus_to_exitcode(status) == 130 and "Traceback" not in output.read_text()


def copy_that_runs(output: Path, *arguments: str) -> int:
    """The command line in a copy of this process, which has imported transformers."""
    if child := os.fork():
        return child
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (1, 2):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # pytest's are no files
        status = main(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


CODE = """
from transformers import LlamaConfig, LlamaForCausalLM
class OwnConfig(LlamaConfig):
    model_type = "own"
class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.logits = out.logits * 3.0
        return out
"""
