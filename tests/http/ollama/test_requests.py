"""Requests of Ollama's API become chat requests that ask for the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actorserve.http.errors import ApiError
from actorserve.http.generation.adapter import chat_request
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.ollama.requests import chat_of, completion_of, context_of, generated_chat
from actorserve.http.ollama.schemas import OllamaChatRequest, OllamaEmbedRequest, OllamaGenerateRequest

HI = [{"role": "user", "content": "hi"}]


def chat(thinks: bool = True, **fields: Any) -> dict[str, Any]:
    body = decode(OllamaChatRequest, json.dumps({"messages": HI, **fields}).encode())
    made = chat_of(body, thinks)
    chat_request(made)
    return made


def generate(**fields: Any) -> OllamaGenerateRequest:
    return decode(OllamaGenerateRequest, json.dumps({"prompt": "a", **fields}).encode())


def test_it_streams_unless_it_is_told() -> None:
    assert chat()["stream"] is True and chat(stream=False)["stream"] is False and chat(stream=None)["stream"] is True


def test_options() -> None:
    given = {"num_predict": 7, "repeat_penalty": 1.2, "repeat_last_n": -1, "top_k": 3, "stop": ["a"], "num_gpu": 9}
    made = chat(options={**given, "typical_p": 0.5})
    assert made["typical_p"] == 0.5 and "typical_p" not in chat(options={"typical_p": 0})
    assert (made["max_tokens"], made["repetition_penalty"], made["top_k"], made["stop"]) == (7, 1.2, 3, ["a"])
    assert not {"num_gpu", "num_predict"} & made.keys() and made["repeat_last_n"] == -1
    off = chat(options={"num_predict": -2, "seed": -1, "tfs_z": 1})
    assert not {"max_tokens", "seed", "tfs_z"} & off.keys()
    steered = {"mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.2}
    assert steered.items() <= chat(options=steered).items()
    assert chat(options={"repeat_penalty": 1.2, "repeat_last_n": 64})["repeat_last_n"] == 64
    ours = {"xtc_probability": 0.5, "min_tokens": 3, "logit_bias": {"5": 1.0}, "repetition_penalty": 1.3}
    made = chat(options={**ours, "unknown": 1})
    assert ours.items() <= made.items() and "unknown" not in made
    assert chat(options={**ours, "repeat_penalty": 1.1})["repetition_penalty"] == 1.1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"options": {"tfs_z": 0.5}}, "options.tfs_z"),
        ({"format": "yaml"}, "format"),
        ({"think": True, "thinks": False}, "think"),
        ({"top_logprobs": 3}, "top_logprobs"),
    ],
)
def test_what_cannot_be(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as raised:
        chat(**fields)
    assert (raised.value.status, raised.value.param) == (400, param)


def test_thinking() -> None:
    assert chat(think=False)["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}
    assert chat(think="high")["reasoning_effort"] == "high"
    assert "chat_template_kwargs" not in chat(think=False, thinks=False)


def test_formats() -> None:
    assert chat(format="json")["response_format"] == {"type": "json_object"}
    assert chat(format={"type": "object"})["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert "response_format" not in chat(format="")


def test_results_find_their_calls() -> None:
    """Calls and results have no ids in this API, and some templates want them."""
    calls = [{"function": {"name": name, "arguments": {"x": 1}}} for name in ("f", "g", "f")]
    results: list[Any] = [{"role": "tool", "content": "2", "tool_name": name} for name in ("g", "f", "f", "h")]
    turns = chat(messages=[*HI, {"role": "assistant", "tool_calls": calls, "thinking": "hm"}, *results])["messages"]
    ids = [call["id"] for call in turns[1]["tool_calls"]]
    assert len(set(ids)) == 3 and turns[1]["tool_calls"][0]["function"]["arguments"] == '{"x":1}'
    assert [turn.get("tool_call_id") for turn in turns[2:]] == [ids[1], ids[0], ids[2], None]
    assert turns[1]["reasoning_content"] == "hm" and turns[5]["name"] == "h"


def test_a_call_without_arguments_has_none() -> None:
    turns = [*HI, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": None}}]}]
    assert chat(messages=turns)["messages"][-1]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_vectors_of_nothing() -> None:
    for body in (b"{}", b'{"input": null}'):
        assert not decode(OllamaEmbedRequest, body).input


def test_images_are_parts() -> None:
    parts = chat(messages=[{"role": "user", "content": "what?", "images": ["iVBORw0KGgo="]}])["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "text"]
    assert parts[0]["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="


def test_one_prompt() -> None:
    made = generated_chat(generate(system="be brief"), True)
    assert [turn["role"] for turn in made["messages"]] == ["system", "user"]
    raw = completion_of(generate(raw=True, logprobs=True, top_logprobs=2, options={"num_predict": 5}))
    assert (raw.prompt, raw.logprobs, raw.max_tokens, raw.stream) == ("a", 2, 5, True)
    with pytest.raises(ApiError) as raised:
        generated_chat(generate(template="x"), True)
    assert raised.value.param == "template"


def test_what_was_said_before() -> None:
    assert generated_chat(generate(), True)["return_token_ids"] and context_of(generate(context=[3, 1])) == [3, 1]
    picture = ["iVBORw0KGgo="]
    assert not generated_chat(generate(images=picture), True)["return_token_ids"], "what stands for one is no token"
    for wrong in ({"context": [1], "images": picture}, {"context": [-1]}, {"context": [1 << 40]}):
        with pytest.raises(ApiError, match=r"^context") as raised:
            context_of(generate(**wrong))
        assert (raised.value.status, raised.value.param) == (400, "context")
    for beside in ({"raw": True}, {"suffix": "b"}):
        with pytest.raises(ApiError, match=rf"^context does not go with {next(iter(beside))}"):
            completion_of(generate(context=[1], **beside))


def test_what_an_assistant_has_begun_is_gone_on_with() -> None:
    """Ollama's templates leave the last message open."""
    begun = chat(messages=[*HI, {"role": "assistant", "content": "So"}])
    assert (begun["add_generation_prompt"], begun["continue_final_message"]) == (False, True)
    calls = [{"function": {"name": "f", "arguments": {}}}]
    for last in ({"role": "assistant", "content": ""}, {"role": "assistant", "content": "a", "tool_calls": calls}):
        assert "continue_final_message" not in chat(messages=[*HI, last])
    assert "continue_final_message" not in chat()
