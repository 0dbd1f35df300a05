"""`AsyncLLM`: the server's actors for a program with an event loop of its own, without HTTP.

llm = AsyncLLM.from_engine_args(AsyncEngineArgs("a folder or a hub name"))
async for output in llm.generate("One and one is", SamplingParams(output_kind=RequestOutputKind.DELTA), "my-id"):
    print(output.outputs[0].text, end="")
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from ..inputs.lora import LoRARequest
from ..inputs.prompts import PromptType
from ..llm import LLM
from ..outputs import RequestOutput
from ..sampling_params import SamplingParams
from .engine_args import EngineArgs
from .input_stream import InputStream, StreamingInput
from .requests import OpenRequests


class AsyncLLM:
    """One set of actors with one model; made at once, before its first `generate`, which any event loop may call."""

    def __init__(self, model: str = "", **options: Any) -> None:
        """As LLM has it."""
        self._use(LLM(model, **options))

    def _use(self, llm: LLM) -> None:
        self._llm, self._requests = llm, OpenRequests(llm)
        self._streams: dict[str, InputStream] = {}

    @classmethod
    def of(cls, llm: LLM) -> AsyncLLM:
        """Over the actors of an LLM object, which others may use beside it."""
        made = cls.__new__(cls)
        made._use(llm)
        return made

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **_: Any) -> AsyncLLM:
        """What else is given is of vLLM's own making, and of no use here."""
        return cls(engine_args.model, **engine_args.options)

    async def generate(
        self,
        prompt: PromptType | AsyncIterator[StreamingInput],
        sampling_params: SamplingParams | None,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput]:
        """Outputs as `output_kind` says: all that there is so far, what is new, or one at the end. The last is
        `finished`. Who stops reading cancels the request. A prompt may come in parts (input_stream.py).
        """
        if isinstance(prompt, AsyncIterator):
            outputs = self._generate_in_parts(prompt, sampling_params, request_id, lora_request, priority)
        else:
            outputs = self._generate(prompt, sampling_params, request_id, lora_request, priority)
        async with aclosing(outputs):
            async for output in outputs:
                yield output

    async def _generate_in_parts(
        self,
        parts: AsyncIterator[StreamingInput],
        params: SamplingParams | None,
        request_id: str,
        lora_request: LoRARequest | None,
        priority: int,
    ) -> AsyncGenerator[RequestOutput]:
        if request_id in self._streams:
            raise ValueError(f"request_id: {request_id!r:.80} is under way")
        params = self._llm.get_default_sampling_params() if params is None else params
        stream = self._streams[request_id] = InputStream(parts, self._llm.engine.encode, params)

        def generate(tokens: list[int], params: SamplingParams) -> AsyncGenerator[RequestOutput]:
            return self._generate(tokens, params, request_id, lora_request, priority)

        try:
            async with aclosing(stream.outputs(generate)) as outputs:
                async for output in outputs:
                    yield output
        finally:
            del self._streams[request_id]

    async def _generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None,
        request_id: str,
        lora_request: LoRARequest | None,
        priority: int,
    ) -> AsyncGenerator[RequestOutput]:
        loop, there = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                loop.call_soon_threadsafe(there.set)

        begin = partial(self._requests.begin, request_id, prompt, sampling_params, tell, priority, lora_request)
        begun = asyncio.ensure_future(asyncio.to_thread(begin))
        try:
            batch = await asyncio.shield(begun)
        except asyncio.CancelledError:
            begun.add_done_callback(lambda begun: self._leave(request_id, begun))
            raise
        stream = batch.request.stream
        try:
            while not stream.ended:
                await there.wait()
                there.clear()
                if (output := stream.take()) is not None:
                    yield output
        finally:
            self._requests.ended(request_id)

    def _leave(self, request_id: str, begun: asyncio.Future[Any]) -> None:
        """Whom this was begun for is gone."""
        if not begun.cancelled() and begun.exception() is None:
            self._requests.ended(request_id)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """They end with what they have, and the finish_reason abort."""
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        for stream in filter(None, map(self._streams.get, ids)):
            stream.end()
        self._requests.abort(ids)

    # --- what else there is ------------------------------------------------------------------------------------------

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """See LLM; so it is with all that follows."""
        return await asyncio.to_thread(self._llm.reset_prefix_cache, reset_running_requests)

    async def reset_mm_cache(self) -> bool:
        return await asyncio.to_thread(self._llm.reset_mm_cache)

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        await asyncio.to_thread(self._llm.sleep, level, mode)

    async def wake_up(self, tags: Sequence[str] | None = None) -> bool:
        return await asyncio.to_thread(self._llm.wake_up, tags)

    async def is_sleeping(self) -> bool:
        return await asyncio.to_thread(self._llm.is_sleeping)

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        return await asyncio.to_thread(self._llm.collective_rpc, method, timeout, args, kwargs)

    async def get_tokenizer(self) -> Any:
        return await asyncio.to_thread(self._llm.get_tokenizer)

    async def check_health(self) -> None:
        """EngineDead if nothing can be generated any more."""
        assert self._llm.engine is not None

    @property
    def errored(self) -> bool:
        """Can nothing be generated any more?"""
        return self._llm.is_dead

    @property
    def is_running(self) -> bool:
        return not self._llm.is_dead

    def shutdown(self) -> None:
        """Stop all actors and wait for their end."""
        self._llm.close()

    def __enter__(self) -> AsyncLLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.shutdown)


AsyncLLMEngine = AsyncLLM  # its older name
