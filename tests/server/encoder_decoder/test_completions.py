"""A server whose model reads its prompt by an encoder: answers are those of transformers' generate(), whoever dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import BadRequestError, OpenAI
from transformers import AutoModelForSeq2SeqLM

from tests.support.models.encoder_decoders import prompts
from tests.support.server import Server

ANSWER = 60  # tokens: long enough that somebody can die meanwhile


@pytest.fixture(scope="module")
def client(t5_server: Server) -> OpenAI:
    return OpenAI(base_url=f"{t5_server.base_url}/v1", api_key="-", max_retries=0)


@pytest.fixture(scope="module")
def answers(t5: Path) -> list[list[int]]:
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(t5, dtype=torch.float32).eval()
    with torch.inference_mode():
        made = [model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=ANSWER) for ids in prompts()]
    return [one[0, 1:].tolist() for one in made]


def asked(client: OpenAI, ids: list[int], **fields: Any) -> Any:
    extra = {"return_token_ids": True, "ignore_eos": True}
    given: Any = ids
    return client.completions.create(
        model="reader", prompt=given, max_tokens=ANSWER, temperature=0, extra_body=extra, **fields
    )


def test_answers_are_those_of_transformers(client: OpenAI, answers: list[list[int]]) -> None:
    """Of several prompts at once; the prompt is what was read."""
    answer = client.completions.create(
        model="reader",
        prompt=prompts(),
        max_tokens=ANSWER,
        temperature=0,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )
    assert [one.token_ids for one in answer.choices] == answers  # type: ignore[attr-defined]
    assert answer.choices[0].prompt_token_ids == prompts()[0]  # type: ignore[attr-defined]
    assert answer.usage is not None and answer.usage.prompt_tokens == sum(map(len, prompts()))


@pytest.mark.parametrize("name", ["scheduler", pytest.param("worker", marks=pytest.mark.slow)])
def test_a_stream_goes_on_when_one_dies(client: OpenAI, t5_server: Server, answers: list[list[int]], name: str) -> None:
    found: list[int] = []
    for number, part in enumerate(asked(client, prompts()[2], stream=True)):
        if number == 3:
            os.kill(t5_server.pids()[name], signal.SIGKILL)
        found += part.choices[0].token_ids or []
    assert found == answers[2]


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"prompt": "a", "echo": True}, "echo", "encoder"),
        ({"prompt": "a", "extra_body": {"prompt_logprobs": 1}}, "prompt_logprobs", "encoder"),
        ({"prompt": [5] * 300}, "prompt", "256 tokens"),
        ({"prompt": "a", "max_tokens": 400}, "max_tokens", "maximum context length"),
    ],
)
def test_what_cannot_be_is_refused(client: OpenAI, fields: dict[str, Any], param: str, text: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.completions.create(model="reader", **fields)
    assert refused.value.param == param and text in str(refused.value)


@pytest.mark.parametrize("penalty", [1.0, 0.0])
def test_beams_are_those_of_transformers(client: OpenAI, t5: Path, penalty: float) -> None:
    from tokenizers import Tokenizer

    model: Any = AutoModelForSeq2SeqLM.from_pretrained(t5, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(t5 / "tokenizer.json"))
    for ids in prompts()[:2]:
        with torch.inference_mode():
            made = model.generate(
                torch.tensor([ids]),
                num_beams=3,
                num_return_sequences=3,
                do_sample=False,
                max_new_tokens=6,
                length_penalty=penalty,
                eos_token_id=1 << 20,
            )
        wanted = [tokenizer.decode(one[1:].tolist()) for one in made]
        extra = {"use_beam_search": True, "ignore_eos": True, "length_penalty": penalty}
        answer = client.completions.create(model="reader", prompt=ids, n=3, max_tokens=6, extra_body=extra)
        assert [choice.text for choice in answer.choices] == wanted and len(set(wanted)) == 3
        assert answer.usage is not None and answer.usage.completion_tokens == 18
