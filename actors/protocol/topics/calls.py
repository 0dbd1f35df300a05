"""Calls of frontends to renderers, which need no slot, and their answers; the numbers of all calls."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from ..media import PreparedMedia
from ..wire import Message
from .prompts import Prompt

CALLS_OF_LIFE = 1 << 20  # numbers between the first of one life and that of the next
LIVES = 1 << 11


def call_numbers(frontend: int, life: int) -> Iterator[int]:
    """The numbers of the calls of a frontend's life. They name no slot, so the upper half is its index; the lower half
    is never one of the life before it, whose answers may still be on their way. 0 is no call.
    """
    return count((frontend << 32) + (life % LIVES) * CALLS_OF_LIFE + 1)


def frontend_of_call(call: int) -> int:
    """The index of the frontend that asks."""
    return call >> 32


class Tokenize(Message, frozen=True, tag=2):
    """Frontend → renderer: answered by Tokenized or Failed with the same call (see `call_numbers`)."""

    call: int
    prompt: Prompt
    token_strings: bool = False
    media: list[PreparedMedia] = []
    offsets: bool = False
    truncate_prompt_tokens: int | None = None  # these three as in Render
    keep_first: bool = False
    max_tokens: int | None = None
    field: str = ""  # that it stands in
    pools: int = 0  # it is of a model that pools, and may have so many tokens; 0: it is not


class Detokenize(Message, frozen=True, tag=3):
    """Frontend → renderer: answered by Detokenized or Failed with the same call."""

    call: int
    tokens: list[int]
    skip_special: bool = False
    each: bool = False  # the text of each by itself
    pieces: bool = False  # its bytes


class Sync(Message, frozen=True, tag=4):
    """Frontend → renderer: answered by Synced. After it, no Render of an earlier incarnation writes to the table."""

    call: int


class Measure(Message, frozen=True, tag=5):
    """Frontend → renderer: answered by Measured or Failed with the same call."""

    call: int
    data: bytes


class Tokenized(Message, frozen=True, tag=43):
    call: int
    tokens: list[int]
    token_strings: list[str] | None = None
    offsets: list[tuple[int, int]] | None = None  # where each begins and ends in the text, in characters
    start: int = 0  # which of all the first of these is
    more: bool = False  # others follow


class Detokenized(Message, frozen=True, tag=44):
    call: int
    text: str
    texts: list[str] = []  # of each
    pieces: list[bytes] | None = None


class Measured(Message, frozen=True, tag=49):
    """Renderer → frontend: how long a sound is, and its windows as (begin, end), in seconds."""

    call: int
    seconds: float
    windows: list[tuple[float, float]]


class Synced(Message, frozen=True, tag=45):
    call: int
