"""The paths of what is heard."""

from __future__ import annotations

from ..realtime.fields import RealtimeQuery
from ..route import ASKS, Route
from ..speech.schemas import SpeechRequest, TranscriptEvent, Transcription

SPEECH: tuple[Route, ...] = (
    *(
        Route(
            "post",
            f"/v1/audio/{name}",
            f"speech.{handler}",
            summary,
            Transcription,
            SpeechRequest,
            TranscriptEvent,
            ends="",
            statuses=ASKS,
            hears=True,
        )
        for name, handler, summary in (
            ("transcriptions", "transcribe", "Write down what is said"),
            ("translations", "translate", "The same, in English"),
        )
    ),
    Route(
        "get",
        "/v1/realtime",
        "realtime.connect",
        "A conversation, or sounds that are written down as they come, over a WebSocket of OpenAI's events",
        query=RealtimeQuery,
        statuses=(400, 403, 404),
        head=False,
        upgrades=True,
    ),
)
