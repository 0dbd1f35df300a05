"""The events of a streamed transcript: pieces of text and then all of it, or what others' clients read."""

from __future__ import annotations

from typing import Any

from ..errors import ApiError
from ..generation.choice import Choice
from ..generation.job import Job
from ..output.answer import DONE, Answer, encode
from ..output.answer import usage as tokens_used
from ..output.events import Content
from ..output.writer import Writer
from .answers import as_mistrals, usage, whole
from .schemas import SpeechRequest
from .transcript import plain


class TranscriptWriter(Writer):
    """Writes the windows' texts, one after the other: whoever calls it keeps their order."""

    def __init__(self, job: Job, seconds: float) -> None:
        self._job, self._seconds = job, seconds
        self._texts = ["" for _ in job.choices]  # of each window, without marks

    def update(self, choice: Choice) -> bytes:
        update = choice.take()
        before = plain("".join(piece.text for piece in update.skipped if isinstance(piece, Content)))
        new = plain("".join(piece.text for piece in update.pieces if isinstance(piece, Content)))
        leading = not "".join([*self._texts[: choice.index + 1], before]).strip()
        self._texts[choice.index] += before + new
        if leading:
            new = new.lstrip()
        return self._delta(new) if new else b""

    def _delta(self, text: str) -> bytes:
        return _event({"type": "transcript.text.delta", "delta": text})

    def closing(self) -> bytes:
        return self._done("".join(self._texts).strip())

    def _done(self, text: str) -> bytes:
        return _event({"type": "transcript.text.done", "text": text, "usage": usage(self._seconds)})

    def failed(self, error: ApiError) -> bytes:
        return _event({"type": "error", **error.body()})


class MistralTranscriptWriter(TranscriptWriter):
    """The same for Mistral's clients."""

    def __init__(self, job: Job, seconds: float, model: str, language: str | None) -> None:
        super().__init__(job, seconds)
        self._model, self._language = model, language

    def _delta(self, text: str) -> bytes:
        return _named({"type": "transcription.text.delta", "text": text})

    def _done(self, text: str) -> bytes:
        told = as_mistrals(whole(text, self._seconds), self._model, self._language)
        return _named({"type": "transcription.done", **told})


class VllmTranscriptWriter(TranscriptWriter):
    """The same for vLLM's clients, as its benchmarks are: chunks as of a chat, whose tokens are counted."""

    def __init__(self, job: Job, answer: Answer, request: SpeechRequest, kind: str) -> None:
        """`kind`: their `object`."""
        super().__init__(job, 0.0)
        self._answer, self._kind = answer, kind
        self._counts = bool(request.stream_include_usage)
        self._counts_each = self._counts and bool(request.stream_continuous_usage_stats)

    def _delta(self, text: str) -> bytes:
        return self._chunk([{"index": 0, "delta": {"content": text}, "finish_reason": None}], self._counts_each)

    def _done(self, text: str) -> bytes:
        reason = self._job.choices[-1].finish_reason or "stop"
        end = self._chunk([{"index": 0, "delta": {"content": ""}, "finish_reason": reason}], self._counts_each)
        return end + (self._chunk([], True) if self._counts else b"") + DONE

    def failed(self, error: ApiError) -> bytes:
        return _event(error.body()) + DONE

    def _chunk(self, choices: list[dict[str, Any]], counted: bool) -> bytes:
        head = {"id": self._answer.id, "object": self._kind, "created": self._answer.created}
        counts = {"usage": tokens_used(self._job)} if counted else {}
        return _event({**head, "model": self._answer.model, "choices": choices, **counts})


def _named(body: dict[str, Any]) -> bytes:
    """An event whose type stands before it, too."""
    return b"event: %s\n%s" % (body["type"].encode(), _event(body))


def _event(body: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % encode(body)
