"""CLIP and SigLIP: vectors of texts and of pictures are those of transformers, over HTTP and in a script."""

from __future__ import annotations

import base64
import io
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import OpenAI
from PIL import Image

from actorserve import LLM
from tests.support.client import http_client
from tests.support.models.dual_encoders import (
    LONGEST,
    picture_vectors,
    text_vectors,
    write_clip_modules,
    write_dual_encoder,
)
from tests.support.models.embedders import cosines
from tests.support.models.vision.folders import picture
from tests.support.runs.original import Imports
from tests.support.selection import slow
from tests.support.server import Server

OPTIONS = (
    "--device",
    "cpu",
    "--threads",
    "1",
    "--dtype",
    "float32",
    "--served-model-name",
    "both",
    "--max-restarts",
    "9",
)
EXACT = 0.99999
TEXTS = ["A photo of a cat", "two dogs, one fox: the lazy dog.", "a", "What is the capital of France?"]
PICTURES = [picture(60, 40, 1), picture(30, 80, 2), picture(24, 24, 3)]


def shown(data: bytes) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def message(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def vector(client: Any, body: dict[str, Any], path: str = "/v1/embeddings") -> np.ndarray:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    (one,) = answer.json()["data"]
    return np.array(one["embedding" if path == "/v1/embeddings" else "data"])


@pytest.mark.parametrize("kind", ["siglip2", *slow("clip", "siglip")])
def test_vectors_of_texts_and_pictures(kind: str, tmp_path: Path) -> None:
    """Also after deaths, as conversations, side by side, and what is refused."""
    write_dual_encoder(kind, tmp_path)
    texts, pictures = text_vectors(tmp_path, TEXTS), picture_vectors(tmp_path, PICTURES)
    assert abs(cosines(pictures[0], pictures[1])) < 0.999 and abs(cosines(texts[0], texts[1])) < 0.999
    with Server(str(tmp_path), *OPTIONS, imports=Imports.PLAIN) as server, http_client(server) as client:
        for death in (None, "worker", "media-0"):
            if death is not None:
                os.kill(server.actors()[death], signal.SIGKILL)
            own = OpenAI(base_url=f"{server.base_url}/v1", api_key="none").embeddings.create(model="both", input=TEXTS)
            assert cosines([one.embedding for one in own.data], texts).min() > EXACT
            found = [vector(client, message(shown(data))) for data in PICTURES]
            assert cosines(found, pictures).min() > EXACT
        assert cosines(vector(client, message({"type": "text", "text": TEXTS[0]})), texts[0]) > EXACT
        assert cosines(vector(client, message(shown(PICTURES[1])), "/pooling"), pictures[1]) > EXACT
        check_refused(client, kind)


def check_refused(client: Any, kind: str) -> None:
    both = client.post("/v1/embeddings", json=message(shown(PICTURES[0]), {"type": "text", "text": "a"}))
    assert both.status_code == 400 and "of a text, or of one picture" in both.json()["error"]["message"]
    long = client.post("/v1/embeddings", json={"input": "fox " * 200})
    assert long.status_code == 400 and f"is {LONGEST[kind]} tokens" in long.json()["error"]["message"], long.text
    cut = client.post("/v1/embeddings", json={"input": "fox " * 200, "truncate_prompt_tokens": -1})
    assert cut.status_code == 200 and cut.json()["usage"]["prompt_tokens"] == LONGEST[kind]
    inside = client.post(
        "/v1/embeddings", json=message({"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}})
    )
    assert inside.status_code in (400, 403), inside.text
    by_token = client.post("/pooling", json={"input": "a", "task": "token_embed"})
    assert by_token.status_code == 400 and by_token.json()["error"]["param"] == "task"
    spelt = client.post("/v1/embeddings", json={"input": "<image>"})
    assert spelt.status_code == 200, spelt.text


def test_in_a_script(tmp_path: Path) -> None:
    """Of sentence-transformers' files, which keep it in a folder of its own, and say of no vector how long it is."""
    write_dual_encoder("clip", tmp_path / "0_CLIPModel")
    write_clip_modules(tmp_path)
    given = [Image.open(io.BytesIO(data)) for data in PICTURES]
    with LLM(str(tmp_path), device="cpu", threads=1, dtype="float32", max_num_seqs=4, in_process=True) as llm:
        prompts: list[Any] = [*TEXTS, *({"prompt": "", "multi_modal_data": {"image": one}} for one in given)]
        found = llm.embed(prompts, use_tqdm=False)
        vectors = [one.outputs.embedding for one in found]
        with pytest.raises(ValueError, match="a dict with some of the keys image"):
            llm.embed([{"prompt": "", "multi_modal_data": {"sound": 1}}], use_tqdm=False)
    tmp_path /= "0_CLIPModel"
    assert cosines(vectors[: len(TEXTS)], text_vectors(tmp_path, TEXTS)).min() > EXACT
    assert cosines(vectors[len(TEXTS) :], picture_vectors(tmp_path, PICTURES)).min() > EXACT
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).min() > 0.01
