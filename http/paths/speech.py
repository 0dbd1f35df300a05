"""The paths of what is heard."""

from __future__ import annotations

from ..openapi.operations import ClientSecret, RealtimeSession
from ..realtime.client_secrets import BetaSessionRequest, ClientSecretRequest
from ..realtime.fields import RealtimeQuery
from ..route import ASKS, Route
from ..speech.schemas import SpeechRequest, TranscriptEvent, Transcription

REALTIME = "/v1/realtime"
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
        REALTIME,
        "realtime.connect",
        "A conversation, or sounds that are written down as they come, over a WebSocket of OpenAI's events",
        query=RealtimeQuery,
        statuses=(400, 403, 404),
        head=False,
        upgrades=True,
    ),
    Route(
        "post",
        f"{REALTIME}/client_secrets",
        "client_secrets.create",
        "A key for a page, for a short while, with which a session begins as is said here",
        ClientSecret,
        ClientSecretRequest,
        statuses=ASKS,
    ),
    Route(
        "post",
        f"{REALTIME}/sessions",
        "client_secrets.create_session",
        "The same by a session's older names",
        RealtimeSession,
        BetaSessionRequest,
        statuses=ASKS,
    ),
)
