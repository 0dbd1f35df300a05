"""Scheduler and worker together, without processes: greedy tokens are what transformers generates.

64 requests of mixed lengths with shared prefixes arrive at random times; the budget is 32, blocks are so few that
sequences are preempted, some have two choices, some are aborted, and two steps are always in flight.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from actorserve.actors.protocol.block_hash import extend_hashes
from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.step import Step, StepDone
from actorserve.actors.scheduler.limits import Limits
from actorserve.actors.scheduler.scheduler import Scheduler
from actorserve.shm.segment import Segment
from actorserve.shm.table.table import RequestTable, table_bytes
from tests.support.models.checkpoints import SPECIAL, checkpoint
from tests.support.models.greedy import behind, reference
from tests.support.selection import slow
from tests.worker.driver import LENGTH, config_for, make_runner

END = SPECIAL.index("<|endoftext|>")
BLOCK = 16
SLOTS = 256
BLOCKS = LENGTH // BLOCK + 8


class Engine:
    """What scheduler and worker actor do with their messages, in one process."""

    def __init__(self, folder: Path) -> None:
        self.segment = Segment.create(table_bytes(SLOTS, LENGTH, BLOCK, 4096), "test")
        self.table = RequestTable.create(self.segment, 0, SLOTS, LENGTH, BLOCK, 4096)
        config = config_for(folder, block_size=BLOCK)
        self.runner = make_runner(config, rows=8, blocks=BLOCKS, log=self.table.as_numpy().tokens)
        limits = Limits(8, SLOTS, 32, BLOCK, True, False)
        self.scheduler = Scheduler(self.table, limits, [0])
        self.scheduler.begin_epoch(1, BLOCKS)
        self.planned: list[Step] = []
        self.slots = list(range(SLOTS))

    def submit(self, prompt: list[int], limit: int) -> int:
        params = Generation(Sampling(0, temperature=0.0), ignore_eos=False)
        ref = self.table.open_slot(self.slots.pop(), msgspec.msgpack.encode(params), 0)
        ids = np.array(prompt, np.int32).tobytes()
        self.table.write_prompt(ref, ids, extend_hashes(b"", ids, BLOCK), limit)
        self.scheduler.admit(ref)
        return ref

    def abort(self, ref: int) -> None:
        self.table.cancel(ref)
        self.scheduler.end(ref, Finish.ABORT)

    def turn(self) -> None:
        while (step := self.scheduler.plan()) is not None:
            self.planned.append(step)
        if self.planned:
            step = self.planned.pop(0)
            tokens = self.runner.run(step)
            self.scheduler.apply(StepDone.make(step, tokens, 0.0))
        self.scheduler.check_integrity()

    def answer(self, ref: int) -> list[int]:
        start = self.table.prompt_length(ref)
        assert start is not None
        return list(self.table.token_ids(ref, start, start + self.table.generated(ref)))


def workload(rng: random.Random, vocabulary: int) -> list[tuple[int, list[int], int, int]]:
    """(turn of arrival, prompt, limit, choices) of 64 requests."""
    shared = [[rng.randrange(3, vocabulary) for _ in range(96)] for _ in range(3)]
    requests = []
    for _ in range(64):
        prefix = rng.choice(shared)[: rng.choice([0, 0, 33, 64, 96])]
        prompt = prefix + [rng.randrange(3, vocabulary) for _ in range(rng.randrange(1, 60))]
        requests.append((rng.randrange(120), prompt, rng.randrange(1, 48), rng.choice([1, 1, 1, 2])))
    return sorted(requests, key=lambda request: request[0])


def difference(model: Any, prompt: list[int], limit: int, answer: list[int], aborted: bool) -> float | None:
    """None: the answer is what transformers draws, up to its limit or its end; else how much likelier a word was that
    transformers draws in place of the answer's, at the first place where it does.
    """
    ends = bool(answer) and answer[-1] == END
    assert END not in answer[:-1] and len(answer) <= limit and (aborted or ends or len(answer) == limit)
    if not answer:
        return None
    logits = behind(model, prompt, answer)
    drawn = logits.argmax(-1)
    (others,) = (drawn != torch.tensor(answer)).nonzero(as_tuple=True)
    if not len(others):
        return None
    first = int(others[0])
    return float(logits[first, drawn[first]] - logits[first, answer[first]])


@pytest.mark.parametrize("kind", ["llama", "qwen3", *slow("qwen2", "mistral")])
def test_greedy_is_what_transformers_generates(kind: str, tmp_path: Path) -> None:
    folder = checkpoint(kind, tmp_path)
    model = reference(folder)
    rng = random.Random(kind)
    requests = workload(rng, model.config.vocab_size)
    engine = Engine(folder)
    refs: dict[int, tuple[list[int], int]] = {}
    aborted: set[int] = set()
    turn = 0
    with torch.inference_mode():
        while requests or engine.scheduler.sequences:
            while requests and requests[0][0] <= turn:
                _, prompt, limit, choices = requests.pop(0)
                refs |= {engine.submit(prompt, limit): (prompt, limit) for _ in range(choices)}
            if rng.random() < 0.04 and engine.scheduler.sequences:
                ref = rng.choice(list(engine.scheduler.sequences))
                engine.abort(ref)
                aborted.add(ref)
            engine.turn()
            turn += 1
    assert engine.scheduler.planner.memory.preemptions > 0 and engine.scheduler.prefix.hits > 0 and aborted
    assert engine.scheduler.pool.free == BLOCKS
    different = 0
    for ref, (prompt, limit) in refs.items():
        answer = engine.answer(ref)
        if (margin := difference(model, prompt, limit, answer, ref in aborted)) is not None:
            assert margin < 1e-4, f"{kind}: in {answer} a word is less likely than another by {margin}"
            different += 1
    assert different <= 1, f"{different} answers differ where two words are nearly as likely"
