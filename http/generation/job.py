"""One request that is being generated: its choices, what has come of them, and who waits for what.

The engine (the frontend actor) calls `rendered`, `delta`, `fail` and, after each batch of messages, `flush`. Handlers
await `started` and `done`. Knows neither HTTP nor rings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from typing import Any, Protocol

import msgspec

from actorserve.actors.accounts.account import Account
from actorserve.actors.protocol.messages import Delta, Finish
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.topics.calls import Measured
from actorserve.actors.protocol.topics.io_processors import PooledPrompt
from actorserve.actors.protocol.topics.prompts import Prompt

from ..dashboard.figures import PageFigures
from ..errors import ApiError, overloaded
from ..output.events import OutputParser
from .choice import Choice, PlainText
from .fields.sampling import refused_on_gpu, with_own_seeds
from .idempotency_keys import Kept, Key, Records
from .times import JobTimes, PromptProgress

log = logging.getLogger("http")
MISTAKE = "The server made a mistake; its log says which."
UNUSABLE = (
    "messages: of a picture no embeddings can be made: what was sent of it (image_embeds, or its parts) does not fit "
    "the model."
)
FINISH_REASONS = {
    Finish.STOP: "stop",
    Finish.STOP_STRING: "stop",
    Finish.LENGTH: "length",
    Finish.ABORT: "abort",
    Finish.REPETITION: "repetition",
}


class Listener(Protocol):
    """Who wants a job's text as it comes."""

    def update(self, choice: Choice) -> None:
        """A choice has new text, or has ended."""


class Job:
    """The choices of one request, in the order of prompts and then of n."""

    def __init__(
        self,
        prompts: list[Prompt],
        params: list[bytes],
        rendering: Mapping[str, Any] | None = None,
        make_parser: Callable[[bool, str], OutputParser] | None = None,
        wants_ids: bool = False,
    ) -> None:
        """`params`: the encoded Generation of each choice of a prompt; `rendering`: the fields of its Render;
        `make_parser` makes a choice's, told whether it begins inside the model's thinking, and a text of its own.
        """
        self.prompts = prompts
        self.params = params
        self.rendering = rendering or {}
        self.counted = "n"  # the field that asks for so many sequences
        self.seeds_differ = False  # also those of its prompts: the client gave none
        self.fields: Sequence[str] = ()  # where each prompt stands in the request, if not all in one field
        self.make_parser = make_parser
        self.wants_ids = wants_ids
        self.tells_all = False  # hidden states of all tokens, and in each event of a stream all that has come
        self.trails = False  # its stream says which tokens were given out (generation/trail.py)
        self.given: list[list[int]] = []  # of each choice, tokens that another server has given out
        self.plugins: list[str] = []  # names of logits processors that may change its logits
        self.account: Account | None = None  # whose key asked for it
        self.headers: dict[str, str] = {}  # what is left of its limits
        self.model = 0  # which of the server's models is asked
        self.seed = 0  # what the answer's id is made of, once that is known
        self.lost: ApiError | None = None  # why nothing may be begun by it (PreparedRequest)
        self.choices = [Choice(index) for index in range(len(prompts) * len(params))]
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = loop.create_future()  # something came of it; or it failed before
        self.done: asyncio.Future[None] = loop.create_future()  # all choices have ended; or it failed
        self.lives: dict[int, list[int]] = {}  # of ended choices, when what happened to them, as the engine has it
        self.listener: Listener | None = None
        self.opener: Callable[[], None] | None = None  # called once, in the turn in which it has `started`
        self.rendered_tokens = 0  # of each prompt once, of those that are rendered: no sum at each of thousands
        self.told_tokens = 0  # those of answers that came with logprobs, at least
        self._touched: dict[int, None] = {}
        self._open = len(self.choices)

    def rendered(self, index: int, prompt_tokens: int, opened: bool = False, language: str = "") -> None:
        """A choice's prompt is in the request table. It may be said again."""
        choice = self.choices[index]
        if not choice.prompt_tokens:
            choice.prompt_tokens, choice.opened, choice.language = prompt_tokens, opened, language
            if index % len(self.params) == 0:
                self.rendered_tokens += prompt_tokens
            if self.make_parser is not None:
                choice.parser = self.make_parser(opened, f"{self.seed:016x}{index:x}")

    def delta(self, index: int, delta: Delta, cached_tokens: int) -> bool:
        """Text or the end of a choice. What came before (a detokenizer was replaced) is dropped.

        False if text before it is missing, which comes again (this frontend was replaced).
        """
        choice = self.choices[index]
        if choice.finish_reason is not None or self.done.done():
            return True
        if not choice.add(delta):
            return False
        self.told_tokens += len(delta.logprobs)
        choice.cached_tokens = cached_tokens
        if delta.finish:
            self._finish(choice, Finish(delta.finish), delta.stop_reason)
        self._touched[index] = None
        if not self.started.done() and (
            not self.wants_ids or all(one.tokens or one.finish_reason for one in self.choices)
        ):
            self.started.set_result(None)  # with ids, the prompts' stand before all text
        return True

    def _finish(self, choice: Choice, finish: Finish, stop_reason: str | int | None) -> None:
        if finish is Finish.REJECTED:
            self.fail(overloaded("The server has as many requests as it takes. Try again soon."))
        elif finish is Finish.ERROR:
            self.fail(ApiError(500, "The engine could not compute this request."))
        elif finish is Finish.GRAMMAR:
            self.fail(self._broken_grammar())
        elif finish is Finish.MEDIA:
            self.fail(ApiError(400, UNUSABLE, "messages", "unusable_media"))
        elif finish is Finish.PLUGIN:
            self.fail(self._failed_plugin())
        elif finish is Finish.UNHEEDED:
            self.fail(refused_on_gpu(self.sampling))
        elif finish is Finish.ADAPTER:
            text = "The adapter of this request was unloaded, or its files were changed or cannot be read any more."
            self.fail(ApiError(404, text, "model", "model_not_found"))
        else:
            choice.finish_reason, choice.stop_reason = FINISH_REASONS[finish], stop_reason
            self._open -= 1

    def _broken_grammar(self) -> ApiError:
        """What there is of the answer looks like one that has ended, and is none."""
        field = self.rendering.get("constrained_by")
        text = f"{field}: its grammar became too complex while the answer was generated, which is cut there. A simpler "
        return ApiError(500, text + "schema or pattern may help.", field, "grammar_failed")

    def _failed_plugin(self) -> ApiError:
        """Which of several it was stands in the log."""
        names = ", ".join(self.plugins)
        text = f"A logits processor of this request ({names}) failed or took too long; the server's log says how."
        return ApiError(500, text, code="logits_processor_failed")

    def fail(self, error: ApiError) -> None:
        """The whole request ends with an error: as its answer, or inside its stream."""
        for future in (self.started, self.done):
            if not future.done():
                future.set_exception(error)
                future.exception()  # retrieved: nobody may be waiting for it

    def give_up(self) -> ApiError:
        """An answer cannot be written, for the exception that is being handled: what is told in its place. Parsers are
        not asked again, as they may raise again.
        """
        log.exception("an answer cannot be written")
        for choice in self.choices:
            choice.parser = PlainText()
        return ApiError(500, MISTAKE)

    def rendering_of(self, prompt: int) -> Mapping[str, Any]:
        """The fields of the Render of one of its prompts."""
        if self.fields:
            return {**self.rendering, "field": self.fields[prompt]}
        if not self.given:
            return self.rendering
        width = len(self.params)
        return {**self.rendering, "given": self.given[prompt * width : (prompt + 1) * width]}

    def all_params(self) -> list[bytes]:
        """The encoded Generation of each choice of each prompt."""
        prompts = len(self.prompts)
        if self.seeds_differ and prompts > 1:
            return with_own_seeds(self.params, prompts)
        return self.params * prompts

    @cached_property
    def sampling(self) -> Sampling:
        """Of the first choice."""
        return msgspec.msgpack.decode(self.params[0], type=Generation).sampling

    @property
    def refs(self) -> list[int]:
        """The slots of all choices."""
        return [choice.ref for choice in self.choices]

    def flush(self) -> None:
        """Hand on what the last messages brought, one update for each choice."""
        try:
            self._hand_on()
        except Exception:  # of this request: the others of the turn go on
            log.exception("an answer cannot be written")
            self.fail(ApiError(500, MISTAKE))
        if self._open == 0 and not self.done.done():
            self.done.set_result(None)

    def _hand_on(self) -> None:
        if self.opener is not None and self.has_started:
            opener, self.opener = self.opener, None
            opener()  # may listen
        if self.listener is not None:
            touched, self._touched = self._touched, {}
            for index in touched:
                self.listener.update(self.choices[index])

    @property
    def has_started(self) -> bool:
        """And has not failed before."""
        return self.started.done() and self.started.exception() is None

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
    def reasoning_tokens(self) -> int:
        return sum(choice.thought for choice in self.choices)

    @property
    def completion_tokens(self) -> int:
        return sum(choice.tokens for choice in self.choices)


class Heard(msgspec.Struct, frozen=True):
    """What a model says of a sound beside its text."""

    no_speech: float  # how likely it is that nothing is said
    logprob: float = 0.0  # of the text, the mean over its tokens, among those that could be written
    times: list[float] = []  # seconds, where each token of the text ends


class Engine(Records, Protocol):
    """What requests need of the frontend actor."""

    index: int  # of this frontend
    frontends: int
    alone: bool  # no connection can be given to another one
    conversations: Records  # which are written anew with each change, and leave room for all else

    def of_model(self, model: int) -> Engine:
        """The same, for requests to another of the server's models."""

    def submit(self, job: Job, refs: list[int] | None = None) -> None:
        """Begin to generate, or go on with what was begun in these slots. ApiError 503 when there is no room, and the
        job's own where nothing may be begun by it.
        """

    def turn(self, account: Account) -> AbstractAsyncContextManager[None]:
        """While requests of this key are let in, nobody else does so. ApiError 503 where that cannot be had."""

    def check_limits(self, account: Account) -> tuple[dict[str, str], ApiError | None]:
        """Headers that say what is left of this key's limits, and the 429 where no request of it would be let in now:
        before anything is done for one.
        """

    def charge_alone(self, account: Account, prompt: int, completion: int) -> None:
        """The key has used so many tokens by sequences that are not its answer's."""

    def has(self, refs: list[int]) -> bool:
        """Can `submit` go on with what was begun in these slots?"""

    def release(self, job: Job) -> None:
        """The request is over for its client: whatever still runs of it is cancelled, unless it is kept."""

    def times(self, job: Job) -> JobTimes:
        """When what happened to it, as far as it has come."""

    def progress(self, job: Job) -> list[PromptProgress]:
        """How far its prompts have come, those that are rendered."""

    def keep(self, key: Key, job: Job, seed: int, created: int) -> None:
        """The answer can be had again by this key, for some minutes."""

    def kept(self, key: Key) -> Kept | None:
        """The answer of this key, if it is running or kept."""

    def abort(self, job: Job, key: Key) -> None:
        """This answer is kept no more, and cancelled."""

    def kept_payloads(self) -> list[bytes]:
        """All that was put and is not forgotten."""

    def want_adapter(self, name: str | None) -> Awaitable[None]:
        """An adapter of --lora-folder is loaded when a request first names it. ApiError says why it cannot be."""

    def tokenize(self, prompt: Prompt, token_strings: bool) -> Awaitable[tuple[list[int], list[str] | None]]:
        """The prompt's ids, and their strings."""

    def tokenize_as_rendered(
        self, prompt: Prompt, rendering: Mapping[str, Any], offsets: bool
    ) -> Awaitable[tuple[list[int], list[tuple[int, int]] | None]]:
        """The ids that a request with this rendering would have, and where each begins and ends in its text."""

    def pooled_ids(self, prompt: Prompt, field: str, most: int) -> Awaitable[list[int]]:
        """Those of a prompt of a model that pools. ApiError where there are more than so many."""

    def detokenize(self, tokens: list[int], skip_special: bool = False) -> Awaitable[str]:
        """The ids' text, with or without special tokens."""

    def token_texts(self, tokens: list[int]) -> Awaitable[list[str]]:
        """Of each by itself."""

    def pieces(self, tokens: list[int]) -> Awaitable[list[bytes]]:
        """The bytes of each of the ids by itself."""

    def pre_process(self, request_id: str, data: bytes) -> Awaitable[list[Prompt]]:
        """What --io-processor-plugin makes of a request's data, which are JSON."""

    def post_process(self, request_id: str, data: bytes, pooled: list[PooledPrompt]) -> Awaitable[bytes]:
        """Its answer, as JSON."""

    def measure(self, sound: bytes) -> Awaitable[Measured]:
        """How long a sound is, and into which windows it is cut."""

    def listen(self, ref: int, samples: int, timed: bool) -> Awaitable[Heard]:
        """About the text of a window, which has so many samples, once it has ended and before it is released."""

    def in_flight(self) -> int:
        """Requests that are being answered by this frontend."""

    def count_realtime(self, sessions: int = 0, begun: int = 0) -> None:
        """So many realtime sessions more are open, and so many answers more were begun for them."""

    def count_response_sockets(self, sockets: int = 0, begun: int = 0) -> None:
        """So many WebSockets of responses more are open, and so many responses more were begun for them."""

    def count_session(self, key: bytes, until: float, turns: int = 0) -> None:
        """A session of /open_session is kept by this key until then (CLOCK_MONOTONIC), and has so many turns more."""

    def page_figures(self) -> PageFigures:
        """What the page shows."""
