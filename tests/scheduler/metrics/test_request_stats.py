"""What the scheduler counts and stamps, against a worker that computes nothing: numbers, not times."""

from __future__ import annotations

import numpy as np
import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.request import Pooling, Sampling
from actorserve.actors.scheduler.metrics.request_stats import RequestStats
from actorserve.actors.scheduler.scheduler import Scheduler
from actorserve.actors.telemetry.histograms import histograms_bytes, open_histograms, scheduler_histograms
from actorserve.shm.histogram import Histogram
from actorserve.shm.segment import Segment
from actorserve.shm.table.stamps import Life, Stamp, Stamps, drafts

from ..engine_model import END, MAX_TOKENS, Bench, prompt_of

BETWEEN = "vllm:inter_token_latency_seconds"


class Counting:
    """A bench whose schedulers count in the same histograms, one after the other. Each slot is used once."""

    def __init__(self, **limits: object) -> None:
        self.bench = Bench(**limits)  # type: ignore[arg-type]
        specs = scheduler_histograms(MAX_TOKENS)
        self.named: dict[str, Histogram] = open_histograms(Segment.create(histograms_bytes(specs), "test"), 0, specs)
        self.stamps = Stamps(self.bench.table)
        self.next()

    def next(self) -> None:
        """The scheduler dies."""
        bench = self.bench
        bench.scheduler = Scheduler(bench.table, bench.limits, [END], bench.kv, RequestStats(bench.table, self.named))
        bench.scheduler.recover()
        bench.meet_worker()

    def total(self, name: str) -> int:
        return self.named[name].read().total

    def sum(self, name: str) -> int:
        return self.named[name].read().sum

    def life(self, ref: int) -> Life:
        life = self.stamps.life(ref)
        assert life is not None
        return life

    def check_order(self, ref: int) -> None:
        """What happens later has a later stamp."""
        at = self.life(ref).at
        seen = [at[stamp] for stamp in (Stamp.ADMITTED, Stamp.SCHEDULED, Stamp.FIRST_TOKEN, Stamp.LAST_TOKEN)]
        assert seen == sorted(seen)


def test_a_prompt_that_pools_brings_no_token() -> None:
    counting = Counting(pools=True)
    counting.bench.sampling = Sampling(seed=0, pooling=Pooling("embed", whole=True))
    for number in range(3):
        counting.bench.submit(prompt_of(7 + number), 1)
    counting.bench.run()
    assert counting.sum("vllm:iteration_tokens_total") == 7 + 8 + 9


def test_every_token_but_the_first_of_each_sequence_came_after_one() -> None:
    counting = Counting()
    limits = [1, 2, 7, 30, 12]
    refs = [counting.bench.submit(prompt_of(9 + n, n), limit, ignore_eos=True) for n, limit in enumerate(limits)]
    counting.bench.run()
    assert counting.total(BETWEEN) == sum(limits) - len(limits)
    assert counting.bench.scheduler.results.generated == sum(limits)
    for name in ("queue", "prefill", "decode", "inference"):
        assert counting.total(f"vllm:request_{name}_time_seconds") == len(limits)
    assert counting.total("vllm:request_time_per_output_token_seconds") == 4, "one token has no time between"
    assert counting.sum("vllm:request_generation_tokens") == sum(limits)
    assert counting.sum("vllm:request_prompt_tokens") == sum(9 + n for n in range(5))
    computed = counting.bench.worker.computed_tokens
    assert counting.sum("vllm:iteration_tokens_total") == computed + len(limits), "the last token is never computed"
    for ref in refs:
        counting.check_order(ref)


def test_stages_add_up() -> None:
    counting = Counting()
    ref = counting.bench.submit(prompt_of(40), 10, ignore_eos=True)
    counting.bench.run()
    at = counting.life(ref).at
    stages = {name: counting.sum(f"vllm:request_{name}_time_seconds") for name in ("queue", "prefill", "decode")}
    assert sum(stages.values()) == at[Stamp.LAST_TOKEN] - at[Stamp.ADMITTED] > 0
    assert counting.sum("vllm:request_inference_time_seconds") == stages["prefill"] + stages["decode"]
    assert counting.sum(BETWEEN) == stages["decode"], "the times between all tokens"
    assert counting.sum("vllm:request_time_per_output_token_seconds") == stages["decode"] // 9


def test_how_they_end() -> None:
    counting = Counting(max_num_seqs=1, max_queued=1)
    first = counting.bench.submit(prompt_of(5), 6, ignore_eos=True)
    second, refused = (counting.bench.submit(prompt_of(5, seed), 6, ignore_eos=True) for seed in (1, 2))
    counting.bench.table.cancel(second)
    counting.bench.scheduler.end(second, Finish.ABORT)
    counting.bench.run()
    assert counting.bench.table.finish(refused) == Finish.REJECTED and counting.bench.table.finish(first)
    assert counting.bench.scheduler.stats.ends == {Finish.LENGTH: 1, Finish.ABORT: 1, Finish.REJECTED: 1}
    assert counting.total("vllm:request_generation_tokens") == 2, "who was not admitted has no length"
    assert counting.total("vllm:request_queue_time_seconds") == 1 and not counting.life(refused).at


def test_drafts_are_counted_with_their_sequence() -> None:
    counting = Counting(drafts=3)
    refs = [counting.bench.submit(prompt_of(9, n), 30, ignore_eos=True) for n in range(3)]
    counting.bench.run()
    found = [drafts(counting.stamps.words(ref)) for ref in refs]
    worker = counting.bench.worker
    assert all(0 < accepted < drafted for drafted, accepted in found)
    assert sum(accepted for _, accepted in found) <= worker.accepted
    assert sum(drafted for drafted, _ in found) <= worker.accepted + worker.rejected


def test_drafts_of_a_new_use_are_counted_anew() -> None:
    counting = Counting()
    slots, table = np.array([0, 2]), counting.bench.table
    for _ in range(2):
        refs = [table.open_slot(slot, b"", 1000) for slot in slots.tolist()]
        uses = np.array([ref >> 32 for ref in refs])
        counting.bench.scheduler.stats.drafted(slots, uses, np.array([5, 0]), np.array([2, 0]))
        counting.bench.scheduler.stats.drafted(slots, uses, np.array([4, 1]), np.array([4, 0]))
        assert [drafts(counting.stamps.words(ref)) for ref in refs] == [(9, 6), (1, 0)]


def test_preemption_is_counted_with_its_sequence() -> None:
    counting = Counting(num_blocks=10, max_num_seqs=4)
    refs = [counting.bench.submit(prompt_of(10, n), 40, ignore_eos=True) for n in range(4)]
    counting.bench.run()
    preemptions = [counting.life(ref).preemptions for ref in refs]
    assert sum(preemptions) == counting.bench.scheduler.planner.memory.preemptions > 0
    assert preemptions[0] == 0, "the first comes first"
    assert counting.sum("vllm:request_num_preemptions") == sum(preemptions)
    assert [counting.stamps.preemptions(ref) for ref in refs] == preemptions
    assert counting.stamps.preemptions(refs[-1] + (1 << 32)) == 0, "of another use of the slot"
    assert counting.sum("vllm:request_params_max_tokens") == 4 * 40
    assert counting.total(BETWEEN) == 4 * 39 and counting.total("vllm:request_queue_time_seconds") == 4
    for ref in refs:
        counting.check_order(ref)


@pytest.mark.parametrize("worker_too", [False, True])
def test_a_successor_counts_nothing_twice(worker_too: bool) -> None:
    counting = Counting()
    bench = counting.bench
    refs = [bench.submit(prompt_of(12, n), 20, ignore_eos=True) for n in range(3)]
    assert bench.scheduler.lifecycle.prompted == 36
    for _ in range(5):
        while bench.plan():
            pass
        bench.work()
    before = [counting.life(ref).at for ref in refs]
    if worker_too:
        bench.lose_worker()
    counting.next()
    assert bench.scheduler.lifecycle.prompted == 0, "they were admitted before"
    assert bench.scheduler.stats.survived_scheduler == 3
    late = bench.submit(prompt_of(12, 9), 20, ignore_eos=True)
    bench.run()
    assert counting.total(BETWEEN) == 4 * 19 and bench.scheduler.lifecycle.prompted == 12
    assert counting.total("vllm:request_queue_time_seconds") == 4
    for ref, was in zip(refs, before, strict=True):
        counting.check_order(ref)
        life = counting.life(ref)
        assert life.deaths == 1
        for stamp in (Stamp.ADMITTED, Stamp.SCHEDULED, Stamp.FIRST_TOKEN):
            assert life.at[stamp] == was[stamp], "what has happened stays"
    assert counting.life(late).deaths == 0


def test_a_worker_that_dies_is_survived() -> None:
    counting = Counting()
    bench = counting.bench
    ref = bench.submit(prompt_of(12), 20, ignore_eos=True)
    bench.plan()
    bench.work()
    bench.scheduler.stats.survived(bench.scheduler.batch.running())
    bench.new_worker()
    bench.run()
    assert counting.life(ref).deaths == bench.scheduler.stats.survived_worker == 1
    assert counting.total(BETWEEN) == 19
