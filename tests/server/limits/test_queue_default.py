"""How many requests may wait if nobody says so: as many as load generators begin at once, as far as memory goes."""

from __future__ import annotations

import pytest

from actorserve.actors.model.info import ModelInfo
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.topology import MOST_QUEUED, PARAMS_BYTES, RENDITION_BYTES, TABLE_BUDGET, System
from actorserve.shm.table.table import table_bytes

BURST = 1000  # what the load generators of vLLM and SGLang begin at once, if they are told nothing


def system(max_model_len: int, frontends: int = 1, queued: int | None = None) -> System:
    model = ModelInfo(
        folder="",
        tokenizer_folder="",
        architecture="LlamaForCausalLM",
        vocab_size=1000,
        max_model_len=max_model_len,
        end_tokens=[],
        sampling_defaults={},
    )
    return System(Config(frontends=frontends, max_num_queued_reqs=queued), model)


@pytest.mark.parametrize("max_model_len", [64, 4096, 32768, 40960])
def test_a_burst_has_room(max_model_len: int) -> None:
    made = system(max_model_len)
    assert made.max_queued + made.config.max_num_seqs >= BURST
    assert made.slots_per_frontend > BURST, "a frontend can hold what the scheduler takes"


@pytest.mark.parametrize("frontends", [1, 2, 4])
@pytest.mark.parametrize("max_model_len", [64, 4096, 40960, 131072])
def test_the_table_has_its_bounds(max_model_len: int, frontends: int) -> None:
    made = system(max_model_len, frontends)
    assert 16 <= made.max_queued <= MOST_QUEUED
    sizes = (max_model_len, made.config.block_size, PARAMS_BYTES, RENDITION_BYTES)
    assert table_bytes(made.slots, *sizes) <= 1.01 * TABLE_BUDGET


@pytest.mark.parametrize("queued", [0, 1, 5000])
def test_who_asks_for_a_number_gets_it(queued: int) -> None:
    assert system(131072, 2, queued).max_queued == queued
