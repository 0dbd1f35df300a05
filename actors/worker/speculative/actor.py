"""The worker actor where drafts are made: what makes them, and what the scheduler is told of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from actorserve.kernels.cpu.paged_kv import PagedKV

from ...model.checks.drafts import block_bytes, draft_refused, find_draft_model, find_head, head_block_bytes
from ...model.config_json import read_architecture
from ...model.heads.checkpoints import Head
from ...model.heads.formats import BlockShape, MedusaShape, RecurrentShape
from ...model.info import ModelInfo, read_json
from ...model.memory.dtypes import kv_type_of
from ...model.memory.kv import KVSpec
from ...model.memory.kv_memory import spare_blocks
from ...options.config import Config, ConfigError
from ...options.objects.speculative import (
    BY_ITSELF,
    DraftModelOptions,
    HeadOptions,
    LookupOptions,
    NgramOptions,
    Speculative,
    SuffixOptions,
    is_by_itself,
    most_drafts,
    read_speculative,
)
from ...protocol.step import MOST_JUMPS, KVLayout
from ...runtime.process import Context
from ..actor import WorkerActor
from ..cpu.decoder import Decoder
from ..cpu.executor import CpuModel
from ..cpu.layers import native
from ..cpu.memory.kv_memory import kv_type
from ..cpu.runner import CpuRunner
from ..lora.resident import AdapterReader
from ..memory import make_pools
from ..models.weights import load_model, open_head
from ..tensor_parallel import TensorParallelGroup
from . import draft_model
from .blocks import BlockDrafter, BlockProposer
from .medusa import MedusaProposer, load_heads
from .ngram import NgramProposer
from .recurrent import RecurrentHead, RecurrentProposer
from .suffix import SuffixProposer, SuffixRules
from .verifier import DraftOutcome, DraftVerifier, Proposer


class SpeculativeWorkerActor(WorkerActor):
    """Tells how many tokens each row drew."""

    def __init__(
        self,
        context: Context,
        runner: CpuRunner,
        blocks: int,
        layout: KVLayout | None = None,
        tokens: int | None = None,
        adapters: AdapterReader[Any, Any] | None = None,
    ) -> None:
        self._drafting_runner = runner
        super().__init__(context, runner, blocks, layout, tokens, adapters)

    def most_drafts(self) -> int:
        return most_drafts(self.context.config)

    def most_jumps(self) -> int:
        return MOST_JUMPS

    @property
    def outcome(self) -> DraftOutcome | None:
        return self._drafting_runner.outcome


class LoadedDrafter(NamedTuple):
    """What is configured, with its model loaded or its head found."""

    given: Speculative
    model: Decoder | None
    block_bytes: int  # of a KV block, in all layers of the draft model or in the head
    head: Head | None = None

    def make(
        self, config: Config, blocks: int, length: int, target: Decoder, group: TensorParallelGroup | None
    ) -> DraftVerifier:
        """For KV memory of so many blocks, and sequences of `length` tokens at most; `target` is the model."""
        rows, most = config.max_num_seqs, self.given.num_speculative_tokens
        proposer: Proposer
        if isinstance(self.given, NgramOptions):
            proposer = NgramProposer(*self.given.lookup)
        elif isinstance(self.given, SuffixOptions):
            proposer = SuffixProposer(_suffix_rules(self.given), rows, not config.prefix_cache_per_client)
        elif self.head is not None:
            proposer = make_proposer(config, self.head, blocks, length, target)
        else:
            model = self.model
            kv = None if model is None else _paged(config, model.kv, blocks, model, model.batch_invariant)
            proposer = draft_model.DraftModelProposer(self.model, kv, rows, most, group)
        return DraftVerifier(proposer, rows, length)


def _suffix_rules(given: SuffixOptions) -> SuffixRules:
    return SuffixRules(
        given.suffix_decoding_max_tree_depth,
        given.suffix_decoding_max_cached_requests,
        given.suffix_decoding_max_spec_factor,
        given.suffix_decoding_min_token_prob,
    )


def _paged(config: Config, spec: KVSpec, blocks: int, model: Decoder, aligned: bool = False) -> PagedKV:
    """Memory of what is computed as that model is."""
    pools = make_pools(spec, blocks, config.block_size, kv_type(config, model))
    return PagedKV(
        spec, pools, config.block_size, aligned, model.dtype, native.current(), model.precision != model.dtype
    )


def make_proposer(config: Config, head: Head, blocks: int, length: int, target: Decoder) -> Proposer:
    """What drafts with a head. ConfigError says what is wrong with its tensors."""
    given, rows = read_speculative(config), config.max_num_seqs
    assert given is not None and not isinstance(given, LookupOptions)
    if not isinstance(target, CpuModel):
        raise draft_refused(given, ConfigError("method: heads go with models that --model-impl native computes"))
    shape, get = head.shape, open_head(head)
    if isinstance(shape, MedusaShape):
        return MedusaProposer(load_heads(shape, get, target.dtype, given.num_speculative_tokens), target, rows)
    try:
        if isinstance(shape, BlockShape):
            drafter = BlockDrafter(shape, get, target, length, given.num_speculative_tokens)
            spare = blocks + np.arange(math.prod(spare_blocks(config))).reshape(spare_blocks(config))
            return BlockProposer(drafter, _paged(config, shape.kv, blocks + spare.size, target), rows, spare)
        assert isinstance(shape, RecurrentShape)
        recurrent = RecurrentHead(shape, get, target, length)
    except ConfigError as error:
        raise draft_refused(given, error) from None
    return RecurrentProposer(recurrent, _paged(config, shape.kv, blocks, target), rows)


def load_drafter(config: Config, info: ModelInfo, group: TensorParallelGroup | None) -> LoadedDrafter | None:
    """What --speculative-config wants; ConfigError if its model cannot be had or speaks another language."""
    given = read_speculative(config)
    if given is None:
        return None
    if isinstance(given, LookupOptions):
        return LoadedDrafter(given, None, 0)
    if not isinstance(given, DraftModelOptions):
        return _find_head(config, info, given)
    found = find_draft_model(config, info)
    assert found is not None
    try:
        model = load_model(*found)
    except ConfigError as error:
        raise draft_refused(given, error) from None
    size = block_bytes(model.kv, config.block_size, kv_type(config, model))
    return LoadedDrafter(given, model if group is None or group.rank == 0 else None, size)


def drafter_by_itself(config: Config, model: Decoder) -> LoadedDrafter | None:
    """What drafts where nobody said so: n-grams, where a token has the same bits however many drafts are verified."""
    if not is_by_itself(config) or not isinstance(model, CpuModel) or not model.row_invariant or model.kv.states:
        return None
    return LoadedDrafter(BY_ITSELF, None, 0)


def _find_head(config: Config, info: ModelInfo, given: HeadOptions) -> LoadedDrafter:
    """Its tensors are read when the model is there, which it computes with."""
    path = Path(info.folder) / "config.json"
    target = read_architecture(read_json(path), path, config.quantization)
    head = find_head(config, info, target)
    assert head is not None
    size = head_block_bytes(head.shape, config.block_size, kv_type_of(config, target))
    return LoadedDrafter(given, None, size, head)
