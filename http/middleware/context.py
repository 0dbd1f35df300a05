"""What the app notes on a request, for its answer's headers and for whoever tells of its end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from aiohttp import web

from actorserve.actors.accounts.account import Account
from actorserve.actors.protocol.topics.prompts import (
    ChatPrompt,
    EmbedsPrompt,
    PairPrompt,
    Prompt,
    SoundPrompt,
    TextPrompt,
    TokenPrompt,
)

from ..errors import ApiError
from ..generation.trail import Given
from ..realtime.client_secrets import Grant
from ..settings import printable

if TYPE_CHECKING:
    from ..generation.job import Job


log = logging.getLogger("http")


@dataclass
class RequestContext:
    """A request that generates."""

    request_id: str  # as all actors name it
    model: str
    job: Job
    answer_id: str = ""  # as the answer's body names it
    background: bool = False  # it goes on when its first answer is out


def log_prompts(noted: RequestContext, most: int | None) -> None:
    """For who debugs, and for nobody else: what was asked, the first `most` characters of each prompt."""
    if log.isEnabledFor(logging.DEBUG):
        for prompt in noted.job.prompts:
            text = _text_of(prompt)
            shown = text if most is None or len(text) <= most else f"{text[:most]}…"
            log.debug(
                "request %s asks for %s", noted.request_id, shown, extra={"fields": {"request_id": noted.request_id}}
            )


def _text_of(prompt: Prompt) -> str:
    """What the client sent: a conversation as its JSON, a text as it is, token ids."""
    match prompt:
        case ChatPrompt(messages=messages):
            return messages.decode(errors="replace")
        case TextPrompt(text=text):
            return text
        case TokenPrompt(tokens=tokens):
            return str(tokens)
        case SoundPrompt(data=data):
            return f"{len(data)} bytes of a sound"
        case EmbedsPrompt(data=data):
            return f"{len(data)} bytes of embeddings"
        case PairPrompt(text=text, second=second):
            return f"{text}\n{second}"


REQUEST_ID = web.RequestKey("request_id", str)
CLIENT = web.RequestKey("client", str)  # whose key it sent (idempotency_keys.client_of); empty without keys
GRANT = web.RequestKey("grant", Grant)  # what its client secret says, where it sent one
ACCOUNT = web.RequestKey("account", Account)  # whose key it sent, where that is one of --key-file
LIMITS = web.RequestKey("limits", dict)  # headers that say what is left of a key's limits
MAX_REQUEST_ID = 128  # characters
BODY = web.RequestKey("body", bytes)  # that was read before the handler that takes it was found
REPLAYED = web.RequestKey("replayed", bool)  # the answer was given, or is being given, to an earlier request, too
NOTED = web.RequestKey("noted", RequestContext)
EXPECTS = web.RequestKey("expects", bool)  # 100 Continue, before it sends its body
ERRORS = web.RequestKey("errors", type)  # the struct of its errors, where the path does not say whose API it is
UNFIT = web.RequestKey("unfit", ApiError)  # what its head asks for cannot be
REFUSED = web.RequestKey("refused", ApiError)  # why the answer is an error
ROOT = web.AppKey("root", str)  # the path that clients find the server below
PATH = web.RequestKey("path", str)  # that its body is for, where that is not the request's own
GIVEN = web.RequestKey("given", Given)  # what another server has given out of this answer
SEED = web.RequestKey("seed", int)  # of its draws, where its stream says how to go on with it
ANSWER_SEED = web.RequestKey("answer_seed", int)  # of its answer, where that of its draws follows from it
OWNER = web.RequestKey("owner", int)  # the frontend in its answer's id
GO_ON = web.AppKey("go_on", list[RequestContext])  # in the background, for a predecessor's clients
CLOSES: web.AppKey[Callable[[], bool]] = web.AppKey("closes")  # whether connections end with their answer now
DRAIN: web.AppKey[Callable[[], None]] = web.AppKey("drain")  # the server ends: WebSockets begin nothing more
CLOSED = web.RequestKey("closed", bool)  # its WebSocket has ended as the protocol has it
GIVEN_AWAY = web.RequestKey("given_away", bool)  # another frontend answers it


def name_request(request: web.Request, given: str | None) -> str:
    """What all call the request from now on: as its client does, in a header or in the body, or as before.

    It stands in logs, traces, records and answers: of what a client sends it has what can be printed, up to a length.
    """
    name = printable((given or "")[:MAX_REQUEST_ID]) or request.get(REQUEST_ID) or uuid4().hex
    request[REQUEST_ID] = name
    return name
