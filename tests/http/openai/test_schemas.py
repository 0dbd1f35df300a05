"""What a body may hold: good values, null, prompts and messages of every kind, and what is not built yet."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from actorserve.actors.protocol.topics.prompts import TextPrompt, TokenPrompt
from actorserve.http.anthropic.schemas import CountRequest, MessagesRequest
from actorserve.http.cohere.schemas import CohereChatRequest
from actorserve.http.cohere.v1.schemas import CohereChatV1Request
from actorserve.http.errors import ApiError
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.generation.fields.ranges import MAX_STOP_LENGTH, MAX_STOPS
from actorserve.http.generation.fields.unsupported import (
    ELSEWHERE_MADE,
    NOT_BUILT,
    OF_CHATS,
    OF_OPENAI,
    OF_SAMPLING,
    YET,
    check_built,
    read,
)
from actorserve.http.llamacpp.schemas import LlamaCompletionRequest, LlamaEmbeddingRequest
from actorserve.http.ollama.schemas import OllamaChatRequest, OllamaGenerateRequest
from actorserve.http.openai.responses.schemas import ResponsesRequest
from actorserve.http.openai.schemas import MAX_CHOICES, ChatRequest, CompletionRequest, GenerateRequest
from actorserve.http.openai.tokenization import DetokenizeRequest, TokenizeRequest
from actorserve.http.sglang.schemas import SglangGenerateRequest, SglangScoringRequest
from actorserve.http.tgi.schemas import TgiRequest
from tests.http.bodies import BIG, HI, body_of, for_chat, for_completion, refusal
from tests.http.serving import serving

# --- what is accepted ----------------------------------------------------------------------------------------------

GOOD: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 2},
    {"temperature": 0.7, "top_p": 1, "top_k": -1, "min_p": 0},
    {"top_k": 0, "min_p": 1, "top_p": 1e-9},
    {"seed": (1 << 64) - 1},
    {"seed": -(1 << 63)},
    {"n": MAX_CHOICES},
    {"n": 2, "best_of": 2},
    {"n": 2, "best_of": 1},
    {"max_tokens": (1 << 31) - 1},
    {"stream": True, "stream_options": {}},
    {"stream": True, "stream_options": {"include_usage": None, "unknown": 1}},
    {"stream": False, "stream_options": None},
    {"stop": "a"},
    {"stop": []},
    {"stop": ["a"] * MAX_STOPS},
    {"stop": "a" * MAX_STOP_LENGTH},
    {"stop_token_ids": []},
    {"truncate_prompt_tokens": -1},
    {"priority": -5, "user": "me", "metadata": {"a": "b"}, "request_id": "r"},
    {"nobody_knows": {"this": [1, 2]}, "nor this": None},
]


@pytest.mark.parametrize("call", [for_chat, for_completion])
@pytest.mark.parametrize("fields", GOOD)
def test_good_values(call: Any, fields: dict[str, Any]) -> None:
    assert len(call(**fields)[1]) == fields.get("n", 1)


@pytest.mark.parametrize(("kind", "call"), [(ChatRequest, for_chat), (CompletionRequest, for_completion)])
def test_null_is_absent_for_every_field(kind: type[msgspec.Struct], call: Any) -> None:
    for field in kind.__struct_fields__:
        if field not in ("messages", "prompt"):
            assert call(seed=1, **{field: None} if field != "seed" else {}) == call(seed=1), field


CONTENTS: list[Any] = [
    "",
    "hi",
    [],
    ["a", "b"],
    [{"type": "text", "text": "a"}, {"type": "input_text", "text": ""}],
    [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "b"}],
]


@pytest.mark.parametrize("content", CONTENTS)
def test_messages_go_on_as_they_came(content: Any) -> None:
    messages = [{"role": "user", "content": content, "name": "me", "other": {"a": 1}}]
    prompt, _ = for_chat(messages=messages)
    assert json.loads(prompt.messages) == messages


@pytest.mark.parametrize("role", ["ipython", "tool_results", "Doubao"])
def test_other_roles_are_the_templates_matter(role: str) -> None:
    """Some templates know more than OpenAI's; what they do not know they refuse themselves."""
    messages = [*HI, {"role": role, "content": "4"}]
    assert json.loads(for_chat(messages=messages)[0].messages) == messages


@pytest.mark.parametrize("role", ["assistant", "tool", "function"])
def test_who_may_be_without_content(role: str) -> None:
    messages = [*HI, {"role": role, "content": None, "tool_calls": [{"id": "a"}]}, {"role": role}]
    assert json.loads(for_chat(messages=messages)[0].messages) == messages


def test_thinking_is_an_assistants() -> None:
    part = {"type": "thinking", "thinking": "Two and two."}
    messages = [*HI, {"role": "assistant", "content": [part, {"type": "text", "text": "4"}]}, *HI]
    assert json.loads(for_chat(messages=messages)[0].messages) == messages
    for wrong in ({"role": "user", "content": [part]}, {"role": "assistant", "content": [{"type": "thinking"}]}):
        with pytest.raises(ApiError, match=r"messages\[0\].content\[0\]"):
            for_chat(messages=[wrong])


def test_what_the_template_is_told() -> None:
    prompt, _ = for_chat(
        documents=[{"title": "a"}], chat_template_kwargs={"thinking": True, "big": BIG}, reasoning_effort="low"
    )
    assert json.loads(prompt.documents or b"") == [{"title": "a"}]
    assert json.loads(prompt.template_kwargs or b"") == {"thinking": True, "big": BIG, "reasoning_effort": "low"}
    mine, _ = for_chat(chat_template_kwargs={"reasoning_effort": "high"}, reasoning_effort="low")
    assert json.loads(mine.template_kwargs or b"") == {"reasoning_effort": "high"}
    plain, _ = for_chat(documents=[], chat_template_kwargs={})
    assert (plain.documents, plain.template_kwargs, plain.tools) == (None, None, None)
    assert (plain.add_generation_prompt, plain.continue_final_message, plain.add_special_tokens) == (True, False, False)
    assert for_chat(add_generation_prompt=False)[0].add_generation_prompt is False
    going_on = for_chat(continue_final_message=True, add_special_tokens=True)[0]
    assert (going_on.add_generation_prompt, going_on.continue_final_message) == (False, True)
    assert going_on.add_special_tokens


PROMPTS: list[tuple[Any, list[Any]]] = [
    ("hi", [TextPrompt("hi")]),
    ("", [TextPrompt("")]),
    (["a", "b"], [TextPrompt("a"), TextPrompt("b")]),
    ([1, 2], [TokenPrompt([1, 2])]),
    ([[1], [2, 3], []], [TokenPrompt([1]), TokenPrompt([2, 3]), TokenPrompt([])]),
]


@pytest.mark.parametrize(("given", "prompts"), PROMPTS)
def test_prompts_of_every_kind(given: Any, prompts: list[Any]) -> None:
    assert for_completion(prompt=given)[0] == prompts


def test_special_tokens_of_a_completion() -> None:
    for given, expected in ((None, True), (True, True), (False, False)):
        (prompt,), _ = for_completion(add_special_tokens=given)
        assert prompt == TextPrompt("hi", expected)


# --- what is not built ---------------------------------------------------------------------------------------------

ASKING: dict[str, list[Any]] = {
    "functions": [[{"name": "a"}]],
    "function_call": [{"name": "a"}],
    "prompt_embeds": [{"a": 1}, 1],
    "return_hidden_states": [{"a": 1}, "a", 1],
    "kv_transfer_params": [{"a": 1}],
    "modalities": [["audio"], ["text", "audio"]],
    "web_search_options": [{}, {"search_context_size": "low"}],
    "separate_reasoning": [False],
    "stream_reasoning": [False],
    "data_parallel_rank": [1],
    "min_keep": [2],
    "n_cmpl": [2],
}
BODIES: dict[type[msgspec.Struct], dict[str, Any]] = {
    ChatRequest: {"messages": HI},
    CompletionRequest: {"prompt": "hi"},
    GenerateRequest: {"token_ids": [1]},
    ResponsesRequest: {"input": "hi"},
    MessagesRequest: {"messages": HI, "max_tokens": 5},
    CountRequest: {"messages": HI},
    TokenizeRequest: {"prompt": "hi"},
    DetokenizeRequest: {"tokens": [1]},
}


def reading(kind: type[msgspec.Struct], **fields: Any) -> msgspec.Struct:
    """What every endpoint does first with a body; fields that its struct has are looked at where it is used."""
    request = read(kind, body_of(**{**BODIES[kind], **fields}))
    check_built(request)
    return request


def of_chat(kind: type[msgspec.Struct]) -> bool:
    """Or is it another API's, whose own fields are refused where it becomes a request of chat?"""
    return kind not in (ResponsesRequest, MessagesRequest, CountRequest)


@pytest.mark.parametrize("kind", BODIES)
def test_what_is_not_built_is_refused_by_name(kind: type[msgspec.Struct]) -> None:
    own = OF_CHATS if kind is ChatRequest else frozenset[str]()
    for field in {*NOT_BUILT} - own - (OF_OPENAI if kind in (ChatRequest, CompletionRequest) else frozenset()):
        declared = field in kind.__struct_fields__
        for value in ASKING.get(field, [{"a": 1}, "a", 1, True]) if of_chat(kind) or not declared else ():
            error = refusal(reading, kind, **{field: value})
            assert error.status == 400 and error.param and error.param.split(".")[0] == field, value
            wrong_type = declared and re.search("Expected|Object (contains|missing)|no such field", error.message)
            assert wrong_type or error.message == f"{field} is not supported{ELSEWHERE_MADE.get(field, YET)}"


@pytest.mark.parametrize("field", OF_SAMPLING)
def test_what_is_drawn_otherwise_is_refused_where_it_is_not_read(field: str) -> None:
    prompts: dict[type[msgspec.Struct], dict[str, Any]] = {
        OllamaGenerateRequest: {"prompt": "hi"},
        SglangGenerateRequest: {"text": "hi"},
        SglangScoringRequest: {"query": "hi", "items": "a", "label_token_ids": [1]},
        TgiRequest: {"inputs": "hi"},
        LlamaEmbeddingRequest: {"content": "hi"},
    }
    for kind, prompt in prompts.items():
        for nothing in (None, 0):
            read(kind, body_of(**prompt, **{field: nothing}))
        error = refusal(read, kind, body_of(**prompt, **{field: 0.5}))
        assert (error.status, error.param, error.message) == (400, field, f"{field} is not supported here.")


@pytest.mark.parametrize("field", ["image_data", "video_data", "audio_data"])
def test_what_is_shown_in_sglangs_way_is_refused_where_it_is_not_read(field: str) -> None:
    """Its clients send it to completions, too, and these were answered as if it was not there."""
    for kind in (ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest):
        reading(kind, **{field: None}), reading(kind, **{field: []})
        error = refusal(reading, kind, **{field: ["data:image/png;base64,AA"]})
        assert (error.status, error.param) == (400, field) and "/generate takes it" in error.message
    read(SglangGenerateRequest, body_of(text="hi", **{field: ["data:image/png;base64,AA"]}))


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
def test_an_adapter_by_sglangs_name(kind: type[msgspec.Struct]) -> None:
    for model in (None, "base", "mine"):
        assert reading(kind, model=model, lora_path="mine").model == "mine"  # type: ignore[attr-defined]
    for nothing in (None, ""):
        assert reading(kind, model="base", lora_path=nothing).model == "base"  # type: ignore[attr-defined]
    for names, model in ((["mine", "mine"], "mine"), ([None], "base"), ([], "base")):
        assert reading(kind, model="base", lora_path=names).model == model  # type: ignore[attr-defined]
    for differing in (["mine", "other"], ["mine", None], [1]):
        error = refusal(reading, kind, lora_path=differing)
        assert error.status == 400 and "lora_path" in (error.param or "")


INSIDE: list[tuple[type[msgspec.Struct], dict[str, Any], str]] = [
    (SglangGenerateRequest, {"text": "hi"}, "sampling_params"),
    (TgiRequest, {"inputs": "hi"}, "parameters"),
]


@pytest.mark.parametrize("field", ["mirostat", "dry_multiplier", "xtc_probability"])
@pytest.mark.parametrize(("kind", "prompt", "inside"), INSIDE)
def test_so_it_is_inside(kind: type[msgspec.Struct], prompt: dict[str, Any], inside: str, field: str) -> None:
    read(kind, body_of(**prompt, **{inside: {field: 0}}))
    error = refusal(read, kind, body_of(**prompt, **{inside: {field: 77}}))
    assert (error.status, error.param) == (400, f"{inside}.{field}")


def test_so_it_is_in_each_of_a_batch() -> None:
    body = body_of(text=["a", "b"], sampling_params=[{}, {"mirostat": 2}])
    assert refusal(read, SglangGenerateRequest, body).param == "sampling_params.mirostat"


@pytest.mark.parametrize("kind", [CompletionRequest, GenerateRequest])
def test_a_budget_for_thinking_is_a_chats(kind: type[msgspec.Struct]) -> None:
    """Elsewhere it would be passed over, and the model think for as long as it likes."""
    inside = "sampling_params" if kind is GenerateRequest else ""

    def of(budget: int | None) -> dict[str, Any]:
        field = {"thinking_token_budget": budget}
        return {inside: field} if inside else field

    for nothing in (None, -1):
        reading(kind, **of(nothing))
    error = refusal(reading, kind, **of(5))
    assert error.status == 400 and (error.param or "").endswith("thinking_token_budget")


@pytest.mark.parametrize("kind", BODIES)
def test_what_is_not_built_and_asks_for_nothing(kind: type[msgspec.Struct]) -> None:
    for field, value in ((field, value) for field, nothing in NOT_BUILT.items() for value in nothing):
        error = None
        try:
            reading(kind, **{field: value})
        except ApiError as refused:
            error = refused
        if error is not None:  # a value of a type that this field does not have
            assert re.search("Expected|is missing", error.message) and (error.param or "").split(".")[0] == field


@pytest.mark.parametrize("value", [b"1e999", b"9" * 5000, b'"\\ud800"', b"[" * 100 + b"]" * 100])
def test_a_value_that_cannot_be_read_is_the_client_s_mistake(value: bytes) -> None:
    for kind in (ChatRequest, GenerateRequest):
        whole = body_of(**BODIES[kind])[:-1] + b', "audio": ' + value + b"}"
        assert refusal(read, kind, whole).status == 400


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        (ChatRequest, {"tool_choice": "must"}, "it must be any or auto or none or required"),
        (
            ChatRequest,
            {"tool_choice": {"type": "a", "function": {"name": "b"}}},
            "it must be function or allowed_tools",
        ),
        (CompletionRequest, {"truncation_side": "up"}, "it must be left or right"),
    ],
)
def test_a_value_that_is_none_of_some_is_told_with_those(kind: type[Any], fields: dict[str, Any], said: str) -> None:
    assert refusal(reading, kind, **fields).message.endswith(said)


def test_in_sampling_params_too() -> None:
    for field in ("flat_logprobs", "extra_args"):
        error = refusal(reading, GenerateRequest, sampling_params={field: {"a": 1}})
        assert error.param == f"sampling_params.{field}"


@pytest.mark.parametrize(
    ("kind", "fields", "instead"),
    [
        (ResponsesRequest, {"max_tokens": 5}, "max_output_tokens"),
        (ResponsesRequest, {"response_format": {"type": "json_object"}}, "text.format"),
        (ResponsesRequest, {"n": 2}, None),
        (MessagesRequest, {"stop": ["a"]}, "stop_sequences"),
        (MessagesRequest, {"use_beam_search": True}, None),
        (MessagesRequest, {"n": 2}, None),
    ],
)
def test_a_field_of_chat_that_another_api_does_not_have(
    kind: type[msgspec.Struct], fields: dict[str, Any], instead: str | None
) -> None:
    (field,) = fields
    error = refusal(reading, kind, **fields)
    hint = f": here it is {instead}." if instead else " here."
    assert (error.status, error.param, error.message) == (400, field, f"{field} is not supported{hint}")


def test_of_chat_s_fields_what_changes_nothing_passes_everywhere() -> None:
    for kind in (ResponsesRequest, MessagesRequest):
        neutral = {"n": 1, "min_p": 0, "repetition_penalty": 1.0, "logprobs": False, "max_completion_tokens": None}
        given, plain = reading(kind, **neutral), reading(kind)
        for name in kind.__struct_fields__:
            assert getattr(given, name) == neutral.get(name, getattr(plain, name))


def calls_with(field: str) -> list[Any]:
    chats, completions = field in ChatRequest.__struct_fields__, field in CompletionRequest.__struct_fields__
    return [for_chat] * chats + [for_completion] * completions


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("frequency_penalty", 0),
        ("repetition_penalty", 1.0),
        ("logit_bias", {}),
        ("logprobs", False),
        ("logprobs", None),
        ("top_logprobs", 0),
        ("echo", False),
        ("response_format", {"type": "text"}),
        ("tools", []),
        ("tool_choice", "auto"),
        ("tool_choice", "none"),
        ("parallel_tool_calls", True),
        ("parallel_tool_calls", False),
        ("service_tier", "auto"),
        ("store", False),
        ("suffix", ""),
        ("bad_words", []),
        ("logit_bias", []),  # PHP's empty object
        ("chat_template_kwargs", []),
    ],
)
def test_clients_defaults_are_taken(field: str, value: Any) -> None:
    for call in calls_with(field):
        assert call(seed=1, **{field: value}) == call(seed=1)


@pytest.mark.parametrize(
    "body", [b'{"max_tokens":10.0,"logit_bias":[],"n":2.0%s}', b'{"logit_bias":[],"n":2.0,"max_tokens":10.0%s}']
)
def test_one_leniency_is_not_in_the_way_of_another(body: bytes) -> None:
    rest = b',"messages":[{"role":"user","content":"hi"}]'
    found = decode(ChatRequest, body % rest)
    assert (found.max_tokens, found.n, found.logit_bias) == (10, 2, {})
    with pytest.raises(ApiError, match="max_tokens: Expected `int"):
        decode(ChatRequest, body.replace(b"10.0", b"10.5") % rest)


def test_an_array_that_holds_something_is_no_object() -> None:
    error = refusal(for_chat, logit_bias=[1], chat_template_kwargs=[])
    assert error.param == "logit_bias" and "Expected `object | null`, got `array`" in error.message


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (CohereChatRequest, {"model": "m", "messages": []}),
        (CohereChatV1Request, {"message": "hi"}),
        (LlamaCompletionRequest, {"prompt": "x"}),
        (OllamaChatRequest, {"model": "m", "messages": []}),
        (OllamaGenerateRequest, {"model": "m"}),
    ],
)
def test_dialects_have_no_place_for_logprobs_of_tokens(kind: type[msgspec.Struct], fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        read(kind, body_of(**fields, logprob_token_ids=[1]))
    assert (caught.value.status, caught.value.param) == (400, "logprob_token_ids")
    read(kind, body_of(**fields, logprob_token_ids=None))


@pytest.mark.parametrize("function", ["f", 5, ["f"], True])
async def test_a_strict_tool_of_cohere_that_is_no_function(function: Any) -> None:
    tool = {"type": "function", "function": function}
    body = {"model": "tiny", "messages": HI, "strict_tools": True, "tools": [tool]}
    async with serving(tool_parser="hermes") as served:
        answer = await served.ask("POST", "/v2/chat", body)
        assert answer.status == 400 and "tools[0].function" in answer.json["message"]
