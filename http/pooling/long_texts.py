"""Texts that are too long for the model, as vLLM's enable_chunked_processing has it: a vector is made of each part of a
text's tokens, and the text's is their mean, weighted by the tokens.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from copy import copy
from itertools import zip_longest

from actorserve.actors.protocol.topics.prompts import ChatPrompt, Prompt, TextPrompt, TokenPrompt

from ..errors import bad_request
from ..generation.choice import Choice
from ..generation.job import Engine
from ..output.turns import Turns
from .answers import matrix
from .schemas import MAX_INPUTS

PIECE = 1 << 14  # numbers that are added in one turn
AROUND = 8  # tokens that a tokenizer puts around a text, and more


async def divided(
    engine: Engine, prompts: Sequence[Prompt], fields: Sequence[str], length: int, most: int
) -> list[list[Prompt]]:
    """Of each prompt its parts of `length` tokens; ApiError where it has more than `most` of these in all."""
    parts: list[list[Prompt]] = []
    for prompt, field in zip(prompts, fields, strict=True):
        if _most_tokens(prompt) <= min(length, most):
            parts.append([prompt])
            continue
        ids = await engine.pooled_ids(prompt, field, most)
        parts.append([TokenPrompt(ids[start : start + length]) for start in range(0, len(ids), length)])
    if (count := sum(map(len, parts))) > MAX_INPUTS:
        text = f"{count} parts of {length} tokens, and at most {MAX_INPUTS} are taken in one request"
        raise bad_request(f"{fields[0]}: there are {text}.", fields[0])
    return parts


def _most_tokens(prompt: Prompt) -> int:
    """It has no more: none stands for less than a byte. Pictures are not divided."""
    match prompt:
        case TokenPrompt():
            return len(prompt.tokens)
        case TextPrompt():
            return len(prompt.text.encode()) + AROUND
        case ChatPrompt(media=[]):
            return 1 << 31  # whatever its template says
    return 0


async def joined(choices: Sequence[Choice], counts: Sequence[int], normal: bool) -> list[Choice]:
    """A choice for each text, of which so many are parts. `normal`: of vectors of length 1 one of length 1."""
    made: list[Choice] = []
    turns, first = Turns(PIECE), 0
    for index, count in enumerate(counts):
        parts = choices[first : first + count]
        first += count
        one = copy(parts[0])
        one.index = index
        if count > 1:
            one.prompt_tokens = sum(part.prompt_tokens for part in parts)
            one.cached_tokens = sum(part.cached_tokens for part in parts)
            total: list[float] = []
            for part in parts:
                weight, own = part.prompt_tokens / one.prompt_tokens, array("f", matrix(part)[2])
                total = [value + weight * number for value, number in zip_longest(total, own, fillvalue=0.0)]
                await turns.done(len(own))
            size = math.hypot(*total) if normal else 1.0
            vector = array("f", [value / size for value in total] if size else total)
            one.pooled = 1, len(vector), vector.tobytes()
        made.append(one)
    return made
