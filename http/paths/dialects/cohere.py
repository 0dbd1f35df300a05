"""The paths of Cohere's API, also below the one where vLLM has them."""

from __future__ import annotations

from dataclasses import replace

from ...cohere.schemas import CohereChatRequest, CohereEmbedRequest
from ...cohere.v1.schemas import CohereChatV1Request
from ...openapi import cohere as answers
from ...openapi import pooling
from ...openapi.answers import Rendered
from ...output.writer import NDJSON
from ...pooling.schemas import RerankRequest
from ...route import ASKS, CHAT, TAKES_BODY, Route
from ..completions import COMPLETIONS
from ..pooling import POOLING

COHERE: tuple[Route, ...] = (
    *(
        Route(
            "post",
            path,
            "cohere.chat",
            "Answer, in the form of Cohere's chat",
            answers.CohereAnswer,
            CohereChatRequest,
            answers.CohereEvent,
            generates=CHAT,
            statuses=ASKS,
            error=answers.CohereError,
            repeatable=True,
            movable=True,
        )
        for path in ("/v2/chat", "/cohere/v2/chat")
    ),
    *(
        Route(
            "post",
            path,
            "cohere.chat_v1",
            "Answer, in the older form of Cohere's chat",
            answers.CohereAnswerV1,
            CohereChatV1Request,
            answers.CohereEventV1,
            generates=CHAT,
            stream=NDJSON,
            statuses=ASKS,
            error=answers.CohereError,
            repeatable=True,
            movable=True,
        )
        for path in ("/v1/chat", "/cohere/v1/chat")
    ),
    *(
        Route(
            "post",
            f"{path}/render",
            "dialect_rendering.cohere",
            "The tokens of its prompt",
            Rendered,
            CohereChatRequest,
            statuses=ASKS,
            error=answers.CohereError,
        )
        for path in ("/v2/chat", "/cohere/v2/chat")
    ),
    *(
        Route(
            "post",
            path,
            "cohere.embed",
            "Vectors of texts, in the form of Cohere's",
            answers.CohereVectors,
            CohereEmbedRequest,
            statuses=ASKS,
            pools=True,
            error=answers.CohereError,
        )
        for path in ("/v2/embed", "/cohere/v2/embed")
    ),
    *(
        Route(
            "post",
            path,
            "cohere.embed_older",
            "Vectors of texts, in the older form of Cohere's",
            answers.CohereFloats,
            CohereEmbedRequest,
            statuses=ASKS,
            pools=True,
            error=answers.CohereError,
        )
        for path in ("/v1/embed", "/cohere/v1/embed")
    ),
    *(
        Route(
            "post",
            path,
            "pooling.rerank",
            "Which documents answer a query best",
            pooling.Ranking,
            RerankRequest,
            statuses=ASKS,
            pools=True,
            lists=pooling.TextRank,
            error=answers.CohereError,
        )
        for path in ("/cohere/v1/rerank", "/cohere/v2/rerank")
    ),
    *(
        replace(route, path=f"/cohere/v1{route.path}", error=answers.CohereError, listed=False)
        for route in (*COMPLETIONS, *POOLING)
        if route.path[1:] in ("tokenize", "detokenize", "classify")
    ),
    *(
        Route(
            "post",
            path,
            "cohere.check_key",
            "Is the key one of the server's?",
            answers.CohereKey,
            statuses=TAKES_BODY,
            error=answers.CohereError,
        )
        for path in ("/v1/check-api-key", "/cohere/v1/check-api-key")
    ),
)
