"""What the device knows of the batch's rows between steps, and how the host changes it: a few numbers at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.triton.sampling import RowParameters
from actorserve.kernels.triton.step_inputs import RowState, change_rows

from ...protocol.sampling.fields import row_types
from ...protocol.step import NewRow, Step
from ..transfer import to_device
from .buffers import CHANGES, StepBuffers
from .buffers import Ints as Ints


class DeviceRows:
    """State of all rows. Changes are queued behind the steps that were started before them."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        """`width`: blocks of the longest row."""
        self.device = device

        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(rows, *shape, dtype=dtype, device=device)

        self._numbers = torch.zeros(CHANGES, dtype=torch.int64, device=device)
        self.state = RowState(zeros(torch.int64), zeros(torch.int64), zeros(torch.int32, width))
        self.parameters = RowParameters(  # kernels take the bits of unsigned numbers from signed ones
            **{name: zeros(getattr(torch, dtype.removeprefix("u"))) for name, dtype in row_types(on_gpu=True).items()},
            position=self.state.drawn,
        )

    def change(self, step: Step, last: list[int], buffers: StepBuffers) -> None:
        """Rows that sequences take, each with the last token of its log, and blocks that rows are given."""
        width = self.state.table.shape[1]
        entries = [step.new_blocks.astype(np.int64)]
        for new in step.new_rows:
            blocks = new.blocks
            entries.append(np.stack([np.full(blocks.size, new.row), np.arange(blocks.size), blocks], 1))
        changed = np.concatenate(entries)
        columns = [changed[:, 0] * width + changed[:, 1], changed[:, 2], *_columns(step.new_rows, last)]
        self._write(np.concatenate(columns), len(changed), buffers)

    def _write(self, numbers: Ints, entries: int, buffers: StepBuffers) -> None:
        if numbers.size <= len(self._numbers):
            packed = buffers.send_changes(numbers, self._numbers)
        else:
            packed = to_device(numbers, self.device)
        change_rows(packed, entries, self.state, self.parameters[:-1])

    def try_out(self, buffers: StepBuffers) -> None:
        """As no row changes."""
        self._write(np.empty(0, np.int64), 0, buffers)


def _columns(new: list[NewRow], last: list[int]) -> Iterator[np.ndarray]:
    """Of the rows that are taken, as change_rows wants them."""
    yield np.array([row.row for row in new], np.int64)
    yield np.array(last, np.int64)
    yield np.array([row.num_known_tokens - 1 for row in new], np.int64)
    drawn = [row.sampling.row() for row in new]
    types = row_types(on_gpu=True)
    for name in RowParameters._fields[:-1]:
        values = np.array([row[name] for row in drawn], types[name])
        yield (values if np.issubdtype(values.dtype, np.integer) else values.astype(np.float64)).view(np.int64)
