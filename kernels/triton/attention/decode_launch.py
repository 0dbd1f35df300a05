"""How paged decode is launched: tiles, warps and how rows are divided, in one table by the type of keys and values.

None of it changes what is computed but the order of sums. It is computed, not measured: `tools/gpu_check` times the
variants of tools/gpu/kernels/decode_variants.py on a device, and says which entry should stand here.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

MOST_SPLITS = 128
MOST_ROWS = (1 << 16) - 1  # of one launch, as CUDA has it
NARROW = 99 << 10  # bytes of shared memory of a program on GPUs of people at home
ROOMY = 128 << 10  # bytes of shared memory of a program: 163 KB on an A100, 227 from Hopper on, 99 on 8.6, 8.9 and 12.0


class DecodeLaunch(NamedTuple):
    """One entry of the table."""

    tile_bytes: int = 8192  # of a tile of keys; two tiles of keys and values are under way, 37 KB of shared memory
    most_keys: int = 64  # of a tile
    warps: int = 4
    # The table is read a turn ahead of keys and values, so that five stages are two tiles of them.
    stages: int = 5
    registers: int | None = 128  # without a bound the compiler now and then spills to stay below one of its own
    waves: int = 4  # programs for each multiprocessor: so many are there at a time
    least: int = 128  # positions worth a split of their own
    least_alone: int = 64  # where there is one row only, of which few programs are made
    round_up: bool = False  # splits; down, since few programs more than fit run when all others are done

    def tile(self, padded: int, itemsize: int) -> int:
        """How many keys of so many numbers."""
        return max(16, min(self.most_keys, self.tile_bytes // (padded * itemsize)))

    def worth(self, rows: int) -> int:
        """The positions worth a split, among so many rows."""
        return self.least_alone if rows == 1 else self.least

    def splits(self, rows: int, kv_heads: int, longest: int, processors: int) -> int:
        """In how many parts to divide rows of up to `longest` positions so that they fill `processors`."""
        slots, programs = self.waves * processors, rows * kv_heads
        wanted = -(-slots // programs) if self.round_up else slots // programs
        return max(1, min(wanted, -(-longest // self.worth(rows)), MOST_SPLITS))


TABLE = {
    "float32": DecodeLaunch(most_keys=16, stages=3, registers=None),  # exact products take many registers: for checks
    "float32 over 8 bits": DecodeLaunch(most_keys=16, stages=1, registers=None),  # more would take all of them
    "16 bits": DecodeLaunch(),
    "8 bits": DecodeLaunch(most_keys=32),
    "8 bits, wide heads": DecodeLaunch(most_keys=32, registers=168),  # their conversion takes registers, too
    # Queries and results take registers: two programs at a time.
    "heads above 256": DecodeLaunch(stages=4, registers=255, waves=2),
    # Keys are their own values, and many queries read them: those of one program are rows enough to keep it busy.
    "latents": DecodeLaunch(tile_bytes=32768, stages=4, registers=255, waves=2),
}
QUERIES = 16  # of a program, of those that share a head of keys
QUERIES_OF_LATENTS = 64  # the same of latents, at most, which take 112 KB of shared memory
QUERIES_OF_A_PLACE = 32  # of latents, beside which another program of as many has room on a multiprocessor: 74 KB


def kind_of(dtype: torch.dtype, padded: int, scaled: bool, latents: bool = False) -> str:
    """The entry for queries of this type, heads of so many numbers, and keys with scales or without; `latents`: their
    values are a part of the keys.
    """
    if dtype == torch.float32:
        return "float32 over 8 bits" if scaled else "float32"
    if latents:
        return "latents"
    if padded > 256:
        return "heads above 256"
    if not scaled:
        return "16 bits"
    return "8 bits, wide heads" if padded > 128 else "8 bits"


def places_of(heads: int, kv_heads: int, latents: bool = False) -> int:
    """How many of the places that a multiprocessor has for programs a row takes that is not divided."""
    return kv_heads * -(-(heads // kv_heads) // (QUERIES_OF_A_PLACE if latents else QUERIES))


@functools.cache
def is_narrow(device: torch.device) -> bool:
    """Whether programs have little shared memory there, as on GPUs of people at home."""
    if device.type != "cuda":
        return False
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", ROOMY) < ROOMY
