"""The paths of Text Generation Inference's API that no other has; /generate takes its bodies, too (sglang.py)."""

from __future__ import annotations

from ...openai.schemas import ModelQuery
from ...openapi import tgi
from ...route import ASKS, MODEL, TEXT, Route
from ...tgi.schemas import TgiRequest

TGI: tuple[Route, ...] = (
    Route(
        "post",
        "/",
        "tgi.either",
        "Go on with a text, as Text Generation Inference has it",
        tgi.TgiText,
        TgiRequest,
        tgi.TgiPart,
        generates=TEXT,
        ends="",
        statuses=ASKS,
        error=tgi.TgiError,
        repeatable=True,
        movable=True,
        lists=True,
    ),
    Route(
        "post",
        "/generate_stream",
        "tgi.generate_stream",
        "The same, always streamed",
        tgi.TgiText,
        TgiRequest,
        tgi.TgiPart,
        generates=TEXT,
        ends="",
        statuses=ASKS,
        error=tgi.TgiError,
        repeatable=True,
        movable=True,
    ),
    Route(
        "get",
        "/info",
        "tgi.info",
        "What the model is, as Text Generation Inference tells it",
        tgi.TgiInfo,
        query=ModelQuery,
        statuses=MODEL,
    ),
)
