"""/v1/decisions and /v1/systemone: typed questions about something, answered by how likely a model says what.

Each question is a conversation of its own, of which one token is drawn; what it is about stands first in all of them,
so that it is computed once.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from actorserve.actors.protocol.topics.prompts import TextPrompt

from ...errors import ApiError, bad_request
from ...generation.choice import Choice
from ...generation.fields.unsupported import read
from ...generation.job import Job
from ...generation.prepare import ask_chats
from ...middleware.context import CLIENT, NOTED, RequestContext, name_request
from ...openai.decisions.questions import (
    Question,
    Reading,
    alphabets,
    decision,
    label,
    of_decisions,
    of_system_one,
    reading,
    state_parts,
    system_one,
    text_of,
    text_part,
)
from ...openai.decisions.schemas import MAX_QUESTIONS, DecisionFields, DecisionsRequest, SystemOneRequest
from ...openai.responses.answers import usage_of
from ...openai.responses.messages import messages_of
from ...openai.schemas import ChatRequest, Object
from ...openai.thinking import THINKING_SWITCHES
from ...output.answer import Answer, usage
from ...transport.json_response import json_response
from ..answering import model_for
from ..generate import Generator

AT_ONCE = 32  # labels that renderers make tokens of


class DecisionsApi:
    """Their handlers."""

    def __init__(self, generator: Generator, read_body: Callable[[web.Request], Awaitable[bytes]]) -> None:
        """`read_body` refuses a model that does not generate."""
        self._generator, self._read_body = generator, read_body
        self._tokens: dict[str, int | None] = {}  # of labels; None: it is more than one

    async def decide(self, request: web.Request) -> web.Response:
        """POST /v1/decisions."""
        body = read(DecisionsRequest, await self._read_body(request))
        _count(body.questions)
        questions = of_decisions(body.questions)
        messages = _about(body.input)
        job, readings = await self._answers(request, body, questions, messages, "input")
        answers = [decision(one, told) for one, told in zip(questions, readings, strict=True)]
        return json_response(
            {"model": request[NOTED].model, "answers": answers, "usage": usage_of(usage(job, nothing=True))}
        )

    async def system_one(self, request: web.Request) -> web.Response:
        """POST /v1/systemone."""
        body = read(SystemOneRequest, await self._read_body(request))
        if name := body.not_built():
            raise bad_request(f"{name} is not supported by this server yet.", name)
        _count(body.questions)
        questions = of_system_one(body.questions)
        messages: list[Object] = [{"role": "system", "content": body.instructions}] if body.instructions else []
        messages.append({"role": "user", "content": state_parts(body)})
        job, readings = await self._answers(request, body, questions, messages, "state")
        by_name = [(question.name or "", question, told) for question, told in zip(questions, readings, strict=True)]
        noted = request[NOTED]
        return json_response(
            {
                "id": noted.answer_id,
                "object": "structured_decision",
                "created": int(time.time()),
                "model": noted.model,
                "answers": {name: system_one(question, told) for name, question, told in by_name},
                "usage": {"input_tokens": job.prompt_tokens, "output_tokens": job.completion_tokens},
                "diagnostics": {
                    name: {"label_mass": told.mass, "argmax_is_label": told.is_label} for name, _, told in by_name
                },
                "joint": None,  # each question is read by itself
            }
        )

    async def _answers(
        self, request: web.Request, body: DecisionFields, questions: list[Question], messages: list[Object], about: str
    ) -> tuple[Job, list[Reading]]:
        _check_thinking(body.chat_template_kwargs or {})
        model = model_for(request, body.model, self._generator.settings)
        await self._generator.engine.want_adapter(body.model)
        await self._label(questions, body.seed)
        tokens = {one: token for one in self._tokens if (token := self._tokens[one]) is not None}
        chat = _chat(body, questions, messages, tokens)
        request_id = name_request(request, body.request_id)
        try:
            asked = ask_chats(chat, self._generator.settings, request_id, request[CLIENT])
            job = asked.new_job()
            answer = Answer(model, True, secrets.randbits(64), int(time.time()))
            request[NOTED] = RequestContext(request_id, model, job, f"decision-{answer.id.partition('-')[2]}")
            submit = partial(self._generator.submit, request, job, answer, None, False)
            await self._generator.begin(request, job, submit)
            try:
                await asyncio.shield(job.done)
            finally:
                self._generator.engine.release(job)
        except ApiError as error:
            raise _renamed(error, about) from None
        return job, [_read(*both, tokens) for both in zip(questions, job.choices, strict=True)]

    async def _label(self, questions: Sequence[Question], seed: int | None) -> None:
        """Labels for the options of each question, of those that are one token."""
        for question in questions:
            usable: list[str] = []
            for candidates in alphabets(question):
                usable = await self._usable(candidates, len(question.options))
                if len(usable) >= len(question.options):
                    break
            label(question, usable, seed)

    async def _usable(self, candidates: Sequence[str], wanted: int) -> list[str]:
        """Those that are one token, until there are enough to choose from."""
        usable: list[str] = []
        for start in range(0, len(candidates), AT_ONCE):
            some = candidates[start : start + AT_ONCE]
            await asyncio.gather(*(self._look(one) for one in some if one not in self._tokens))
            usable += [one for one in some if self._tokens[one] is not None]
            if len(usable) >= wanted:
                break
        return usable

    async def _look(self, text: str) -> None:
        tokens, _ = await self._generator.engine.tokenize(TextPrompt(text, False), False)
        self._tokens[text] = tokens[0] if len(tokens) == 1 else None


def _count(questions: Sequence[Any] | dict[str, Any]) -> None:
    if not 1 <= len(questions) <= MAX_QUESTIONS:
        raise bad_request(f"questions: 1 to {MAX_QUESTIONS} are taken, not {len(questions)}.", "questions")


def _check_thinking(variables: Object) -> None:
    if on := next((name for name in THINKING_SWITCHES if variables.get(name)), None):
        path = f"chat_template_kwargs.{on}"
        raise bad_request(f"{path}: an answer is the model's first token, so thinking must be off.", path)


def _about(given: str | list[Object]) -> list[Object]:
    """What the questions are about, as messages of a conversation."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not given:
        raise bad_request("input must not be empty.", "input")
    return messages_of([(f"input[{index}]", _with_json(item)) for index, item in enumerate(given)])


def _with_json(item: Object) -> Object:
    """With the text of its parts that are JSON."""
    content = item.get("content")
    if not isinstance(content, list):
        return item
    parts = [
        {"type": "input_text", "text": text_of(part["data"])}
        if isinstance(part, dict) and part.get("type") == "input_json" and isinstance(part.get("data"), dict | list)
        else part
        for part in content
    ]
    return item | {"content": parts}


def _chat(
    body: DecisionFields, questions: Sequence[Question], messages: list[Object], tokens: dict[str, int]
) -> ChatRequest:
    """All of them, each a conversation."""
    labels = dict.fromkeys(one for question in questions for one in question.labels)
    variables = dict.fromkeys(THINKING_SWITCHES, False) | (body.chat_template_kwargs or {})
    return ChatRequest(
        messages=msgspec.Raw(msgspec.json.encode([_asked(messages, question) for question in questions])),
        model=body.model,
        max_tokens=1,
        temperature=0,
        ignore_eos=True,
        logprobs=True,
        logprob_token_ids=[tokens[one] for one in labels],
        chat_template_kwargs=variables,
        cache_salt=body.cache_salt,
        priority=body.priority,
    )


def _asked(messages: list[Object], question: Question) -> list[Object]:
    """The conversation with the question in its last message, which is the user's."""
    last = messages[-1] if messages and messages[-1]["role"] == "user" else None
    before = [] if last is None else last["content"]
    parts = [*([text_part(before)] if isinstance(before, str) else before), *question.message()]
    text_only = all(part["type"] == "text" for part in parts)
    content: Any = "\n\n".join(part["text"] for part in parts) if text_only else parts
    return [*(messages if last is None else messages[:-1]), {"role": "user", "content": content}]


def _renamed(error: ApiError, about: str) -> ApiError:
    """With the name that this API has for the messages."""
    if error.param is None or not error.param.startswith("messages"):
        return error
    place = error.param
    return ApiError(error.status, error.message.replace(place, about), about, error.code)


def _read(question: Question, choice: Choice, tokens: dict[str, int]) -> Reading:
    if choice.opened:
        text = "chat_template_kwargs: this model's template begins each answer with thinking; turn that off there."
        raise bad_request(text, "chat_template_kwargs")
    if not choice.logprobs:
        raise ApiError(500, "The logprobs of this request are lost.")
    told = choice.logprobs[0]
    found = {token: logprob for _, token, logprob in told.best}
    own = [tokens[one] for one in question.labels]
    return reading([found[one] for one in own], told.id in own)
