"""Valid requests of random mixtures of fields, to every door that makes texts, and to those that pool."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from . import fields, others, own
from .asked import Asked
from .fields import one_of, some

POOLED = "pooled"  # the name of the model that pools

DOORS: tuple[tuple[Callable[[Random], Asked], int], ...] = (
    *((own.completions, 5), (own.chat, 6), (own.responses, 3), (own.messages, 3), (own.token_ids, 2)),
    *((others.ollama, 2), (others.llamacpp, 2), (others.cohere, 1), (others.tgi, 1), (others.sglang, 1)),
)
THOUGHTLESS = ("reasoning_effort", "use_beam_search", "length_penalty")


def embeddings(rng: Random) -> Asked:
    """Of the model that pools."""
    inputs: Any = [fields.text(rng, 60) for _ in range(rng.randint(1, 5))] if rng.random() < 0.6 else fields.ids(rng)
    body = {"model": POOLED, "input": inputs}
    more = {
        "encoding_format": one_of("float", "base64"),
        "truncate_prompt_tokens": one_of(-1, 5),
        "dimensions": one_of(8),
    }
    body |= some(rng, more, 0.3)
    count = len(inputs) if isinstance(inputs[0], str) else 1
    return Asked("embeddings", "/v1/embeddings", body, True, count)


def vectors(whole: Any) -> list[list[float]]:
    """Of an answer of embeddings, in either encoding."""
    found = [one["embedding"] for one in whole["data"]]
    return [
        list(struct.unpack(f"<{len(data) // 4}f", data)) if (data := _raw(one)) is not None else one for one in found
    ]


def _raw(one: Any) -> bytes | None:
    return base64.b64decode(one) if isinstance(one, str) else None


def _thinking(asked: Asked, rng: Random) -> Asked:
    """How much is thought, of a model that thinks: without a bound it goes on until its end."""
    budget = rng.choice((0, 1, 4, 10))
    if asked.door in ("chat", "responses") and rng.random() < 0.8:
        body = {name: value for name, value in asked.body.items() if name not in THOUGHTLESS}
        return replace(asked, body={**body, "thinking_token_budget": budget})
    if asked.door == "cohere" and rng.random() < 0.8:
        return replace(asked, body={**asked.body, "thinking": {"type": "enabled", "token_budget": budget + 1}})
    return asked


def request(seed: int, number: int, pooled: bool = False, thinks: bool = False) -> tuple[Asked, Random]:
    """The request of that number, and what to draw with what else becomes of it."""
    rng = Random(f"{seed}/{number}")
    if pooled and rng.random() < 0.2:
        return embeddings(rng), rng
    makers, weights = zip(*DOORS, strict=True)
    asked = rng.choices(makers, weights)[0](rng)
    if thinks:
        asked = _thinking(asked, rng)
    if pooled and asked.door not in ("ollama_chat", "ollama_generate", "cohere"):
        return replace(asked, body={**asked.body, "model": "actorserve-demo"}), rng
    return asked, rng
