"""DRY against llama.cpp's rules as plain loops over the tokens, at each length of a text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from actorserve.actors.protocol.request import Rendition, Sampling
from actorserve.actors.worker.logits.dry import LARGEST, MOST_WORDS, Dry
from actorserve.actors.worker.logits.processors import LogitsProcessors

WORDS = [b"a", b"b", b"c", b"\n", b"x: ", b"<", b"e", b"nd>", b"", b"\xc3", b"\xa4"]
EACH = [["\n"], ["\n", ":", "<end>", "ä"], [], ["bc", "aab"]]
BASE, MULTIPLIER = 1.75, 0.8


def asking(**fields: Any) -> Sampling:
    given = {"dry_multiplier": MULTIPLIER, "dry_base": BASE, "dry_sequence_breakers": ["\n"], **fields}
    return Sampling(0, **given)


def behind_breaker(tokens: list[int], breakers: list[str]) -> int:
    """How many of the last tokens a repetition may have: as few as have the last breaker's end in front of them."""
    for count in range(len(tokens)):
        before, whole = (b"".join(WORDS[token] for token in tokens[: len(tokens) - end]) for end in (count + 1, count))
        for breaker in (text.encode() for text in breakers):
            if any(whole.endswith(breaker, 0, end) for end in range(len(before) + 1, len(whole) + 1)):
                return count
    return len(tokens)


def expected(tokens: list[int], sampling: Sampling) -> dict[int, float]:
    """Penalties by word: each place in the text is compared with its end, token by token."""
    allowed, last = sampling.dry_allowed_length, sampling.dry_penalty_last_n
    seen = tokens if last < 0 else tokens[max(0, len(tokens) - last) :]
    most, found = min(len(seen), behind_breaker(tokens, sampling.dry_sequence_breakers)), dict[int, int]()
    if len(seen) <= allowed or most < allowed:
        return {}
    for place in range(len(seen) - 1):
        length = 0
        while length < most and length <= place and seen[place - length] == seen[len(seen) - 1 - length]:
            length += 1
        word = seen[place + 1]
        if length >= allowed and not any(text.encode() in WORDS[word] for text in sampling.dry_sequence_breakers):
            found[word] = max(length, found.get(word, 0))
    return {word: MULTIPLIER * BASE ** (length - allowed) for word, length in found.items()}


def penalties(row: Dry) -> dict[int, float]:
    logits = torch.zeros(len(WORDS))
    row.apply(logits)
    return {word: -value for word, value in enumerate(logits.tolist()) if value}


@pytest.mark.parametrize("last", [-1, 1, 7, 40])
@pytest.mark.parametrize("allowed", [0, 1, 2, 5])
@pytest.mark.parametrize("breakers", EACH, ids=str)
def test_it_is_a_loop_over_the_tokens(breakers: list[str], allowed: int, last: int) -> None:
    """Token by token, and of a row that takes the text so far, as behind a death."""
    random = np.random.default_rng(allowed)
    pieces = [[0, 1, 2, 0, 1, 0], [5, 6, 7, 0, 1, 2], [9, 10, 1, 2, 2], [4, 0, 8, 1, 2], [0] * 9, [3, 1, 2]]
    tokens = [token for piece in random.choice(len(pieces), 22) for token in pieces[piece]]
    sampling = asking(dry_allowed_length=allowed, dry_penalty_last_n=last, dry_sequence_breakers=breakers)
    going, some = Dry(sampling, tokens[:5], WORDS.__getitem__), 0
    for end in range(5, len(tokens)):
        wanted = expected(tokens[:end], sampling)
        some += len(wanted)
        for row in (going, Dry(sampling, tokens[:end], WORDS.__getitem__)):
            assert penalties(row) == pytest.approx(wanted, rel=1e-5), end
        going.add(tokens[end])
    assert some or (last in (1, 7) and allowed >= last - 2)


def test_llamacpps_own_example() -> None:
    """Of `a b c c b c y a b c` the last three are followed by c, b c by y, and c by b."""
    tokens = [0, 1, 2, 2, 1, 2, 6, 0, 1, 2]
    found = penalties(Dry(asking(dry_allowed_length=1), tokens, WORDS.__getitem__))
    assert found == pytest.approx({2: 0.8 * 1.75**2, 6: 0.8 * 1.75, 1: 0.8})


@pytest.mark.parametrize("base", [1.0, 1.0001, 100.0])
def test_penalties_are_numbers_however_long_a_repetition_is(base: float) -> None:
    tokens = [1, 2] * 400
    found = penalties(Dry(asking(dry_base=base, dry_multiplier=100.0), tokens, WORDS.__getitem__))
    assert found == pytest.approx({1: min(LARGEST, 100 * base ** min(796, 19 if base == 100 else 796))}, rel=1e-4)


def test_an_empty_text_repeats_nothing() -> None:
    row = Dry(asking(), [], WORDS.__getitem__)
    assert not penalties(row)
    for token in (0, 1, 2, 0, 1):
        row.add(token)
    assert penalties(row) == pytest.approx({2: MULTIPLIER})


def test_of_too_many_words_those_of_the_longest_repetitions_count() -> None:
    count = MOST_WORDS + 30
    tokens = [1, 2, 3, 1, 2, 4, 2, 5, *range(10, count), 1, 2]
    words, taken = Dry(asking(dry_allowed_length=0), tokens, lambda token: b"w").penalties()
    found = dict(zip(words.tolist(), taken.tolist(), strict=True))
    assert len(found) == MOST_WORDS < len(set(tokens)) - 1
    assert found[3] == found[4] == pytest.approx(MULTIPLIER * BASE**2) and found[5] == pytest.approx(MULTIPLIER * BASE)


def test_rows_ask_for_it_by_themselves() -> None:
    """Beside others, whose logits stay; the tokenizer is read for the first alone."""
    read: list[int] = []
    processors = LogitsProcessors(2, len(WORDS))
    processors.token_bytes = lambda: read.append(1) or WORDS.__getitem__  # type: ignore[func-returns-value]
    processors.place(1, Sampling(0, frequency_penalty=1.0), Rendition(), np.array([0, 1]), [])
    assert not read
    for _ in range(2):
        processors.place(0, asking(), Rendition(), np.array([0, 1, 2, 0]), [])
    processors.advance(np.array([0, 1]), np.array([1, 1]))
    logits = torch.zeros(2, len(WORDS))
    processors.apply(logits, np.array([0, 1]))
    assert read == [1] and logits[0].nonzero().tolist() == [[2]] and logits[1].tolist()[1] == -1
