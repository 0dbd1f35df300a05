"""A grammar before which the model may think, and need not."""

from __future__ import annotations

import pytest

from actorserve.actors.grammar.compiler import Constraint, make_grammar
from actorserve.actors.grammar.matchers import Matchers
from actorserve.actors.grammar.vocabulary import make_lltokenizer, make_special_tokens
from tests.support.models.tokenizers_made import byte_level

TOKENIZER = byte_level()
END = TOKENIZER.token_to_id("</s>") or 0
SIZE = TOKENIZER.get_vocab_size()


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("yes", True),
        ("<think>Hm, no?\n</think>\n\nyes", True),
        ("\n<think></think>no", True),
        ("<think>yes", False),
        ("<think>a</think>perhaps", False),
        ("Hm</think>yes", False),
        ("perhaps", False),
    ],
)
def test_with_and_without_thinking(text: str, taken: bool) -> None:
    lltokenizer = make_lltokenizer(TOKENIZER, SIZE, [END])
    constraint = Constraint(choice=["yes", "no"], after="</think>", before="<think>")
    grammar = make_grammar(constraint, make_special_tokens(TOKENIZER, lltokenizer))
    matchers = Matchers(lltokenizer, SIZE)
    matchers.place(0, grammar)
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    matcher = matchers._rows[0].matcher
    assert matcher is not None
    assert (matcher.try_consume_tokens(ids) == len(ids) and matcher.is_stopped()) is taken
