"""The `openai` client drives a running server: what its users do, and each class of its errors."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.support.server import Server

FRANCE: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
COUNTRIES = {"France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Spain": "Madrid"}


@pytest.fixture(scope="module")
def client(demo_server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{demo_server.base_url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def model(client: OpenAI) -> str:
    return client.models.list().data[0].id


def question(country: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": f"What is the capital of {country}?"}]


# --- chat ----------------------------------------------------------------------------------------------------------


def test_create_a_chat_completion(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=FRANCE, temperature=0)
    (choice,) = answer.choices
    assert "Paris" in (choice.message.content or "") and choice.finish_reason == "stop"
    assert answer.object == "chat.completion" and answer.model == model and answer.id.startswith("chatcmpl-")
    assert choice.message.role == "assistant"
    usage = answer.usage
    assert usage and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens > 5 and usage.completion_tokens > 2


def test_stream_a_chat_completion(client: OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=FRANCE, temperature=0)
    chunks = list(
        client.chat.completions.create(
            model=model, messages=FRANCE, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    last = chunks[-1].usage
    assert last and whole.usage and not chunks[-1].choices
    assert last.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1 and len({chunk.created for chunk in chunks}) == 1


def test_the_stream_helper(client: OpenAI, model: str) -> None:
    """The client's own accumulator, which checks every chunk."""
    with client.chat.completions.stream(model=model, messages=FRANCE, temperature=0) as stream:
        stream.until_done()
        final = stream.get_final_completion()
    assert "Paris" in (final.choices[0].message.content or "")


def test_several_choices(client: OpenAI, model: str) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me a story."}]
    answer = client.chat.completions.create(model=model, messages=messages, n=3, temperature=1.2, seed=4, max_tokens=30)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1
    texts = {0: "", 1: "", 2: ""}
    for chunk in client.chat.completions.create(
        model=model, messages=messages, n=3, temperature=1.2, seed=4, max_tokens=30, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {choice.index: choice.message.content for choice in answer.choices}


def test_a_seed_gives_the_same_text_alone_and_in_a_crowd(client: OpenAI, model: str) -> None:
    def ask(seed: int) -> str | None:
        answer = client.completions.create(model=model, prompt="Once", seed=seed, temperature=1.0, max_tokens=40)
        return answer.choices[0].text

    alone = [ask(seed) for seed in range(4)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        crowd = list(pool.map(ask, [seed for seed in range(4) for _ in range(6)]))
    assert crowd == [text for text in alone for _ in range(6)]
    assert len(set(alone)) > 1


def test_equal_prompts_are_drawn_apart(client: OpenAI, model: str) -> None:
    def ask(**seed: Any) -> set[str]:
        asked: dict[str, Any] = {"prompt": ["Once"] * 8, "temperature": 1.2, "max_tokens": 30}
        return {choice.text for choice in client.completions.create(model=model, **asked, **seed).choices}

    assert len(ask()) > 4 and len(ask(seed=3)) == 1


def test_many_at_once_get_their_own_answers(client: OpenAI, model: str) -> None:
    def ask(country: str) -> str:
        answer = client.chat.completions.create(model=model, messages=question(country), temperature=0)
        return answer.choices[0].message.content or ""

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        asked = list(COUNTRIES) * 12
        for country, answer in zip(asked, pool.map(ask, asked), strict=True):
            assert COUNTRIES[country] in answer


# --- completions -----------------------------------------------------------------------------------------------------


def test_completions_of_every_kind_of_prompt(client: OpenAI, model: str, demo_server: Server) -> None:
    text = "The capital of France is"
    ids = client.post("/../tokenize", body={"prompt": text, "model": model}, cast_to=object)["tokens"]  # type: ignore[index]
    one = client.completions.create(model=model, prompt=text, temperature=0, max_tokens=6)
    assert "Paris" in one.choices[0].text and one.object == "text_completion" and one.id.startswith("cmpl-")
    by_ids = client.completions.create(model=model, prompt=ids, temperature=0, max_tokens=6)
    assert by_ids.choices[0].text == one.choices[0].text
    several = client.completions.create(model=model, prompt=[text, "Once upon"], temperature=0, max_tokens=6, n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == several.choices[1].text == one.choices[0].text
    lists = client.completions.create(model=model, prompt=[ids, ids], temperature=0, max_tokens=6)
    assert [choice.text for choice in lists.choices] == [one.choices[0].text] * 2
    assert lists.usage and lists.usage.prompt_tokens == 2 * len(ids)


def test_a_completion_that_is_streamed(client: OpenAI, model: str) -> None:
    arguments = {"model": model, "prompt": ["Once upon a time", "The"], "max_tokens": 25, "temperature": 0}
    whole = client.completions.create(**arguments)  # type: ignore[call-overload]
    texts = ["", ""]
    for chunk in client.completions.create(stream=True, **arguments):  # type: ignore[call-overload]
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


def test_length_and_stop(client: OpenAI, model: str) -> None:
    arguments = {"model": model, "prompt": "Once upon a time", "temperature": 0}
    short = client.completions.create(max_tokens=5, **arguments)  # type: ignore[call-overload]
    assert short.choices[0].finish_reason == "length" and short.usage.completion_tokens == 5
    long = client.completions.create(max_tokens=60, **arguments).choices[0].text  # type: ignore[call-overload]
    stop = long[20:26]
    cut = client.completions.create(max_tokens=60, stop=[stop], **arguments)  # type: ignore[call-overload]
    assert cut.choices[0].text == long[: long.index(stop)] and cut.choices[0].finish_reason == "stop"
    chunks = list(
        client.completions.create(max_tokens=60, stop=stop, stream=True, **arguments)  # type: ignore[call-overload]
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == cut.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "stop"


# --- models and errors -----------------------------------------------------------------------------------------------


def test_models(client: OpenAI, model: str) -> None:
    page = client.models.list()
    assert [card.id for card in page.data] == [model] and page.data[0].object == "model"
    assert client.models.retrieve(model).id == model


def test_bad_request(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=FRANCE, temperature=9)
    assert caught.value.param == "temperature" and "temperature" in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=[])
    assert caught.value.param == "messages"
    with pytest.raises(openai.BadRequestError, match="maximum context length") as caught:
        client.completions.create(model=model, prompt="word " * 50_000)
    assert caught.value.param == "prompt"


def test_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-nine", messages=FRANCE)
    assert caught.value.code == "model_not_found" and caught.value.param == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-nine")
    with pytest.raises(openai.NotFoundError):
        client.post("/nowhere", body={}, cast_to=object)


def test_too_large(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(model=model, prompt="x" * (64 << 20))
    assert caught.value.status_code == 413


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    """A server with a key and room for little."""
    arguments = ("--api-key", "sk-1", "--max-num-seqs", "1", "--max-num-queued-reqs", "1", "--served-model-name", "a")
    with Server(*arguments, "--threads", "1") as server:
        yield server


def test_authentication(guarded: Server) -> None:
    base = f"{guarded.base_url}/v1"
    with pytest.raises(openai.AuthenticationError) as caught:
        OpenAI(base_url=base, api_key="wrong", max_retries=0).models.list()
    assert caught.value.code == "invalid_api_key"
    assert OpenAI(base_url=base, api_key="sk-1", max_retries=0).models.list().data[0].id == "a"


def test_overload_is_said_and_passes(guarded: Server) -> None:
    """Beyond the running and the queued one there is no room: 503 with Retry-After, on which the client tries again."""
    base = f"{guarded.base_url}/v1"
    hasty = OpenAI(base_url=base, api_key="sk-1", max_retries=0)
    arguments = {"model": "a", "prompt": "Once", "max_tokens": 100}

    def ask(_: int) -> openai.APIStatusError | None:
        try:
            hasty.completions.create(extra_body={"ignore_eos": True}, **arguments)  # type: ignore[call-overload]
        except openai.APIStatusError as error:
            return error
        return None

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        errors = [error for error in pool.map(ask, range(8)) if error is not None]
    assert errors and len(errors) < 8
    assert all(isinstance(error, openai.InternalServerError) and error.status_code == 503 for error in errors)
    assert all(int(error.response.headers["Retry-After"]) >= 1 for error in errors)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        patient = OpenAI(base_url=base, api_key="sk-1", max_retries=8)
        texts = list(pool.map(lambda _: patient.completions.create(model="a", prompt="Once", max_tokens=50), range(3)))
    assert all(text.choices[0].text for text in texts)
