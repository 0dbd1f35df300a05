"""Request bodies of /v1/decisions, OpenAI's, and of /v1/systemone, by which vLLM and others serve the same."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..schemas import Object, Priority

MAX_QUESTIONS = 400
Name = Annotated[str, Meta(min_length=1, max_length=256)]


class DecisionPart(msgspec.Struct):
    """Of what is asked: text, a picture, or JSON."""

    type: str
    text: str | None = None
    image_url: str | None = None
    data: Object | list[Object] | None = None
    detail: str | None = None


Instructions = str | list[DecisionPart]


class PredicateQuestion(msgspec.Struct, tag_field="type", tag="predicate", forbid_unknown_fields=True):
    """Is it so?"""

    instructions: Instructions
    name: Name | None = None


class DecisionChoice(msgspec.Struct, forbid_unknown_fields=True):
    value: str | bool
    description: str | None = None


class ChoiceQuestion(msgspec.Struct, tag_field="type", tag="choice", forbid_unknown_fields=True):
    """Which of them is it?"""

    instructions: Instructions
    choices: list[DecisionChoice]
    name: Name | None = None


class DecisionLevel(msgspec.Struct, forbid_unknown_fields=True):
    label: str
    description: str | None = None


class ScoreQuestion(msgspec.Struct, tag_field="type", tag="score", forbid_unknown_fields=True):
    """How much of it is there? Levels stand in their order."""

    instructions: Instructions
    levels: list[DecisionLevel]
    name: Name | None = None


class DecisionFields(msgspec.Struct, kw_only=True):
    """What both have in common."""

    model: str | None = None
    chat_template_kwargs: Object | None = None  # thinking is off, and stays so
    cache_salt: str | None = None
    seed: int | None = None  # draws which labels stand for choices
    priority: Priority = None
    request_id: str | None = None


class DecisionsRequest(DecisionFields, kw_only=True):
    """POST /v1/decisions."""

    input: str | list[Object]
    questions: list[PredicateQuestion | ChoiceQuestion | ScoreQuestion]
    prompt_cache_key: str | None = None  # what is cached is found by its tokens
    prompt_cache_options: Object | None = None
    safety_identifier: str | None = None


class SystemOneQuestion(msgspec.Struct, forbid_unknown_fields=True):
    """`criteria` by its type: options by name, levels, or what true and false mean."""

    type: str
    instructions: Any = None
    criteria: Any = None


class SystemOneRequest(DecisionFields, kw_only=True):
    """POST /v1/systemone."""

    state: Any
    questions: dict[str, SystemOneQuestion]
    instructions: str | None = None  # before all questions
    images: list[str] | None = None  # addresses, or data:, of what stands before the state
    audio: list[str] | None = None
    videos: list[str] | None = None
    joint: bool | None = None  # known, and refused, as is the next
    decision_template: Any = None

    def not_built(self) -> str | None:
        """Which of its fields asks for what is not there."""
        return "decision_template" if self.decision_template is not None else "joint" if self.joint else None
