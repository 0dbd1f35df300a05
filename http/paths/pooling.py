"""The paths of vectors, scores and labels."""

from __future__ import annotations

from ..openai.decisions.schemas import DecisionsRequest, SystemOneRequest
from ..openai.schemas import GenerativeScoringRequest
from ..openapi import pooling as answers
from ..openapi.cohere import CohereLabels
from ..pooling.schemas import ClassifyRequest, EmbeddingRequest, PoolingRequest, RerankRequest, ScoreRequest
from ..route import ASKS, Route

POOLING: tuple[Route, ...] = (
    Route(
        "post",
        "/v1/embeddings",
        "pooling.embeddings",
        "Vectors of texts",
        answers.EmbeddingList,
        EmbeddingRequest,
        statuses=ASKS,
        pools=True,
    ),
    *(
        Route(
            "post",
            path,
            handler,
            "How near two texts are",
            answers.ScoreList,
            ScoreRequest,
            statuses=ASKS,
            pools=True,
        )
        for path, handler in (("/score", "pooling.score"), ("/v1/score", "scoring.either"))
    ),
    *(
        Route(
            "post",
            path,
            "scoring.score",
            "How likely one token of some follows each text",
            answers.GenerativeScores,
            GenerativeScoringRequest,
            statuses=ASKS,
        )
        for path in ("/generative_scoring", "/v1/generative_scoring")
    ),
    Route(
        "post",
        "/v1/decisions",
        "decisions.decide",
        "How likely which answers to typed questions are, in OpenAI's form",
        answers.Decisions,
        DecisionsRequest,
        statuses=ASKS,
    ),
    Route(
        "post",
        "/v1/systemone",
        "decisions.system_one",
        "The same in the form of System One, as vLLM has it",
        answers.SystemOneAnswers,
        SystemOneRequest,
        statuses=ASKS,
    ),
    *(
        Route(
            "post",
            path,
            "pooling.rerank",
            "Which documents answer a query best",
            answers.Ranking,
            RerankRequest,
            statuses=ASKS,
            pools=True,
            lists=answers.TextRank,
        )
        for path in ("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking")
    ),
    Route(
        "post",
        "/classify",
        "pooling.classify",
        "Labels of texts",
        answers.ClassifyList,
        ClassifyRequest,
        statuses=ASKS,
        pools=True,
        other=CohereLabels,
    ),
    Route(
        "post",
        "/pooling",
        "pooling.pool",
        "What a model makes of texts, by token too",
        answers.PoolingList,
        PoolingRequest,
        statuses=ASKS,
        pools=True,
    ),
)
