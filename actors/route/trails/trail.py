"""What a stream's client has, as its server says behind each piece: by that another server goes on with it.

The comments are described where they are written (http/generation/trail.py). They end here: what is passed on to the
client is what stands between two of them, and only once the second one is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

TRAIL = "X-Actorserve-Trail"
ORIGIN = "X-Actorserve-Origin"
GO_ON = "/go_on"
MOST_HELD = 32 << 20  # bytes of one piece
STATE = re.compile(rb"[0-9a-f]{1,8}-[0-9a-f]{1,8}x?")
MARK = b"\n:t "
END = b"\n\n"
encode = msgspec.json.Encoder().encode


class TrailError(Exception):
    """This is no stream of a server that was asked for its trail. `passed` is what stood whole before: it counts as
    what the client has, so it has to get it.
    """

    passed = b""


class Passed(Protocol):
    """What of a stream is out, by which it goes on elsewhere."""

    @property
    def closed(self) -> bool:
        """All of it is out."""

    @property
    def is_over(self) -> bool:
        """Nobody can go on with it."""

    @property
    def tokens(self) -> int:
        """How far it is: a larger number is further."""

    def feed(self, data: bytes) -> tuple[bytes, int]:
        """What of the stream the client may have now, and of how many pieces that is. TrailError if it cannot be, with
        what the client may have all the same.
        """

    def drop_rest(self) -> None:
        """The server is gone: what came of a piece that is not whole comes again from another one."""

    def ask(self, target: str, body: bytes, request_id: str) -> tuple[str, bytes]:
        """What another replica is asked, where `body` was posted to `target`: target and body."""

    def is_gone_on_with(self, headers: Mapping[str, str]) -> bool:
        """Is that the head of the rest?"""


@dataclass
class ChoiceTrail:
    """Of one choice: its state as it was written last, and the ids of its tokens in pieces."""

    state: bytes = b"0-0"
    ids: list[bytes] = field(default_factory=list)

    def written(self) -> bytes:
        """As an element of `choices`."""
        state = self.state.removesuffix(b"x")
        ended = b"true" if state != self.state else b"false"
        characters, _, counted = state.partition(b"-")
        tokens = b",".join(filter(None, self.ids))
        count = int(counted, 16)
        events = b'"count":%d,' % count if count != tokens.count(b",") + bool(tokens) else b""
        return b'{"characters":%d,%s"ended":%s,"tokens":[%s]}' % (int(characters, 16), events, ended, tokens)


class Trail:
    """Of one stream, also where several servers have written it."""

    def __init__(self, origin: str, resumed: bool = False) -> None:
        """`origin`: the head's value. `resumed`: the client has some of it from an earlier connection."""
        self.origin, self._resumed = origin, resumed
        try:
            count = int(origin.split(".")[3])
        except (IndexError, ValueError):
            raise TrailError(f"{ORIGIN} cannot be read") from None
        self.choices = [ChoiceTrail() for _ in range(count)]
        self.begun = self.closed = False
        self._held = b"\n"  # behind the last comment, whose last line end it begins with

    def feed(self, data: bytes) -> tuple[bytes, int]:
        """What of the stream the client may have now, and of how many pieces that is."""
        text = self._held + data if len(self._held) > 1 else b"\n" + data
        passed = list[bytes]()
        at, pieces = 0, 0
        try:
            while (mark := text.find(MARK, at)) >= 0 and (end := text.find(END, mark + 1)) >= 0:
                self._note(text[mark + len(MARK) : end])
                passed.append(text[at + 1 : mark + 1])
                at, pieces = end + 1, pieces + 1
            self._held = text[at:]
            if len(self._held) > MOST_HELD:
                raise TrailError(f"a piece of a stream has more than {MOST_HELD} bytes")
        except TrailError as error:
            error.passed = b"".join(passed)
            raise
        return b"".join(passed), pieces

    @property
    def is_over(self) -> bool:
        """It is not known yet how much the client has: another server would begin anew."""
        return self._resumed and not self.begun

    @property
    def tokens(self) -> int:
        """That the client has, of all choices; of a response, events."""
        return sum(int(choice.state.removesuffix(b"x").partition(b"-")[2], 16) for choice in self.choices)

    def drop_rest(self) -> None:
        """What came of a piece that is not whole is none."""
        self._held = b"\n"

    def ask(self, target: str, body: bytes, request_id: str) -> tuple[str, bytes]:
        """To go on behind what the client has."""
        path, _, query = target.partition("?")
        return f"{GO_ON}?{query}" if query else GO_ON, self.go_on(path, body, request_id)

    def is_gone_on_with(self, headers: Mapping[str, str]) -> bool:
        """It tells a trail again."""
        return ORIGIN in headers

    def _note(self, comment: bytes) -> None:
        match comment:
            case b"b":
                self.begun = True
            case b"e":
                self.closed = True
            case b"k":
                pass
            case _:
                try:
                    index, state, ids = comment.split(b" ")
                    choice = self.choices[int(index)]
                    if not STATE.fullmatch(state):
                        raise ValueError
                except (ValueError, IndexError):
                    raise TrailError("a comment of a stream's trail cannot be read") from None
                choice.state = state
                if ids.startswith(b"="):  # from the first on
                    choice.ids.clear()
                choice.ids.append(ids.removeprefix(b"="))

    def go_on(self, path: str, body: bytes, request_id: str) -> bytes:
        """The body of the request to go on with it, where `body` was posted to `path`."""
        head = {"path": path, "body": body.decode(), "origin": self.origin, "request_id": request_id}
        states = b'"begun":%s,"closed":%s' % (encode(self.begun), encode(self.closed))
        choices = b",".join(choice.written() for choice in self.choices)
        return b'%s,%s,"choices":[%s]}' % (encode(head)[:-1], states, choices)
