"""The worker actor where drafts are made: what makes them, and what the scheduler is told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from actorserve.kernels.cpu.paged_kv import PagedKV

from ...model.checks import draft_refused, find_draft_model
from ...model.info import ModelInfo
from ...options.config import Config, ConfigError
from ...options.speculative import DraftModelOptions, NgramOptions, read_speculative
from ...protocol.step import Step, StepDone
from ...runtime.process import Context
from ..actor import WorkerActor
from ..cpu.executor import CpuModel
from ..cpu.runner import CpuRunner
from ..memory import make_pools
from ..models.weights import load_model
from ..tensor_parallel import TensorParallelGroup
from . import draft_model
from .ngram import NgramProposer
from .verifier import DraftVerifier, Proposer

if TYPE_CHECKING:
    from ...protocol.wire import Numbers


class SpeculativeWorkerActor(WorkerActor):
    """Tells how many tokens each row drew."""

    def __init__(self, context: Context, runner: CpuRunner, blocks: int) -> None:
        self._drafting_runner = runner
        super().__init__(context, runner, blocks)

    def done(self, message: Step, tokens: np.ndarray, seconds: float, failed_rows: Numbers) -> StepDone:
        """With drafts, beside the tokens."""
        outcome = self._drafting_runner.outcome
        if outcome is None:
            return super().done(message, tokens, seconds, failed_rows)
        drawn, drafted = outcome
        return StepDone.make(message, tokens, seconds, failed_rows=failed_rows, num_drawn=drawn, num_drafted=drafted)


class LoadedDrafter(NamedTuple):
    """What is configured, with its model loaded."""

    given: NgramOptions | DraftModelOptions
    model: CpuModel | None
    block_bytes: int  # of a KV block, in all layers of the draft model

    def make(self, config: Config, blocks: int, length: int, group: TensorParallelGroup | None) -> DraftVerifier:
        """For KV memory of so many blocks, and sequences of `length` tokens at most."""
        rows, size = config.max_num_seqs, config.block_size
        proposer: Proposer
        if isinstance(self.given, NgramOptions):
            proposer = NgramProposer(*self.given.lookup)
        else:
            model = self.model
            kv = None
            if model is not None:
                pools = make_pools(model.kv, blocks, size, model.dtype)
                kv = PagedKV(model.kv, pools, size, aligned=model.batch_invariant)
            proposer = draft_model.DraftModelProposer(model, kv, rows, self.given.num_speculative_tokens, group)
        return DraftVerifier(proposer, rows, length)


def load_drafter(config: Config, info: ModelInfo, group: TensorParallelGroup | None) -> LoadedDrafter | None:
    """What --speculative-config wants; ConfigError if its model cannot be had or speaks another language."""
    given = read_speculative(config)
    if given is None:
        return None
    if isinstance(given, NgramOptions):
        return LoadedDrafter(given, None, 0)
    found = find_draft_model(config, info)
    assert found is not None
    try:
        model = load_model(*found)
    except ConfigError as error:
        raise draft_refused(given, error) from None
    size = model.shape.kv.block_bytes(config.block_size, model.dtype.itemsize)
    return LoadedDrafter(given, model if group is None or group.rank == 0 else None, size)
