"""The host's side of steps in flight: pinned memory for the numbers that go to the device and the tokens that come
back, and the events between which a step runs. All of it is used again once its step was finished.

So no step makes any of it. How many there are follows from how many steps are started ahead.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from .graphs import MOST_CHUNKS, StepSize
from .lora.blocks import room_for

CHANGES = 4096  # numbers of rows that change which a step has memory for; for more it is made
Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Vector = TypeVar("Vector", Tensor, Ints)


class Sizes(NamedTuple):
    """What a runner has to do with."""

    rows: int
    tokens: int  # of one step, at most
    length: int  # of one sequence, at most
    block_size: int
    drafts: int = 0  # of a row in a step, at most
    adapters: int = 0  # slots that there are for them
    seen: int = 0  # numbers that are said of a token where the model sees pictures (pictures.py)
    tables: int = 1  # block tables of a row
    window: int = 0  # tokens back that layers of the others than the first read

    @property
    def chunks(self) -> int:
        """Rows of several tokens that a graph may be for."""
        return self.rows if self.drafts else min(MOST_CHUNKS, self.rows)

    @property
    def listed(self) -> int:
        """Rows of a forward pass: those that are there, those that fill up, and one that has tokens of nobody."""
        return self.rows + self.chunks + 1

    @property
    def listed_tokens(self) -> int:
        """Of a forward pass."""
        return max(self.tokens, self.rows)

    @property
    def draws(self) -> int:
        """Tokens that a step may draw: of each row one, and one for each draft."""
        return min(self.rows * (1 + self.drafts), self.listed_tokens)


class StepNumbers(NamedTuple, Generic[Vector]):
    """A step's numbers, parts of one vector, on the host and on the device. Those of decoding lie side by side."""

    asking: Vector  # rows that want their logits changed, -1 for those of `drawing` that do not
    masks: Vector  # and their masks
    leaving: Vector  # and which token their penalties no longer look back on behind the one that is drawn; -1: none
    drawing: Vector  # rows that draw, as often as they do
    firsts: Vector  # the position of each row's first token; below 0: where its last token stands
    rows: Vector
    starts: Vector  # where the tokens of each begin, and where the last ones end
    last: Vector  # behind which token of the step each is drawn
    room: Vector  # of each row, for drafts
    given: Vector  # the tokens as far as the host knows them, else -1
    drafting: Vector  # rows for which drafts are computed before the step
    wanted: Vector  # and how many of each

    @staticmethod
    def counts(sizes: Sizes) -> list[int]:
        """How many of each there may be."""
        draws, listed, rows = sizes.draws, sizes.listed, sizes.rows if sizes.drafts else 0
        return [draws, draws, draws, draws, listed, listed, listed + 1, draws, listed, sizes.listed_tokens, rows, rows]

    @classmethod
    def of(cls, vector: Vector, sizes: Sizes) -> StepNumbers[Vector]:
        """The parts of a vector."""
        ends = [0, *accumulate(cls.counts(sizes))]
        return cls(*(vector[begin:end] for begin, end in pairwise(ends)))

    @classmethod
    def decoding(cls, vector: Vector, sizes: Sizes) -> Vector:
        """The part that is `drawing` and `firsts`, all that a step of decoding alone has."""
        ends, first = [0, *accumulate(cls.counts(sizes))], cls._fields.index("drawing")
        return vector[ends[first] : ends[first + 2]]


class StepBuffers:
    """Of one step."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self._vector = torch.empty(sum(StepNumbers.counts(sizes)), dtype=torch.int64, pin_memory=cuda)
        self._decoding = StepNumbers.decoding(self._vector, sizes)
        values: Ints = self._vector.numpy()
        self.numbers = StepNumbers.of(values, sizes)  # to be written before they are sent
        self._changes = torch.empty(CHANGES, dtype=torch.int64, pin_memory=cuda)
        self.tokens = torch.empty(sizes.draws, dtype=torch.int32, pin_memory=cuda)
        self.outcome = torch.empty(sizes.draws if sizes.drafts else 0, 2, dtype=torch.int32, pin_memory=cuda)
        adapters = room_for(sizes.listed_tokens, sizes.adapters)[1] if sizes.adapters else 0
        self._adapters = torch.empty(adapters, dtype=torch.int32, pin_memory=cuda)
        self.adapters: np.ndarray = self._adapters.numpy()  # which tokens have which (lora/blocks.py)
        self._pictures = torch.empty(sizes.seen * sizes.listed_tokens, dtype=torch.int64, pin_memory=cuda)
        self.pictures: np.ndarray = self._pictures.numpy()
        self.events = [torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2)] if cuda else []

    def send(self, target: Tensor, begin: int, end: int) -> None:
        """The numbers [begin, end) to the same place of `target`, behind what the device was given before."""
        target[begin:end].copy_(self._vector[begin:end], non_blocking=True)

    def send_decoding(self, target: Tensor) -> None:
        """Those of decoding, always all that there may be: a view for each number of rows would take longer."""
        target.copy_(self._decoding, non_blocking=True)

    def send_adapters(self, target: Tensor, end: int) -> None:
        """So many of the numbers of adapters."""
        target[:end].copy_(self._adapters[:end], non_blocking=True)

    def send_pictures(self, target: Tensor, begin: int, end: int) -> None:
        """Of the numbers of pictures [begin, end), to the same place of `target`."""
        target[begin:end].copy_(self._pictures[begin:end], non_blocking=True)

    def send_changes(self, numbers: Ints, target: Tensor) -> Tensor:
        """Up to CHANGES numbers, once a step, to the beginning of `target`: that part of it."""
        self._changes.numpy()[: numbers.size] = numbers
        return target[: numbers.size].copy_(self._changes[: numbers.size], non_blocking=True)

    def begin(self) -> None:
        """The step is what the device is given from now on."""
        if self.events:
            self.events[0].record()

    def end(self) -> torch.cuda.Event | None:
        """That was all; the event of its end, where there is a device."""
        if not self.events:
            return None
        self.events[1].record()
        return self.events[1]

    @property
    def seconds(self) -> float | None:
        """What the step took on the device, once it has ended; None where that is not measured."""
        return self.events[0].elapsed_time(self.events[1]) / 1e3 if self.events else None


class BufferPool:
    """Those that are free."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self._for = sizes, device
        self._free: list[StepBuffers] = []

    def take(self) -> StepBuffers:
        return self._free.pop() if self._free else StepBuffers(*self._for)

    def give_back(self, buffers: StepBuffers) -> None:
        """Their step has ended, and nobody looks at them any more."""
        self._free.append(buffers)


def fill_up(
    numbers: StepNumbers[Ints], size: StepSize, step: StepSize, starts: Ints, rows: Ints, firsts: Ints, draws: Ints
) -> None:
    """Write a step's rows, filled up to `size`: those that decode, their like without tokens, those with chunks, their
    like without tokens, and one that is none and has the tokens that fill up.

    `starts`: where the tokens of each of `rows` begin, and where all end; of each row the first position, if the host
    knows it, and how many tokens it draws.
    """
    n, few, gap = size.rows, step.decoding, size.decoding
    end = gap + step.chunks
    numbers.rows[: n + 1] = -1
    parts = (numbers.rows, rows), (numbers.firsts, firsts), (numbers.starts, starts[:-1])
    for values, own in (*parts, (numbers.room, draws - 1)):
        values[:few], values[gap:end] = own[:few], own[few:]
    numbers.starts[few:gap] = few
    numbers.starts[end : n + 1] = step.tokens
    numbers.starts[n + 1] = size.tokens
