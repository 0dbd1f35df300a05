"""Answers of paths that make vectors, scores and labels."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from .answers import CachedTokens, Said, Usage


class PromptUsage(Said):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: CachedTokens


class PooledList(Said):
    id: str
    object: Literal["list"]
    created: int
    model: str
    usage: PromptUsage


class EmbeddingItem(Said):
    index: int
    object: Literal["embedding"]
    embedding: list[float] | str


class EmbeddingList(PooledList):
    data: list[EmbeddingItem]


class PoolingItem(Said):
    index: int
    object: Literal["pooling"]
    data: list[float | list[float]] | str


class PoolingList(PooledList):
    data: list[PoolingItem]


class ClassifyItem(Said):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyList(PooledList):
    data: list[ClassifyItem]


class ScoreItem(Said):
    index: int
    object: Literal["score"]
    score: float


class ScoreList(PooledList):
    data: list[ScoreItem]


class GenerativeScores(Said):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreItem]
    usage: Usage


class Decisions(Said):
    model: str
    answers: list[dict[str, Any]]
    usage: dict[str, Any]


class DecisionUsage(Said):
    input_tokens: int
    output_tokens: int


class DecisionDiagnostics(Said):
    label_mass: float
    argmax_is_label: bool


class SystemOneAnswers(Said):
    id: str
    object: Literal["structured_decision"]
    created: int
    model: str
    answers: dict[str, dict[str, Any]]
    usage: DecisionUsage
    diagnostics: dict[str, DecisionDiagnostics]
    joint: None


class RerankUsage(Said):
    prompt_tokens: int
    total_tokens: int


class RerankText(Said):
    text: str


class TextRank(Said):
    """Of one of `texts`."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class RerankResult(Said):
    index: int
    relevance_score: float
    document: RerankText | UnsetType = UNSET


class RerankVersion(Said):
    version: str


class RerankUnits(Said):
    search_units: int


class RerankMeta(Said):
    """As Cohere has it."""

    api_version: RerankVersion
    billed_units: RerankUnits


class Ranking(Said):
    """The best first."""

    id: str
    model: str
    usage: RerankUsage
    meta: RerankMeta
    results: list[RerankResult]


# --- of Text Embeddings Inference's API ------------------------------------------------------------------------------


class TeiPrediction(Said):
    score: float
    label: str


class TeiToken(Said):
    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None
