"""Tokens and their logprobs as JSON: chat's form, the older one of completions, and that of prompts."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterable
from typing import Any

import msgspec

from actorserve.actors.protocol.messages import TokenLogprobs

from ..output.turns import Turns

ENTRIES = 2048  # of a prompt's logprobs that are written in one turn: some milliseconds
LOWEST = -9999.0  # JSON has no infinity: what may not be drawn at all


def token_text(text: bytes, token: int, as_id: bool) -> str:
    """A token by itself; half a character comes as U+FFFD."""
    return f"token_id:{token}" if as_id else text.decode(errors="replace")


def chat_logprobs(
    tokens: Iterable[TokenLogprobs], as_ids: bool, itself: bool = False, listed: bool = False
) -> dict[str, Any]:
    """`choices[].logprobs` of chat. `itself`: where no likely tokens are asked for, the token stands for them.
    `listed`: the request lists which, and the token stands behind them where it is none of these.
    """

    def entry(text: bytes, token: int, logprob: float) -> dict[str, Any]:
        return {"token": token_text(text, token, as_ids), "logprob": max(logprob, LOWEST), "bytes": list(text)}

    content = []
    for one in tokens:
        own = entry(one.text, one.id, one.logprob)
        best = [entry(*best) for best in one.best]
        if (itself and not best) or (listed and all(token != one.id for _, token, _ in one.best)):
            best.append(own)
        content.append(own | {"top_logprobs": best})
    return {"content": content, "refusal": None}


class LogprobLists:
    """`choices[].logprobs` of completions; offsets go on from one part of a stream to the next.

    They count characters of the text: several tokens of one character all begin where it does.
    """

    def __init__(self, as_ids: bool, offset: int = 0, pending: bytes = b"") -> None:
        """`pending`: what has come of a character that goes on."""
        self._as_ids = as_ids
        self.begun = False  # something stands before what comes next
        self.offset = offset  # where that begins
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.setstate((pending, 0))

    @property
    def pending(self) -> bytes:
        """What has come of a character that goes on."""
        return self._decoder.getstate()[0]

    def first(self, text: bytes, token: int) -> dict[str, Any]:
        """The prompt's first token, which follows nothing."""
        name = self._name(text, token)
        offset = self._pass(text, name)
        return {"tokens": [name], "token_logprobs": [None], "top_logprobs": [None], "text_offset": [offset]}

    def part(self, tokens: Iterable[TokenLogprobs]) -> dict[str, Any]:
        """The next tokens."""
        names, values, best, offsets = [], [], [], []
        for one in tokens:
            name = self._name(one.text, one.id)
            names.append(name)
            values.append(max(one.logprob, LOWEST))
            best.append(self._likeliest(name, one))
            offsets.append(self._pass(one.text, name))
        return {"tokens": names, "token_logprobs": values, "top_logprobs": best, "text_offset": offsets}

    def _likeliest(self, own: str, one: TokenLogprobs) -> dict[str, float]:
        """The token itself comes first. Others of the same text go by their ids: who asks whether a token is the
        likeliest, as evaluations do, takes the largest number.
        """
        told = {own: max(one.logprob, LOWEST)}
        for text, token, value in one.best:
            if token != one.id:
                name = self._name(text, token)
                told[token_text(text, token, self._as_ids or name in told)] = max(value, LOWEST)
        return told

    def _name(self, text: bytes, token: int) -> str:
        return token_text(text, token, self._as_ids)

    def _pass(self, text: bytes, name: str) -> int:
        offset, self.begun = self.offset, True
        self.offset += len(name if self._as_ids else self._decoder.decode(text))
        return offset


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two parts of a completion's logprobs as one."""
    return {name: first[name] + second[name] for name in first}


async def prompt_logprobs(tokens: dict[int, TokenLogprobs], length: int, turns: Turns) -> msgspec.Raw:
    """One entry a token of the prompt, null for the first: its own and the most likely tokens by their ids. As JSON: of
    a long prompt they are millions, and others have their `turns` of ENTRIES meanwhile.
    """
    known = map(tokens.get, range(1, length))  # none: its request was cut short
    entries = ((1, None) if one is None else (1 + len(one.best), _of_prompt(one)) for one in known)
    return await turns.list_as_json(itertools.chain([(0, None)], entries))


def _of_prompt(one: TokenLogprobs) -> dict[str, dict[str, Any]]:
    def entry(logprob: float, rank: int, text: bytes) -> dict[str, Any]:
        return {"logprob": max(logprob, LOWEST), "rank": rank, "decoded_token": text.decode(errors="replace")}

    others = {str(token): entry(value, rank, text) for rank, (text, token, value) in enumerate(one.best, 1)}
    return {str(one.id): entry(one.logprob, one.rank, one.text), **others}
