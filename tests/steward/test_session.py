"""What a steward says of the sequences that it has in hand."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.sockets.engine_wire import Begin
from actorserve.actors.protocol.sockets.engine_wire import Logprobs as LogprobRecord
from actorserve.actors.steward import session as module
from actorserve.actors.steward.session import Hosted, Reports, Session
from actorserve.shm.table.table import slot_of
from tests.link.test_sequences import PARAMS, PROMPT, Bench


@pytest.mark.parametrize(
    ("there", "goes_on"),
    [([], True), ([7], True), ([7, 8, 9], True), ([7, 9], False), ([7, 8, 9, 10], False)],
    ids=str,
)
def test_one_that_is_known_goes_on_if_its_server_has_a_beginning_of_it(there: list[int], goes_on: bool) -> None:
    """Not if another engine has gone on with it meanwhile: further, or with other tokens."""
    bench = Bench()
    own = bench.open()
    reports = Reports(bench.table, bench.area)
    begin = Begin(5, PARAMS, array("i", PROMPT).tobytes(), b"", 100, b"", b"")
    hosted = reports.host(begin, own)
    bench.table.append(own, [7, 8, 9])
    assert reports.continues(hosted, msgspec.structs.replace(begin, generated=array("i", there).tobytes())) == goes_on


def test_what_is_said_names_the_last_begin() -> None:
    """A server may have got a sequence back that has gone on elsewhere."""
    bench = Bench()
    params = msgspec.msgpack.encode(Generation(Sampling(0, logprobs=1, prompt_logprobs=1)))
    own, reports = bench.open(), Reports(bench.table, bench.area)
    begin = Begin(5, params, array("i", PROMPT).tobytes(), b"", 100, b"", b"", hosting=3)
    hosted = reports.host(begin, own)
    session, sent = session_of(hosted)
    for number in (3, 4):
        bench.table.append(own, [7])
        reports.tell(session, [5])
        numbers = [one.hosting for record in sent for one in getattr(record, "moved", [record])]
        assert len(numbers) >= 2 and set(numbers) == {number}
        sent.clear()
        reports.go_on(hosted, msgspec.structs.replace(begin, generated=array("i", [7]).tobytes(), hosting=4))


def test_logprobs_of_a_long_answer_are_told_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record has an end; a link that has just been born has none of them."""
    monkeypatch.setattr(module, "LOGPROBS_AT_ONCE", 4)
    bench = Bench()
    params = msgspec.msgpack.encode(Generation(Sampling(0, logprobs=1, logprob_token_ids=[5, 6])))
    own, reports = bench.open(), Reports(bench.table, bench.area)
    hosted = reports.host(Begin(5, params, array("i", PROMPT).tobytes(), b"", 100, b"", b""), own)
    start = bench.area.start(slot_of(own), len(PROMPT) + 9)
    bench.area.map[start : start + 16] = bytes(range(16))
    bench.table.append(own, list(range(10)))
    session, sent = session_of(hosted)
    reports.tell(session, [5])
    *parts, progress = sent
    assert [(part.position - len(PROMPT), part.count) for part in parts] == [(0, 4), (4, 4), (8, 2)]
    assert [(len(part.entries), len(part.listed)) for part in parts] == [(64, 32), (64, 32), (32, 16)]
    assert parts[-1].entries[16:] == bytes(range(16)) and len(progress.moved[0].tokens) == 40


@pytest.mark.parametrize("lists", [False, True])
def test_listed_tokens_are_told_beside_the_prompt_where_they_are_wanted(lists: bool) -> None:
    bench = Bench()
    sampling = Sampling(0, logprobs=0, prompt_logprobs=0, logprob_token_ids=[5, 6], lists_prompt=lists)
    own, reports = bench.open(), Reports(bench.table, bench.area)
    begin = Begin(5, msgspec.msgpack.encode(Generation(sampling)), array("i", PROMPT).tobytes(), b"", 100, b"", b"")
    hosted = reports.host(begin, own)
    bench.table.append(own, [9])
    session, sent = session_of(hosted)
    reports.tell(session, [5])
    prompt, answer, _ = sent
    assert (prompt.position, prompt.count, len(prompt.listed)) == (1, len(PROMPT) - 1, 8 * (len(PROMPT) - 1) * lists)
    assert (answer.position, answer.count, len(answer.listed)) == (len(PROMPT), 1, 8)


def test_more_logprobs_than_a_server_reads_wait_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, and tokens behind their own; but all again to one that has connected anew."""
    monkeypatch.setattr(module, "LOGPROBS_AT_ONCE", 4)
    bench = Bench()
    params = msgspec.msgpack.encode(Generation(Sampling(0, logprobs=1, prompt_logprobs=1)))
    begin = Begin(5, params, array("i", PROMPT).tobytes(), b"", 100, b"", b"")
    own, reports = bench.open(), Reports(bench.table, bench.area)
    session, sent = session_of(reports.host(begin, own), reads_one=True)
    bench.table.append(own, list(range(10)))
    for _ in range(2):
        at = []
        while not sent or isinstance(sent[-1], LogprobRecord):
            sent.clear()
            session.channel.is_writable = True  # type: ignore[union-attr]
            session.changed.clear()
            reports.tell(session, [5])
            (position,) = (one.position for one in sent if isinstance(one, LogprobRecord))
            at.append(position)
        assert at == [*range(1, len(PROMPT), 4), *range(len(PROMPT), len(PROMPT) + 10, 4)]
        assert not session.changed and len(sent[-1].moved[0].tokens) == 40
        reports.go_on(session.sequences[5], begin)
        sent.clear()


def session_of(hosted: Hosted, reads_one: bool = False) -> tuple[Session, list[Any]]:
    """That of a server which has one sequence here, and what is sent to it. `reads_one`: a record, then no more."""
    sent: list[Any] = []

    def send(record: Any) -> None:
        sent.append(record)
        channel.is_writable = not reads_one

    channel = SimpleNamespace(send=send, is_writable=True)
    return Session("a server", 1, channel=channel, sequences={hosted.ref: hosted}), sent  # type: ignore[arg-type]


def test_what_a_way_that_was_cut_may_have_lost_is_told_again() -> None:
    """How the prompt fared, and its logprobs, to a server that has no token yet; one with tokens has heard of it."""
    bench = Bench()
    own, reports = bench.open(), Reports(bench.table, bench.area)
    params = msgspec.msgpack.encode(Generation(Sampling(0, prompt_logprobs=2)))
    begin = Begin(5, params, array("i", PROMPT).tobytes(), b"", 100, b"", b"")
    hosted = reports.host(begin, own)
    bench.table.append(own, [7, 8, 9])
    for there, prompt_logprobs, began_told in (([], 2, False), ([7], -1, True)):
        hosted.told, hosted.prompt_logprobs, hosted.began_told = 3, -1, True
        reports.go_on(hosted, msgspec.structs.replace(begin, generated=array("i", there).tobytes()))
        assert (hosted.told, hosted.prompt_logprobs, hosted.began_told) == (len(there), prompt_logprobs, began_told)
