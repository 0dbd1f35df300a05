"""The paths of LM Studio's REST API, of which those that generate are OpenAI's below another prefix."""

from __future__ import annotations

from dataclasses import replace

from ...openapi import dialects as answers
from ...route import MODEL, Route
from ..completions import COMPLETIONS
from ..pooling import POOLING

VERSION, THEIRS = "/v1", "/api/v0"
SAME = frozenset(f"{VERSION}/{name}" for name in ("chat/completions", "completions", "embeddings"))
LMSTUDIO: tuple[Route, ...] = (
    *(
        replace(route, path=THEIRS + route.path.removeprefix(VERSION), listed=False)
        for route in (*COMPLETIONS, *POOLING)
        if route.path in SAME
    ),
    Route("get", "/api/v0/models", "lmstudio.models", "The models, as LM Studio tells of them", answers.LmStudioModels),
    Route(
        "get",
        "/api/v0/models/{model:.+}",
        "lmstudio.model",
        "One model, as LM Studio tells of it",
        answers.LmStudioModel,
        statuses=MODEL,
    ),
    Route(
        "get",
        "/api/v1/models",
        "lmstudio.keys",
        "The models, as version 1 of LM Studio's API tells of them",
        answers.LmStudioKeys,
    ),
)
