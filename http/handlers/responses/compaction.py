"""/v1/responses/compact: a conversation's summary, in the place of what was said."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from ...errors import ApiError
from ...generation.fields.decoding import check_model
from ...generation.fields.unsupported import read
from ...generation.idempotency import StreamProgress
from ...generation.job import Job
from ...middleware.context import CLIENT, NOTED, name_request
from ...openai.responses.answers import answer_to, check_raw
from ...openai.responses.compaction import compacted, remaining, with_trigger
from ...openai.responses.references import resolved
from ...openai.responses.requests import input_items, renamed
from ...openai.responses.schemas import ResponsesRequest
from ...openai.responses.store import response_id
from ...output.answer import Answer
from ...output.formats import ResponsesFormat
from ...output.writer import AnswerFormat
from .api import ResponsesApi


class CompactionApi:
    """Of one model."""

    def __init__(self, responses: ResponsesApi) -> None:
        self._responses, self._generator = responses, responses.generator

    async def create(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        """POST /v1/responses/compact."""
        responses, client = self._responses, request[CLIENT]
        body = resolved(with_trigger(read(ResponsesRequest, raw)), responses.keeping, client)
        check_raw(body, True)
        await self._generator.want_adapter(request, body.model)
        chat, asked = responses.requests.ask(body, name_request(request, body.request_id), client)
        model = check_model(chat.model, *responses.settings.names, True)  # who comes new is checked where it begins
        earlier = responses.requests.earlier(body, client)

        def form(answer: Answer, job: Job, progress: StreamProgress | None) -> AnswerFormat:
            key = response_id(responses.engine.index, answer.seed, answer.created)
            made = answer_to(body, key, model, answer.created, responses.settings.sampling_defaults)
            request[NOTED].answer_id = made.id
            remains = remaining([*earlier, *input_items(body, key)])
            return ResponsesFormat(made, job, as_whole=partial(compacted, remains))

        try:
            return await self._generator.answer(request, raw, chat, asked, form)
        except ApiError as error:
            raise renamed(error) from None
