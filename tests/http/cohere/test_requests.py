"""Requests of Cohere's API become chat requests that ask for the same."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from actorserve.http.cohere.requests import chat_of
from actorserve.http.cohere.schemas import CohereChatRequest
from actorserve.http.errors import ApiError
from actorserve.http.generation.adapter import chat_request
from actorserve.http.generation.fields.decoding import decode
from tests.http.serving import serving

HI = [{"role": "user", "content": "Who?"}]


def chat(template: str = "", **fields: Any) -> dict[str, Any]:
    body = decode(CohereChatRequest, json.dumps({"messages": HI, **fields}).encode())
    made = chat_of(body, True, template)
    chat_request(made)
    return made


def test_documents_are_the_templates_or_stand_before_what_the_user_says() -> None:
    documents = ["one", {"data": "two", "id": "d2"}, {"data": {"title": "t", "text": "three"}}]
    made = chat("{% if documents %}", documents=documents)
    assert made["messages"] == HI
    assert made["documents"] == [{"text": "one"}, {"text": "two", "id": "d2"}, {"title": "t", "text": "three"}]
    turns = [*HI, {"role": "assistant", "content": "I."}, {"role": "user", "content": "And?"}]
    made = chat("{{ messages }}", documents=documents, messages=turns)
    assert "documents" not in made and made["messages"][0] == HI[0]
    told, said = made["messages"][-1]["content"]
    assert said == {"type": "text", "text": "And?"}
    third = '{"title":"t","text":"three"}'
    assert told["text"] == f"Document 1:\none\n\nDocument 2:\ntwo\n\nDocument 3:\n{third}\n\n"


def test_documents_without_a_user_are_for_the_template() -> None:
    turns = [{"role": "system", "content": "s"}]
    assert chat(documents=["one"], messages=turns)["documents"] == [{"text": "one"}]


def test_what_there_is_of_sampling_is_taken_by_its_names() -> None:
    """They were passed over, as were Cohere's own names where a client of another API has ours."""
    more: dict[str, Any] = {
        "min_p": 0.1,
        "top_n_sigma": 1.5,
        "repetition_penalty": 1.2,
        "mirostat": 2,
        "ignore_eos": True,
    }
    more |= {"stop_token_ids": [3], "logit_bias": {"5": -100}, "top_k": 7, "top_p": 0.5}
    assert chat(**more) == chat() | more
    assert chat(k=7, p=0.5) == chat(top_k=7, top_p=0.5) == chat(k=7, top_k=7, p=0.5)
    with pytest.raises(ApiError) as caught:
        chat(k=7, top_k=8)
    assert (caught.value.status, caught.value.param) == (400, "k") and "top_k" in caught.value.message


@pytest.mark.parametrize("path", ["/v2/chat", "/v1/chat", "/cohere/v2/chat/render"])
@pytest.mark.parametrize("field", ["k", "top_k", "p", "top_p", "min_p", "repetition_penalty"])
async def test_an_error_names_the_field_as_the_body_does(path: str, field: str) -> None:
    said = {"message": "Who?"} if path == "/v1/chat" else {"messages": HI}
    async with serving() as served:
        answer = await served.ask("POST", path, {**said, field: -7})
        assert answer.status == 400 and re.match(rf"{field}\b", answer.json["message"]), answer.json


@pytest.mark.parametrize("mode", ["OFF", "off", "DISABLED", "disabled", None])
def test_no_citations_are_asked_for_by_several_names(mode: str | None) -> None:
    assert chat(citation_options={"mode": mode}) == chat()


def test_the_template_is_told_more_and_thinking_goes_before_it() -> None:
    given = {"enable_thinking": True, "tone": "dry"}
    assert chat(chat_template_kwargs=given)["chat_template_kwargs"] == given
    made = chat(chat_template_kwargs=given, thinking={"type": "disabled"}, safety_mode="OFF")["chat_template_kwargs"]
    assert made == {"enable_thinking": False, "thinking": False, "tone": "dry", "safety_mode": "OFF"}


@pytest.mark.parametrize("arguments", [{}, {"arguments": None}, {"arguments": "{}"}])
def test_a_call_without_arguments_has_none(arguments: dict[str, Any]) -> None:
    made = {"id": "a", "type": "function", "function": {"name": "f", **arguments}}
    (call,) = chat(messages=[*HI, {"role": "assistant", "tool_calls": [made]}])["messages"][-1]["tool_calls"]
    assert call == {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"data": '{"temp": 20}'}, '{"temp": 20}'),  # as Cohere's examples have it
        ({"data": {"temp": 20}}, '{"temp":20}'),
        ({"temp": 20}, '{"temp":20}'),
    ],
)
def test_a_tools_document_is_what_it_says(document: dict[str, Any], text: str) -> None:
    turn = {"role": "tool", "tool_call_id": "a", "content": [{"type": "document", "document": document}]}
    assert chat(messages=[*HI, turn])["messages"][-1]["content"] == text
