"""A CPU worker's KV memory as it was planned (model/memory/kv_memory.py): blocks, states of rows, and snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from actorserve.kernels.cpu.pool_memory import Pool

from ....model.memory.dtypes import kv_type_on_cpu
from ....model.memory.kv import KVSpec, KVType
from ....model.memory.kv_memory import KVMemory, plan_kv_memory
from ....options.config import Config
from ....protocol.step import KVLayout
from ...kept_memory.file import Take, anonymous
from ...memory import make_pools
from ..layers import native
from .states import RowStates
from .window_tables import TabledKV


class KeepsTokens(Protocol):
    """What must be known of a model."""

    @property
    def kv(self) -> KVSpec: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def precision(self) -> torch.dtype: ...

    @property
    def batch_invariant(self) -> bool: ...

    @property
    def quantised(self) -> bool: ...


class WorkerMemory(NamedTuple):
    """All of it, and what a scheduler must know of it."""

    blocks: Sequence[Pool] | TabledKV
    states: RowStates | None
    layout: KVLayout


def kv_type(config: Config, model: KeepsTokens) -> KVType:
    """How its keys and values are kept."""
    return kv_type_on_cpu(config, str(model.precision).removeprefix("torch."), model.quantised)


def plan_memory(config: Config, model: KeepsTokens, max_length: int, beside: int) -> KVMemory:
    """`beside`: bytes of a block in a draft model. Of a model that does not say so (`reads_windows_alone`), more may be
    read than what its windows let see.
    """
    may_free = bool(getattr(model, "reads_windows_alone", False))
    kind = kv_type(config, model)
    return plan_kv_memory(model.kv, config, max_length, model.dtype.itemsize, beside, may_free, kind)


def make_memory(
    config: Config, model: KeepsTokens, plan: KVMemory, blocks: int, room: int, take: Take = anonymous
) -> WorkerMemory:
    """`room`: the bytes that all of it was planned for. `take` gives that of blocks in one table."""
    size, kind = config.block_size, kv_type(config, model)
    made: Sequence[Pool] | TabledKV
    if plan.windows is None:
        made = make_pools(model.kv, blocks, size, kind, take)
    else:
        made = TabledKV(
            model.kv,
            plan.windows,
            blocks,
            size,
            kind,
            model.batch_invariant,
            model.dtype,
            native.current(),
            model.precision != model.dtype,
        )
    window, tables = (0, 0) if plan.windows is None else (plan.windows.window, len(plan.windows.tables) - 1)
    if not model.kv.states:
        return WorkerMemory(made, None, KVLayout(window=window, window_tables=tables))
    snapshots = plan.snapshots(config, room)
    states = RowStates(model.kv.states, config.max_num_seqs, snapshots, model.dtype)
    return WorkerMemory(made, states, KVLayout(True, snapshots, window, tables, model.kv.by_token))
