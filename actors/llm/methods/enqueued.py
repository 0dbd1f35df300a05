"""The methods of LLM that begin with prompts, and wait for them later."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..batch import PromptBatch
from ..engine import FrontendThread
from ..inputs.lora import LoRARequests
from ..inputs.media import GivenPictures
from ..inputs.prompts import GivenPrompt, PromptType, given_prompts
from ..inputs.tokenization import tokenized
from ..outputs import RequestOutput
from ..sampling_params import Params, Priorities


class EnqueuedMethods:
    """What LLM inherits of them."""

    _engine: FrontendThread

    _pictures: GivenPictures

    _enqueued: list[PromptBatch]

    def _check_generates(self) -> None:
        raise NotImplementedError

    def _check_usable(self) -> None:
        raise NotImplementedError

    def _batch(self, given: list[GivenPrompt], params: Params, priority: Priorities, lora: LoRARequests) -> PromptBatch:
        raise NotImplementedError

    def _wait(self, batch: PromptBatch, deadline: float | None, use_tqdm: bool | Callable[..., Any]) -> None:
        raise NotImplementedError

    def enqueue(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: Params = None,
        priority: Priorities = None,
        lora_request: LoRARequests = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Begin with prompts as `generate` takes them, and return their request ids at once."""
        self._check_generates()
        given = tokenized(given_prompts(prompts, self._pictures), tokenization_kwargs)
        return self._enqueue(self._batch(given, sampling_params, priority, lora_request))

    def _enqueue(self, batch: PromptBatch) -> list[str]:
        self._engine.submit(batch)
        self._enqueued.append(batch)
        return [wanted.request_id for wanted in batch.wanted]

    def wait_for_completion(
        self, timeout: float | None = None, use_tqdm: bool | Callable[..., Any] = False
    ) -> list[RequestOutput]:
        """The outputs of all that was enqueued, in that order. TimeoutError after so many seconds; then it goes on,
        and can be waited for again.
        """
        self._check_usable()
        deadline = None if timeout is None else time.monotonic() + timeout
        batches = list(self._enqueued)
        for batch in batches:
            self._wait(batch, deadline, use_tqdm)
        self._enqueued = [batch for batch in self._enqueued if batch not in batches]
        whole = PromptBatch([wanted for batch in batches for wanted in batch.wanted])
        whole.outputs = [output for batch in batches for output in batch.outputs]
        first = 0
        for batch in batches:
            whole.errors |= {first + index: reason for index, reason in batch.errors.items()}
            first += len(batch.wanted)
        return whole.results()
