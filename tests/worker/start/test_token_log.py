"""What a worker reads of a slot that is another model's by then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.request import Sampling
from actorserve.actors.protocol.step import NewRow, Step
from actorserve.actors.protocol.topology import System
from actorserve.actors.runtime.process import Context
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.actors.worker.start.token_log import OwnTokens, read_own_tokens
from actorserve.shm.table.table import make_ref
from tests.support.models.checkpoints import VOCABULARY

from ..driver import GREEDY, LENGTH, config_for, make_runner

WORDS = 2048  # of the demo model


@pytest.fixture(params=[1, 2])
def context(request: pytest.FixtureRequest) -> Iterator[Context]:
    """The worker's of the first of so many models."""
    config = make_config({"max_num_seqs": 2, "also": ["org/larger"] * (request.param - 1)})
    info = resolve_model(config)
    larger = msgspec.structs.replace(info, vocab_size=100 * WORDS)
    memory = Memory(System(config, info, [larger] * (request.param - 1)))
    made = Context(memory.boot(memory.system.workers_of(0)[0]))
    yield made
    made.close()
    memory.close()


def test_ids_of_a_larger_vocabulary_are_not_read(context: Context) -> None:
    ids = [1, WORDS - 1, WORDS, 99 * WORDS]
    ref = context.table.open_slot(0, b"", 1)
    context.table.write_prompt(ref, ids, b"", 8)
    alone = len(context.system.models) == 1
    read_own_tokens(context)
    log = context.table.as_numpy().tokens
    own = ids if alone else [1, WORDS - 1, WORDS - 1, WORDS - 1]
    assert log[0, :4].tolist() == log[np.zeros(4, np.int64), np.arange(4)].tolist() == own
    assert [int(log[0, at]) for at in range(4)] == own and log.shape == (context.table.slots, context.table.max_tokens)
    assert list(context.table.token_ids(ref, 0, 4)) == ids


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1, repetition_penalty=1.2), Sampling(1, prompt_logprobs=2)])
def test_a_step_of_a_row_that_is_nobodys_is_computed(checkpoints: Callable[..., Path], sampling: Sampling) -> None:
    log = np.full((2, LENGTH), 9 * VOCABULARY, np.int32).view(OwnTokens)
    log.words = VOCABULARY
    runner = make_runner(config_for(checkpoints("llama")), rows=2, log=log)
    new = NewRow.make(0, make_ref(1, 0), 20, 20, 0, np.arange(4, dtype=np.int32), sampling)
    with torch.inference_mode():
        (token,) = runner.run(Step.make(1, 1, [new], [0], [20], []))
    assert 0 <= token < VOCABULARY
