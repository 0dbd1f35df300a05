"""The paths that change how many engines there are, and their bodies."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ..openapi import operations as answers
from ..route import TAKES_BODY, Route

Count = Annotated[int, msgspec.Meta(ge=1)]


class ScaleBody(msgspec.Struct):
    """How many engines are to run."""

    engines: Count


class ScaleElasticBody(msgspec.Struct):
    """The same as vLLM has it. Nothing has to be drained: what runs goes on in another engine."""

    new_data_parallel_size: Count
    drain_timeout: Count = 120


SCALING = (
    Route(
        "get", "/scale", "scaling.engines", "How many engines are there?", answers.Engines, statuses=(503,), admin=True
    ),
    Route(
        "post",
        "/scale",
        "scaling.scale",
        "Let so many engines run",
        answers.Engines,
        ScaleBody,
        statuses=(*TAKES_BODY, 409, 503),
        admin=True,
    ),
    Route(
        "post",
        "/scale_elastic_ep",
        "scaling.scale_elastic_ep",
        "Let so many engines run, as vLLM calls it",
        answers.Scaled,
        ScaleElasticBody,
        statuses=(*TAKES_BODY, 409, 503),
        admin=True,
    ),
    Route(
        "post",
        "/is_scaling_elastic_ep",
        "scaling.is_scaling_elastic_ep",
        "Is the number of engines being changed?",
        answers.IsScaling,
        statuses=(503,),
        admin=True,
    ),
)
