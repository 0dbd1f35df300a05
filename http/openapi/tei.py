"""The answers of Text Embeddings Inference's API as msgspec structs, for /openapi.json."""

from __future__ import annotations

from .answers import Said


class TeiPrediction(Said):
    score: float
    label: str


class TeiToken(Said):
    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None
