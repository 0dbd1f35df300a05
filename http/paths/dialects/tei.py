"""The paths of Text Embeddings Inference's API that no other has; /, /rerank, /tokenize and /info are others', too."""

from __future__ import annotations

from ...openapi import pooling, tgi
from ...route import ASKS, MODEL, TAKES_BODY, Route
from ...tei.schemas import (
    TeiDecodeRequest,
    TeiEmbedAllRequest,
    TeiEmbedRequest,
    TeiPredictRequest,
    TeiSimilarityRequest,
)

TEI: tuple[Route, ...] = (
    Route(
        "post",
        "/embed",
        "tei.embed",
        "Vectors of texts, as Text Embeddings Inference has it",
        list[list[float]],
        TeiEmbedRequest,
        statuses=ASKS,
        error=tgi.TgiError,
        pools=True,
    ),
    Route(
        "post",
        "/embed_all",
        "tei.embed_all",
        "A vector of each token",
        list[list[list[float]]],
        TeiEmbedAllRequest,
        statuses=ASKS,
        error=tgi.TgiError,
        pools=True,
    ),
    Route("post", "/embed_sparse", "tei.embed_sparse", refuses=True, error=tgi.TgiError),
    Route(
        "post",
        "/predict",
        "tei.predict",
        "Labels of a text, of a pair of texts, or of several of them",
        list[pooling.TeiPrediction],
        TeiPredictRequest,
        statuses=ASKS,
        error=tgi.TgiError,
        pools=True,
        lists=True,
    ),
    Route(
        "post",
        "/similarity",
        "tei.similarity",
        "How near sentences are to one",
        list[float],
        TeiSimilarityRequest,
        statuses=ASKS,
        error=tgi.TgiError,
        pools=True,
    ),
    Route(
        "post",
        "/decode",
        "tei.decode",
        "Texts of token ids",
        list[str],
        TeiDecodeRequest,
        statuses=(*TAKES_BODY, *MODEL, 422, 500, 503),
        error=tgi.TgiError,
    ),
)
