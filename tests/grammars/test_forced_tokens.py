"""What a grammar leaves no choice of, as masks say it."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from actorserve.actors.grammar.matchers import Matchers
from actorserve.actors.grammar.vocabulary import make_lltokenizer
from actorserve.actors.model.info import resolve_model, with_tokenizer
from actorserve.actors.model.tokenizers.tokenizer import load_tokenizer
from actorserve.actors.options.config import make_config

SCHEMA = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 4},
        "tags": {"type": "array", "items": {"enum": ["lovely", "lonely", "local"]}, "minItems": 2, "maxItems": 3},
        "since": {"type": "string", "format": "date"},
    },
    "required": ["first_name", "tags", "since"],
    "additionalProperties": False,
}
GRAMMARS = {
    "schema": json.dumps({"grammars": [{"json_schema": SCHEMA}]}),
    "strict": json.dumps({"grammars": [{"json_schema": SCHEMA | {"x-guidance": {"whitespace_flexible": False}}}]}),
    "lark": json.dumps({"grammars": [{"lark_grammar": 'start: "Either " ("one thing" | "another") " or nothing."'}]}),
}


@pytest.fixture(scope="module")
def matchers() -> Matchers:
    config = make_config({})
    model = with_tokenizer(config, resolve_model(config))
    return Matchers(make_lltokenizer(load_tokenizer(model), model.vocab_size, model.end_tokens), model.vocab_size)


def allowed(matchers: Matchers, row: int) -> list[int]:
    _, bits = matchers.fill(np.array([row]))
    found: list[int] = np.flatnonzero(np.unpackbits(bits.view(np.uint8)[0], bitorder="little")).tolist()
    return found


@pytest.mark.parametrize("kind", GRAMMARS)
def test_masks_allow_nothing_else(matchers: Matchers, kind: str) -> None:
    """On ways through the grammar; asked or not, the row stays where it is."""
    ends, forced = set(matchers.lltokenizer.eos_tokens), 0
    for way in range(6):
        chance = random.Random(way)
        matchers.place(0, GRAMMARS[kind])
        for _ in range(80):
            ahead = matchers.forced(0, 16)
            assert matchers.forced(0, 2) == ahead[:2]
            forced += len(ahead)
            for token in ahead:
                assert allowed(matchers, 0) == [token]
                matchers.advance(0, token)
            token = chance.choice(allowed(matchers, 0))
            if token in ends:
                break
            matchers.advance(0, token)
        assert not matchers.failed(np.array([0])).size
    assert forced > 30
    assert matchers.forced(1, 4) == []
