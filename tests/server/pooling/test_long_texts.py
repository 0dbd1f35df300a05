"""Texts that are longer than the model takes, by enable_chunked_processing of --pooler-config."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest

from tests.server.pooling.conftest import OPTIONS
from tests.support.client import http_client
from tests.support.models.embedders import SENTENCES, cosines, encode
from tests.support.server import Server

CHUNKED = ("--pooler-config", '{"enable_chunked_processing": true, "max_embed_len": 400}')
LENGTH = 130  # that the model takes
LONG = "the quick brown fox " * 35
EXACT = 0.99999


@pytest.fixture(scope="module")
def client(encoder: Path) -> Iterator[httpx.Client]:
    with Server(str(encoder), *OPTIONS, *CHUNKED, "--max-restarts", "1000") as server, http_client(server) as made:
        yield made


def ask(client: httpx.Client, path: str = "/v1/embeddings", **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def vectors(client: httpx.Client, given: Any, **fields: Any) -> np.ndarray:
    return np.array([one["embedding"] for one in ask(client, input=given, **fields)["data"]])


def joined(client: httpx.Client, ids: list[int], normal: bool = True) -> np.ndarray:
    """The mean of the vectors of the parts, by their tokens."""
    parts = [ids[start : start + LENGTH] for start in range(0, len(ids), LENGTH)]
    found = np.average(vectors(client, parts, normalize=normal), axis=0, weights=[len(one) for one in parts])
    return found / np.linalg.norm(found) if normal else found


def test_a_long_text_has_the_mean_of_its_parts(client: httpx.Client, encoder: Path) -> None:
    ids = encode(encoder, LONG)[0]
    assert 2 * LENGTH < len(ids) < 400
    for given in (LONG, ids):
        assert cosines(vectors(client, given)[0], joined(client, ids)) > EXACT
    plain = vectors(client, LONG, normalize=False)[0]
    assert plain == pytest.approx(joined(client, ids, normal=False), abs=1e-5)
    assert abs(np.linalg.norm(vectors(client, LONG)[0]) - 1) < 1e-5


def test_long_and_short_ones_stand_in_their_order(client: httpx.Client, encoder: Path) -> None:
    given = [SENTENCES[0], LONG, SENTENCES[1], LONG[:600]]
    whole = ask(client, input=given)
    assert [one["index"] for one in whole["data"]] == [0, 1, 2, 3]
    alone = [vectors(client, one)[0] for one in given]
    assert cosines(np.array([one["embedding"] for one in whole["data"]]), np.array(alone)).min() > EXACT
    counts = [len(encode(encoder, one)[0]) for one in given]
    assert whole["usage"]["prompt_tokens"] == whole["usage"]["total_tokens"] == sum(counts)
    pooled = ask(client, "/pooling", input=LONG, task="embed")["data"][0]["data"]
    assert cosines(np.array(pooled), alone[1]) > EXACT


def test_one_that_is_longer_than_is_allowed(client: httpx.Client) -> None:
    for given, field in ((LONG * 3, "input"), (["a", LONG * 3], "input[1]"), ([5] * 401, "input")):
        answer = client.post("/v1/embeddings", json={"input": given})
        error = answer.json()["error"]
        assert answer.status_code == 400 and "maximum context length is 400 tokens" in error["message"]
        assert error["param"] == field
    by_token = client.post("/pooling", json={"input": LONG, "task": "token_embed"})
    assert by_token.status_code == 400 and f"length is {LENGTH} tokens" in by_token.json()["error"]["message"]


def test_a_text_is_cut_where_that_is_asked(client: httpx.Client, encoder: Path) -> None:
    ids = encode(encoder, LONG)[0]
    assert cosines(vectors(client, LONG, truncate_prompt_tokens=20), vectors(client, [*ids[:19], ids[-1]])) > EXACT
