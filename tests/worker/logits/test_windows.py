"""Windows of penalties against a list of all tokens, with tokens that are drawn before the ones before are known."""

from __future__ import annotations

import pytest

from actorserve.actors.worker.logits.windows import NONE, PenaltyWindow


@pytest.mark.parametrize("begin", [0, 2, 9])
@pytest.mark.parametrize("ahead", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_what_leaves_is_a_loop_over_the_tokens(size: int, ahead: int, begin: int) -> None:
    tokens = list(range(begin, begin + 30))
    window = PenaltyWindow(size, [*range(begin)])
    tokens = [*range(begin), *tokens]
    looked_at, known = tokens[:begin][-size:], begin
    for end in range(begin, len(tokens)):
        while not window.is_known or end - known == ahead:
            window.add(tokens[known])
            known += 1
        gone = window.start()
        looked_at.append(tokens[end])
        assert gone == (looked_at.pop(0) if len(looked_at) > size else NONE)
    for token in tokens[known:]:
        window.add(token)
    assert window.tokens == looked_at == tokens[-size:]


def test_how_far_the_host_may_be_ahead() -> None:
    window = PenaltyWindow(2, [7, 8, 9])
    assert window.tokens == [8, 9] and [window.start(), window.start()] == [8, 9]
    assert not window.is_known, "what leaves next is drawn by the first of these"
    window.add(4)
    assert window.start() == 4
