"""A text ends where it repeats itself as often as the request allows, however its tokens come."""

from __future__ import annotations

import random

import pytest

from actorserve.actors.detokenizer.decoder import decoder_factory
from actorserve.actors.detokenizer.repetition import Repetition
from actorserve.actors.detokenizer.stream import TextStream
from actorserve.actors.protocol.request import Generation, RepeatLimit, Sampling
from tests.support.models.tokenizers_made import byte_level


def reference(ids: list[int], limit: RepeatLimit) -> int | None:
    """How many tokens there are when a pattern has come so often; looked for by comparing lists."""
    for end in range(len(ids) + 1):
        for size in range(max(1, limit.least), limit.most + 1):
            tail = ids[max(0, end - size * limit.times) : end]
            if len(tail) == size * limit.times and tail == tail[:size] * limit.times:
                return end
    return None


@pytest.mark.parametrize("seed", range(60))
def test_the_first_pattern_that_comes_too_often(seed: int) -> None:
    rng = random.Random(seed)
    ids = [rng.randrange(2) for _ in range(rng.randrange(60))]
    limit = RepeatLimit(rng.randrange(3), rng.randrange(2, 6), rng.randrange(2, 5))
    watch = Repetition(limit)
    found = next((count for count, token in enumerate(ids, 1) if watch.push(token)), None)
    assert found == reference(ids, limit)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_it_depends_on_no_pieces(size: int) -> None:
    """All of the text up to there is given out, and nothing behind."""
    ids = byte_level().encode("one two " + "again " * 12, add_special_tokens=False).ids
    limit = RepeatLimit(1, 8, 4)
    end = reference(ids, limit)
    assert end is not None and end < len(ids)
    for least in (0, end + 2):
        params = Generation(Sampling(0, min_tokens=least), repeats=limit)
        stream = TextStream.open(params, decoder_factory(byte_level()), [])
        for at in range(0, len(ids), size):
            stream.push(ids[at : at + size])
        stream.finish()
        assert stream.repeated and stream.is_over
        assert stream.tokens == (end if not least else least + 1)
        assert stream.take()[1] == byte_level().decode(ids[: stream.tokens])
