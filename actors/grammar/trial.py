"""Does a grammar hold while an answer is generated? Some limits are met only on the way: a few ways are gone.

The lexer is built as it is used, and a mask asks of every word whether it may come next: a pattern that explodes does
so within some tokens, whatever these are. What is missed here ends its answer with an error (see matchers.py).

Leaf module: knows llguidance and texts of grammars, not what clients ask for.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from .json_schema import LEFT_OUT, GrammarError
from .vocabulary import limits

FIRST = 4  # tokens that are always tried
STEPS = 64  # tokens of a way
SECONDS = 0.1  # of the CPU, for all ways of one grammar
MAX_REASON = 400  # characters of llguidance's words in an error
MISLED = "doesn't satisfy the grammar"  # the mask allowed a token all the same: seen where a vocabulary lacks letters
CLOSERS = frozenset('"]}')
KEYWORDS, FORMAT = "Unimplemented keys: ", "Unknown format: "  # how llguidance's warnings begin
REPEATED = re.compile(r" \(\d+ times\)$")  # and how one ends that it has met more than once
STRING = ("pattern", "format", "minLength", "maxLength")


def try_out(grammar: str, body: str, lltokenizer: LLTokenizer) -> list[str]:
    """What of its JSON schemas is not enforced, where they are not strict.

    GrammarError if the grammar does not compile within limits, allows nothing, or breaks on one of the ways.

    `body` is the grammar without what may go on for long before it; its parts are tried by themselves, too.
    """
    trial = _Trial(lltokenizer)
    remarks = trial.go(grammar, 0, FIRST)
    trial.until = time.thread_time() + SECONDS
    for way in range(3):
        trial.go(body, way, STEPS)
    for part in _parts(body):
        for way in range(2):
            trial.go(part, way, STEPS, alone=True)
    names = [name for remark in remarks for name in _not_enforced(remark)]
    return list(dict.fromkeys([*names, *_left_out(body)]))


def _left_out(body: str) -> Iterator[str]:
    """The patterns that are not in the grammar."""
    for one in _objects(_grammars(body)):
        if isinstance(pattern := one.get(LEFT_OUT), str):
            yield f"pattern {pattern}"


def _not_enforced(remark: str) -> list[str]:
    """The keywords that llguidance speaks of."""
    remark = REPEATED.sub("", remark)
    if remark.startswith(KEYWORDS):
        return [str(name) for name in json.loads(remark.removeprefix(KEYWORDS))]
    if remark.startswith(FORMAT):
        return [f"format {remark.removeprefix(FORMAT)}"]
    return ["oneOf (which is read as anyOf)" if remark.startswith("oneOf") else remark]


def _parts(body: str) -> Iterator[str]:
    """What ways through the whole may not come to: parts that free text goes before, strings of a schema."""
    grammars = _grammars(body)
    named = [one for one in grammars if "name" in one]
    if len(grammars) > 1:
        yield from (json.dumps({"grammars": [one]}) for one in named)
    strings = {json.dumps(one): None for part in named for one in _strings(part.get("json_schema"))}
    yield from (f'{{"grammars": [{{"json_schema": {one}}}]}}' for one in strings)


def _grammars(body: str) -> list[dict[str, Any]]:
    try:
        return list(json.loads(body)["grammars"])
    except RecursionError:
        return []


def _strings(schema: Any) -> Iterator[dict[str, Any]]:
    """The strings with a pattern that a schema speaks of."""
    for one in _objects(schema):
        if isinstance(one.get("pattern"), str):
            yield {"type": "string"} | {name: one[name] for name in STRING if name in one}


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    """All in it."""
    open_ones = [schema]
    while open_ones:
        one = open_ones.pop()
        if isinstance(one, list):
            open_ones += one
        elif isinstance(one, dict):
            open_ones += one.values()
            yield one


class _Trial:
    def __init__(self, lltokenizer: LLTokenizer) -> None:
        self.lltokenizer = lltokenizer
        self.others = np.full(lltokenizer.vocab_size // 8 + 8, 0xFF, np.uint8)  # bits of all but end tokens
        for token in lltokenizer.eos_tokens:
            self.others[token // 8] &= 0xFF - (1 << token % 8)
        self.until = float("inf")

    def go(self, grammar: str, way: int, steps: int, alone: bool = False) -> list[str]:
        """So many tokens; the grammar's warnings. `alone`: it is a part, which may be impossible by itself."""
        matcher = LLMatcher(self.lltokenizer, grammar, limits=limits(), log_level=0)
        if not (alone and matcher.is_error()):
            self._walk(matcher, way, steps, alone)
        return matcher.get_grammar_warnings()

    def _walk(self, matcher: LLMatcher, way: int, steps: int, alone: bool) -> None:
        chance = random.Random(way)
        for _ in range(steps):
            mask = b"" if matcher.is_error() else matcher.compute_bitmask()
            if matcher.is_error():
                _refuse(matcher, alone)
                return
            token = self._choose(np.frombuffer(mask, np.uint8) & self.others[: len(mask)], chance, way)
            if token is None or time.thread_time() > self.until:
                return
            matcher.consume_token(token)
        if matcher.is_error():
            _refuse(matcher, alone)

    def _choose(self, mask: np.ndarray, chance: random.Random, way: int) -> int | None:
        """On the odd way one that closes nothing, if a few tries find it: what is long is met there."""
        places = np.flatnonzero(mask)
        if not places.size:
            return None
        tried = [
            _token_of(mask, int(places[chance.randrange(places.size)]), chance) for _ in range(8 if way % 2 else 1)
        ]
        return next((one for one in tried if self.lltokenizer.decode_str([one])[:1] not in CLOSERS), tried[0])


def _token_of(mask: np.ndarray, place: int, chance: random.Random) -> int:
    return 8 * place + chance.choice([bit for bit in range(8) if mask[place] >> bit & 1])


def _refuse(matcher: LLMatcher, alone: bool) -> None:
    reason = matcher.get_error()
    if MISLED in reason:
        return
    if "NoExtension" not in reason:
        raise GrammarError(_shortened(reason))
    if not alone:
        raise GrammarError("no text fulfils the grammar")


def _shortened(reason: str) -> str:
    """llguidance's words without its drawing of the place."""
    lines = [line.strip() for line in reason.removesuffix("<non-verbose/>").splitlines()]
    text = "; ".join(line for line in lines if line and not set(line) <= set("^| ") and not line[0].isdigit())
    return f"the grammar cannot be used: {text or reason}"[:MAX_REASON]
