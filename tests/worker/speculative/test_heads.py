"""Heads that draft: what they say is what their formats say, whatever happened to the KV memory, and texts stay."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.request import Sampling
from actorserve.actors.protocol.step import NewRow, Step
from actorserve.actors.worker.cpu.batch import BatchInputs
from actorserve.actors.worker.cpu.runner import CpuRunner
from actorserve.actors.worker.speculative import entries
from actorserve.actors.worker.speculative.actor import load_drafter
from actorserve.actors.worker.speculative.recurrent import RecurrentProposer
from actorserve.actors.worker.speculative.verifier import DraftBatch, DraftVerifier, Ints, Tokens
from actorserve.kernels.cpu.paged_kv import PagedKV
from actorserve.shm.table.table import make_ref
from tests.support.models import heads
from tests.support.models.checkpoints import VOCABULARY

from ..driver import GREEDY, LENGTH, Driver, Sequence, config_for, make_runner
from .block_format import BlockReference
from .head_formats import FORMS, MedusaReference, Reference

Folders = Callable[..., Path]
AnyReference = Reference | MedusaReference | BlockReference
BLOCKS = 128
DRAFTS = 4
SAMPLINGS = [
    GREEDY,
    Sampling(12, temperature=0.7, top_k=20),
    Sampling(13, temperature=0.5, top_p=0.8),
    Sampling(15, temperature=0.3, frequency_penalty=0.5),
    Sampling(16, temperature=0.0, min_tokens=9, suppress=[5, 6]),
    GREEDY,
]


# --- runners with heads ----------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A checkpoint, and what it has to say."""

    config: Config
    reference: AnyReference


def case(name: str, checkpoints: Folders, root: Path) -> Case:
    """One head in one of its forms, for a model of its own."""
    kind = "qwen2" if name == "mtp" else "llama"
    target, folder, most = checkpoints(kind), root / name, DRAFTS
    reference: AnyReference
    if name.startswith("eagle3"):
        words = 200 if name == "eagle3_words" else None
        sizes = {"hidden_size": 32, "target_hidden_size": 64} if name == "eagle3_narrow" else {}
        own = name in ("eagle3_embeddings", "eagle3_narrow")
        tensors = heads.eagle3(target, drafted=words, own_embeddings=own, config=sizes)
        given = {"norm_before_residual": True} if name == "eagle3_speculators" else sizes
        write = heads.write_speculators if name == "eagle3_speculators" else heads.write_eagle3
        write(folder, target, tensors, **given)
        reference = Reference(FORMS["eagle3"], tensors, target, **given)
    elif name.startswith("eagle"):
        tensors = heads.eagle(target, bias=name == "eagle_bias")
        heads.write_eagle(folder, target, tensors)
        reference = Reference(FORMS["eagle"], tensors, target)
    elif name == "mtp":
        tensors = heads.mtp(target)
        reference = Reference(FORMS["mtp"], tensors, target)
        target = heads.write_mimo(folder, target, tensors)
    elif name.startswith("dflash"):
        reference = dflash_case(name, folder, target)
    else:
        blocks = 2 if name == "medusa_vllm" else 1
        tensors = heads.medusa(target, heads=DRAFTS, blocks=blocks)
        if blocks == 2:
            tensors = {key: tensor for key, tensor in tensors.items() if not key.endswith("bias")}
        (heads.write_medusa if blocks == 1 else heads.write_vllm_medusa)(folder, tensors)
        reference = MedusaReference(tensors, target, blocks)
    drafts: dict[str, Any] = {"method": name.partition("_")[0], "num_speculative_tokens": most}
    if name != "mtp":
        drafts["model"] = str(folder)
    options = {"speculative_config": json.dumps(drafts), "max_num_seqs": 8, "block_size": 16}
    return Case(config_for(target, **options), reference)


def dflash_case(name: str, folder: Path, target: Path) -> BlockReference:
    """Plain, with biases and windows, and with words of its own."""
    words = 200 if name == "dflash_speculators" else None
    tensors = heads.dflash(target, biased=name == "dflash_windows", drafted=words)
    if words is not None:
        heads.write_dflash_speculators(folder, target, tensors)
        return BlockReference(tensors, target, DRAFTS, (None, None))
    windows = (5, None) if name == "dflash_windows" else (None, None)
    kinds = ["full_attention" if window is None else "sliding_attention" for window in windows]
    heads.write_dflash(folder, target, tensors, layer_types=kinds, sliding_window=5)
    return BlockReference(tensors, target, DRAFTS, windows)


NAMES = (
    *("eagle3", "eagle3_words", "eagle3_embeddings", "eagle3_speculators", "eagle3_narrow", "eagle", "eagle_bias"),
    *("mtp", "medusa", "medusa_vllm", "dflash", "dflash_windows", "dflash_speculators"),
)
MAIN = ("eagle3_words", "eagle", "mtp", "medusa", "dflash_windows")


@pytest.fixture(scope="module")
def cases(checkpoints: Folders, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    root, made = tmp_path_factory.mktemp("heads"), dict[str, Case]()

    def get(name: str) -> Case:
        if name not in made:
            made[name] = case(name, checkpoints, root)
        return made[name]

    return get


def with_head(config: Config) -> CpuRunner:
    """A runner that drafts as the options say."""
    runner = make_runner(config, blocks=BLOCKS)
    drafter = load_drafter(config, resolve_model(config), None)
    assert drafter is not None
    runner.verifier = drafter.make(config, BLOCKS, LENGTH, runner.model, None)
    return runner


Drafted = list[tuple[list[int], list[int]]]  # what was known, and what was drafted


def recorded(verifier: DraftVerifier) -> Drafted:
    """All that is drafted from now on."""
    found: Drafted = []
    propose = verifier.proposer.propose

    def record(work: DraftBatch, tokens: Tokens) -> Ints:
        drafted = propose(work, tokens)
        for row, known, count in zip(work.rows, work.starts + work.pending, drafted, strict=True):
            if count:
                found.append((tokens[row, :known].tolist(), tokens[row, known : known + count].tolist()))
        return drafted

    verifier.proposer.propose = record  # type: ignore[method-assign]
    return found


def prompt(length: int, seed: int = 1) -> list[int]:
    return list(np.random.default_rng(seed).integers(3, VOCABULARY, length).tolist())


def unpaused(verifier: DraftVerifier) -> None:
    """Drafts of random heads are wrong; they are wanted all the same."""
    verifier._learn = lambda *_: None  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize(
    "name", [name if name in MAIN else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
@pytest.mark.parametrize("preempt", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
def test_drafts_are_those_of_the_format(name: str, preempt: float, cases: Callable[[str], Case]) -> None:
    """Behind prompts in pieces, rejected drafts, rows without room, preemptions; over blocks in disorder."""
    config, reference = cases(name)
    runner = with_head(config)
    assert runner.verifier is not None
    unpaused(runner.verifier)
    found = recorded(runner.verifier)
    sequences = [Sequence(prompt(5 + 19 * n, n), 16) for n in range(5)]
    driver = Driver(runner, preempt=preempt, drafts=DRAFTS, seed=7)
    driver.run(sequences)
    assert len(found) > 25
    unsure = 0
    for known, drafts in found:
        expected, margin = reference.drafts(known, len(drafts))
        unsure += margin < 1e-3
        assert drafts == expected or margin < 1e-3, f"behind {len(known)} tokens"
    assert unsure < len(found) / 10


@pytest.mark.parametrize("name", MAIN)
@pytest.mark.parametrize("preempt", [0.0, pytest.param(0.1, marks=pytest.mark.slow)])
def test_the_tokens_are_those_without_drafts(name: str, preempt: float, cases: Callable[[str], Case]) -> None:
    config, _ = cases(name)

    def sequences() -> list[Sequence]:
        return [Sequence(prompt(5 + 11 * n, n), 24, sampling) for n, sampling in enumerate(SAMPLINGS)]

    expected = Driver(make_runner(config), preempt=preempt).run(sequences())
    runner = with_head(config)
    assert runner.verifier is not None
    unpaused(runner.verifier)
    driver = Driver(runner, preempt=preempt, drafts=DRAFTS, seed=7)
    assert driver.run(sequences()) == expected
    assert driver.drafted > 60


OTHER_TYPES: list[dict[str, Any]] = [
    {"dtype": "bfloat16", "deterministic": True},
    {"quantization": "int8"},
    {"deterministic": True, "kv_cache_dtype": "int8"},
]


@pytest.mark.parametrize("options", OTHER_TYPES)
@pytest.mark.parametrize(
    "name", ["eagle3_words", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mtp", "dflash_windows"))]
)
def test_in_other_types(name: str, options: dict[str, Any], cases: Callable[[str], Case]) -> None:
    """Where bits do not depend on the batch, logits of a step with drafts are those of one without."""
    config = msgspec.structs.replace(cases(name).config, **options)
    lines = [[Sequence(prompt(30 + n, n), 20, SAMPLINGS[n]) for n in range(3)] for _ in range(2)]
    expected = Driver(make_runner(config)).run(lines[0])
    runner = with_head(config)
    assert runner.verifier is not None
    unpaused(runner.verifier)
    driver = Driver(runner, drafts=DRAFTS, seed=7)
    assert driver.run(lines[1]) == expected and driver.drafted > 30


@pytest.mark.parametrize("name", MAIN)
def test_a_prefix_that_is_found_holds_what_the_head_needs(name: str, cases: Callable[[str], Case]) -> None:
    """A sequence takes over blocks that another one computed, and drafts as if it had computed them itself."""
    config, reference = cases(name)
    runner = with_head(config)
    assert runner.verifier is not None
    found = recorded(runner.verifier)
    shared, size = prompt(60), config.block_size
    first, second = shared + prompt(4, 2), shared + prompt(9, 3)
    runner.log[0, : len(first)], runner.log[1, : len(second)] = first, second
    new = NewRow.make(0, make_ref(1, 0), len(first), len(first), 0, [9, 4, 7, 2, 11], GREEDY)
    runner.run(Step.make(1, 1, [new], [0], [len(first)], []))
    computed = 3 * size
    new = NewRow.make(1, make_ref(1, 1), len(second), len(second), computed, [9, 4, 7, 30, 31], GREEDY)
    runner.run(Step.make(1, 2, [new], [1], [len(second) - computed], []))
    runner.run(Step.make(1, 3, [], [0, 1], [1 + DRAFTS] * 2, []))
    assert [len(known) for known, _ in found] == [len(first) + 1, len(second) + 1]
    for known, drafts in found:
        assert drafts == reference.drafts(known, DRAFTS)[0]


def test_a_model_of_mimo_is_one_of_qwen2(cases: Callable[[str], Case], checkpoints: Folders) -> None:
    lines = [
        Driver(make_runner(config)).run([Sequence(prompt(40, 1), 30)])
        for config in (cases("mtp").config, config_for(checkpoints("qwen2"), block_size=16))
    ]
    assert lines[0] == lines[1]


def test_nothing_is_drafted_where_no_hidden_state_is_there(cases: Callable[[str], Case]) -> None:
    """A row whose tokens but the last are found as a prefix, with room for drafts in its first step."""
    config, _ = cases("eagle3")
    runner = with_head(config)
    assert runner.verifier is not None
    found = recorded(runner.verifier)
    ids = prompt(33)
    runner.log[0, :33] = ids
    blocks = [1, 2, 3, 4]
    runner.run(Step.make(1, 1, [NewRow.make(0, make_ref(1, 0), 33, 33, 0, blocks, GREEDY)], [0], [33], []))
    again = NewRow.make(3, make_ref(1, 0), 33, 33, 32, blocks, GREEDY)
    runner.run(Step.make(1, 2, [again], [3], [1 + DRAFTS], []))
    assert not found and runner.outcome is None


RECURRENT = tuple(name for name in MAIN if name not in ("medusa", "dflash_windows"))


def steps_without_room(runner: CpuRunner, ids: list[int], count: int) -> int:
    """A row of this prompt decodes so many tokens; the number of its next step."""
    runner.log[0, : len(ids)] = ids
    place = NewRow.make(0, make_ref(1, 0), len(ids), len(ids), 0, [1, 2, 3, 4, 5, 6], GREEDY)
    runner.run(Step.make(1, 1, [place], [0], [len(ids)], []))
    for number in range(count):
        runner.run(Step.make(1, 2 + number, [], [0], [1], []))
    return 2 + count


def counted(verifier: DraftVerifier) -> list[int]:
    """How many entries or drafts each pass of the head makes from now on."""
    proposer = verifier.proposer
    assert isinstance(proposer, RecurrentProposer)
    passes, forward = list[int](), proposer.head.forward

    def count(hidden: Tensor, inputs: BatchInputs, kv: PagedKV) -> Tensor:
        passes.append(len(hidden))
        return forward(hidden, inputs, kv)

    proposer.head.forward = count  # type: ignore[method-assign]
    return passes


@pytest.mark.parametrize("name", RECURRENT)
def test_a_head_computes_nothing_where_drafts_are_off(name: str, cases: Callable[[str], Case]) -> None:
    """What was put off is made up for when they are on, in one pass: drafts are those of a head that saw all."""
    config, reference = cases(name)
    runner = with_head(config)
    assert runner.verifier is not None
    passes = counted(runner.verifier)
    found = recorded(runner.verifier)
    step = steps_without_room(runner, prompt(20), 30)
    assert passes == [20], "the prompt is observed, since others may find it as their prefix"
    runner.run(Step.make(1, step, [], [0], [1 + DRAFTS], []))
    assert passes[1] == 30
    ((known, drafts),) = found
    assert len(known) == 51 and drafts == reference.drafts(known, DRAFTS)[0]


@pytest.mark.parametrize("name", RECURRENT)
def test_what_a_head_keeps_is_bounded(name: str, cases: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more positions than are kept the last ones are made up for; the tokens are those without drafts."""
    config, _ = cases(name)
    monkeypatch.setattr(entries, "MOST_KEPT", 7)
    lines, passes = [], list[int]()
    for runner in (make_runner(config, blocks=BLOCKS), with_head(config)):
        drafting = runner.verifier is not None
        if runner.verifier is not None:
            unpaused(runner.verifier)
            passes = counted(runner.verifier)
        step = steps_without_room(runner, prompt(20), 30)
        tokens = list[int]()
        for number in range(8):
            tokens += runner.run(Step.make(1, step + number, [], [0], [1 + DRAFTS * drafting], [])).tolist()
        assert not drafting or runner.outcome is not None
        lines.append(tokens)
    assert lines[1][:8] == lines[0] and passes[:2] == [20, 7]
