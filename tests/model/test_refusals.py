"""Models that cannot be served: one line says which part is missing, and what would serve in its place."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.model.checks import device
from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.info import DEMO_FOLDER, resolve_model
from actorserve.actors.model.memory import machine
from actorserve.actors.model.vision.refused import BY_NAME, END, PUBLISHED_AGAIN, REASONS, check_kind
from actorserve.actors.model.vision.texts import KINDS, TEXTS_ALONE
from actorserve.actors.options.config import Config, ConfigError, make_config

PAGE = Path(__file__).resolve().parents[2] / "tools" / "docs" / "models.md"
ROW = re.compile(r"\| ((?:`\w+…`(?:, )?)+) \| ([^|]+) \|")
POOLS = {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "one"}}
BERT = {"architectures": ["BertForSequenceClassification"], "model_type": "bert", "id2label": {"0": "one"}}
ENCODER = {
    **{"architectures": ["BartForConditionalGeneration"], "model_type": "bart", "is_encoder_decoder": True},
    **{"decoder_start_token_id": 2, "encoder_layers": 2, "decoder_layers": 2},
}
MEDUSA = '{"method": "medusa", "model": "x", "num_speculative_tokens": 2}'
ADAPTED = {"architectures": ["HeliumForCausalLM"], "model_type": "helium"}


def config_of(folder: Path, **options: Any) -> Config:
    plain = {"device": "cpu", "max_model_len": None, "load_format": "dummy"}
    return make_config({"model": str(folder), **plain, **options})


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        find_model(config_of(folder, **options))
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    def change(values: dict[str, Any]) -> Path:
        folder = Path(shutil.copytree(DEMO_FOLDER, tmp_path / "changed"))
        known = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(known | values))
        return folder

    return change


def test_the_page_has_what_is_refused() -> None:
    page = PAGE.read_text(encoding="utf-8").split("`…ForConditionalGeneration` | since")[1].split("\n\n")[0]
    rows = {reason: tuple(re.findall(r"`(\w+)…`", names)) for names, reason in ROW.findall(page)}
    assert rows == REASONS
    assert not BY_NAME.keys() & (KINDS.keys() | TEXTS_ALONE.keys())


@pytest.mark.parametrize("name", [name for names in REASONS.values() for name in names])
def test_a_kind_is_refused_by_its_missing_part(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_kind({"architectures": [name + END]}, trust_remote_code=False)
    said = str(refused.value)
    assert said.startswith(f"model: {name}{END} cannot be served: {BY_NAME[name + END]}; of models that see or hear")
    assert "Qwen2_5_VL" in said and "\n" not in said


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("name", PUBLISHED_AGAIN)
def test_one_that_is_published_again_says_where(
    name: str, trust: bool, changed: Callable[[dict[str, Any]], Path]
) -> None:
    """Neither is taken for one that makes vectors, nor asked for what its config.json has by other names."""
    folder = changed({"architectures": [name], "vocab_size": None, "auto_map": {"AutoModelForCausalLM": "code.Class"}})
    said = refusal(folder, trust_remote_code=trust)
    assert said.startswith(f"model: {name} cannot be served: ") and said.endswith(PUBLISHED_AGAIN[name])


@pytest.mark.parametrize(
    ("auto_map", "found"),
    [({"AutoModel": "code.Class"}, True), ({"AutoModel": "code.Class", "AutoModelForCausalLM": "code.Class"}, False)],
)
def test_what_its_code_has_as_a_decoder_makes_no_vectors(
    auto_map: dict[str, str], found: bool, changed: Callable[[dict[str, Any]], Path]
) -> None:
    folder = changed({"architectures": ["H2OVLChatModel"], "auto_map": auto_map})
    assert (resolve_model(config_of(folder)).pooling is not None) == found


def test_it_is_said_at_once_and_code_beside_weights_may_serve_it(changed: Callable[[dict[str, Any]], Path]) -> None:
    folder = changed({"architectures": ["Qwen2_5OmniForConditionalGeneration"], "vocab_size": None})
    assert "tokens turn by three positions" in refusal(folder)
    check_kind({"architectures": ["Janus" + END], "auto_map": {}}, trust_remote_code=True)
    with pytest.raises(ConfigError, match="pictures are tokens"):
        check_kind({"architectures": ["Janus" + END], "auto_map": {}}, trust_remote_code=False)


@pytest.mark.parametrize("values", [ENCODER, BERT])
def test_what_a_cpu_computes_is_served_whatever_gpu_there_is(
    values: dict[str, Any], changed: Callable[[dict[str, Any]], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = changed(values)
    for module in (device, machine):
        monkeypatch.setattr(module, "may_have_gpu", lambda: True)
    assert find_model(config_of(folder, device="auto"))


def test_a_gpu_computes_an_encoder_that_pools(
    changed: Callable[[dict[str, Any]], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In floats; the rest is looked at where torch finds the GPU."""
    folder = changed(BERT)
    assert "--device cuda: there is no GPU here" in refusal(folder, device="cuda")
    for module in (device, machine):
        monkeypatch.setattr(module, "may_have_gpu", lambda: True)
    assert find_model(config_of(folder, device="cuda"))
    assert find_model(config_of(folder, device="auto", quantization="int8"))
    words = refusal(folder, device="cuda", quantization="int8")
    assert words.startswith("--device cuda: --quantization int8: Bert") and words.endswith("(--device cpu)")


@pytest.mark.parametrize(
    ("values", "options", "said", "instead"),
    [
        (ADAPTED, {"tensor_parallel_size": 2, "enable_lora": True}, "--enable-lora: Helium", "parallel-size out"),
        (ADAPTED, {"pipeline_parallel_size": 2}, "--pipeline-parallel-size: Helium", "leave the option out"),
        (ADAPTED, {"deterministic": True}, "--deterministic: Helium", "leave the option out"),
        (ADAPTED, {"speculative_config": MEDUSA}, "--speculative-config: method", "ngram or draft_model"),
        (POOLS, {"pipeline_parallel_size": 2}, "--pipeline-parallel-size: not with a model that pools", "leave the"),
        (BERT, {"tensor_parallel_size": 2}, "--tensor-parallel-size: BertForSeq", "leave the option out"),
        (POOLS, {"deterministic": True}, "--deterministic: not with a model that pools", "leave the option out"),
        (POOLS, {"device": "cuda"}, "--device cuda: there is no GPU here", "CUDA_VISIBLE_DEVICES"),
        (POOLS, {"device": "cuda", "tensor_parallel_size": 2}, "--tensor-parallel-size: Qwen3", "(--device cpu)"),
        (BERT | {"quantization_config": {"quant_method": "fp8"}}, {}, "quantised weights", "in floats is"),
        (ENCODER, {"tensor_parallel_size": 2}, "--tensor-parallel-size: not with an encoder", "leave the option out"),
        (ENCODER, {"deterministic": True}, "--deterministic: not with an encoder", "leave the option out"),
        (ENCODER, {"device": "cuda"}, "--device cuda: there is no GPU here", "CUDA_VISIBLE_DEVICES"),
        (ENCODER, {"device": "cuda", "quantization": "int8"}, "int8: Bart", "(--device cpu)"),
    ],
)
def test_an_option_that_a_model_cannot_have(
    values: dict[str, Any],
    options: dict[str, Any],
    said: str,
    instead: str,
    changed: Callable[[dict[str, Any]], Path],
) -> None:
    words = refusal(changed(values), **options)
    assert said in words and instead in words
