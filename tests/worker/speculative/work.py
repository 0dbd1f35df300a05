"""What proposers are given."""

from __future__ import annotations

import numpy as np

from actorserve.actors.worker.cpu.batch import BlockTables
from actorserve.actors.worker.speculative.verifier import DraftBatch, Ints
from actorserve.kernels.cpu.sampling import Parameters


def work_of(rows: Ints, starts: Ints, pending: Ints, room: Ints) -> DraftBatch:
    """For proposers that read no KV memory."""
    nothing = np.empty(0)
    return DraftBatch(
        rows, starts, pending, room, BlockTables(nothing, nothing), Parameters(*[nothing] * len(Parameters._fields))
    )
