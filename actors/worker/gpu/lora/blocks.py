"""Tokens of a step by the slots of their adapters, as kernels take them: told by the host where they have changed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.triton.linear.lora import LoraLaunch, TokenBlocks, launch_of, most_blocks

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
NUMBERS = 3  # of a block
EVEN = 4  # numbers of 16 bytes


def room_for(tokens: int, slots: int) -> tuple[int, int]:
    """(where tokens begin behind the blocks, numbers in all) for steps of up to so many tokens."""
    begin = -(-NUMBERS * (slots + tokens // LoraLaunch().block) // EVEN) * EVEN
    return begin, begin + tokens


class BlockRoom:
    """How blocks and their tokens stand in one vector, on the host and on the device."""

    def __init__(self, tokens: int, slots: int, dtype: torch.dtype, fixed: bool) -> None:
        """Of up to so many tokens, of products of a type; `fixed` as launch_of has it."""
        self._slots, self._for = slots, (dtype, fixed)
        self._begin, self.size = room_for(tokens, slots)

    def launch(self, tokens: int) -> LoraLaunch:
        return launch_of(self._for[0], tokens, self._for[1])

    def _most(self, tokens: int) -> int:
        return most_blocks(tokens, self._slots, self.launch(tokens).block)

    def given(self, vector: Tensor, tokens: int) -> TokenBlocks:
        """What kernels take for a step of so many tokens."""
        blocks = vector[: NUMBERS * self._most(tokens)].view(-1, NUMBERS)
        return TokenBlocks(blocks, vector[self._begin :], self.launch(tokens))

    def fill(self, vector: np.ndarray, slot_of: Ints, tokens: int) -> int:
        """Write the blocks of a step: the slot of each of its tokens, of which there are less than `tokens` where a
        graph is larger; how many numbers are to be sent."""
        found = np.flatnonzero(slot_of >= 0)
        order = found[np.argsort(slot_of[found], kind="stable")]
        blocks = block_rows(slot_of[order], self.launch(tokens).block)
        vector[: NUMBERS * self._most(tokens)] = -1
        vector[: blocks.size] = blocks.ravel()
        vector[self._begin : self._begin + order.size] = order
        return self._begin + int(order.size)


def block_rows(slots: Ints, block: int) -> np.ndarray:
    """(slot, first, how many) of each block, of slots in their order."""
    begins = np.flatnonzero(np.diff(slots, prepend=-1))
    ends = np.append(begins[1:], slots.size)
    counts = -(-(ends - begins) // block)
    run = np.repeat(np.arange(begins.size), counts)
    firsts = begins[run] + (np.arange(run.size) - np.repeat(np.cumsum(counts) - counts, counts)) * block
    return np.stack([slots[firsts], firsts, np.minimum(block, ends[run] - firsts)], 1)
