"""Requests of Text Embeddings Inference's API to what asks for the same vectors and labels."""

from __future__ import annotations

from typing import Any

import msgspec

from actorserve.actors.model.pooling.spec import PoolingSpec
from actorserve.actors.protocol.topics.prompts import PairPrompt, Prompt, TextPrompt

from ..errors import ApiError, bad_request
from ..generation.adapter import with_names
from ..openai.schemas import Object
from ..pooling.schemas import ClassifyRequest, EmbeddingRequest
from .schemas import (
    MOST_TEXTS,
    InputsOf,
    TeiDecodeRequest,
    TeiEmbedAllRequest,
    TeiEmbedRequest,
    TeiFields,
    TeiPredictRequest,
    TeiSimilarityRequest,
)

NAMES = {"input": "inputs", "truncate_prompt_tokens": "truncate", "truncation_side": "truncation_direction"}


def is_tei(raw: bytes) -> bool:
    """Is a body of a path that others have, too, of this API?"""
    return bytes(_given(raw).inputs) not in (b"", b"null")


def is_compared(raw: bytes) -> bool:
    """Are its inputs sentences to compare?"""
    return bytes(_given(raw).inputs).startswith(b"{")


def is_pipeline(raw: bytes) -> bool:
    """Is it written as huggingface_hub asks a pipeline? It reads a list for each text, also where that is one."""
    return bytes(_given(raw).parameters) not in (b"", b"null")


def _given(raw: bytes) -> InputsOf:
    try:
        return msgspec.json.decode(raw, type=InputsOf)
    except msgspec.DecodeError:  # whoever reads it whole says what is wrong
        return InputsOf()


def renamed(error: ApiError) -> ApiError:
    """The error with the names that this API has for fields."""
    return with_names(error, NAMES)


def embedding_of(body: TeiEmbedRequest) -> EmbeddingRequest:
    """A vector of each."""
    normal = body.normalize is not False
    return EmbeddingRequest(input=body.inputs, normalize=normal, dimensions=body.dimensions, **_fields(body))


def rows_of(body: TeiEmbedAllRequest) -> EmbeddingRequest:
    """One of each token, as it is."""
    return EmbeddingRequest(input=body.inputs, normalize=False, **_fields(body))


def compared_of(body: TeiSimilarityRequest) -> EmbeddingRequest:
    """Vectors of the source, and of all that it is compared with."""
    given = body.parameters or TeiFields()
    return EmbeddingRequest(
        input=[body.inputs.source_sentence, *body.inputs.sentences],
        **_fields(given) | {"model": body.model or given.model},
    )


def labels_of(body: TeiPredictRequest) -> ClassifyRequest:
    """Scores of labels, which go through what the model says, or what is asked for."""
    applied = body.parameters.function_to_apply if body.parameters is not None else None
    raw = body.raw_scores or applied == "none"
    return ClassifyRequest(use_activation=False if raw else None, **_fields(body))


def check_applied(body: TeiPredictRequest, spec: PoolingSpec) -> None:
    """400 for another function than the model's own."""
    applied = body.parameters.function_to_apply if body.parameters is not None else None
    if applied not in (None, "none", spec.activation):
        text = f"parameters.function_to_apply: scores of this model go through {spec.activation or 'nothing'}, or none."
        raise bad_request(text, "parameters.function_to_apply")


def sequences_of(body: TeiPredictRequest, before: str) -> tuple[list[Prompt], bool]:
    """(a prompt for each, whether there is a list of them). `before`: what stands before each text."""
    given: Any = body.inputs
    many = isinstance(given, list) and bool(given) and all(isinstance(one, list) for one in given)
    rows = given if many else [[given] if isinstance(given, str) else given]
    prompts: list[Prompt] = []
    for index, row in enumerate(rows):
        path = f"inputs[{index}]" if many else "inputs"
        if not 1 <= len(row) <= 2 or not all(isinstance(text, str) for text in row):
            raise bad_request(f"{path} must be a text, or a list of one or two.", path)
        prompts.append(TextPrompt(before + row[0]) if len(row) == 1 else PairPrompt(row[0], row[1], "", path))
    return prompts, many


def ids_of(body: TeiDecodeRequest) -> list[list[int]]:
    """Of each text."""
    if any(isinstance(one, list) for one in body.ids):
        rows = [one for one in body.ids if isinstance(one, list)]
        if len(rows) < len(body.ids) or len(rows) > MOST_TEXTS:
            raise bad_request(f"ids must be ids, or at most {MOST_TEXTS} lists of them.", "ids")
        return rows
    return [[one for one in body.ids if isinstance(one, int)]]


def _fields(body: TeiFields) -> Object:
    """What all have in common, by the other names."""
    left = body.truncation_direction in ("left", "Left")
    return {
        "model": body.model,
        "prompt_name": body.prompt_name,
        "truncate_prompt_tokens": -1 if body.truncate else None,
        "truncation_side": "left" if left else None,
    }
