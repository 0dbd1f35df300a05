"""A worker reads a slot late, which is its next request's by then: the row is nobody's, and ends nobody."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from actorserve.actors.model.encoder_decoder.spec import EncoderSpec
from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.step import NewRow, Step
from actorserve.actors.renderer.encoder_input import lay_out
from actorserve.actors.worker.encoder_decoder.model import EncoderDecoder, Way
from actorserve.actors.worker.encoder_decoder.passes import EncoderDecoderPasses
from actorserve.actors.worker.encoder_decoder.runner import EncoderDecoderRunner
from actorserve.actors.worker.encoder_decoder.verify import describe
from actorserve.actors.worker.memory import make_pools
from actorserve.actors.worker.start.shared import request_readers
from actorserve.shm.segment import Segment
from actorserve.shm.table.table import RequestTable, slot_of, table_bytes

from ..driver import GREEDY
from .test_trial import tiny

BLOCK, SLOTS, LONGEST = 8, 2, 64
SPEC = EncoderSpec(longest=32, decoder_longest=32, start=[1], filler=0)
READ = [list(range(5, 26)), list(range(30, 43))]


class Worker:
    """With two sequences in two slots."""

    def __init__(self, name: str, way: Way) -> None:
        shape = SLOTS, LONGEST, BLOCK, 4096
        self.segment = Segment.create(table_bytes(*shape), "test")
        self.table = RequestTable.create(self.segment, 0, *shape)
        passes = EncoderDecoderPasses(tiny(name))
        model = EncoderDecoder(passes, describe(passes, way)[0], way, torch.float32)
        system = SimpleNamespace(is_reporter=lambda spec: False)
        context: Any = SimpleNamespace(table=self.table, system=system, spec=None, log=logging.getLogger("worker"))
        pools = make_pools(model.kv, 16, BLOCK, model.dtype)
        parts = pools, self.table.as_numpy().tokens, BLOCK, SLOTS, *request_readers(context, model.vocab_size)
        self.runner = EncoderDecoderRunner(model, SPEC, *parts)
        self.refs = [self.open(slot, read) for slot, read in enumerate(READ)]

    def open(self, slot: int, read: list[int]) -> int:
        ref = self.table.open_slot(slot, b"", 1)
        log = lay_out(SPEC, BLOCK, read, SPEC.start)
        self.table.write_prompt(ref, log.tokens, b"", 8, log.rendition)
        return ref

    def use_again(self, ref: int) -> None:
        self.table.set_finish(ref, Finish.ABORT)
        self.open(slot_of(ref), [7, 8, 9])

    def run(self, number: int, rows: list[int], first: bool) -> list[int]:
        """A step of these rows: their prompts, or one token."""
        lengths = [len(lay_out(SPEC, BLOCK, READ[row], SPEC.start).tokens) for row in rows]
        new = [
            NewRow.make(row, self.refs[row], length, length, 0, np.arange(8 * row, 8 * row + 8, dtype=np.int32), GREEDY)
            for row, length in zip(rows, lengths, strict=True)
        ]
        with torch.inference_mode():
            step = Step.make(1, number, new if first else [], rows, lengths if first else [1] * len(rows), [])
            return list(map(int, self.runner.run(step)))


@pytest.mark.parametrize(("name", "way"), [("bart", Way.FLAT), ("t5", Way.SINGLE)])
@pytest.mark.parametrize("gone", [[1], [0, 1]])
def test_a_row_whose_slot_is_anothers_is_nobodys(name: str, way: Way, gone: list[int]) -> None:
    whole, worker = Worker(name, way), Worker(name, way)
    for row in gone:
        worker.use_again(worker.refs[row])
    for number in range(3):
        expected, found = (one.run(number, [0, 1], number == 0) for one in (whole, worker))
        assert len(found) == 2
        assert [token for row, token in enumerate(found) if row not in gone] == expected[: 2 - len(gone)]
