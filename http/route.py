"""What is known of one path: the record that all tables of routes are made of."""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from .openapi import answers
from .output.writer import EVENTS
from .settings import Settings

TAKES_BODY = (400, 408, 413, 415)
MODEL = (404,)
RENDERS = (422, 500, 503)  # other actors are asked
ASKS = (*TAKES_BODY, *MODEL, *RENDERS)
PLAIN = "text/plain"
Operation = Literal["chat", "text_completion"]  # as the semantic conventions of OpenTelemetry name them
CHAT: Operation = "chat"
TEXT: Operation = "text_completion"


@dataclass(frozen=True)
class Route:
    """One method of one path."""

    method: str  # in small letters; *: any
    path: str  # as aiohttp's router reads it: {name}, or {name:pattern}
    handler: str  # the attribute of Api (handlers/api.py); empty: it is kept free for administration, and not built yet
    summary: str = ""
    answer: type | None = None  # the struct of a JSON answer; None: a text
    request: type | None = None  # the struct that its body is decoded into
    event: type | None = None  # the struct of an event's data, where `stream` makes the answer a stream
    _: KW_ONLY
    query: type | None = None  # the struct of its query's parameters
    generates: Operation | None = None  # it makes tokens
    pools: bool = False  # of models that make vectors, scores or labels: others refuse it
    hears: bool = False  # of models that listen; its body is a form
    ends: str = "[DONE]"  # the last event's data, that is no JSON
    statuses: tuple[int, ...] = ()  # that it may answer beside 200, and 401 where keys are asked for
    stream: str = EVENTS  # the type of an answer that is one
    error: type = answers.Error
    open: bool = False  # no key is asked for
    options: tuple[str, ...] = ()  # of the server, each of which turns it off
    admin: bool = False  # the key of --admin-api-key is asked for; without that option nothing is there
    of_router: bool = False  # and where there is no such key clients may ask it, if they load models (settings.py)
    of_keys: bool = False  # of servers with --key-file
    of_files: bool = False  # of servers with --files-dir
    form: bool = False  # its body is a form that is read piece by piece
    refuses: bool = False  # what others have here is answered with the reason why it is not
    page: bool = False  # of the page: it is none of the API's
    listed: bool = True  # in documents; False: it is another one by a name of its own
    lists: bool | type = False  # to several inputs, or to a body of another form, it answers with a list (of these)
    other: type | None = None  # the struct of its JSON answer to a body of another API
    head: bool = True  # HEAD goes where GET does: not where an answer has no end
    repeatable: bool = False  # takes an Idempotency-Key
    upgrades: bool = False  # it is a WebSocket from its answer on
    movable: bool = False  # another server can go on with its stream (generation/trail.py)
    text: str = PLAIN  # the type of an answer that is a text
    as_text: bool = False  # its answer in JSON is such a text where the query asks for that
    others: tuple[tuple[int, type], ...] = ()  # statuses with an answer of their own

    def is_for(self, settings: Settings) -> bool:
        """Does the model of these settings do what it is for?"""
        if self.pools:
            return settings.pooling is not None
        if self.hears:
            return settings.hears
        return settings.generates or not (self.generates or (self.upgrades and not settings.hears))

    def is_for_admins(self, settings: Settings) -> bool:
        """Is the admin's key asked for?"""
        return self.admin and not (self.of_router and settings.clients_load)

    def off_by(self, off: frozenset[str]) -> str:
        """The one of these options that turns it off; none does: empty."""
        return next((option for option in self.options if option in off), "")

    @property
    def is_batched(self) -> bool:
        """May lines of a batch be asked of it?"""
        makes = self.generates is not None or self.pools
        return makes and self.method == "post" and self.listed and self.path.startswith("/v1/") and "{" not in self.path

    @property
    def template(self) -> str:
        """The path as documents write it."""
        return re.sub(r"\{(\w+):[^{}]*\}", r"{\1}", self.path)
