"""A prompt that comes in parts: each is computed behind all before it and what was answered to them.

As vLLM has it: of each answer all tokens but the last are kept, which stands behind them without ever having been
computed, so that `max_tokens=1` reads a part and keeps nothing of its own. A part is a request; that its tokens begin
with those of the one before is what the prefix cache is for, so a death costs no more than for any other request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from ...protocol.topics.prompts import TextPrompt, TokenPrompt
from ..inputs.prompts import PromptType, given_prompts
from ..outputs import RequestOutput
from ..sampling_params import RequestOutputKind, SamplingParams

Generate = Callable[[list[int], SamplingParams], AsyncGenerator[RequestOutput]]


@dataclass(frozen=True)
class StreamingInput:
    """The next part of a prompt. Without parameters it has those of the call."""

    prompt: PromptType
    sampling_params: SamplingParams | None = None


class InputStreamError(Exception):
    """What gives the parts has failed; the cause is its own error."""


class InputStream:
    """The parts, and the tokens so far."""

    def __init__(
        self, parts: AsyncIterator[StreamingInput], encode: Callable[[str, bool], list[int]], params: SamplingParams
    ) -> None:
        """`encode`: the tokens of a text, at the beginning of a prompt or behind it."""
        check_params(params)
        self._parts, self._encode, self._params = parts, encode, params
        self._tokens: list[int] = []
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Nothing more is asked of it."""
        self._ended.set()

    async def outputs(self, generate: Generate) -> AsyncGenerator[RequestOutput]:
        """Those of each part; none is `finished`, since nobody knows before the next whether it was the last."""
        while (part := await self._next()) is not None:
            params = self._params if part.sampling_params is None else part.sampling_params
            check_params(params)
            self._tokens += self._read(part.prompt)
            answer: list[int] = []
            async with aclosing(generate(list(self._tokens), params)) as outputs:
                async for output in outputs:
                    (one,) = output.outputs
                    whole = params.output_kind is RequestOutputKind.CUMULATIVE
                    answer = one.token_ids if whole else answer + one.token_ids
                    yield replace(output, finished=one.finish_reason == "abort")
            if self._ended.is_set():
                return
            self._tokens += answer[:-1]

    async def _next(self) -> StreamingInput | None:
        """None behind the last."""
        coming = asyncio.ensure_future(anext(self._parts, None))
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait([coming, ended], return_when=asyncio.FIRST_COMPLETED)
            if self._ended.is_set():
                return None
            return coming.result()
        except Exception as error:
            raise InputStreamError(f"what gives the prompt's parts has failed: {error}") from error
        finally:
            for task in (coming, ended):
                task.cancel()
            await asyncio.gather(coming, ended, return_exceptions=True)

    def _read(self, prompt: PromptType) -> list[int]:
        (given,) = given_prompts([prompt])
        if isinstance(given.prompt, TextPrompt):
            return self._encode(given.prompt.text, not self._tokens)
        if isinstance(given.prompt, TokenPrompt):
            return given.prompt.tokens
        raise ValueError("prompt: a part is a text or token ids")


def check_params(params: SamplingParams) -> None:
    """ValueError for what does not go with parts."""
    unfit = {
        "n above 1": params.n != 1,
        "output_kind FINAL_ONLY": params.output_kind is RequestOutputKind.FINAL_ONLY,
        "stop": bool(params.stop),
        "prompt_logprobs": params.prompt_logprobs is not None,
    }
    wrong = next((name for name, given in unfit.items() if given), None)
    if wrong:
        raise ValueError(f"sampling_params: {wrong}: not with a prompt that comes in parts")
