"""What a steward says of the sequences that it has in hand."""

from __future__ import annotations

from array import array

import msgspec
import pytest

from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.sockets.engine_wire import Begin
from actorserve.actors.steward.session import Reports
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
