"""Answers of the endpoints that pool, in the forms of OpenAI, vLLM, Cohere and Jina."""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Sequence
from operator import mul
from typing import Any

from actorserve.actors.model.pooling.spec import PoolingSpec
from actorserve.actors.protocol.request import BY_TOKEN, EMBED
from actorserve.actors.protocol.topics.io_processors import PooledPrompt

from ..errors import ApiError
from ..generation.choice import Choice
from ..generation.job import Job
from ..output.answer import Answer
from .packed import Packed
from .pairs import ALL, Limits, Pair, texts_of
from .written import Matrix, written

BITS = ("binary", "ubinary")  # types of vectors with one bit a number
ALL_BITS = 128  # what separates a signed byte from an unsigned one
PLAIN = Packed()
ROWS = 64  # of a query, that are compared with all of a document at once
COHERE_UNIT = 100  # documents, as Cohere counts what a ranking costs


def head(answer: Answer, kind: str) -> dict[str, Any]:
    """What all begin with."""
    return {
        "id": f"{kind}-{answer.seed:016x}{answer.created:08x}",
        "object": "list",
        "created": answer.created,
        "model": answer.model,
    }


def usage(job: Job) -> dict[str, Any]:
    """Tokens of all prompts."""
    tokens = job.prompt_tokens
    details = {"cached_tokens": job.cached_tokens}
    return {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": details}


def matrix(choice: Choice) -> Matrix:
    """What was made of its prompt."""
    if choice.pooled is None:
        raise ApiError(500, "What the model has made of this request is lost.")
    return choice.pooled


def numbers(choice: Choice) -> list[float]:
    """All of them."""
    found = array("f")
    found.frombytes(matrix(choice)[2])
    return found.tolist()


async def embeddings(
    answer: Answer, job: Job, encoding: str | None, dtype: str | None = None, packed: Packed = PLAIN
) -> dict[str, Any]:
    """POST /v1/embeddings."""
    vectors = await _vectors(job, encoding, packed, dtype)
    data = [
        {"index": choice.index, "object": "embedding", "embedding": vector}
        for choice, vector in zip(job.choices, vectors, strict=True)
    ]
    return {**head(answer, "embd"), "data": data, "usage": usage(job)}


async def _vectors(
    job: Job, encoding: str | None, packed: Packed, dtype: str | None = None, by_token: bool = False
) -> Sequence[Any]:
    """Of each choice: a list of numbers, or of lists, or their bytes as text."""
    if dtype in BITS:
        made = [bits(choice, dtype) for choice in job.choices]
        return [base64.b64encode(one.tobytes()).decode() if encoding == "base64" else one.tolist() for one in made]
    if encoding == "base64":
        return [base64.b64encode(one).decode() for one in await packed.pack(_floats(job))]
    return await as_json(job, by_token)


async def as_json(job: Job, by_token: bool = False) -> Sequence[Any]:
    """Of each choice a list of numbers, or one of each token."""
    return await written(map(matrix, job.choices), by_token)


def _floats(job: Job) -> list[bytes]:
    return [matrix(choice)[2] for choice in job.choices]


async def in_bytes(answer: Answer, job: Job, packed: Packed, by_token: bool) -> tuple[bytes, dict[str, Any]]:
    """All vectors, one behind the other, and what a client has to know to tell them apart."""
    made, data, start = await packed.pack(_floats(job)), [], 0
    for choice, vectors in zip(job.choices, made, strict=True):
        rows, columns, _ = matrix(choice)
        end, shape = start + len(vectors), [rows, columns] if by_token else [columns]
        place = {"start": start, "end": end, "shape": shape}
        data.append({"index": choice.index, "embed_dtype": packed.type, "endianness": packed.order, **place})
        start = end
    about = {name: value for name, value in head(answer, "embd").items() if name != "object"}
    counts = {name: usage(job)[name] for name in ("prompt_tokens", "total_tokens")}
    return b"".join(made), {**about, "data": data, "usage": counts}


def bits(choice: Choice, dtype: str) -> array[int]:
    """One bit a number: is it above 0? The first is the highest of its byte; the last byte is filled up with zeros.
    The bytes are signed, 128 less, where the type is binary.
    """
    values = numbers(choice)
    packed = array("B", bytes((len(values) + 7) // 8))
    for index, value in enumerate(values):
        if value > 0:
            packed[index // 8] |= 1 << 7 - index % 8
    return packed if dtype == "ubinary" else array("b", (byte - ALL_BITS for byte in packed))


async def poolings(answer: Answer, job: Job, encoding: str | None, task: str, packed: Packed = PLAIN) -> dict[str, Any]:
    """POST /pooling: what is one of each token is a list of lists."""
    made = await _vectors(job, encoding, packed, by_token=task in BY_TOKEN)
    data = [
        {"index": choice.index, "object": "pooling", "data": vectors}
        for choice, vectors in zip(job.choices, made, strict=True)
    ]
    return {**head(answer, "pool"), "data": data, "usage": usage(job)}


def for_plugin(job: Job, task: str) -> list[PooledPrompt]:
    """What an IO processor makes its answer of."""
    return [PooledPrompt(*matrix(choice), task in BY_TOKEN) for choice in job.choices]


def classes(answer: Answer, job: Job, spec: PoolingSpec) -> dict[str, Any]:
    """POST /classify."""
    data = []
    for choice in job.choices:
        probs = numbers(choice)
        best = spec.labels[max(range(len(probs)), key=probs.__getitem__)]
        data.append({"index": choice.index, "label": best, "probs": probs, "num_classes": len(probs)})
    return {**head(answer, "classify"), "data": data, "usage": usage(job)}


def scores(answer: Answer, job: Job, made: Sequence[float]) -> dict[str, Any]:
    """POST /score."""
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(made)]
    return {**head(answer, "score"), "data": data, "usage": usage(job)}


def ranking(
    answer: Answer, job: Job, made: Sequence[float], documents: Sequence[str], top: int, with_texts: bool
) -> dict[str, Any]:
    """POST /rerank: the best first."""
    order = _best(made, top)
    results = [
        {
            "index": index,
            **({"document": {"text": documents[index]}} if with_texts else {}),
            "relevance_score": made[index],
        }
        for index in order
    ]
    about = head(answer, "rerank")
    tokens = {"total_tokens": job.prompt_tokens, "prompt_tokens": job.prompt_tokens}
    units = -(-len(made) // COHERE_UNIT)
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": units}}  # Cohere's, which AI SDK needs
    return {"id": about["id"], "model": answer.model, "usage": tokens, "meta": meta, "results": results}


def ranking_of_texts(made: Sequence[float], texts: Sequence[str], top: int, with_texts: bool) -> list[dict[str, Any]]:
    """The same as TEI has it."""
    return [
        {"index": index, **({"text": texts[index]} if with_texts else {}), "score": made[index]}
        for index in _best(made, top)
    ]


def _best(made: Sequence[float], top: int) -> list[int]:
    return sorted(range(len(made)), key=lambda index: -made[index])[: top or len(made)]


def pair_scores(job: Job, pairs: Sequence[Pair], spec: PoolingSpec, most: Limits = ALL) -> list[float]:
    """Of each pair: the head's, or the cosine of two vectors, or how near the vectors of their tokens are. `most`: as
    pair_prompts has been given it.
    """
    if spec.head:
        return [numbers(choice)[0] for choice in job.choices]
    cut = [texts_of(pair, most) for pair in pairs]
    texts = dict.fromkeys(text for own in cut for text in own)
    if EMBED not in spec.tasks:
        tokens = dict(zip(texts, map(matrix, job.choices), strict=True))
        return [late_interaction(tokens[first], tokens[second]) for first, second in cut]
    vectors = dict(zip(texts, map(numbers, job.choices), strict=True))
    return [cosine(vectors[first], vectors[second]) for first, second in cut]


def cosine(one: list[float], other: list[float]) -> float:
    """Of two vectors; 0 where one has no length."""
    length = math.sqrt(_product(one, one) * _product(other, other))
    return _product(one, other) / length if length else 0.0


def late_interaction(query: Matrix, document: Matrix) -> float:
    """ColBERT's MaxSim: of each token of the query the product with the nearest one of the document, all added up."""
    import numpy as np  # which a frontend of other models does without

    own, other = (np.frombuffer(data, np.float32).reshape(rows, columns) for rows, columns, data in (query, document))
    parts = (own[start : start + ROWS] for start in range(0, len(own), ROWS))
    return float(sum((part @ other.T).max(axis=1).sum(dtype=np.float64) for part in parts))


def _product(one: list[float], other: list[float]) -> float:
    product: float = sum(map(mul, one, other))
    return product
