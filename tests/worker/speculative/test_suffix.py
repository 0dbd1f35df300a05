"""Drafts of what came before: in the row's own text and in earlier answers, within bounds."""

from __future__ import annotations

import numpy as np
import pytest

from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.options.objects.speculative import SuffixOptions, read_speculative
from actorserve.actors.worker.speculative.suffix import EarlierAnswers, SuffixProposer, SuffixRules

from .work import work_of


def proposer(rows: int = 2, remembers: bool = True, **rules: float) -> SuffixProposer:
    return SuffixProposer(SuffixRules(**rules), rows, remembers)  # type: ignore[arg-type]


def find(one: SuffixProposer, *tokens: int, room: int = 8) -> list[int]:
    return one.find(np.array(tokens, np.int32), room)


def test_what_followed_the_longest_ending() -> None:
    one = proposer()
    assert find(one, 1, 2, 3, 4, 9, 2, 7, 1, 2, 3) == [4, 9, 2]  # as many as have matched
    assert find(one, 1, 2, 3, 4, 9, 2, 7, 1, 2, 3, room=1) == [4]
    assert find(proposer(max_spec_factor=2), 1, 2, 3, 4, 9, 2, 7, 1, 2, 3) == [4, 9, 2, 7, 1, 2]
    assert find(one, 1, 2, 3, 4, 5) == find(one, 1) == find(one, 1, 2) == []
    assert find(proposer(max_spec_factor=4), 8, 5, 6, 5, 6) == [5, 6] * 4  # in a circle
    assert find(proposer(max_tree_depth=2), 1, 2, 3, 4, 9, 1, 2, 3) == [4, 9]


def test_it_goes_the_way_of_the_most() -> None:
    line = (1, 2, 3, 5, 5, 1, 2, 3, 6, 0, 1, 2, 3, 6, 7, 1, 2, 3)
    assert find(proposer(), *line) == [6, 7, 1] or find(proposer(), *line) == [6, 0, 1]
    assert find(proposer(min_token_prob=0.5), *line) == [6]  # two of three, then one of three
    assert find(proposer(min_token_prob=0.9), *line) == []


def test_earlier_answers_of_other_rows() -> None:
    """They are remembered when another sequence takes the row, without the prompt."""
    one, tokens = proposer(), np.zeros((2, 40), np.int32)
    tokens[0, :12] = [*(90, 91, 92, 93), *range(1, 9)]
    steps = [(0, 4)] + [(size - 1, 1) for size in range(5, 13)]  # a prompt of 4, then token by token
    for start, pending in steps:
        one.propose(work_of(*(np.array([value]) for value in (0, start, pending, 0))), tokens)
    other = np.array([50, 3, 4], np.int32)
    assert one.find(other, 8) == []
    one.place(0, 0)
    assert one.find(other, 8) == [5, 6]
    assert one.find(np.array([50, 90, 91], np.int32), 8) == []  # a prompt's
    tokens[0] = 7
    assert one.find(other, 8) == [5, 6]
    alone = proposer(remembers=False)
    alone.propose(work_of(*(np.array([value]) for value in (0, 0, 12, 0))), tokens)
    alone.place(0, 0)
    assert alone.earlier is None


def test_earlier_answers_are_bounded() -> None:
    earlier = EarlierAnswers(SuffixRules(max_cached_requests=4), tokens=64)
    for number in range(50):
        earlier.add(np.arange(3 * number, 3 * number + 10, dtype=np.int32))
        assert len(earlier.halves) <= 2 and all(half.answers <= 2 for half in earlier.halves)
        assert all(half.size <= 32 and len(half.places) <= 32 for half in earlier.halves)
    earlier.add(np.arange(1000, dtype=np.int32))  # longer than all of them may be
    assert earlier.halves[-1].size == 32
    none = EarlierAnswers(SuffixRules(max_cached_requests=0))
    none.add(np.arange(10, dtype=np.int32))
    assert none.halves[0].answers == 0


def test_the_option() -> None:
    given = read_speculative(
        make_config({"speculative_config": '{"method": "suffix", "suffix_decoding_max_tree_depth": 8}'})
    )
    assert given == SuffixOptions(suffix_decoding_max_tree_depth=8)
    with pytest.raises(ConfigError, match="suffix_decoding_min_token_prob"):
        make_config({"speculative_config": '{"method": "suffix", "suffix_decoding_min_token_prob": 3}'})
    with pytest.raises(ConfigError, match="none of method, num_speculative_tokens, suffix_decoding"):
        make_config({"speculative_config": '{"method": "suffix", "prompt_lookup_max": 3}'})
