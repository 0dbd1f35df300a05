"""Requests that are under way, by the ids that their caller gives them: what AsyncLLM and LLMEngine share."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..inputs.lora import LoRARequest
from ..inputs.prompts import PromptType
from ..llm import LLM
from ..sampling_params import SamplingParams
from .stream import OutputStream, StreamBatch, StreamedRequest


class _Beginning:
    """Holds the id of a request that is being prepared, by whichever thread."""


class OpenRequests:
    """Of one LLM object."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._open: dict[str, StreamBatch | _Beginning] = {}

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
        if self._open.setdefault(request_id, own := _Beginning()) is not own:
            raise ValueError(f"request_id: {request_id!r:.80} is under way")
        try:
            wanted = self._llm.prepare(request_id, prompt, params, priority, lora_request)
            stream = OutputStream(wanted.params.output_kind, self._llm.engine.decode, tell)
            batch = self._open[request_id] = StreamBatch(StreamedRequest(**vars(wanted), stream=stream))
            self._llm.engine.submit(batch)
        except BaseException:
            del self._open[request_id]
            raise
        return batch

    def ended(self, request_id: str) -> None:
        """Nobody asks for it any more; what still runs of it is cancelled."""
        batch = self._open.pop(request_id, None)
        if isinstance(batch, StreamBatch) and not batch.request.stream.ended:
            self._llm.engine.cancel(batch)

    def abort(self, request_ids: Iterable[str]) -> None:
        """They end with what they have, and the finish_reason abort. Unknown ones have ended before."""
        for request_id in request_ids:
            if isinstance(batch := self._open.get(request_id), StreamBatch):
                self._llm.engine.abort(batch)
