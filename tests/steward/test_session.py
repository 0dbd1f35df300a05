"""What a steward says of the sequences that it has in hand."""

from __future__ import annotations

from array import array

import msgspec
import pytest

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
