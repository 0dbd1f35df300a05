"""What the device knows of the batch's rows between steps, and how the host changes it: a few numbers at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.triton.sampling import RowParameters
from actorserve.kernels.triton.step_inputs import RowState

from ...protocol.request import row_types
from ...protocol.step import NewRow, Step

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


def to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """A copy on the device, which does not wait for it: through pinned memory, which torch keeps until it is copied."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.clone()


class DeviceRows:
    """State of all rows. Changes are queued behind the steps that were started before them."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        """`width`: blocks of the longest row."""
        self.device = device

        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(rows, *shape, dtype=dtype, device=device)

        self.state = RowState(zeros(torch.int64), zeros(torch.int64), zeros(torch.int32, width))
        self.parameters = RowParameters(  # kernels take the bits of unsigned numbers from signed ones
            **{name: zeros(getattr(torch, dtype.removeprefix("u"))) for name, dtype in row_types().items()},
            position=self.state.drawn,
        )

    def change(self, step: Step, last: list[int]) -> None:
        """Rows that sequences take, each with the last token of its log, and blocks that rows are given."""
        width = self.state.table.shape[1]
        entries = [step.new_blocks.astype(np.int64)]
        for new in step.new_rows:
            blocks = new.blocks
            entries.append(np.stack([np.full(blocks.size, new.row), np.arange(blocks.size), blocks], 1))
        changed = np.concatenate(entries)
        if len(changed):
            packed = to_device(np.stack([changed[:, 0] * width + changed[:, 1], changed[:, 2]]), self.device)
            self.state.table.view(-1).index_copy_(0, packed[0], packed[1].int())
        if step.new_rows:
            self._place(step.new_rows, last)

    def _place(self, new: list[NewRow], last: list[int]) -> None:
        drawn = [row.sampling.row() for row in new]
        types = row_types()
        whole = [name for name in types if np.issubdtype(types[name], np.integer)]
        broken = [name for name in types if name not in whole]
        numbers = [np.array([row.row for row in new]), np.array(last)]
        numbers.append(np.array([row.num_known_tokens - 1 for row in new]))
        numbers += [np.array([row[name] for row in drawn], types[name]).astype(np.int64) for name in whole]
        columns = to_device(np.stack(numbers), self.device)
        shares = to_device(np.array([[row[name] for row in drawn] for name in broken]), self.device)
        rows = columns[0]
        self.state.last.index_copy_(0, rows, columns[1])
        self.state.drawn.index_copy_(0, rows, columns[2])
        for name, values in zip([*whole, *broken], [*columns[3:], *shares], strict=True):
            target: Tensor = getattr(self.parameters, name)
            target.index_copy_(0, rows, values.to(target.dtype))
