"""Questions with their options, as a model is asked them, and the answers by how likely it names which.

Each option has a label, which is one token: the model's answer is how likely its reply begins with which of them.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from actorserve.actors.protocol.request import MOST_LOGPROB_IDS

from ...errors import bad_request
from ..schemas import Object
from .schemas import ChoiceQuestion, DecisionPart, PredicateQuestion, ScoreQuestion, SystemOneQuestion, SystemOneRequest

YES_NO = ("yes", "no")
SAME = (YES_NO, ("Yes", "No"))
DIGITS = tuple(string.digits)
LETTERS = tuple(string.ascii_uppercase)
PAIRS = tuple(first + second for first in LETTERS for second in LETTERS)  # where there are more options
MAX_OPTIONS = MOST_LOGPROB_IDS - len(YES_NO) - len(DIGITS)  # so that one request can be told of all of them
Kind = Literal["predicate", "choice", "score"]


@dataclass(frozen=True)
class Option:
    value: str | bool
    description: str | None = None

    @property
    def text(self) -> str:
        return str(self.value).lower() if isinstance(self.value, bool) else self.value


@dataclass
class Question:
    """`path`: where it stands in the request; `labels` are found when all questions are known."""

    kind: Kind
    name: str | None
    path: str
    parts: list[Object]  # of a chat message
    options: list[Option]
    labels: tuple[str, ...] = field(default=())

    def message(self) -> list[Object]:
        """As the model reads it, behind what it is about."""
        lines = [
            line for label, option in zip(self.labels, self.options, strict=True) if (line := self._line(label, option))
        ]
        last = " or ".join(self.labels) if self.labels in SAME else "the label of one option"
        told = "\n".join([*lines, f"Answer with {last} only."])
        return [{"type": "text", "text": "Question:"}, *self.parts, {"type": "text", "text": told}]

    def _line(self, label: str, option: Option) -> str:
        if self.labels in SAME:
            return f"{label}: {option.description}" if option.description else ""
        return f"{label}: {option.text}" + (f" - {option.description}" if option.description else "")


@dataclass(frozen=True)
class Reading:
    """What the model's first token says: how likely each option is among them, and all of them among all tokens."""

    probabilities: list[float]
    mass: float
    is_label: bool  # its likeliest token is one of them

    @property
    def best(self) -> int:
        return max(range(len(self.probabilities)), key=self.probabilities.__getitem__)

    @property
    def confidence(self) -> float:
        """Low also where the model would rather have said something else."""
        return self.probabilities[self.best] * self.mass

    @property
    def score(self) -> float:
        return sum(index * one for index, one in enumerate(self.probabilities))


def reading(logprobs: Sequence[float], is_label: bool) -> Reading:
    """Of the logprobs of a question's labels."""
    largest = max(logprobs)
    if largest == -math.inf:
        return Reading([1 / len(logprobs)] * len(logprobs), 0.0, is_label)
    weights = [math.exp(one - largest) for one in logprobs]
    total = sum(weights)
    return Reading([one / total for one in weights], min(1.0, total * math.exp(largest)), is_label)


# --- questions -------------------------------------------------------------------------------------------------------


def of_decisions(given: Sequence[PredicateQuestion | ChoiceQuestion | ScoreQuestion]) -> list[Question]:
    """Those of /v1/decisions."""
    made: list[Question] = []
    for index, one in enumerate(given):
        path = f"questions[{index}]"
        parts = parts_of(one.instructions, f"{path}.instructions")
        if not any(part.get("text") or part["type"] != "text" for part in parts):
            raise bad_request(f"{path}.instructions must not be empty.", f"{path}.instructions")
        match one:
            case PredicateQuestion():
                made.append(Question("predicate", one.name, path, parts, [Option("yes"), Option("no")]))
            case ChoiceQuestion():
                options = [Option(choice.value, choice.description) for choice in one.choices]
                made.append(Question("choice", one.name, path, parts, _counted(options, f"{path}.choices")))
            case ScoreQuestion():
                options = [Option(level.label, level.description) for level in one.levels]
                made.append(Question("score", one.name, path, parts, _counted(options, f"{path}.levels")))
    return made


def of_system_one(given: dict[str, SystemOneQuestion]) -> list[Question]:
    """Those of /v1/systemone."""
    made = []
    for name, one in given.items():
        path = f"questions.{name}"
        if not name:
            raise bad_request("questions: a question's id must not be empty.", "questions")
        parts: list[Object] = [] if one.instructions in (None, "") else [text_part(text_of(one.instructions))]
        kind, options = _criteria(one, path)
        made.append(Question(kind, name, path, parts, options))
    return made


def _criteria(question: SystemOneQuestion, path: str) -> tuple[Kind, list[Option]]:
    criteria, field_ = question.criteria, f"{path}.criteria"
    match question.type:
        case "choice":
            if not isinstance(criteria, dict):
                raise bad_request(f"{field_} must be an object: each option with a description, or null.", field_)
            options = [Option(name, None if one is None else text_of(one)) for name, one in criteria.items()]
            return "choice", _counted(options, field_, 1)
        case "score":
            if not isinstance(criteria, list):
                raise bad_request(f"{field_} must be a list of levels, in their order.", field_)
            return "score", _counted([Option(text_of(one)) for one in criteria], field_)
        case "noul":
            meanings = {} if criteria is None else criteria
            if not isinstance(meanings, dict) or not meanings.keys() <= {"true", "false"}:
                raise bad_request(f"{field_} must be null, or an object with true and false.", field_)
            told = [None if (one := meanings.get(name)) is None else text_of(one) for name in ("true", "false")]
            return "predicate", [Option("yes", told[0]), Option("no", told[1])]
    text = f"{path}.type must be choice, noul or score, not {question.type!r}."
    raise bad_request(text, f"{path}.type")


def _counted(options: list[Option], path: str, fewest: int = 2) -> list[Option]:
    if not fewest <= len(options) <= MAX_OPTIONS:
        raise bad_request(f"{path}: {fewest} to {MAX_OPTIONS} are taken, not {len(options)}.", path)
    if not all(option.text.strip() for option in options):
        raise bad_request(f"{path} must not have one without a text.", path)
    if len({(type(option.value), option.value) for option in options}) < len(options):
        raise bad_request(f"{path} must not name one twice.", path)
    return options


def state_parts(body: SystemOneRequest) -> str | list[Object]:
    """What the questions of /v1/systemone are about, as a chat message has it: what is shown and heard comes first."""
    state = text_of(body.state)
    given = (
        ("images", "image_url", body.images),
        ("audio", "audio_url", body.audio),
        ("videos", "video_url", body.videos),
    )
    parts: list[Object] = [
        {"type": kind, kind: url, "place": f"{name}[{index}]", "leaf": ""}
        for name, kind, urls in given
        for index, url in enumerate(urls or ())
    ]
    return [*parts, text_part(state)] if parts else state


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def text_part(text: str) -> Object:
    return {"type": "text", "text": text}


def parts_of(given: str | list[DecisionPart], path: str) -> list[Object]:
    """As a chat message has them."""
    if isinstance(given, str):
        return [text_part(given)]
    made = []
    for index, part in enumerate(given):
        name = {"input_text": "text", "input_json": "data", "input_image": "image_url"}.get(part.type)
        where = f"{path}[{index}]"
        if name is None:
            raise bad_request(f"{where}.type must be input_text, input_json or input_image.", f"{where}.type")
        value = getattr(part, name)
        if value is None:
            raise bad_request(f"{where}.{name} is missing.", f"{where}.{name}")
        if name == "image_url":
            detail = {} if part.detail is None else {"detail": part.detail}
            made.append({"type": part.type, name: value, "place": where, **detail})
        else:
            made.append(text_part(text_of(value)))
    return made


# --- labels ----------------------------------------------------------------------------------------------------------


def alphabets(question: Question) -> list[tuple[str, ...]]:
    """The labels that there are for it, best first: of the first that has enough of one token of the model."""
    letters = LETTERS if len(question.options) <= len(LETTERS) else LETTERS + PAIRS
    if question.kind == "predicate":
        return [*SAME, letters]
    return [DIGITS, letters] if question.kind == "score" and len(question.options) <= len(DIGITS) else [letters]


def label(question: Question, usable: Sequence[str], seed: int | None) -> None:
    """Give each of its options a label. 400 if the model's tokenizer has too few."""
    wanted = len(question.options)
    if len(usable) < wanted:
        text = f"{question.path}: this model's tokenizer has {len(usable)} labels of one token; {wanted} are needed."
        raise bad_request(text, question.path)
    drawn = question.kind == "choice" and seed is not None
    pool = usable[:MAX_OPTIONS]  # the same for all questions, whose labels one request is told of
    picked = random.Random(f"{seed} {question.path}").sample(pool, wanted) if drawn else pool[:wanted]
    question.labels = tuple(picked)


# --- answers ---------------------------------------------------------------------------------------------------------


def decision(question: Question, read: Reading) -> Object:
    """An answer of /v1/decisions."""
    about: Object = {"type": question.kind, "name": question.name}
    pairs = list(zip(question.options, read.probabilities, strict=True))
    if question.kind == "predicate":
        return about | {"probability": read.probabilities[0]}
    if question.kind == "choice":
        listed = [{"value": option.value, "probability": one} for option, one in pairs]
        return about | {
            "choice": question.options[read.best].value,
            "confidence": read.confidence,
            "probabilities": listed,
        }
    levels = [{"value": at, "label": option.text, "probability": one} for at, (option, one) in enumerate(pairs)]
    return about | {"score": read.score, "confidence": read.confidence, "probabilities": levels}


def system_one(question: Question, read: Reading) -> Object:
    """An answer of /v1/systemone."""
    names = [option.text for option in question.options]
    numbers = [str(index) for index in range(len(names))]
    if question.kind == "predicate":
        both = dict(zip(YES_NO, read.probabilities, strict=True))
        return {"type": "noul", "noul": read.probabilities[0], "probabilities": both, "confidence": read.confidence}
    keys = names if question.kind == "choice" else numbers
    told = {"probabilities": dict(zip(keys, read.probabilities, strict=True)), "confidence": read.confidence}
    if question.kind == "choice":
        return {"type": "choice", "choice": names[read.best], **told}
    return {"type": "score", "score": read.score, "legend": dict(zip(numbers, names, strict=True)), **told}
