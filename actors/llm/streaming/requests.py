"""Requests that are under way, by the ids that their caller gives them: what AsyncLLM and LLMEngine share."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..inputs.lora import LoRARequest
from ..inputs.prompts import PromptType
from ..llm import LLM
from ..sampling_params import SamplingParams
from .stream import OutputStream, StreamBatch, StreamedRequest


class OpenRequests:
    """Of one LLM object."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._open: dict[str, StreamBatch] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | None,
        tell: Callable[[], None],
        priority: int = 0,
        lora_request: LoRARequest | None = None,
    ) -> StreamBatch:
        """ValueError says what cannot be: an id that is under way is one."""
        if request_id in self._open:
            raise ValueError(f"request_id: {request_id!r:.80} is under way")
        wanted = self._llm.prepare(request_id, prompt, params, priority, lora_request)
        stream = OutputStream(wanted.params.output_kind, self._llm.engine.decode, tell)
        batch = StreamBatch(StreamedRequest(**vars(wanted), stream=stream))
        self._open[request_id] = batch
        try:
            self._llm.engine.submit(batch)
        except BaseException:
            del self._open[request_id]
            raise
        return batch

    def ended(self, request_id: str) -> None:
        """Nobody asks for it any more; what still runs of it is cancelled."""
        batch = self._open.pop(request_id, None)
        if batch is not None and not batch.request.stream.ended:
            self._llm.engine.cancel(batch)

    def abort(self, request_ids: Iterable[str]) -> None:
        """They end with what they have, and the finish_reason abort. Unknown ones have ended before."""
        for request_id in request_ids:
            if (batch := self._open.get(request_id)) is not None:
                self._llm.engine.abort(batch)
