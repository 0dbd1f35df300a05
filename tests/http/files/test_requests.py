"""The id of what a request makes: the same for a frontend's successor, and for one that is sent again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

from aiohttp import web

from actorserve.http.handlers.files.requests import new_id
from actorserve.http.middleware.context import CLIENT
from actorserve.http.settings import Settings
from actorserve.http.transport.resume import Predecessor
from tests.http.serving import SETTINGS


@dataclass
class Record:
    """A connection's: what it notes, its successor finds."""

    predecessor: Predecessor | None = None
    noted: list[tuple[list[int], int, int]] = field(default_factory=list)

    def stream(self, refs: list[int], seed: int, created: int, replayed: bool = False) -> None:
        self.noted.append((refs, seed, created))

    def go_on(self) -> None:
        """What was written so far was."""


class Request(dict[Any, Any]):
    """As much of one as is looked at."""

    path = "/v1/batches"

    def __init__(self, record: Record | None = None, client: str = "", **headers: str) -> None:
        super().__init__({CLIENT: client})
        self.protocol = self
        self.record = record
        self.match_info: dict[str, str] = {}
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def made_by(request: Request, settings: Settings = SETTINGS) -> str:
    return new_id(cast(web.Request, request), "batch_", settings)[0]


def left_by(record: Record) -> Predecessor:
    """What a successor finds of it."""
    ((refs, seed, created),) = record.noted
    return Predecessor(refs, seed, created, [0], begun=False, first=False, closed=False, replayed=False)


def test_a_successor_makes_the_same() -> None:
    record = Record()
    made = made_by(Request(record))
    assert made_by(Request(Record(left_by(record)))) == made and made_by(Request(Record())) != made


def test_a_key_makes_the_same_for_one_client() -> None:
    made = made_by(Request(client="a", Idempotency_Key="k"))
    assert made_by(Request(client="a", Idempotency_Key="k")) == made and len(made) == len("batch_") + 24
    assert (
        made_by(Request(client="b", Idempotency_Key="k")) != made != made_by(Request(client="a", Idempotency_Key="l"))
    )
    without = replace(SETTINGS, idempotency_window_s=0)
    assert made_by(Request(client="a", Idempotency_Key="k"), without) != made
