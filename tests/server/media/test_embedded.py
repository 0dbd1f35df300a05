"""Vectors of conversations with pictures, by a model that sees: what the whole model of transformers makes of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.server.media.test_seen import QUICK, SIZES, Seeing, messages, serve
from tests.support.client import http_client
from tests.support.models.embedders import cosines
from tests.support.models.vision.reference import picture

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeing]:
    yield from serve(QUICK, tmp_path_factory.mktemp("embedding"), "--runner", "pooling")


def ask(seeing: Seeing, path: str, body: dict[str, Any]) -> Any:
    with http_client(seeing.server) as client:
        return client.post(path, json=body)


def vector(seeing: Seeing, seeds: list[int], **fields: Any) -> list[float]:
    answer = ask(seeing, "/v1/embeddings", {"messages": messages(seeds), **fields})
    assert answer.status_code == 200, answer.text
    found: list[float] = answer.json()["data"][0]["embedding"]
    return found


def expected(seeing: Seeing, seeds: list[int]) -> np.ndarray[Any, Any]:
    """The last token's hidden state, of length 1."""
    ids = ask(seeing, "/tokenize", {"messages": messages(seeds), "add_generation_prompt": False}).json()["tokens"]
    reference = seeing.reference
    inputs = reference.pixels(*(picture(seed, *SIZES[seed % 3]) for seed in seeds)) if seeds else {}
    with torch.inference_mode():
        made = reference.model.model(input_ids=torch.tensor([ids]), **inputs, **reference.kinds(ids))
    last = made.last_hidden_state[0, -1]
    whole: np.ndarray[Any, Any] = (last / last.norm()).numpy()
    return whole


def test_pictures_have_vectors(embedding: Seeing) -> None:
    """One, several and none; the second time from the prefix that was computed; and after deaths."""
    wanted = {tuple(seeds): expected(embedding, seeds) for seeds in ([], [0], [1], [1, 2], [2, 2, 0])}
    for death in (None, None, "worker", "media-0"):
        if death is not None:
            os.kill(embedding.server.actors()[death], signal.SIGKILL)
        for seeds, whole in wanted.items():
            assert cosines(vector(embedding, [*seeds]), whole) > 0.99999
    apart = [cosines(one, other) for one in wanted.values() for other in wanted.values() if one is not other]
    assert max(apart) < 0.999


def test_texts_and_pictures_are_told_apart_by_their_fields(embedding: Seeing) -> None:
    assert len(vector(embedding, [0], dimensions=16)) == 16
    refused = ask(embedding, "/v1/embeddings", {"messages": messages([0]), "truncate_prompt_tokens": 4})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "truncate_prompt_tokens"
    plain = ask(embedding, "/v1/embeddings", {"input": ["a text", "another"]})
    assert plain.status_code == 200 and len(plain.json()["data"]) == 2
    generated = ask(embedding, "/v1/chat/completions", {"messages": messages([0])})
    assert generated.status_code == 400 and "pools" in generated.json()["error"]["message"]
