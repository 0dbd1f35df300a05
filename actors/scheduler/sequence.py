"""One sequence as the scheduler sees it: what does not change in every step. Hot state is in batch.py."""

from __future__ import annotations

from collections import deque

import msgspec

from actorserve.shm.table.table import slot_of

from ..protocol.block_hash import first_hash
from ..protocol.request import Generation, Sampling
from ..protocol.step import NewRow
from .policy.pictures import NONE


class Sequence:
    """A choice of a request: waiting (row is None) or running in a row of the batch.

    Tokens of its log, by position:
      [0, num_prompt_tokens)                             written by the renderer
      [num_prompt_tokens, num_tokens)     appended by the scheduler
      and `num_in_flight_tokens` more are being sampled by steps that have not come back
    """

    __slots__ = (
        "adapter", "arrival", "blocks", "cache_salt", "cacheable", "constrained", "encoded", "ends", "has_run",
        "hashes", "ignore_eos", "is_read", "kv_peer", "looked",
        "max_tokens", "num_generated_tokens", "num_in_flight_tokens", "num_prompt_tokens", "pictures",
        "pools", "priority", "ref", "row", "sampling", "slot", "stop_ids", "whole",
        "window_blocks", "window_first",
    )  # fmt: skip

    def __init__(self, ref: int, arrival: int, params: Generation, end_tokens: list[int], whole: bool = False) -> None:
        """`whole`: no prompt of this model can be computed in parts."""
        self.ref = ref
        self.slot = slot_of(ref)
        self.arrival = arrival  # order of admission; a preempted sequence keeps its place
        self.priority = params.priority
        self.ignore_eos = params.ignore_eos
        self.stop_ids = frozenset(params.stop_token_ids)
        self.ends = self.stop_ids if params.ignore_eos else self.stop_ids | frozenset(end_tokens)
        pooling = params.sampling.pooling
        self.pools = pooling is not None  # it ends with its prompt: of the one token that it draws nobody is told
        self.whole = whole or (pooling is not None and pooling.whole)  # its prompt is computed in one step
        told = params.sampling.prompt_logprobs >= 0 or params.sampling.hidden_states
        self.cacheable = not told and not self.whole  # or each of its tokens is computed
        self.constrained = False  # it keeps to a grammar
        self.adapter = params.adapter
        self.kv_peer = params.kv_peer  # of a server that has its blocks; nothing: it is in nobody's hands
        self.cache_salt = params.cache_salt
        self.sampling = _with_suppressed(params.sampling, [*end_tokens, *params.stop_token_ids])
        self.num_prompt_tokens = 0
        self.max_tokens = 0  # generated tokens at most
        self.num_generated_tokens = 0
        self.num_in_flight_tokens = 0
        self.blocks: list[int] = []
        self.window_blocks: deque[list[int]] = deque()  # of scheduler/memory/windows.py, one of each table
        self.window_first = 0  # which block of its tables the first of these is
        self.hashes: list[bytes] = []  # of its full blocks, as far as they are known
        self.pictures = NONE
        self.looked = 0  # placeholders of the next picture whose embeddings have been made, likewise
        self.encoded = 0  # up to which position its pictures have been encoded, as far as plans go
        self.row: int | None = None
        self.is_read = False  # without a row: steps from before it lost one, or was taken up, may read its slot
        self.has_run = False  # it ran once: its cached prompt tokens are told

    @property
    def salt(self) -> bytes:
        """What the hash of its first block begins with."""
        return first_hash(self.cache_salt, self.adapter)

    @property
    def num_tokens(self) -> int:
        """Tokens in the log."""
        return self.num_prompt_tokens + self.num_generated_tokens

    @property
    def max_num_tokens(self) -> int:
        """Tokens in the log when the length limit is reached."""
        return self.num_prompt_tokens + self.max_tokens

    def new_row(self, row: int, computed: int, snapshot: int = -1) -> NewRow:
        """This sequence as the worker is told of it."""
        lengths = self.num_prompt_tokens, self.num_tokens, computed
        return NewRow.make(row, self.ref, *lengths, self.blocks, self.sampling, snapshot, self.adapter)


def _with_suppressed(sampling: Sampling, stops: list[int]) -> Sampling:
    """Until min_tokens are generated no token that would end the sequence may be drawn."""
    if sampling.min_tokens <= 0:
        return sampling
    return msgspec.structs.replace(sampling, suppress=sorted({*stops, *sampling.suppress}))
