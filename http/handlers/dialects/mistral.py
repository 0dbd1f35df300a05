"""The handler of Mistral's API that no other has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from ...generation.fields.unsupported import read
from ...generation.idempotency import StreamProgress
from ...generation.job import Job
from ...generation.prepare import as_mistral, ask_completion
from ...middleware.context import CLIENT, NOTED, name_request
from ...openai.chat import ChatAnswer
from ...openai.mistral import FimRequest, fim_completion, is_mistrals
from ...output.answer import Answer
from ..generate import Generator


class MistralApi:
    """See there."""

    def __init__(self, generator: Generator, read_body: Callable[[web.Request], Awaitable[bytes]]) -> None:
        self._generator, self._settings = generator, generator.settings
        self._read_body = read_body

    async def fim(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/fim/completions."""
        raw = await self._read_body(request)
        body = fim_completion(read(FimRequest, raw))
        await self._generator.want_adapter(request, body.model)
        asked = as_mistral(
            ask_completion(body, self._settings, name_request(request, body.request_id), request[CLIENT]),
            is_mistrals(request.headers.get("User-Agent", "")),
        )

        def form(answer: Answer, job: Job, progress: StreamProgress | None) -> ChatAnswer:
            answer.chat = True
            request[NOTED].answer_id = answer.id
            return ChatAnswer(answer, job, progress)

        return await self._generator.answer(request, raw, body, asked, form)
