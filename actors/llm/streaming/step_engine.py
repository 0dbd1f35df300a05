"""`LLMEngine`: requests are added and stepped by the caller's own loop, as vLLM's has it.

    engine = LLMEngine.from_engine_args(EngineArgs("a folder or a hub name"))
    engine.add_request("0", "One and one is", SamplingParams())
    while engine.has_unfinished_requests():
        for output in engine.step():
            print(output)

The actors go on between two steps; a step waits until there is something to tell.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from ..inputs.lora import LoRARequest
from ..inputs.prompts import PromptType
from ..llm import LLM
from ..outputs import RequestOutput
from ..sampling_params import SamplingParams
from .engine_args import EngineArgs
from .requests import OpenRequests
from .stream import StreamBatch

STEP_S = 1.0  # after so long a step has nothing to tell


class LLMEngine:
    """One set of actors with one model, used by one thread."""

    def __init__(self, model: str = "", **options: Any) -> None:
        """As LLM has it."""
        self._use(LLM(model, **options))

    def _use(self, llm: LLM) -> None:
        self._llm, self._requests = llm, OpenRequests(llm)
        self._batches: dict[str, StreamBatch] = {}
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._errors: list[Exception] = []  # of requests that failed, not raised yet

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **_: Any) -> LLMEngine:
        """What else is given is of vLLM's own making, and of no use here."""
        return cls(engine_args.model, **engine_args.options)

    @classmethod
    def of(cls, llm: LLM) -> LLMEngine:
        """Over the actors of an LLM object, which others may use beside it."""
        made = cls.__new__(cls)
        made._use(llm)
        return made

    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> None:
        """Begin with it; `step` tells what comes of it, by its id. ValueError says what cannot be."""
        tell = partial(self._news.put, request_id)
        self._batches[request_id] = self._requests.begin(request_id, prompt, params, tell, priority, lora_request)

    def step(self) -> list[RequestOutput]:
        """What is new of all requests, as their `output_kind` says; empty if nothing was within a second. A request
        that cannot be answered is removed, and raised by a step that has nothing else to tell.
        """
        outputs: list[RequestOutput] = []
        deadline = time.monotonic() + STEP_S
        while not (outputs or self._errors) and self._batches and (left := deadline - time.monotonic()) > 0:
            try:
                first = self._news.get(timeout=left)
            except queue.Empty:
                break
            for request_id in dict.fromkeys([first, *self._waiting()]):
                try:
                    output = self._take(request_id)
                except Exception as error:
                    self._errors.append(error)
                else:
                    outputs += [] if output is None else [output]
        if self._errors and not outputs:
            raise self._errors.pop(0)
        return outputs

    def _waiting(self) -> Iterable[str]:
        while not self._news.empty():
            yield self._news.get()

    def _take(self, request_id: str) -> RequestOutput | None:
        batch = self._batches.get(request_id)
        if batch is None:
            return None
        try:
            return batch.request.stream.take()
        finally:
            if batch.request.stream.ended:
                del self._batches[request_id]
                self._requests.ended(request_id)

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """Nothing more is told of them."""
        for request_id in [request_ids] if isinstance(request_ids, str) else list(request_ids):
            self._batches.pop(request_id, None)
            self._requests.ended(request_id)

    def has_unfinished_requests(self) -> bool:
        """Is there anything left to tell?"""
        return bool(self._batches or self._errors)

    def get_num_unfinished_requests(self) -> int:
        return len(self._batches)

    @property
    def llm(self) -> LLM:
        """What else there is: sleep, reset_prefix_cache, get_tokenizer and so on."""
        return self._llm

    def shutdown(self) -> None:
        """Stop all actors and wait for their end."""
        self._llm.close()

    def __enter__(self) -> LLMEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
