"""A gRPC request to the request of the HTTP API that asks for the same, and the engine's answers to gRPC's."""

from __future__ import annotations

from typing import Any

import msgspec

from actorserve.http.errors import ApiError, bad_request
from actorserve.http.generation.choice import Choice
from actorserve.http.generation.fields.depth import check_depth
from actorserve.http.generation.fields.unsupported import read
from actorserve.http.generation.job import Job
from actorserve.http.generation.prepare import PreparedRequest, ask_chat, ask_completion
from actorserve.http.openai.schemas import ChatRequest, GenerationFields, TokensRequest
from actorserve.http.output.events import Turn
from actorserve.http.pooling.schemas import EmbeddingRequest
from actorserve.http.settings import Settings

from .schema import message_class

SAME = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "n", "ignore_eos")
NOT_HERE = ("stream", "stream_options", "use_beam_search", "echo", "logprobs", "prompt_logprobs", "best_of")
Object = dict[str, Any]


def fields_of(request: Any) -> tuple[Object, bool]:
    """(the fields of the completion or chat request, is it a chat?)."""
    given = [request.HasField("text"), bool(request.token_ids), request.HasField("messages_json")]
    if sum(given) != 1:
        raise bad_request("One of text, token_ids and messages_json must be given.", "text")
    fields: Object = _object(request.fields_json, "fields_json") if request.HasField("fields_json") else {}
    for name in NOT_HERE:
        if fields.pop(name, None):
            raise bad_request(f"fields_json.{name} is not supported over gRPC.", f"fields_json.{name}")
    fields |= {name: _exact(getattr(request, name)) for name in SAME if request.HasField(name)}
    fields |= {"stream": True}
    if request.stop:
        fields["stop"] = list(request.stop)
    for name in ("model", "request_id"):
        if getattr(request, name):
            fields[name] = getattr(request, name)
    if request.HasField("messages_json"):
        messages = _decoded(request.messages_json, "messages_json")
        return fields | {"messages": messages}, True
    prompt = request.text if request.HasField("text") else list(request.token_ids)
    return fields | {"prompt": prompt}, False


def _exact(value: Any) -> Any:
    """A float of 32 bits as it was written: 0.7, and not 0.699999988."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _object(text: str, field: str) -> Object:
    found = _decoded(text, field)
    if not isinstance(found, dict):
        raise bad_request(f"{field} must be a JSON object.", field)
    return found


def _decoded(text: str, field: str) -> Any:
    try:
        return msgspec.json.decode(check_depth(text.encode(), field))
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"{field} is not valid JSON: {error}", field) from None


def prepared(
    request: Any, settings: Settings, request_id: str, client: str
) -> tuple[GenerationFields, PreparedRequest, bool]:
    """Checked as the HTTP API checks it: (its fields, what the engine takes, are ids wanted?)."""
    fields, is_chat = fields_of(request)
    body = msgspec.json.encode(fields)
    if is_chat:
        chat = read(ChatRequest, body)
        return chat, ask_chat(chat, settings, request_id, client), bool(chat.return_token_ids)
    given = read(TokensRequest, body)
    return given, ask_completion(given, settings, request_id, client), bool(given.return_token_ids)


def embedding_of(request: Any) -> EmbeddingRequest:
    """The request of /v1/embeddings."""
    if not request.texts:
        raise bad_request("texts must not be empty.", "texts")
    return EmbeddingRequest(
        model=request.model or None,
        input=list(request.texts),
        dimensions=request.dimensions if request.HasField("dimensions") else None,
        normalize=request.normalize if request.HasField("normalize") else None,
        input_type=request.input_type if request.HasField("input_type") else None,
    )


# --- answers ---------------------------------------------------------------------------------------------------------


class Answers:
    """The messages of one request's answer. Calls are put together: each comes whole, with the choice's end."""

    def __init__(self, job: Job, request_id: str, model: str, key: str, wants_ids: bool) -> None:
        self._job, self._wants_ids, self._key = job, wants_ids, key
        self._about = {"request_id": request_id, "model": model}
        self._turns = [Turn() for _ in job.choices]

    def news(self, choices: list[Choice]) -> Any:
        """What is new of these; None if nothing is."""
        made = [one for choice in choices if (one := self._choice(choice)) is not None]
        return message_class("GenerateResponse")(choices=made, **self._about) if made else None

    def usage(self) -> Any:
        """The end of a stream."""
        return message_class("GenerateResponse")(usage=self._usage(), **self._about)

    def whole(self) -> Any:
        """All of it."""
        made = self.news(self._job.choices)
        made.usage.CopyFrom(self._usage())
        return made

    def _usage(self) -> Any:
        job = self._job
        counts = {"prompt_tokens": job.prompt_tokens, "completion_tokens": job.completion_tokens}
        return message_class("Usage")(cached_tokens=job.cached_tokens, **counts)

    def _choice(self, choice: Choice) -> Any:
        news, turn = choice.take(), self._turns[choice.index]
        if not news:
            return None
        before = len(turn.content), len(turn.reasoning)
        turn.add(news.pieces)
        made = message_class("Choice")(
            index=choice.index,
            text=turn.content[before[0] :],
            reasoning=turn.reasoning[before[1] :],
            token_ids=news.ids if self._wants_ids else [],
        )
        if news.ended:
            made.finish_reason = choice.finish_reason or ""
            made.stop_reason = choice.stop_reason if isinstance(choice.stop_reason, str) else ""
            for index, call in enumerate(turn.calls):
                own = call.id or f"call_{self._key}{choice.index:x}_{index:x}"
                made.tool_calls.add(id=own, name=call.name, arguments=call.arguments)
        return made


def embedded(job: Job, request_id: str, model: str, vectors: list[list[float]]) -> Any:
    """The answer of Embed."""
    made = message_class("EmbedResponse")(request_id=request_id, model=model, prompt_tokens=job.prompt_tokens)
    for values in vectors:
        made.vectors.add(values=values)
    return made


def aborted_ids(request: Any) -> list[str]:
    """The ids of an AbortRequest."""
    if not request.request_ids:
        raise ApiError(400, "request_ids must not be empty.", "request_ids")
    return list(request.request_ids)
