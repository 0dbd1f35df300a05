"""The events of a sound that is written down: its windows' texts, one after the other."""

from __future__ import annotations

from ..errors import ApiError
from ..generation.choice import Choice
from ..generation.job import Job
from ..output.events import Content, Piece
from ..speech.transcript import plain
from .events import TRANSCRIPT
from .fields import Object
from .session import Active


class TranscriptEvents:
    """Whoever calls it keeps the windows' order."""

    def __init__(self, active: Active, windows: int) -> None:
        self._active = active
        self._texts = [""] * windows  # without marks

    def take(self, choice: Choice) -> list[Object]:
        """What is new of a window."""
        news = choice.take()
        before, new = _text(news.skipped), _text(news.pieces)
        leading = not "".join([*self._texts[: choice.index + 1], before]).strip()
        self._texts[choice.index] += before + new
        if leading:
            new = new.lstrip()
        return [self._event("delta", delta=new)] if new else []

    def last(self, job: Job, error: ApiError | None = None) -> list[Object]:
        """All windows have ended, or it failed."""
        if error is not None:
            return [self._event("failed", **error.body())]
        return [self._event("completed", transcript="".join(self._texts).strip(), usage=self._usage(job))]

    def _usage(self, job: Job) -> Object:
        counted = {"prompt_tokens": job.prompt_tokens, "completion_tokens": job.completion_tokens}
        total = job.prompt_tokens + job.completion_tokens
        return {"type": "duration", "seconds": self._active.seconds, **counted, "total_tokens": total}

    def _event(self, kind: str, **fields: object) -> Object:
        return {"type": f"{TRANSCRIPT}{kind}", "item_id": self._active.id, "content_index": 0, **fields}


def _text(pieces: list[Piece]) -> str:
    return plain("".join(piece.text for piece in pieces if isinstance(piece, Content)))
