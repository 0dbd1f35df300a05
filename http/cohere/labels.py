"""Cohere's /v1/classify: labels of texts, of which the model has its own."""

from __future__ import annotations

from typing import Any

import msgspec

from actorserve.actors.model.pooling.spec import PoolingSpec
from actorserve.actors.protocol.request import SOFTMAX

from ..errors import bad_request
from ..generation.job import Job
from ..output.answer import Answer
from ..pooling.answers import numbers
from ..pooling.schemas import ClassifyRequest
from .answers import answer_id

Object = dict[str, Any]
LIKELY = 0.5  # from which on one of several labels is meant


def labelling_of(body: ClassifyRequest, texts: list[str]) -> ClassifyRequest:
    """The request that asks for the same by its own names."""
    if body.input is not None or bytes(body.messages) not in (b"", b"null"):
        raise bad_request("inputs stands in the place of input and messages: one of them must be given.", "inputs")
    if body.examples:
        raise bad_request("examples: labels are those that the model was trained with; leave examples out.", "examples")
    cut: Object = {
        "truncate_prompt_tokens": None if body.truncate == "NONE" else -1,
        "truncation_side": "left" if body.truncate == "START" else "right",
    }
    return msgspec.structs.replace(body, input=list(texts), **cut)


def classifications(answer: Answer, job: Job, spec: PoolingSpec, texts: list[str]) -> Object:
    """The body of the answer."""
    alone, found = spec.activation == SOFTMAX, []
    for choice, text in zip(job.choices, texts, strict=True):
        scored = dict(zip(spec.labels, numbers(choice), strict=True))
        best = max(scored, key=scored.__getitem__)
        meant = [best] if alone else [label for label, score in scored.items() if score >= LIKELY]
        found.append(
            {
                "id": f"{answer_id(answer)}-{choice.index}",
                "input": text,
                **({"prediction": best, "confidence": scored[best]} if alone else {}),
                "predictions": meant,
                "confidences": [scored[label] for label in meant],
                "labels": {label: {"confidence": score} for label, score in scored.items()},
                "classification_type": "single-label" if alone else "multi-label",
            }
        )
    return {"id": answer_id(answer), "classifications": found, "meta": {"api_version": {"version": "1"}}}
