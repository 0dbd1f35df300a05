"""Questions to other actors that need no slot: each has a number, a deadline, and an answer.

Who dies while it has one finds it again in its lane: the answer comes later, or never within the deadline.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from actorserve.http.errors import ApiError, overloaded

from ..protocol.messages import Message
from ..protocol.topics.adapters import AdapterChanged, LoadAdapter, UnloadAdapter
from ..protocol.topics.administration import (
    Abort,
    Aborted,
    ForgetMedia,
    Pause,
    ResetEncoderCache,
    ResetPrefixCache,
    Resume,
)
from ..protocol.topics.calls import Detokenize, Detokenized, Measure, Measured, Tokenize, Tokenized, call_numbers
from ..protocol.topics.io_processors import PooledPrompt, PostProcess, PostProcessed, PreProcess, PreProcessed
from ..protocol.topics.prompts import Prompt

CUT = ("truncate_prompt_tokens", "keep_first", "max_tokens")  # how a prompt is cut
CALL_S = 30.0
AGAIN_S = 2.0  # what takes as long as it takes is asked again so often
LOAD_S = 300.0  # an adapter may be large, or far away


class Calls:
    """The calls of one life of a frontend: answers to the life before it are nobody's."""

    def __init__(
        self,
        frontend: int,
        life: int,
        most: int,
        ask_renderer: Callable[[Message, int], None],
        ask_schedulers: Sequence[Callable[[Message], None]],
        settled: Callable[[int], None] = lambda number: None,
    ) -> None:
        """`settled`: nobody waits for this number's answer any more."""
        self.numbers = call_numbers(frontend, life)
        self._most = most
        self._ask_renderer, self._ask_schedulers = ask_renderer, ask_schedulers
        self._settled = settled
        self._open: dict[int, asyncio.Future[Message]] = {}
        self._parts: dict[int, dict[int, list[int]]] = {}  # of an answer, by where they begin
        self._loading: dict[int, str] = {}  # names of adapters, by call

    async def tokenize(self, prompt: Prompt, token_strings: bool, model: int = 0) -> tuple[list[int], list[str] | None]:
        """The prompt's ids, and their strings if asked for, as this model has them."""
        number = next(self.numbers)
        answer = await self._ask(number, Tokenize(number, prompt, token_strings), self._renderer_of(model))
        assert isinstance(answer, Tokenized)
        return answer.tokens, answer.token_strings

    async def tokenize_as_rendered(
        self, prompt: Prompt, rendering: Mapping[str, Any], offsets: bool, model: int = 0
    ) -> tuple[list[int], list[tuple[int, int]] | None]:
        """The ids that a request with this rendering would have, and where each stands in its text if asked for."""
        number = next(self.numbers)
        cut = {name: rendering[name] for name in CUT if name in rendering}
        answer = await self._ask(number, Tokenize(number, prompt, offsets=offsets, **cut), self._renderer_of(model))
        assert isinstance(answer, Tokenized)
        return answer.tokens, answer.offsets

    async def pooled_ids(self, prompt: Prompt, field: str, most: int, model: int = 0) -> list[int]:
        """Those of a prompt of a model that pools. ApiError where there are more than so many."""
        number = next(self.numbers)
        asked = Tokenize(number, prompt, field=field, pools=most)
        answer = await self._ask(number, asked, self._renderer_of(model))
        assert isinstance(answer, Tokenized)
        return answer.tokens

    async def detokenize(self, tokens: list[int], skip_special: bool = False, model: int = 0) -> str:
        """The ids' text, with or without special tokens."""
        number = next(self.numbers)
        answer = await self._ask(number, Detokenize(number, tokens, skip_special), self._renderer_of(model))
        assert isinstance(answer, Detokenized)
        return answer.text

    async def token_texts(self, tokens: list[int], model: int = 0) -> list[str]:
        """Of each by itself."""
        number = next(self.numbers)
        answer = await self._ask(number, Detokenize(number, tokens, each=True), self._renderer_of(model))
        assert isinstance(answer, Detokenized)
        return answer.texts

    async def pieces(self, tokens: list[int], model: int = 0) -> list[bytes]:
        """The bytes of each of the ids by itself."""
        number = next(self.numbers)
        answer = await self._ask(number, Detokenize(number, tokens, pieces=True), self._renderer_of(model))
        assert isinstance(answer, Detokenized)
        return answer.pieces or []

    async def measure(self, sound: bytes, model: int = 0) -> Measured:
        """How long it is, and into which windows it is cut."""
        number = next(self.numbers)
        answer = await self._ask(number, Measure(number, sound), self._renderer_of(model))
        assert isinstance(answer, Measured)
        return answer

    async def pre_process(self, request_id: str, data: bytes, model: int = 0) -> list[Prompt]:
        """What --io-processor-plugin makes of a request's data."""
        number = next(self.numbers)
        answer = await self._ask(number, PreProcess(number, request_id, data), self._renderer_of(model))
        assert isinstance(answer, PreProcessed)
        return answer.prompts

    async def post_process(self, request_id: str, data: bytes, pooled: list[PooledPrompt], model: int = 0) -> bytes:
        """Its answer, as JSON."""
        number = next(self.numbers)
        answer = await self._ask(number, PostProcess(number, request_id, data, pooled), self._renderer_of(model))
        assert isinstance(answer, PostProcessed)
        return answer.output

    def _renderer_of(self, model: int) -> Callable[[Message], None]:
        """Posts to one of this model's."""
        return lambda message: self._ask_renderer(message, model)

    async def reset_prefix_cache(self, reset_running_requests: bool) -> None:
        """Nothing that was computed before is found as a prefix any more, in any engine."""
        await self.ask_engines(lambda number: ResetPrefixCache(number, reset_running_requests), again=True)

    async def pause(self, mode: str, clear_cache: bool) -> None:
        """No engine plans a step any more. Where requests end first, that takes as long as they take."""
        await self.ask_engines(lambda number: Pause(number, mode, clear_cache), patient=mode == "wait", again=True)

    async def resume(self) -> None:
        """All engines plan steps again."""
        await self.ask_engines(Resume, again=True)

    async def abort(self, request_ids: list[str], every: bool) -> int:
        """End the requests of these ids, or all; how many answers they had."""
        answers = await self.ask_engines(lambda number: Abort(number, request_ids, every))
        return sum(answer.count for answer in answers if isinstance(answer, Aborted))

    async def ask_engines(
        self,
        make: Callable[[int], Message],
        patient: bool = False,
        limit: float | None = None,
        only: Sequence[int] | None = None,
        again: bool = False,
    ) -> list[Message]:
        """The answers of all engines' schedulers. `patient`: it may take longer, and is asked again then, since whoever
        was asked may have died; `again`: so it is, but for no longer. `limit`: seconds, if others than CALL_S. `only`:
        the engines that are asked.
        """
        who = "Engine {}" if len(self._ask_schedulers) > 1 else "The server"

        async def answer_of(engine: int) -> Message:
            number = next(self.numbers)
            ask = partial(self._ask_schedulers[engine], make(number))
            self._begin(number, ask)
            seconds, later = None if patient else limit or CALL_S, ask if patient or again else None
            return await self._answered(number, seconds, later, who.format(engine))

        engines = range(len(self._ask_schedulers)) if only is None else only
        return await asyncio.gather(*map(answer_of, engines))

    async def reset_encoder_cache(self) -> None:
        """Embeddings of pictures are made anew, by all engines."""
        await self.ask_engines(ResetEncoderCache, again=True)

    async def forget_media(self, sends: Sequence[Callable[[Message], None]]) -> None:
        """No picture is found again that was processed before, by any of those to whom these send."""
        for send in sends:
            number = next(self.numbers)
            await self._ask(number, ForgetMedia(number), send)

    async def load_adapter(self, name: str, path: str, in_place: bool) -> tuple[int, str]:
        """(the status, what is wrong), once the adapter can be had or it is known why not."""
        number = next(self.numbers)
        self._loading[number] = name
        try:
            answer = await self._ask(number, LoadAdapter(number, name, path, in_place), self._ask_schedulers[0], LOAD_S)
        finally:
            del self._loading[number]
        assert isinstance(answer, AdapterChanged)
        return answer.status, answer.problem

    async def unload_adapter(self, name: str) -> tuple[int, str]:
        """(the status, what is wrong), once no new request can have it."""
        number = next(self.numbers)
        answer = await self._ask(number, UnloadAdapter(number, name), self._ask_schedulers[0])
        assert isinstance(answer, AdapterChanged)
        return answer.status, answer.problem

    def adapter_changed(self, message: AdapterChanged) -> None:
        """What has come of one call, or of all that wait for a name."""
        calls = [message.call] if message.call else [at for at, name in self._loading.items() if name == message.name]
        for call in calls:
            self.answer(call, message)

    def give_up(self, error: ApiError) -> None:
        """Whoever waits for an answer gets this error, and nothing is asked any more."""
        self._most = 0
        for future in self._open.values():
            if not future.done():
                future.set_exception(error)

    async def _ask(
        self, number: int, message: Message, send: Callable[[Message], None], limit: float | None = None
    ) -> Message:
        self._begin(number, partial(send, message))
        return await self._answered(number, CALL_S if limit is None else limit)

    async def ask(self, number: int, ask: Callable[[], None], every: float, look: Callable[[], None]) -> Message:
        """The answer to what `ask` posts; until then `look` is called every so many seconds, and may raise."""
        self._begin(number, ask)
        return await self._answered(number, None, look, every=every)

    def _begin(self, number: int, ask: Callable[[], None]) -> None:
        if len(self._open) >= self._most:
            raise overloaded("The server has as many calls as it takes. Try again soon.")
        ask()  # where it raises, nobody waits
        self._open[number] = asyncio.get_running_loop().create_future()

    async def _answered(
        self,
        number: int,
        limit: float | None,
        again: Callable[[], None] | None = None,
        who: str = "The server",
        every: float = AGAIN_S,
    ) -> Message:
        """What is answered within so many seconds, or however long it takes. `again`: it is asked again meanwhile,
        since whoever was asked may have died.
        """
        future, loop = self._open[number], asyncio.get_running_loop()
        end = math.inf if limit is None else loop.time() + limit
        try:
            while not future.done():
                left = end - loop.time()
                await asyncio.wait([future], timeout=left if again is None else min(every, left))
                if future.done():
                    break
                if loop.time() >= end:
                    raise overloaded(f"{who} has not answered this within {limit:.0f} s. Try again soon.")
                if again is not None:
                    again()
            return future.result()
        finally:
            del self._open[number]
            self._parts.pop(number, None)
            self._settled(number)

    def answer(self, number: int, answer: Message | ApiError) -> None:
        """What was answered; where nobody waits for it, it is dropped."""
        future = self._open.get(number)
        if future is None or future.done():
            return
        if isinstance(answer, Tokenized) and (answer.more or answer.start):
            parts = self._parts.setdefault(number, {})
            parts[answer.start] = answer.tokens
            if answer.more:
                return
            answer = Tokenized(number, [token for _, part in sorted(parts.items()) for token in part])
        if isinstance(answer, ApiError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
