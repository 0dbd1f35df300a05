"""Texts that are compared: which with which, as what prompts, and where each of them stands in its request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from actorserve.actors.model.pooling.spec import PoolingSpec
from actorserve.actors.protocol.topics.prompts import PairPrompt, Prompt, TextPrompt

from ..errors import bad_request
from .schemas import PairFields, RerankRequest

Pair = tuple[str, str]
CutText = tuple[str, int]  # and the tokens that are read of it; 0: all
Limits = tuple[int, int]  # tokens that are read of a first text and of a second one; 0: all
ALL: Limits = (0, 0)
MOST_CHARACTERS = 32 << 20  # of all pairs together, each of which goes to a renderer by itself


def pairs(first: Sequence[str], second: Sequence[str], names: Pair) -> list[Pair]:
    """One with all of the others, or each with its own."""
    for texts, name in zip((first, second), names, strict=True):
        if not texts:
            raise bad_request(f"{name} must not be an empty list.", name)
    if len(first) == 1:
        return [(first[0], text) for text in second]
    if len(first) != len(second):
        raise bad_request(
            f"{names[0]} has {len(first)} texts and {names[1]} {len(second)}: one or as many are needed.", names[0]
        )
    return list(zip(first, second, strict=True))


def places(first: int, second: int, names: Pair) -> list[Pair]:
    """Of each of these pairs the fields of its texts, where there are so many."""
    return pairs(numbered(names[0], first), numbered(names[1], second), names)


def numbered(name: str, count: int) -> list[str]:
    """The fields of so many texts."""
    return [name] if count == 1 else [f"{name}[{index}]" for index in range(count)]


def documents_of(body: RerankRequest) -> tuple[str, list[str]]:
    """(their field, what a query is compared with). TEI's other fields are made those of the rest."""
    if (body.documents is None) == (body.texts is None):
        wrong = "is missing" if body.documents is None else "and texts are the same: one of them is needed"
        raise bad_request(f"documents {wrong}.", "documents")
    if body.documents is not None:
        given = [body.documents] if isinstance(body.documents, str) else body.documents
        return "documents", [_text(one, body.rank_fields, at) for at, one in enumerate(given)]
    if body.truncate and body.truncate_prompt_tokens is None:
        body.truncate_prompt_tokens = -1
    if body.truncation_direction is not None:
        body.truncation_side = "left" if body.truncation_direction.lower() == "left" else "right"
    if body.raw_scores:
        body.use_activation = False
    return "texts", list(body.texts or ())


def _text(document: str | dict[str, Any], fields: list[str] | None, at: int) -> str:
    """What is compared of it: its text, or a line for each of the fields, in their order; those that it lacks are left
    out.
    """
    if isinstance(document, str):
        return document
    values = [document[name] for name in fields or ("text",) if name in document]
    if not values or not all(isinstance(value, str) for value in values):
        raise bad_request(f"documents[{at}] must have {' or '.join(fields or ('text',))}, as text.", f"documents[{at}]")
    return "\n".join(values)


@dataclass(frozen=True)
class Comparison:
    """How a request wants its pairs compared."""

    instruction: str = ""  # empty: as the model's form has it
    variables: bytes = b""  # of the template, as JSON
    most: Limits = ALL
    template: str = ""  # in place of the operator's


PLAIN = Comparison()


def comparison_of(body: PairFields, spec: PoolingSpec, template: str = "") -> Comparison:
    """400 for what the model is not told. A pair whose texts are cut is cut itself where it is too long and no template
    makes one text of it.
    """
    if template and not spec.head:
        raise bad_request("chat_template: this model makes a vector of each text, and none of two.", "chat_template")
    most = body.max_tokens_per_query or 0, body.max_tokens_per_doc or 0
    # Without a head each text is cut by itself; what a template writes behind the texts must not be cut off.
    if most != ALL and spec.head and not (spec.templated or template) and body.truncate_prompt_tokens is None:
        body.truncate_prompt_tokens = -1
    name = "instruction" if body.instruction is not None else "instruct"
    given: str | None = getattr(body, name)
    told: dict[str, Any] = {} if given is None else {"instruction": given}
    told = {**told, **(body.chat_template_kwargs or {})}
    if spec.head and (spec.templated or template):
        return Comparison("", msgspec.json.encode(told) if told else b"", most, template)
    if other := next((one for one in told if one != "instruction"), None):
        text = (
            f"chat_template_kwargs: {other}: no chat template makes one text of two here (--chat-template names one)."
        )
        raise bad_request(text, "chat_template_kwargs")
    asked = told.get("instruction", "")
    if not isinstance(asked, str):
        raise bad_request("chat_template_kwargs: instruction must be a text.", "chat_template_kwargs")
    if asked and spec.pair is None:
        name = name if given else "chat_template_kwargs"
        raise bad_request(f"{name}: this model is not told by what it compares; leave it out.", name)
    return Comparison(asked, b"", most)


def pair_prompts(
    pairs_: Sequence[Pair], fields: Sequence[Pair], spec: PoolingSpec, how: Comparison = PLAIN
) -> tuple[list[Prompt], list[str]]:
    """Each pair as one, for a model that looks at both; or each text once, for one that makes vectors. And the field
    that is to blame for each (of a pair the second text's: the first one's stands beside it).
    """
    if spec.head:
        _check_size(pairs_, fields[0][0] if fields else "", how)
        prompts = [_pair(pair, own[0], how) for pair, own in zip(pairs_, fields, strict=True)]
        return list(prompts), [own[1] for own in fields]
    found: dict[CutText, str] = {}
    for pair, own in zip(pairs_, fields, strict=True):
        for text, field in zip(texts_of(pair, how.most), own, strict=True):
            found.setdefault(text, field)
    return [TextPrompt(text, most=tokens) for text, tokens in found], list(found.values())


def _check_size(pairs_: Sequence[Pair], first: str, how: Comparison) -> None:
    """400 for what is too much because each pair has it again: a body's largest text, as often as it has documents."""
    told = len(how.instruction) + len(how.variables) + len(how.template)
    if sum(len(text) + len(second) + told for text, second in pairs_) <= MOST_CHARACTERS:
        return
    field = first if told < max(len(text) for text, _ in pairs_) else "chat_template_kwargs"
    text = f"{field}: it stands in each of {len(pairs_)} pairs, which may have {MOST_CHARACTERS} characters together."
    raise bad_request(text, field)


def _pair(pair: Pair, field: str, how: Comparison) -> PairPrompt:
    first, second = how.most
    return PairPrompt(*pair, how.instruction, field, second, first, how.variables, how.template)


def texts_of(pair: Pair, most: Limits) -> tuple[CutText, CutText]:
    """Both, each of which has so many tokens, if that is not 0."""
    return (pair[0], most[0]), (pair[1], most[1])
