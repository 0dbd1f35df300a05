"""Pictures in plans: what steps may make of them, and that those whose tokens see one another are never cut."""

from __future__ import annotations

import random

import pytest

from actorserve.actors.model.vision.spec import VisionSpec
from actorserve.actors.protocol.media import IMAGE, MediaItem
from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.step import KVLayout, StepDone
from actorserve.actors.scheduler.policy.chunk_size import LEAST, ChunkSizePolicy
from actorserve.actors.scheduler.policy.pictures import EncoderBudget, Picture, Pictures
from tests.scheduler.engine_model import BLOCK, MAX_TOKENS, PLAIN, Bench, expected_answer, prompt_of

PLACE = 49
CUT = VisionSpec(kind="qwen3_vl", placeholders=(PLACE,), hidden=8)
WHOLE = VisionSpec(kind="gemma3", placeholders=(PLACE,), hidden=8, whole_pictures=True, span=12)
WINDOWS = KVLayout(window=20, window_tables=2)


def picture(start: int, length: int = 12, digest: bytes = b"a" * 16) -> MediaItem:
    return MediaItem(IMAGE, digest, start, length, [])


def with_pictures(length: int, *items: MediaItem, seed: int = 0) -> list[int]:
    """A prompt that has placeholders where these are."""
    prompt = [token % PLACE for token in prompt_of(length, seed)]
    for item in items:
        prompt[item.start : item.start + item.length] = [PLACE] * item.length
    return prompt


class SeeingBench(Bench):
    """Looks at each step: where it begins and ends in pictures, and how many it makes embeddings of."""

    def plan(self) -> bool:
        if not super().plan():
            return False
        step, batch = self.scheduler.in_flight[-1], self.scheduler.batch
        spec, made, pictures = self.limits.vision, 0, 0
        assert spec is not None
        for row, count in zip(step.rows.tolist(), step.counts.tolist(), strict=True):
            end = int(batch.num_computed_tokens[row])
            start = end - count
            for item in self.media[int(batch.slot[row])]:
                first, last = item.start, item.start + item.length
                if spec.whole_pictures:
                    assert not first < start < last and not first < end < last, f"[{start}, {end}) cuts a picture"
                begins = start <= first < end
                made += item.length * begins
                pictures += begins
        most = self.limits.max_num_encoder_input_tokens
        assert pictures <= 1 or most is None or made <= most
        self.most_made = max(self.most_made, made)
        return True

    most_made = 0


def run_many(bench: Bench, seed: int, deaths: bool) -> None:
    """Prompts with pictures, some of them the same, come while others run; schedulers and workers die."""
    dice = random.Random(seed)
    asked: dict[int, list[int]] = {}
    for number in range(24):
        starts = sorted(dice.sample([1, 20, 44, 60], dice.randint(0, 3)))
        items = [picture(start, 12, bytes([dice.randrange(3)]) * 16) for start in starts]
        prompt = with_pictures(dice.randint(74, 110), *items, seed=dice.randrange(3))
        asked[bench.submit(prompt, 8, items, ignore_eos=True)] = prompt
        for _ in range(dice.randrange(4)):
            while bench.plan():
                pass
            bench.work()
        if deaths and number % 5 == 4:
            dice.choice([bench.new_scheduler, bench.new_worker])()
    bench.run()
    for ref, prompt in asked.items():
        assert bench.answer(ref) == expected_answer(prompt, 8, ignore_eos=True)
    assert bench.scheduler.pool.free == bench.num_blocks


@pytest.mark.parametrize("deaths", [False, True])
@pytest.mark.parametrize("layout", [PLAIN, WINDOWS], ids=["one table", "windows"])
@pytest.mark.parametrize("blocks", [64, 150])
def test_no_step_cuts_a_picture_whose_tokens_see_one_another(blocks: int, layout: KVLayout, deaths: bool) -> None:
    """Nor does a row begin in one, whatever is cached of it; with few blocks, rows are preempted."""
    bench = SeeingBench(vision=WHOLE, layout=layout, num_blocks=blocks * (3 if layout.window_tables else 1))
    run_many(bench, seed=blocks, deaths=deaths)
    assert bench.scheduler.hits + bench.scheduler.prefix.hits


def test_pictures_that_fit_only_one_at_a_time_into_tables_of_windows_stop_nobody() -> None:
    """Both prompts come to their picture and have a part of the blocks that it needs. One of them has to give way, and
    the worker hears of the other's blocks, though the plan that gave them out was no step.
    """
    layout = KVLayout(window=60, window_tables=1)
    bench = SeeingBench(vision=WHOLE, layout=layout, num_blocks=66, max_num_batched_tokens=128, prefix_caching=False)
    asked: dict[int, list[int]] = {}
    for length, item in ((180, picture(40, 120)), (170, picture(30, 80))):
        prompt = with_pictures(length, item, seed=len(asked))
        asked[bench.submit(prompt, 4, [item], ignore_eos=True)] = prompt
    bench.run()
    assert bench.scheduler.planner.memory.preemptions
    for ref, prompt in asked.items():
        assert bench.answer(ref) == expected_answer(prompt, 4, ignore_eos=True)
    assert bench.scheduler.pool.free == bench.num_blocks


@pytest.mark.slow
def test_many_pictures_and_few_blocks_for_windows_stop_nobody() -> None:
    for seed in range(400):
        dice = random.Random(seed)
        layout = KVLayout(window=dice.choice([40, 60, 100, 130]), window_tables=dice.choice([1, 2, 3, 5]))
        blocks = MAX_TOKENS // BLOCK * (1 + layout.window_tables) + dice.randrange(8)
        budget, caching = dice.choice([128, 200]), dice.random() < 0.3
        bench = SeeingBench(
            vision=WHOLE, layout=layout, num_blocks=blocks, max_num_batched_tokens=budget, prefix_caching=caching
        )
        asked: dict[int, list[int]] = {}
        for number in range(dice.randrange(2, 9)):
            items: list[MediaItem] = []
            length, at = dice.randrange(120, 240), dice.randrange(60)
            while at + 120 < length:
                items.append(picture(at, dice.choice([50, 60, 100, 120]), bytes([number, len(items)]) * 8))
                at += 120 + dice.randrange(1, 20)
            prompt = with_pictures(length, *items, seed=100 * seed + number)
            asked[bench.submit(prompt, 4, items, ignore_eos=True)] = prompt
        bench.run(2000)
        for ref, prompt in asked.items():
            assert bench.answer(ref) == expected_answer(prompt, 4, ignore_eos=True), f"seed {seed}"
        assert bench.scheduler.pool.free == bench.num_blocks


def test_one_step_makes_embeddings_of_so_many_tokens() -> None:
    bench = SeeingBench(vision=CUT, max_num_encoder_input_tokens=24, max_num_batched_tokens=128, num_blocks=256)
    run_many(bench, seed=1, deaths=True)
    assert bench.most_made == 24
    least = SeeingBench(vision=CUT, max_num_encoder_input_tokens=1, max_num_batched_tokens=128, num_blocks=256)
    run_many(least, seed=1, deaths=True)
    assert least.most_made == 12  # one picture always


@pytest.mark.parametrize(("digest", "cached"), [(b"a" * 16, 40), (b"b" * 16, 16)])
def test_a_prefix_is_that_of_the_same_picture_only(digest: bytes, cached: int) -> None:
    """All of its tokens have one id; what is generated behind it is in a block with its last ones."""
    bench = SeeingBench(vision=CUT)
    first, second = picture(17, 16), picture(17, 16, digest)
    prompt = with_pictures(36, first)
    answer = expected_answer(prompt, 6, ignore_eos=True)
    bench.submit(prompt, 6, [first], ignore_eos=True)
    bench.run()
    ref = bench.submit(prompt + answer + [3, 4, 5], 4, [second], ignore_eos=True)
    bench.run()
    assert bench.table.cached(ref) == cached


def test_a_picture_within_the_block_that_generation_fills_is_told_apart() -> None:
    bench = SeeingBench(vision=CUT)
    prompt = with_pictures(7, picture(2, 3))
    answer = expected_answer(prompt, 12, ignore_eos=True)
    bench.submit(prompt, 12, [picture(2, 3)], ignore_eos=True)
    bench.run()
    for digest, cached in ((b"b" * 16, 0), (b"a" * 16, 16)):
        ref = bench.submit(prompt + answer, 4, [picture(2, 3, digest)], ignore_eos=True)
        bench.run()
        assert bench.table.cached(ref) == cached


def test_a_prefix_does_not_end_in_a_picture_whose_tokens_see_one_another() -> None:
    bench = SeeingBench(vision=WHOLE)
    item = picture(20)
    prompt = with_pictures(40, item)
    bench.submit(prompt, 2, [item], ignore_eos=True)
    bench.run()
    ref = bench.submit(prompt[:28] + [PLACE] * 4 + [1, 2, 3, 4], 2, [item], ignore_eos=True)  # other text behind it
    bench.run()
    assert bench.table.cached(ref) == 4 * BLOCK
    ref = bench.submit(prompt[:32], 2, [item], ignore_eos=True)  # ends with it: one token at least is to be computed
    bench.run()
    assert bench.table.cached(ref) == 2 * BLOCK


def test_beside_rows_that_decode_a_picture_takes_the_time_of_its_step() -> None:
    """And the next one waits for another, where both together would take too long."""
    policy = ChunkSizePolicy(512, target_s=0.1)
    for _ in range(8):
        policy.observe(4, 0, 0.01)
        policy.observe(8, 0, 0.012)
        policy.observe(4, 100, 0.06)
    assert policy.beside(4, 0) == policy.chunk(4) > 100
    policy.observe(4, 50, 0.01 + 0.025 + 0.05, encoded=100)
    assert policy.chunk(4) > 100  # what a prompt's token takes is another matter
    assert policy.encoder_token_s == pytest.approx(0.0005, rel=0.2)
    assert policy.encoder_tokens(4, 0) == pytest.approx(180, rel=0.2)
    assert policy.encoder_tokens(4, 100) == pytest.approx(80, rel=0.2) and policy.encoder_tokens(4, 500) == 0
    assert policy.beside(4, 1000) == 0
    budget = EncoderBudget(512, policy)
    pictures = Pictures((Picture(10, 110, 100, b""), Picture(120, 220, 100, b"")))
    budget.begin(4, 0)
    count, progress = budget.cut(pictures, (0, 0), 0, 300, 3)
    assert budget.planned == 100 and progress == (110, 0) and not budget.looks
    assert LEAST <= count <= 110
    budget.begin(0, 0)
    assert budget.cut(pictures, (0, 0), 0, 300, 3) == (300, (220, 0))


def test_a_picture_that_takes_longer_than_a_step_is_made_in_parts() -> None:
    policy = ChunkSizePolicy(512, target_s=0.1)
    for _ in range(8):
        policy.observe(4, 0, 0.01)
        policy.observe(4, 100, 0.06)
    policy.observe(4, 50, 0.01 + 0.025 + 0.5, encoded=100)  # 5 ms each: 17 in a step, with the text before it
    budget = EncoderBudget(512, policy)
    pictures = Pictures((Picture(10, 70, 60, b""), Picture(80, 85, 5, b"")))
    progress, told, begun = (0, 0), [], []
    for _ in range(4):
        budget.begin(4, 0)
        count, progress = budget.cut(pictures, progress, 0, 300, 3)
        told.append([share for row, start, share in budget.looks if (row, start) == (3, 10)])
        begun.append(count > 10)
        assert 0 < budget.planned <= 18
    assert told == [[283], [566], [850], []] and begun == [False, False, False, True] and progress == (70, 0)
    budget.begin(0, 0)  # nobody waits for a token
    assert budget.cut(pictures, (0, 36), 0, 300, 3) == (300, (85, 0)) and not budget.looks


@pytest.mark.parametrize("start", [0, 20])
def test_parts_of_a_picture_reach_the_worker_and_texts_go_on(start: int) -> None:
    bench = SeeingBench(vision=CUT)
    text = bench.submit(prompt_of(9, 1), 60, ignore_eos=True)
    while not bench.table.generated(text):
        bench.plan()
        bench.work()
    item = picture(start, 200)
    shown = bench.submit(prompt := with_pictures(240, item), 4, [item], ignore_eos=True)
    shares = []
    while not bench.table.generated(shown):
        assert bench.plan()
        shares += [share for _, _, share in bench.scheduler.in_flight[-1].looks]
        bench.work()
    assert shares == sorted(shares) and len(shares) > 4 and shares[-1] < 1000
    assert bench.table.generated(text) > len(shares)
    bench.run()
    assert bench.answer(shown) == expected_answer(prompt, 4, ignore_eos=True)


def test_who_is_told_that_a_picture_cannot_be_used() -> None:
    bench = SeeingBench(vision=CUT)
    good, bad = (bench.submit(prompt_of(9, seed), 4, ignore_eos=True) for seed in range(2))
    assert bench.plan()
    row = int(bench.scheduler.in_flight[0].rows[bench.scheduler.in_flight[0].refs.index(bad)])
    done = bench.compute()
    bench.scheduler.apply(StepDone(done.epoch, done.step, done.packed_tokens, 0.01, packed_failed=_packed(~row)))
    bench.run()
    assert bench.table.finish(bad) == Finish.MEDIA and not bench.table.generated(bad)
    assert bench.table.finish(good) == Finish.LENGTH


@pytest.mark.parametrize("budget", [12, 14])
def test_a_picture_as_large_as_a_step_waits_for_nobody_who_decodes(budget: int) -> None:
    bench = SeeingBench(vision=WHOLE, max_num_batched_tokens=budget)
    texts = [bench.submit(prompt_of(5, seed), 200, ignore_eos=True) for seed in range(4)]
    while not all(map(bench.table.generated, texts)):
        bench.plan()
        bench.work()
    item = picture(3)
    shown = bench.submit(prompt := with_pictures(20, item), 4, [item], ignore_eos=True)
    for _ in range(40):
        bench.plan()
        bench.work()
    assert bench.table.finish(shown) == Finish.LENGTH
    assert min(map(bench.table.generated, texts)) > 20
    bench.run()
    assert bench.answer(shown) == expected_answer(prompt, 4, ignore_eos=True)


def test_what_a_picture_has_spoilt_is_not_found_again() -> None:
    bench = SeeingBench(vision=CUT)
    item = picture(4, 40)
    prompt = with_pictures(100, item)
    bad = bench.submit(prompt, 4, [item], ignore_eos=True)
    assert bench.plan() and bench.plan()  # the next part is under way when the first one comes back
    row = int(bench.scheduler.in_flight[0].rows[0])
    assert not bench.scheduler.in_flight[0].refs, "it draws nothing yet"
    done = bench.compute()
    bench.scheduler.apply(StepDone(done.epoch, done.step, done.packed_tokens, 0.01, packed_failed=_packed(~row)))
    assert bench.table.finish(bad) == Finish.MEDIA
    bench.run()
    again = bench.submit(prompt, 4, [item], ignore_eos=True)
    bench.run()
    assert not bench.scheduler.prefix.hits and bench.table.finish(again) == Finish.LENGTH


def _packed(number: int) -> bytes:
    return number.to_bytes(4, "little", signed=True)
