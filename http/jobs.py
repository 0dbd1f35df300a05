"""One request that is being generated: its choices, what has come of them, and who waits for what.

The engine (the frontend actor) calls `rendered`, `delta`, `fail` and, after each batch of messages, `flush`. Handlers
await `started` and `done`. Knows neither HTTP nor rings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Protocol

from actorserve.actors.messages import Delta, Finish, Prompt

from .errors import ApiError, overloaded

FINISH_REASONS = {
    Finish.STOP: "stop",
    Finish.STOP_STRING: "stop",
    Finish.LENGTH: "length",
    Finish.ABORT: "abort",
}


@dataclass
class Choice:
    """One answer to one of the request's prompts."""

    index: int
    ref: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    characters: int = 0  # received so far
    tokens: int = 0
    text: list[str] = field(default_factory=list)  # received and not taken
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def take(self) -> str:
        """The text since the last take."""
        text = "".join(self.text)
        self.text.clear()
        return text


class Listener(Protocol):
    """Who wants a job's text as it comes."""

    def update(self, choice: Choice) -> None:
        """A choice has new text, or has ended."""


class Job:
    """The choices of one request, in the order of prompts and then of n."""

    def __init__(self, prompts: list[Prompt], params: list[bytes], **limits: int | None) -> None:
        self.prompts = prompts
        self.params = params  # encoded Generation of each choice of a prompt
        self.max_tokens = limits.get("max_tokens")
        self.truncate_prompt_tokens = limits.get("truncate_prompt_tokens")
        self.choices = [Choice(index) for index in range(len(prompts) * len(params))]
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = loop.create_future()  # something came of it; or it failed before
        self.done: asyncio.Future[None] = loop.create_future()  # all choices have ended; or it failed
        self.listener: Listener | None = None
        self._touched: dict[int, None] = {}
        self._open = len(self.choices)

    def rendered(self, index: int, prompt_tokens: int) -> None:
        """A choice's prompt is in the request table."""
        self.choices[index].prompt_tokens = prompt_tokens

    def delta(self, index: int, delta: Delta, cached_tokens: int) -> bool:
        """Text or the end of a choice. What came before (a detokenizer was replaced) is dropped.

        False if text before it is missing, which comes again (this frontend was replaced).
        """
        choice = self.choices[index]
        if choice.finish_reason is not None or self.done.done():
            return True
        if delta.offset > choice.characters:
            return False
        new = delta.text[max(0, choice.characters - delta.offset) :]
        if new:
            choice.text.append(new)
            choice.characters += len(new)
        choice.tokens, choice.cached_tokens = delta.tokens, cached_tokens
        if delta.finish:
            self._finish(choice, Finish(delta.finish), delta.stop_reason)
        self._touched[index] = None
        if not self.started.done():
            self.started.set_result(None)
        return True

    def _finish(self, choice: Choice, finish: Finish, stop_reason: str | int | None) -> None:
        if finish is Finish.REJECTED:
            self.fail(overloaded("The server has as many requests as it takes. Try again soon."))
        elif finish is Finish.ERROR:
            self.fail(ApiError(500, "The engine could not compute this request."))
        else:
            choice.finish_reason, choice.stop_reason = FINISH_REASONS[finish], stop_reason
            self._open -= 1

    def fail(self, error: ApiError) -> None:
        """The whole request ends with an error: as its answer, or inside its stream."""
        for future in (self.started, self.done):
            if not future.done():
                future.set_exception(error)
                future.exception()  # retrieved: nobody may be waiting for it

    @property
    def refs(self) -> list[int]:
        """The slots of all choices."""
        return [choice.ref for choice in self.choices]

    def flush(self) -> None:
        """Hand on what the last messages brought, one update for each choice."""
        if self.listener is not None:
            for index in self._touched:
                self.listener.update(self.choices[index])
            self._touched.clear()
        if self._open == 0 and not self.done.done():
            self.done.set_result(None)

    def listen(self, listener: Listener) -> None:
        """From now on updates go to `listener`; what has come before goes there at once."""
        self.listener = listener
        self._touched |= dict.fromkeys(choice.index for choice in self.choices if choice.tokens)
        self.flush()

    @property
    def prompt_tokens(self) -> int:
        """Of each prompt once, however many choices it has."""
        return sum(choice.prompt_tokens for choice in self.choices[:: len(self.params)])

    @property
    def cached_tokens(self) -> int:
        return sum(choice.cached_tokens for choice in self.choices[:: len(self.params)])

    @property
    def completion_tokens(self) -> int:
        return sum(choice.tokens for choice in self.choices)


class Engine(Protocol):
    """What the app needs of the frontend actor."""

    def submit(self, job: Job, refs: list[int] | None = None) -> None:
        """Begin to generate, or go on with what was begun in these slots. ApiError 503 when there is no room."""

    def has(self, refs: list[int]) -> bool:
        """Can `submit` go on with what was begun in these slots?"""

    def release(self, job: Job) -> None:
        """The request is over for its client: whatever still runs of it is cancelled."""

    def tokenize(self, prompt: Prompt, token_strings: bool) -> Awaitable[tuple[list[int], list[str] | None]]:
        """The prompt's ids, and their strings."""

    def detokenize(self, tokens: list[int]) -> Awaitable[str]:
        """The ids' text."""

    def not_ready(self) -> list[str]:
        """The actors that cannot serve a request now, with their states; empty when all can."""

    def in_flight(self) -> int:
        """Requests that are being answered by this frontend."""

    def metrics(self) -> bytes:
        """Prometheus' text."""
