"""Questions to renderers that need no slot: each has a number, a deadline, and an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actorserve.http.errors import ApiError, overloaded

from ..protocol.messages import Detokenize, Detokenized, Message, Prompt, Tokenize, Tokenized, call_numbers

CALL_S = 30.0


class Calls:
    """The calls of one frontend. `send` gives a message to a renderer; `numbers` are this frontend's."""

    def __init__(self, frontend: int, most: int, send: Callable[[Message], None]) -> None:
        self.numbers = call_numbers(frontend)
        self._most = most
        self._send = send
        self._open: dict[int, asyncio.Future[Message]] = {}

    async def tokenize(self, prompt: Prompt, token_strings: bool) -> tuple[list[int], list[str] | None]:
        """The prompt's ids, and their strings if asked for."""
        number = next(self.numbers)
        answer = await self._ask(number, Tokenize(number, prompt, token_strings))
        assert isinstance(answer, Tokenized)
        return answer.tokens, answer.token_strings

    async def detokenize(self, tokens: list[int], skip_special: bool = False) -> str:
        """The ids' text, with or without special tokens."""
        number = next(self.numbers)
        answer = await self._ask(number, Detokenize(number, tokens, skip_special))
        assert isinstance(answer, Detokenized)
        return answer.text

    def give_up(self, error: ApiError) -> None:
        """Whoever waits for an answer gets this error, and nothing is asked any more."""
        self._most = 0
        for future in self._open.values():
            if not future.done():
                future.set_exception(error)

    async def _ask(self, number: int, message: Message) -> Message:
        if len(self._open) >= self._most:
            raise overloaded("The server has as many calls as it takes. Try again soon.")
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._open[number] = future
        self._send(message)
        try:
            async with asyncio.timeout(CALL_S):
                return await future
        except TimeoutError:
            raise overloaded(f"No renderer has answered within {CALL_S:.0f} s.") from None
        finally:
            del self._open[number]

    def answer(self, number: int, answer: Message | ApiError) -> None:
        """A renderer's answer; one that nobody waits for is dropped."""
        future = self._open.get(number)
        if future is None or future.done():
            return
        if isinstance(answer, ApiError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
