"""The paths by which a running server is watched."""

from __future__ import annotations

from ..openapi import operations as answers
from ..route import Route
from .administration import ServerInfoOptions

USAGE = "/v1/usage"
OPERATIONS: tuple[Route, ...] = (
    Route("get", "/health", "operations.health", "Does the server live?", answers.Health, open=True),
    Route("get", "/v1/health", "operations.health", "Does the server live?", answers.Health, open=True),
    Route("get", "/livez", "operations.health", "Does the server live?", answers.Health, open=True),
    Route("get", "/ping", "operations.health", "Does the server live?", answers.Health, open=True),
    Route("post", "/ping", "operations.health", "Does the server live?", answers.Health, open=True),
    *(
        Route(
            "get",
            path,
            "operations.ready",
            "Can it answer?",
            answers.Ready,
            open=True,
            others=((503, answers.NotReady),),
        )
        for path in ("/ready", "/readyz")
    ),
    Route("get", "/version", "operations.version", "The server's version", answers.Version, open=True),
    Route("get", "/load", "operations.load", "How many requests are being answered", answers.Load),
    Route(
        "get",
        "/server_info",
        "administration.server_info",
        "Versions, options, the model and all actors",
        dict,
        query=ServerInfoOptions,
        statuses=(400,),
    ),
    Route(
        "get",
        USAGE,
        "operations.usage",
        "What keys have used: one's own, or all with the admin's",
        answers.KeyUsageList,
        statuses=(404,),
        of_keys=True,
    ),
    Route("get", "/metrics", "operations.metrics", "Figures for Prometheus", open=True, options=("enable_metrics",)),
    Route("get", "/openapi.json", "described.document", "This document", dict, options=("enable_docs",)),
)
