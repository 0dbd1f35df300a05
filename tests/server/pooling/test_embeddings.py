"""A server of an encoder: vectors as transformers has them, all forms of a request, and errors that name the field."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cohere
import httpx2 as httpx
import numpy as np
import ollama
import pytest
from cohere.core.api_error import ApiError as CohereError
from openai import OpenAI

from tests.observer.commands import port_of, run
from tests.server.pooling.conftest import PROMPTS
from tests.support.client import http_client
from tests.support.models.embedders import SENTENCES, cosines, encode, vectors
from tests.support.server import Server

LONG = "the quick brown fox " * 60
EXACT = 0.99999


@pytest.fixture
def client(pooling_server: Server) -> Iterator[httpx.Client]:
    with http_client(pooling_server) as made:
        yield made


@pytest.fixture(scope="module")
def expected(encoder: Path) -> np.ndarray:
    return vectors(encoder, SENTENCES, "mean")


def embed(client: httpx.Client, given: Any, **fields: Any) -> np.ndarray:
    answer = client.post("/v1/embeddings", json={"input": given, **fields})
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return np.array([one["embedding"] for one in data])


def refused(client: httpx.Client, path: str, body: dict[str, Any], field: str, text: str) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == field and text in error["message"], error


def test_the_clients_call(pooling_server: Server, expected: np.ndarray) -> None:
    """It asks for base64 where nothing is said."""
    client = OpenAI(base_url=f"{pooling_server.base_url}/v1", api_key="-", max_retries=0)
    answer = client.embeddings.create(model="embedder", input=SENTENCES)
    assert cosines([one.embedding for one in answer.data], expected).min() > EXACT
    assert answer.model == "embedder" and answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    one = client.embeddings.create(model="embedder", input=SENTENCES[0], encoding_format="float", dimensions=8)
    cut = expected[0, :8] / np.linalg.norm(expected[0, :8])
    assert np.abs(np.array(one.data[0].embedding) - cut).max() < 1e-5
    assert [model.id for model in client.models.list()] == ["embedder"]


def test_all_forms_of_an_input(client: httpx.Client, encoder: Path, expected: np.ndarray) -> None:
    ids = [encode(encoder, sentence)[0] for sentence in SENTENCES]
    for given in (SENTENCES, ids):
        assert cosines(embed(client, given), expected).min() > EXACT
    for one in (SENTENCES[1], ids[1]):
        assert cosines(embed(client, one)[0], expected[1]) > EXACT
    body = {"input": SENTENCES[2], "encoding_format": "base64"}
    packed = client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]
    assert cosines(np.frombuffer(base64.b64decode(packed), np.float32), expected[2]) > EXACT
    chat = client.post("/v1/embeddings", json={"messages": [{"role": "user", "content": "Hello"}]})
    assert chat.status_code == 200 and len(chat.json()["data"]) == 1


def test_many_at_once_are_each_its_own(client: httpx.Client, encoder: Path) -> None:
    """More than one step takes, of all lengths."""
    texts = [" ".join(SENTENCES[index % 5].split()[: 1 + index % 9]) + f" {index}" for index in range(150)]
    assert cosines(embed(client, texts), vectors(encoder, texts, "mean")).min() > EXACT


def test_prompts_by_name(client: httpx.Client, encoder: Path) -> None:
    wanted = vectors(encoder, [PROMPTS["query"] + SENTENCES[0]], "mean")[0]
    for fields in ({"prompt_name": "query"}, {"input_type": "query"}, {"input_type": "search_query"}):
        assert cosines(embed(client, SENTENCES[0], **fields)[0], wanted) > EXACT
    plain = embed(client, SENTENCES[0])[0]
    assert cosines(embed(client, SENTENCES[0], prompt_name="document")[0], plain) > EXACT
    assert cosines(plain, wanted) < EXACT
    refused(client, "/v1/embeddings", {"input": "a", "prompt_name": "nothing"}, "prompt_name", "query, document")
    refused(client, "/v1/embeddings", {"input": [1], "prompt_name": "query"}, "prompt_name", "token ids")
    refused(client, "/v1/embeddings", {"input": ["a"] * 1000}, "input", "input: 1000 sequences")
    refused(client, "/rerank", {"query": "a", "documents": [*map(str, range(1000))]}, "documents", "1001 sequences")


def test_a_text_is_cut_between_its_marks(client: httpx.Client, encoder: Path) -> None:
    ids = encode(encoder, LONG)[0]
    kept = {"right": [*ids[:19], ids[-1]], "left": [ids[0], *ids[-19:]]}
    for side, whole in kept.items():
        found = embed(client, LONG, truncate_prompt_tokens=20, truncation_side=side)
        assert cosines(found, embed(client, whole)) > EXACT
    assert len(embed(client, LONG, truncate_prompt_tokens=-1)) == 1
    longest = ids[:130]
    assert len(embed(client, longest)) == 1  # as long as the model takes


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        ({}, "input", "input or messages"),
        ({"input": []}, "input", "empty list"),
        ({"input": [1, "a"]}, "input", "token ids"),
        ({"input": [[1], [400]]}, "input[1]", "out of vocabulary"),
        ({"input": LONG}, "input", "maximum context length is 130"),
        ({"input": ["a", "b", LONG]}, "input[2]", "maximum context length is 130"),
        ({"input": "a", "dimensions": 33}, "dimensions", "more than the 32 numbers"),
        ({"input": "a", "dimensions": 0}, "dimensions", "at least 1"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", ""),
        ({"input": "a", "truncate_prompt_tokens": 1}, "truncate_prompt_tokens", "no room"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
        ({"input": "a", "truncate_prompt_tokens": 131}, "truncate_prompt_tokens", "at most 130"),
        ({"input": ["a"] * 2049}, "input", "at most 2048"),
        ({"input": "a", "normalize": True, "use_activation": False}, "use_activation", "contradict"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(client: httpx.Client, body: Any, field: str, text: str) -> None:
    refused(client, "/v1/embeddings", body, field, text)


def test_without_the_end_a_vector_has_its_length(client: httpx.Client, expected: np.ndarray) -> None:
    raw = embed(client, SENTENCES, normalize=False)
    assert cosines(raw, expected).min() > EXACT and np.abs(np.linalg.norm(raw, axis=1) - 1).min() > 0.01


def test_scores_and_rankings_by_cosine(client: httpx.Client, expected: np.ndarray) -> None:
    wanted = expected[0] @ expected.T
    answer = client.post("/v1/score", json={"text_1": SENTENCES[0], "text_2": SENTENCES}).json()
    assert np.abs(np.array([one["score"] for one in answer["data"]]) - wanted).max() < 1e-5
    for path in ("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking"):
        body = {"query": SENTENCES[0], "documents": SENTENCES[1:], "top_n": 2}
        results = client.post(path, json=body).json()["results"]
        assert [one["index"] for one in results] == (np.argsort(-wanted[1:])[:2]).tolist()
        assert results[0]["document"] == {"text": SENTENCES[1 + results[0]["index"]]}
    listed = client.post("/rerank", json={"query": SENTENCES[0], "texts": SENTENCES[1:], "return_text": True}).json()
    assert [one["index"] for one in listed] == np.argsort(-wanted[1:]).tolist()
    assert all(one["text"] == SENTENCES[1 + one["index"]] for one in listed)
    body = {"queries": SENTENCES[:2], "documents": SENTENCES[1:3]}
    pairs = client.post("/score", json=body).json()["data"]
    assert abs(pairs[1]["score"] - expected[1] @ expected[2]) < 1e-5
    refused(client, "/score", {"text_1": ["a", "b"], "text_2": ["c"] * 3}, "text_1", "one or as many")
    told = {"query": "a", "documents": ["b"], "instruct": "Find it"}
    refused(client, "/rerank", told, "instruct", "this model is not told by what it compares")
    refused(client, "/rerank", {"query": "a", "documents": []}, "documents", "empty")
    refused(client, "/rerank", {"query": "a", "texts": []}, "texts", "empty")
    refused(client, "/rerank", {"query": "a"}, "documents", "missing")
    refused(client, "/rerank", {"query": "a", "documents": ["b"], "texts": ["b"]}, "documents", "one of them")
    refused(client, "/rerank", {"query": "a", "texts": ["b", LONG]}, "texts[1]", "context length")
    too_long = "maximum context length is 130"
    refused(client, "/rerank", {"query": LONG, "documents": ["a", "b"]}, "query", too_long)
    refused(client, "/rerank", {"query": "a", "documents": ["b", LONG]}, "documents[1]", too_long)
    refused(client, "/score", {"text_1": ["a", LONG], "text_2": ["b", "c"]}, "text_1[1]", too_long)
    cut = {"query": "a", "documents": ["b", LONG]}
    assert client.post("/rerank", json=cut | {"max_tokens_per_doc": 5}).status_code == 200
    compared = {"text_1": "a", "text_2": ["b", LONG], "max_tokens_per_doc": 5}
    assert client.post("/score", json=compared).status_code == 200
    refused(client, "/score", compared | {"text_1": LONG}, "text_1", too_long)  # it is no document
    refused(client, "/rerank", cut | {"query": LONG, "max_tokens_per_doc": 200}, "query", too_long)
    assert client.post("/rerank", json=cut | {"max_tokens_per_doc": 4096}).status_code == 200
    assert client.post("/score", json=compared | {"text_1": LONG, "max_tokens_per_query": 5}).status_code == 200
    refused(client, "/score", compared | {"max_tokens_per_query": -1}, "max_tokens_per_query", "at least 0")
    for name, text in (("style", "no chat template makes one text of two"), ("instruction", "this model is not told")):
        variables = {"query": "a", "documents": "b", "chat_template_kwargs": {name: "short"}}
        refused(client, "/rerank", variables, "chat_template_kwargs", text)
    one = client.post("/rerank", json={"query": SENTENCES[0], "documents": SENTENCES[1]}).json()["results"]
    assert [(hit["index"], hit["document"]) for hit in one] == [(0, {"text": SENTENCES[1]})]
    padded = {"input": "a", "padding": "max_length"}
    refused(client, "/v1/embeddings", padded, "padding", "not supported")
    assert client.post("/v1/embeddings", json=padded | {"padding": "do_not_pad"}).status_code == 200
    refused(client, "/rerank", cut | {"max_tokens_per_doc": 0}, "documents[1]", too_long)


def test_pooling_by_token(client: httpx.Client, encoder: Path) -> None:
    (one,) = client.post("/pooling", json={"input": SENTENCES[0], "task": "token_embed"}).json()["data"]
    tokens = np.array(one["data"])
    assert tokens.shape == (len(encode(encoder, SENTENCES[0])[0]), 32)
    assert np.allclose(np.linalg.norm(tokens, axis=1), 1, atol=1e-5)
    for task in ({}, {"task": "embed"}):  # which is what the model is for
        (whole,) = client.post("/pooling", json={"input": SENTENCES[0], **task}).json()["data"]
        assert cosines(whole["data"], embed(client, SENTENCES[0])[0]) > EXACT
    refused(client, "/pooling", {"input": "a", "task": "classify"}, "task", "token_embed")


def test_what_it_is_not_for(client: httpx.Client) -> None:
    refused(client, "/v1/completions", {"prompt": "a"}, "model", "--runner generate")
    refused(client, "/v1/chat/completions", {"messages": []}, "model", "generates no text")
    refused(client, "/classify", {"input": "a"}, "model", "embed, token_embed")


def test_a_server_that_generates_says_who_embeds(demo_server: Server) -> None:
    with http_client(demo_server) as client:
        for path in ("/v1/embeddings", "/v1/score", "/v2/rerank", "/classify", "/pooling"):
            refused(client, path, {"input": "a"}, "model", "--runner pooling")


def test_figures_count_prompts_and_no_answers(client: httpx.Client) -> None:
    embed(client, SENTENCES)
    lines = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    total = {line.split("{")[0]: float(line.split()[-1]) for line in lines if "_tokens_total{" in line}
    assert total["vllm:prompt_tokens_total"] > 0 and total["vllm:generation_tokens_total"] == 0


def test_why_knows_of_it(pooling_server: Server, client: httpx.Client) -> None:
    answer = client.post("/v1/embeddings", json={"input": SENTENCES[0]}, headers={"X-Request-Id": "pooled-one"})
    assert answer.headers["X-Request-Id"] == "pooled-one"
    said = run("why", "pooled-one", "--server", port_of(pooling_server)).stdout
    assert "what its model makes of the prompt is there" in said and "generated" not in said, said


def ask_through_deaths(server: Server, kinds: list[str], texts: list[str], clients: int) -> list[Any]:
    """Answers of clients that ask on, while one actor after the other is killed; all of them."""
    stop, answers = threading.Event(), list[Any]()

    def ask(number: int) -> None:
        with http_client(server, 120) as client:
            count = 0
            while not stop.is_set() or count < 2:
                some = texts[number + count % 3 :] + texts[: number + count % 3]
                answer = client.post("/v1/embeddings", json={"input": some})
                answers.append((some, answer.status_code, answer.content))
                count += 1

    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(ask, number) for number in range(clients)]
        try:
            for kind in kinds:
                os.kill(server.pids()[kind], signal.SIGKILL)
                server.wait_for(rf"{kind} is up", 120)
        finally:
            stop.set()
        for one in running:
            one.result(120)
    return answers


def check_answers(answers: list[Any], texts: list[str], expected: np.ndarray) -> None:
    """None failed, and none is another's."""
    place = {text: index for index, text in enumerate(texts)}
    assert answers
    for some, status, content in answers:
        assert status == 200, content
        found = [one["embedding"] for one in json.loads(content)["data"]]
        assert cosines(found, expected[[place[text] for text in some]]).min() > EXACT


def test_no_vector_is_lost_or_anothers_when_an_actor_dies(pooling_server: Server, encoder: Path) -> None:
    texts = [f"{sentence} {index}" for index in range(4) for sentence in SENTENCES]
    pooling_server.wait_for("ready at", since_start=True)
    kinds = ["scheduler", "renderer-0", "frontend-0", "detokenizer-0"]
    answers = ask_through_deaths(pooling_server, kinds, texts, 3)
    check_answers(answers, texts, vectors(encoder, texts, "mean"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_deaths(encoder: Path) -> None:
    options = ("--device", "cpu", "--threads", "1", "--dtype", "float32", "--max-restarts", "60")
    texts = [f"{sentence} {index}" for index in range(4) for sentence in SENTENCES]
    with Server(str(encoder), *options) as server:
        kinds = ["worker", "scheduler", "renderer-0", "frontend-0", "detokenizer-0"] * 10
        answers = ask_through_deaths(server, kinds, texts, 4)
    check_answers(answers, texts, vectors(encoder, texts, "mean"))


def test_ollamas_client(pooling_server: Server, expected: np.ndarray) -> None:
    client = ollama.Client(host=pooling_server.base_url)
    answer = client.embed("embedder", SENTENCES)
    assert cosines(answer.embeddings, expected).min() > EXACT and (answer.prompt_eval_count or 0) > 0
    assert np.allclose(np.linalg.norm(answer.embeddings, axis=1), 1, atol=1e-5)
    assert cosines([client.embeddings("embedder", SENTENCES[0]).embedding], expected[:1]).min() > EXACT
    assert client.show("embedder").capabilities == ["embedding"]
    with pytest.raises(ollama.ResponseError, match="generates no text"):
        client.chat("embedder", messages=[{"role": "user", "content": "a"}])
    with pytest.raises(ollama.ResponseError, match="maximum"):
        client.embed("embedder", LONG, truncate=False)
    assert len(client.embed("embedder", LONG).embeddings) == 1


def test_coheres_client(pooling_server: Server, expected: np.ndarray) -> None:
    client = cohere.ClientV2(api_key="-", base_url=pooling_server.base_url)
    kinds = ["float", "base64", "binary", "ubinary"]
    answer = client.embed(model="embedder", texts=SENTENCES, input_type="search_document", embedding_types=kinds)
    floats = np.array(answer.embeddings.float_)
    assert cosines(floats, expected).min() > EXACT and answer.texts == SENTENCES
    raw = [np.frombuffer(base64.b64decode(one), np.float32) for one in answer.embeddings.base64 or []]
    assert np.allclose(raw, floats)
    bits = np.packbits(floats > 0, axis=1)
    assert np.array_equal(answer.embeddings.ubinary or [], bits)
    assert np.array_equal(answer.embeddings.binary or [], bits.astype(np.int16) - 128)
    assert answer.meta is not None and answer.meta.billed_units is not None and answer.meta.billed_units.input_tokens
    assert answer.meta.billed_units.image_tokens == 0
    with pytest.raises(CohereError, match="int8"):
        client.embed(model="embedder", texts=["a"], input_type="search_query", embedding_types=["int8"])
    ranked = client.rerank(model="embedder", query=SENTENCES[0], documents=SENTENCES, top_n=2)
    assert ranked.results[0].index == 0 and len(ranked.results) == 2
    older = cohere.Client(api_key="-", base_url=pooling_server.base_url)
    plain = older.embed(model="embedder", texts=SENTENCES[:2], input_type="search_query")
    typed = older.embed(model="embedder", texts=SENTENCES[:2], input_type="search_query", embedding_types=["float"])
    assert plain.response_type == "embeddings_floats" and typed.response_type == "embeddings_by_type"
    assert plain.embeddings == typed.embeddings.float_ and len(plain.embeddings) == 2
    told: Any = [{"title": "no", "text": "nothing"}, {"title": SENTENCES[0], "text": "nothing"}]
    fields = older.rerank(model="embedder", query=SENTENCES[0], documents=told, rank_fields=["title"])
    assert [one.index for one in fields.results] == [1, 0]
    units = None if ranked.meta is None else ranked.meta.billed_units
    assert units is not None and units.search_units == 1


def test_what_is_cut_for_coheres_client(pooling_server: Server) -> None:
    client = cohere.ClientV2(api_key="-", base_url=f"{pooling_server.base_url}/cohere")

    def vector(text: str, **fields: Any) -> list[float]:
        asked: dict[str, Any] = {"model": "embedder", "texts": [text], "input_type": "search_document", **fields}
        return (client.embed(embedding_types=["float"], **asked).embeddings.float_ or [])[0]

    assert vector(LONG) == vector(LONG, truncate="END")
    with pytest.raises(CohereError, match="maximum"):
        vector(LONG, truncate="NONE")
    text = "one two three four five six"
    assert vector(text, truncate="START", max_tokens=4) != vector(text, truncate="END", max_tokens=4)


def test_invocations(client: httpx.Client) -> None:
    made = [
        client.post("/invocations", json=body).json()
        for body in ({"input": "a"}, {"task": "embed", "input": "a"}, {"query": "a", "documents": ["a"]})
    ]
    kinds = [(one.get("data") or one["results"])[0].keys() & {"embedding", "data", "relevance_score"} for one in made]
    assert kinds == [{"embedding"}, {"data"}, {"relevance_score"}]
    assert client.post("/invocations", json={"prompt": "a"}).status_code == 400
