"""Parameters are refused by their names; options, too, before any process is started."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
import torch

import actorserve
from actorserve import LLM, ConfigError, SamplingParams, StructuredOutputsParams
from actorserve.actors.llm.settings import make_settings, read_options
from actorserve.actors.model.checks import device
from actorserve.actors.model.encoder_decoder.spec import EncoderSpec
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": 3}, "temperature must be between 0 and 2"),
        ({"temperature": float("nan")}, "temperature must be between"),
        ({"top_p": 0}, "top_p must be greater than 0"),
        ({"top_k": -2}, "top_k must be at least -1"),
        ({"top_n_sigma": -2}, "top_n_sigma must be between -1 and 100, not -2"),
        ({"typical_p": 0}, "typical_p must be greater than 0 and at most 1, not 0"),
        ({"n": 0}, "n must be between 1"),
        ({"n": "two"}, "n: Expected `int"),
        ({"best_of": 2, "n": 3}, "best_of must be at least n"),
        ({"max_tokens": 0}, "max_tokens must be -1 or at least 1"),
        ({"min_tokens": 17}, "min_tokens .17. must not be more than max_tokens"),
        ({"logprobs": 1025}, "logprobs must be between"),
        ({"prompt_logprobs": -2}, "prompt_logprobs must be between"),
        ({"presence_penalty": 2.5}, "presence_penalty must be between"),
        ({"stop": [""]}, "stop must not contain an empty string"),
        ({"logit_bias": {5: 101}}, "logit_bias maps token ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids must not be empty"),
        ({"bad_words": [""]}, "bad_words takes"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs: there is no 'regexp'"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs takes one of"),
        ({"structured_outputs": "a"}, "structured_outputs must be"),
        ({"structured_outputs": {"regex": "a"}, "guided_decoding": {"regex": "a"}}, "only one can be given"),
    ],
)
def test_a_value_that_cannot_be_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**given)


def test_a_name_that_is_none_is_a_type_error() -> None:
    wrong: dict[str, Any] = {"temprature": 1}
    wrong_too: dict[str, Any] = {"regexp": "a"}
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(**wrong)
    with pytest.raises(TypeError, match="regexp"):
        StructuredOutputsParams(**wrong_too)


def test_requests_ask_for_what_the_parameters_say() -> None:
    params = SamplingParams(temperature=0.5, logit_bias={7: 1.5}, guided_decoding=StructuredOutputsParams(regex="a+"))
    request = params.to_request(priority=3)
    assert (request.temperature, request.priority, request.logit_bias) == (0.5, 3, {"7": 1.5})
    assert request.structured_outputs is not None and request.structured_outputs["regex"] == "a+"
    assert SamplingParams(max_tokens=None, min_tokens=100).to_request().min_tokens == 100
    assert params.clone() == params and params.clone() is not params


def test_optional_parameters_are_as_loose_as_those_of_vllm() -> None:
    made = SamplingParams.from_optional(logit_bias={"5": 200.0, 6: -1}, skip_clone=True, temperature=None)
    assert made == SamplingParams(logit_bias={5: 100.0, 6: -1.0}, max_tokens=SamplingParams().max_tokens)


def test_options_are_refused_by_their_names() -> None:
    for options, message in (
        ({"max_num_sequences": 3}, "max_num_sequences"),
        ({"max_num_seqs": 0}, "--max-num-seqs"),
        ({"frontends": 2}, "--frontends"),
        ({"model": "/nowhere"}, "there is no folder /nowhere"),
        ({"max_model_len": 1 << 20}, "--max-model-len"),
    ):
        with pytest.raises(ConfigError, match=message):
            LLM(**options)


def test_options_may_be_none_or_of_torch() -> None:
    """As wrappers of vLLM pass them on."""
    given = {"quantization": None, "max_num_seqs": None, "dtype": torch.bfloat16, "seed": None}
    config = read_options("", given)
    assert config.dtype == "bfloat16" and config.max_num_seqs == read_options("", {}).max_num_seqs
    kwargs = read_options("", {"default_chat_template_kwargs": {"enable_thinking": False}})
    model = resolve_model(make_config({"device": "cpu"}))
    assert make_settings(kwargs, model).template_kwargs == {"enable_thinking": False}


def test_what_a_cpu_alone_does_is_for_what_one_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As encoders with decoders are beside a GPU, too."""
    config = make_config({"device": "auto"})
    model = resolve_model(config)
    encoder = EncoderSpec(longest=8, decoder_longest=8, start=[1], filler=0)
    both = model, msgspec.structs.replace(model, encoder=encoder)
    for there, made in ((False, [True, True]), (True, [False, True])):
        monkeypatch.setattr(device, "may_have_gpu", lambda there=there: there)
        assert [make_settings(config, one).draws_on_cpu for one in both] == made


def test_the_package_itself_is_light() -> None:
    code = "import sys, actorserve; print(sorted(m for m in sys.modules if m.startswith('actorserve')))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == "['actorserve']"
    assert "LLM" in dir(actorserve)
    with pytest.raises(AttributeError, match="no attribute 'LMM'"):
        actorserve.LMM  # noqa: B018
