"""Answers of Text Embeddings Inference's API."""

from __future__ import annotations

from typing import Any

import actorserve
from actorserve.actors.model.pooling.spec import PoolingSpec

from ..generation.choice import Choice
from ..generation.job import Job
from ..pooling.answers import cosine, numbers
from ..pooling.schemas import MAX_INPUTS
from ..settings import Settings

Object = dict[str, Any]


def similarities(job: Job) -> list[float]:
    """Of the first vector with each of the others."""
    source, *others = map(numbers, job.choices)
    return [cosine(source, other) for other in others]


def predictions(choice: Choice, spec: PoolingSpec, most: int | None) -> list[Object]:
    """Labels with their scores, the best first."""
    scored = sorted(zip(numbers(choice), spec.labels, strict=True), key=lambda one: -one[0])
    return [{"score": score, "label": label} for score, label in scored[:most]]


def tokens(ids: list[int], strings: list[str], special: set[int]) -> list[Object]:
    """Each as the vocabulary has it; where it stands in the text is not told."""
    return [
        {"id": one, "text": text, "special": one in special, "start": None, "stop": None}
        for one, text in zip(ids, strings, strict=True)
    ]


async def info(name: str, settings: Settings, spec: PoolingSpec) -> Object:
    """GET /info."""
    return {
        "model_id": name,
        "model_sha": None,
        "model_dtype": (await settings.card()).stored_as,
        "model_type": _kind(spec),
        "max_concurrent_requests": settings.max_num_seqs,
        "max_input_length": settings.max_model_len,
        "max_batch_tokens": settings.max_model_len,
        "max_batch_requests": None,
        "max_client_batch_size": MAX_INPUTS,
        "auto_truncate": False,
        "tokenization_workers": 1,
        "version": actorserve.__version__,
        "sha": None,
        "docker_label": None,
    }


def _kind(spec: PoolingSpec) -> Object:
    if not spec.head:
        return {"embedding": {"pooling": "_".join(spec.methods)}}
    by_id = {str(number): label for number, label in enumerate(spec.labels)}
    names = {"id2label": by_id, "label2id": {label: number for number, label in enumerate(spec.labels)}}
    return {"reranker" if len(spec.labels) == 1 else "classifier": names}
