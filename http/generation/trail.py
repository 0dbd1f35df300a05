"""Streams that another server goes on with: what a stream says for that, and how one is asked for.

A router that sends X-Actorserve-Trail: 1 gets a head and comments which are for itself, and not for its client:
    X-Actorserve-Origin: SEED.CREATED.SAMPLING.CHOICES[.FINGERPRINT[.OWNER]]   of the answer's id, of its draws, how
                                        many choices there are, system_fingerprint, and the frontend in a response's id
    :t b                                the events before all text are out
    :t CHOICE CHARACTERS-TOKENS[x] IDS  the choice is out so far (x: so is its end), with these tokens more; of a
                                        response events are counted, and =IDS are all tokens from the first on
    :t e                                the last event is out
    :t k                                nothing new is
Of a stream that its client goes on with behind an event of an earlier connection (Last-Event-ID), =IDS are all tokens
that a choice has, and `b` comes once each choice that was begun has told them: before that nobody can go on with it.
Each comment stands behind the bytes that it speaks of, in one piece with them: what is between two comments is whole
with the second one, and was never there without it. When the server is gone, GoOnRequest asks another one, by POST, for
what comes behind the last comment. It renders the prompt, writes the tokens behind it, and goes on as a worker does
after a death: sampling is keyed by seed and position, and grammars, penalties and stop strings follow from the tokens.

Whoever may post a prompt may post tokens: they are checked as a prompt's are, count within max_tokens, and have to
follow the request's grammar. No key beside the API's is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from ..errors import ApiError, bad_request
from .choice import CHARACTERS, make_state, read_state
from .idempotency import StreamProgress

TRAIL = "X-Actorserve-Trail"
ORIGIN = "X-Actorserve-Origin"
SEEDS = range(-(1 << 63), 1 << 64)  # as the field seed takes them
WRITTEN = re.compile(
    r"([0-9a-f]{16})\.([0-9a-f]{1,16})\.(-?[0-9]{1,20})\.([0-9]{1,9})(?:\.([\w-]{0,64})(?:\.([0-9a-f]{1,2}))?)?",
    re.ASCII,
)

MODEL_MARK = "-"  # in a fingerprint, before what tells the model
TOKEN_BYTES = 5  # of a token in a message to the renderer
SPARE_BYTES = 256 << 10  # of such a message, beside a third of the longest body (what a lane takes)

Count = Annotated[int, msgspec.Meta(ge=0, le=CHARACTERS)]


class GivenChoice(msgspec.Struct, forbid_unknown_fields=True):
    """What the client has of one choice."""

    tokens: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]] = []
    characters: Count = 0
    ended: bool = False
    count: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] | None = None  # of events; else of tokens


class GoOnRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of the request that goes on."""

    path: str  # of the request that began
    body: str  # of the same, as it was sent
    origin: str  # X-Actorserve-Origin
    choices: list[GivenChoice]
    begun: bool = False  # the events before all text are out
    closed: bool = False  # so is the last
    request_id: str | None = None  # by which logs name it


@dataclass(frozen=True)
class Origin:
    """What ids and draws of an answer come from."""

    seed: int
    created: int
    sampling: int
    choices: int
    fingerprint: str = ""
    owner: int | None = None  # the frontend that keeps the answer

    def written(self) -> str:
        """The head's value."""
        end = f".{self.fingerprint}" if self.fingerprint or self.owner is not None else ""
        end += "" if self.owner is None else f".{self.owner:x}"
        return f"{self.seed:016x}.{self.created:x}.{self.sampling}.{self.choices}{end}"


def read_origin(written: str) -> Origin:
    """ApiError 400 for what no server has written."""
    found = WRITTEN.fullmatch(written)
    if found is None or int(found[3]) not in SEEDS:
        raise bad_request(f"origin: it must be the value of {ORIGIN} that came with the stream.", "origin")
    owner = None if found[6] is None else int(found[6], 16)
    return Origin(int(found[1], 16), int(found[2], 16), int(found[3]), int(found[4]), found[5] or "", owner)


def sampling_seed(seed: int) -> int:
    """Of an answer's draws, where its client gave none."""
    return seed >> 1


@dataclass(frozen=True)
class Given:
    """What another server has given out of a stream."""

    origin: Origin
    tokens: list[list[int]]
    progress: StreamProgress

    def check(self, choices: int, streamed: bool, fingerprint: str) -> None:
        """ApiError 400 if it is not of this request, or of a model that writes other tokens than this server's."""
        if model_of(fingerprint) != (model_of(self.origin.fingerprint) or model_of(fingerprint)):
            raise bad_request(
                "origin: the stream is of another model, whose tokens mean something else here.", "origin"
            )
        if not streamed:
            raise bad_request("body: stream must be true: what is not streamed is asked for anew.", "body")
        if len(self.tokens) != choices or self.origin.choices != choices:
            text = (
                f"choices: {len(self.tokens)} are given, origin has {self.origin.choices}, and body asks for {choices}."
            )
            raise bad_request(text, "choices")


def model_of(fingerprint: str) -> str:
    """That part of it which is alike where tokens are, whatever the version and the options; empty without one."""
    return fingerprint.rpartition(MODEL_MARK)[2] if MODEL_MARK in fingerprint else ""


def longest_wrapper(longest: int) -> int:
    """Bytes of a request that goes on with one of `longest` bytes: in a string each of them may become two, and as many
    tokens as `check_size` lets through stand beside it.
    """
    return 3 * longest + (1 << 20)


def check_size(asked: GoOnRequest, most: int) -> None:
    """ApiError 413 for more than reaches a renderer together, where a body has at most `most` bytes."""
    tokens = sum(len(choice.tokens) for choice in asked.choices)
    if min(len(asked.body), most) + TOKEN_BYTES * tokens > most + most // 3 + SPARE_BYTES:
        raise ApiError(
            413, f"choices: {tokens} tokens are too many beside a body of {len(asked.body)} bytes.", "choices"
        )


def read_given(asked: GoOnRequest, vocab_size: int, most: int) -> Given:
    """`most`: tokens of a choice. ApiError 400 names what cannot be."""
    for index, choice in enumerate(asked.choices):
        field = f"choices[{index}].tokens"
        if len(choice.tokens) > most:
            raise bad_request(f"{field}: {len(choice.tokens)} tokens; the model takes {most}.", field)
        if choice.tokens and max(choice.tokens) >= vocab_size:
            text = f"{field}: {max(choice.tokens)} is out of vocabulary (0 to {vocab_size - 1})."
            raise bad_request(text, field)
        if not choice.tokens and (choice.characters or choice.ended):
            raise bad_request(f"{field} must not be empty: something of this choice is out.", field)
    if not asked.begun and (asked.closed or any(choice.tokens for choice in asked.choices)):
        raise bad_request("begun must be true: something of the stream is out.", "begun")
    counts = [len(choice.tokens) if choice.count is None else choice.count for choice in asked.choices]
    states = [make_state(one.characters, count, one.ended) for one, count in zip(asked.choices, counts, strict=True)]
    progress = StreamProgress(states, asked.begun, asked.closed)
    return Given(read_origin(asked.origin), [choice.tokens for choice in asked.choices], progress)


# --- what stands in the stream -----------------------------------------------------------------------------------

BEGUN = b":t b\n\n"
CLOSED = b":t e\n\n"
ALIVE = b":t k\n\n"


def reached(choice: int, state: int, tokens: Sequence[int], are_all: bool = False) -> bytes:
    """The comment behind what has brought a choice to this state. `are_all`: these are no more than it has."""
    characters, count, ended = read_state(state)
    ids = ",".join(map(str, tokens))
    return f":t {choice} {characters:x}-{count:x}{'x' * ended} {'=' * are_all}{ids}\n\n".encode()
