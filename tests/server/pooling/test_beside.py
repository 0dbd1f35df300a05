"""A model that generates and one that pools in one server: each answers as it does alone, and survives on its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx2 as httpx
import numpy as np
import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from tests.observer.commands import port_of, report, run
from tests.server.dialects.test_grpc import Client as GrpcClient
from tests.server.pooling.conftest import OPTIONS
from tests.server.pooling.test_embeddings import EXACT
from tests.support.client import free_port, http_client
from tests.support.models.embedders import SENTENCES, cosines, vectors
from tests.support.server import Server, stopped

DEMO, EMBEDDER = "actorserve-demo", "embedder"
QUESTION = "What is the capital of France?"
COMPUTING = ("--device", "cpu", "--threads", "1", "--dtype", "float32", "--max-num-seqs", "16")
OF_BOTH = [f"{kind}-0{of}" for kind in ("renderer", "detokenizer") for of in ("", f"+{EMBEDDER}")]
ENGINES = [f"{kind}@{engine}" for kind in ("scheduler", "worker") for engine in (0, 1)]


def with_values(options: tuple[str, ...]) -> str:
    """Options of a command line as they stand behind a model."""
    pairs = zip(options[::2], options[1::2], strict=True)
    return ",".join(f"{name.removeprefix('--')}={value}" for name, value in pairs)


@pytest.fixture(scope="module")
def grpc_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def both(encoder: Path, grpc_port: int) -> Iterator[Server]:
    others = ("--max-restarts", "100", "--grpc-port", str(grpc_port))
    with Server(*COMPUTING, *others, "--also", f"{encoder},{with_values(OPTIONS)}") as server:
        yield server


@pytest.fixture
def client(both: Server) -> Iterator[httpx.Client]:
    with http_client(both) as made:
        yield made


@pytest.fixture
def openai(both: Server) -> OpenAI:
    return OpenAI(base_url=f"{both.base_url}/v1", api_key="-", max_retries=0)


def say(openai: OpenAI, **fields: Any) -> str:
    told: Any = {"model": DEMO, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, **fields}
    answer = openai.chat.completions.create(**told)
    return str(answer.choices[0].message.content)


def test_the_client_has_both(openai: OpenAI, demo_server: Server, encoder: Path) -> None:
    listed = {model.id: model for model in openai.models.list()}
    assert list(listed) == [DEMO, EMBEDDER]
    assert [model.model_extra["max_model_len"] for model in listed.values() if model.model_extra] == [4096, 130]
    assert openai.models.retrieve(EMBEDDER).model_extra == listed[EMBEDDER].model_extra
    alone = OpenAI(base_url=f"{demo_server.base_url}/v1", api_key="-")
    assert say(openai) == say(alone) == "The capital of France is Paris."
    answer = openai.embeddings.create(model=EMBEDDER, input=SENTENCES)
    assert answer.model == EMBEDDER
    assert cosines([one.embedding for one in answer.data], vectors(encoder, SENTENCES, "mean")).min() > EXACT


def test_who_names_none_gets_the_one_for_that(client: httpx.Client) -> None:
    assert client.post("/v1/embeddings", json={"input": "a"}).json()["model"] == EMBEDDER
    assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).json()["model"] == DEMO
    for path, body in (("/api/embed", {"input": "a"}), ("/rerank", {"query": "a", "documents": ["b"]})):
        assert client.post(path, json=body).json()["model"] == EMBEDDER
    latest = client.post("/api/embed", json={"input": "a", "model": f"{EMBEDDER}:latest"})
    assert latest.json()["model"] == EMBEDDER
    nothing = {"model": f"{EMBEDDER}:latest"}  # it is to be loaded
    assert client.post("/api/embed", json=nothing).json() == {"model": EMBEDDER, "embeddings": []}
    assert client.post("/api/generate", json=nothing).json()["done_reason"] == "load"
    tags = client.get("/api/tags").json()["models"]
    assert [model["details"]["family"] for model in tags] == ["llama", "bert"]


def test_the_wrong_one_names_the_right_one(openai: OpenAI) -> None:
    with pytest.raises(BadRequestError, match=r"actorserve-demo makes no embeddings, .*; embedder does"):
        openai.embeddings.create(model=DEMO, input="a")
    with pytest.raises(BadRequestError, match=r"embedder pools .* generates no text; actorserve-demo does"):
        say(openai, model=EMBEDDER)
    with pytest.raises(NotFoundError, match="`nobody` does not exist"):
        say(openai, model="nobody")
    with pytest.raises(NotFoundError, match="`nobody` does not exist"):
        openai.embeddings.create(model="nobody", input="a")


def test_over_grpc_too(both: Server, grpc_port: int, encoder: Path) -> None:
    client = GrpcClient(grpc_port)
    for name in ("", EMBEDDER):
        answer = client.call("Embed", metadata=(), texts=SENTENCES, model=name)
        found = [list(one.values) for one in answer.vectors]
        assert answer.model == EMBEDDER and answer.prompt_tokens > 0
        assert cosines(found, vectors(encoder, SENTENCES, "mean")).min() > EXACT
    said = client.call("Generate", metadata=(), text="The capital of France is", temperature=0.0, max_tokens=4)
    assert said.model == DEMO and said.choices[0].text == " Paris."
    with pytest.raises(grpc.RpcError, match="actorserve-demo does"):
        client.call("Generate", metadata=(), text="a", model=EMBEDDER)


def test_each_has_its_own_tokens(client: httpx.Client) -> None:
    counts = {}
    for name, longest in ((DEMO, 4096), (EMBEDDER, 130)):
        told = client.post("/tokenize", json={"model": name, "prompt": QUESTION}).json()
        assert told["max_model_len"] == longest
        text = client.post("/detokenize", json={"model": name, "tokens": told["tokens"]}).json()["prompt"]
        assert QUESTION.lower().split()[0] in text.lower()
        counts[name] = told["tokens"]
    assert counts[DEMO] != counts[EMBEDDER]


def test_what_is_shown_tells_them_apart(both: Server, client: httpx.Client) -> None:
    actors = {actor["name"]: actor["model"] for actor in report(both)["actors"]}
    assert {name for name, model in actors.items() if model == EMBEDDER} == {
        *(name for name in OF_BOTH if "+" in name),
        *(name for name in ENGINES if name.endswith("1")),
    }
    assert actors["frontend-0"] == "" and actors["worker@0"] == DEMO
    table = run("ps", "--server", port_of(both)).stdout
    assert "model" in table.splitlines()[0] and EMBEDDER in table
    metrics = client.get("/metrics").text
    for engine, model in enumerate((DEMO, EMBEDDER)):
        assert f'vllm:num_requests_running{{engine="{engine}",model_name="{model}"}}' in metrics
    models = client.get("/server_info").json()["models"]
    assert [(one["names"], one["engines"]) for one in models] == [([DEMO], [0]), ([EMBEDDER], [1])]
    client.post("/v1/embeddings", json={"input": "a", "model": EMBEDDER}, headers={"X-Request-Id": "of-embedder"})
    assert f"model                      {EMBEDDER}" in run("why", "of-embedder", "--server", port_of(both)).stdout


def test_one_goes_on_while_the_other_is_down(both: Server, client: httpx.Client, openai: OpenAI) -> None:
    with stopped(both, "worker@1"):
        told = client.get("/ready")
        assert told.status_code == 200
        assert told.json() == {"status": "degraded", "waiting_for": ["worker@1: stopped by a signal"]}
        assert say(openai) == "The capital of France is Paris."
    with stopped(both, "renderer-0"):
        assert client.get("/ready").json()["waiting_for"] == ["renderer-0: stopped by a signal"]
        assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 200


def test_every_actor_of_both_may_die(both: Server, openai: OpenAI, encoder: Path) -> None:
    expected, over = vectors(encoder, SENTENCES, "mean"), threading.Event()
    wanted = {number: say(openai, seed=number, temperature=1.0, max_tokens=24) for number in range(2)}

    def talk(number: int) -> int:
        count = 0
        while not over.is_set():
            assert say(openai, seed=number, temperature=1.0, max_tokens=24) == wanted[number]
            count += 1
        return count

    def embed(number: int) -> int:
        count = 0
        while not over.is_set():
            answer = openai.embeddings.create(model=EMBEDDER, input=SENTENCES[number:])
            assert cosines(np.array([one.embedding for one in answer.data]), expected[number:]).min() > EXACT
            count += 1
        return count

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(work, number) for number in range(2) for work in (talk, embed)]
        try:
            for name in (*ENGINES, *OF_BOTH, "frontend-0"):
                both.replace(name)
        finally:
            over.set()
        assert min(client.result() for client in clients) > 0


@pytest.mark.slow
def test_workers_are_replaced_one_model_after_the_other(both: Server, client: httpx.Client, openai: OpenAI) -> None:
    before = both.pids()
    done = run("restart", "worker", "--server", port_of(both))
    assert done.returncode == 0, done.stdout + done.stderr
    after = both.pids()
    assert all(before[name] != after[name] for name in ("worker@0", "worker@1"))
    assert say(openai) == "The capital of France is Paris."
    assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 200
    refused = run("scale", "1", "--server", port_of(both))
    assert refused.returncode and "several models" in refused.stderr
