"""The paths of SGLang's own API that no other has."""

from __future__ import annotations

from ...openai.schemas import ModelQuery
from ...openapi import operations, sglang
from ...route import ASKS, MODEL, TAKES_BODY, TEXT, Route
from ...sglang.schemas import SglangEncodeRequest, SglangGenerateRequest
from ..administration import AbortRequests, LoadsQuery

SGLANG: tuple[Route, ...] = (
    Route(
        "post",
        "/generate",
        "tgi.generate",
        "Go on with texts or token ids, as SGLang has it; bodies of Text Generation Inference are taken, too",
        sglang.SglangPart,
        SglangGenerateRequest,
        sglang.SglangPart,
        generates=TEXT,
        statuses=ASKS,
        repeatable=True,
        movable=True,
        lists=True,
    ),
    Route(
        "post",
        "/encode",
        "sglang.encode",
        "Vectors of texts, as SGLang has it",
        sglang.SglangVector,
        SglangEncodeRequest,
        statuses=ASKS,
        pools=True,
        lists=True,
    ),
    *(
        Route(
            "get", path, "sglang.model_info", "What the model is", sglang.SglangModel, query=ModelQuery, statuses=MODEL
        )
        for path in ("/model_info", "/get_model_info")
    ),
    Route(
        "get",
        "/get_server_info",
        "sglang.server_info",
        "What the server is",
        sglang.SglangServer,
        query=ModelQuery,
        statuses=MODEL,
    ),
    Route("get", "/get_load", "administration.engine_loads", "Requests and tokens of each engine", list),
    Route(
        "get",
        "/v1/loads",
        "administration.loads",
        "The same with more, and for Prometheus",
        sglang.SglangLoads,
        query=LoadsQuery,
        statuses=(400,),
        as_text=True,
    ),
    Route(
        "get",
        "/health_generate",
        "operations.ready",
        "Can it answer?",
        operations.Ready,
        open=True,
        others=((503, operations.NotReady),),
    ),
    Route(
        "post",
        "/abort_request",
        "operations.abort_requests",
        "End a request by its id, or all",
        operations.Aborted,
        AbortRequests,
        statuses=(*TAKES_BODY, 500, 503),
        admin=True,
    ),
)
