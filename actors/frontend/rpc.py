"""Questions to other actors that need no slot: each has a number, a deadline, and an answer.

Who dies while it has one finds it again in its lane: the answer comes later, or never within the deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from actorserve.http.errors import ApiError, overloaded

from ..protocol.messages import (
    Abort,
    Aborted,
    AdapterChanged,
    Detokenize,
    Detokenized,
    ForgetMedia,
    LoadAdapter,
    Measure,
    Measured,
    Message,
    Pause,
    Prompt,
    ResetEncoderCache,
    ResetPrefixCache,
    Resume,
    Tokenize,
    Tokenized,
    UnloadAdapter,
    call_numbers,
)

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
        ask_renderer: Callable[[Message], None],
        ask_schedulers: Sequence[Callable[[Message], None]],
        settled: Callable[[int], None] = lambda number: None,
    ) -> None:
        """`settled`: nobody waits for this number's answer any more."""
        self.numbers = call_numbers(frontend, life)
        self._most = most
        self._ask_renderer, self._ask_schedulers = ask_renderer, ask_schedulers
        self._settled = settled
        self._open: dict[int, asyncio.Future[Message]] = {}
        self._loading: dict[int, str] = {}  # names of adapters, by call

    async def tokenize(self, prompt: Prompt, token_strings: bool) -> tuple[list[int], list[str] | None]:
        """The prompt's ids, and their strings if asked for."""
        number = next(self.numbers)
        answer = await self._ask(number, Tokenize(number, prompt, token_strings), self._ask_renderer)
        assert isinstance(answer, Tokenized)
        return answer.tokens, answer.token_strings

    async def detokenize(self, tokens: list[int], skip_special: bool = False) -> str:
        """The ids' text, with or without special tokens."""
        number = next(self.numbers)
        answer = await self._ask(number, Detokenize(number, tokens, skip_special), self._ask_renderer)
        assert isinstance(answer, Detokenized)
        return answer.text

    async def measure(self, sound: bytes) -> Measured:
        """How long it is, and into which windows it is cut."""
        number = next(self.numbers)
        answer = await self._ask(number, Measure(number, sound), self._ask_renderer)
        assert isinstance(answer, Measured)
        return answer

    async def reset_prefix_cache(self, reset_running_requests: bool) -> None:
        """Nothing that was computed before is found as a prefix any more, in any engine."""
        await self.ask_engines(lambda number: ResetPrefixCache(number, reset_running_requests))

    async def pause(self, mode: str, clear_cache: bool) -> None:
        """No engine plans a step any more. Where requests end first, that takes as long as they take."""
        await self.ask_engines(lambda number: Pause(number, mode, clear_cache), patient=mode == "wait")

    async def resume(self) -> None:
        """All engines plan steps again."""
        await self.ask_engines(Resume)

    async def abort(self, request_ids: list[str], every: bool) -> int:
        """End the requests of these ids, or all; how many answers they had."""
        answers = await self.ask_engines(lambda number: Abort(number, request_ids, every))
        return sum(answer.count for answer in answers if isinstance(answer, Aborted))

    async def ask_engines(
        self,
        make: Callable[[int], Message],
        patient: bool = False,
        limit: float | None = None,
        only_first: bool = False,
    ) -> list[Message]:
        """The answers of all engines' schedulers. `patient`: it may take longer, and is asked again then, since whoever
        was asked may have died. `limit`: seconds, if others than CALL_S.
        """
        begun = []
        for send in self._ask_schedulers[: 1 if only_first else None]:
            number = next(self.numbers)
            begun.append((number, partial(send, make(number))))
        for number, ask in begun:
            self._begin(number, ask)
        return await asyncio.gather(
            *(
                self._answered(number, AGAIN_S if patient else limit or CALL_S, ask if patient else None)
                for number, ask in begun
            )
        )

    async def reset_encoder_cache(self) -> None:
        """Embeddings of pictures are made anew, by all engines."""
        asked = []
        for ask_scheduler in self._ask_schedulers:
            number = next(self.numbers)
            asked.append(self._ask(number, ResetEncoderCache(number), ask_scheduler))
        await asyncio.gather(*asked)

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

    def _begin(self, number: int, ask: Callable[[], None]) -> None:
        if len(self._open) >= self._most:
            raise overloaded("The server has as many calls as it takes. Try again soon.")
        self._open[number] = asyncio.get_running_loop().create_future()
        ask()

    async def _answered(self, number: int, limit: float, again: Callable[[], None] | None = None) -> Message:
        """What is answered within so many seconds. `again`: it may take longer, and is asked again then, since whoever
        was asked may have died.
        """
        future = self._open[number]
        try:
            while not (await asyncio.wait([future], timeout=limit))[0]:
                if again is None:
                    text = f"The server has not answered this within {limit:.0f} s. Try again soon."
                    raise overloaded(text)
                again()
            return future.result()
        finally:
            del self._open[number]
            self._settled(number)

    def answer(self, number: int, answer: Message | ApiError) -> None:
        """What was answered; where nobody waits for it, it is dropped."""
        future = self._open.get(number)
        if future is None or future.done():
            return
        if isinstance(answer, ApiError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
