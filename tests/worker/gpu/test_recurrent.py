"""Heads that draft token by token on a GPU: they say what a CPU's say, however steps are made, and texts stay."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from .test_runner import DEVICE, ROWS, GpuDriver, load_model, prompt  # isort: skip  # before kernels are imported
from .test_runner import BLOCKS, TOKENS  # isort: skip

from actorserve.actors.model.checks.drafts import find_head
from actorserve.actors.model.heads.formats import RecurrentShape
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.request import Sampling
from actorserve.actors.worker.cpu.runner import CpuRunner
from actorserve.actors.worker.gpu.buffers import Sizes
from actorserve.actors.worker.gpu.drafts.recurrent import RecurrentDraftingRunner, RecurrentHead
from actorserve.actors.worker.gpu.graphs import mixed_sizes
from actorserve.actors.worker.gpu.layers.fused import FusedLayers
from actorserve.actors.worker.gpu.memory import make_pools
from actorserve.actors.worker.models.weights import open_head
from actorserve.actors.worker.speculative.actor import load_drafter
from actorserve.kernels.triton.drafts import Lookup
from tests.support.gpu.recorded_graphs import capture_steps
from tests.support.models import heads

from ..driver import GREEDY, LENGTH, Driver, Sequence, config_for, make_runner
from ..speculative.head_formats import FORMS, Reference
from .test_drafts import SAMPLINGS

Folders = Callable[..., Path]
DRAFTS = 3
SEED = Sampling(11, temperature=0.8)
FORMATS = ("eagle3", "eagle", "mtp")
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in FORMATS[1:]]


class Case(NamedTuple):
    """A checkpoint with a head, and what that has to say."""

    config: Config
    reference: Reference


def repeating(folder: Path, own: Path) -> Path:
    """The same model with so little in its layers that it says its last token again now and then."""
    shutil.copytree(folder, own)
    tensors = load_file(own / "model.safetensors")
    small = [name for name in tensors if "o_proj" in name or "down_proj" in name]
    save_file(tensors | {name: 0.15 * tensors[name] for name in small}, own / "model.safetensors")
    return own


def echo(name: str, tensors: heads.Tensors, model: Any) -> None:
    """What the head reads of the model's end goes through as it is, so that it says what the model said last."""
    hidden, prefix = model.config.hidden_size, FORMS[name].prefix
    for layer in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"{prefix}{layer}.weight"].zero_()
    fuse = tensors[f"{prefix}input_proj.weight" if name == "mtp" else "fc.weight"].zero_()
    first = 0 if name == "mtp" else fuse.shape[1] - hidden
    fuse[:, first : first + hidden] = torch.eye(hidden)
    gain = model.model.norm.weight.detach().clone()
    if name == "mtp":
        tensors[f"{prefix}hidden_layernorm.weight"].fill_(1)
        tensors[f"{prefix}final_layernorm.weight"] = gain
    elif name == "eagle3":
        tensors["norm.weight"] = gain
        tensors["lm_head.weight"] = model.lm_head.weight.detach().clone()


def make_case(name: str, checkpoints: Folders, root: Path, layers: int = 1, echoes: bool = False) -> Case:
    """A head for a model of its own; one that `echoes` is right where the model repeats itself."""
    folder = checkpoints("qwen2" if name == "mtp" else "llama", num_hidden_layers=layers, tie_word_embeddings=echoes)
    folder, own = repeating(folder, root / "model") if echoes else folder, root / name
    words = 200 if name == "eagle3" and not echoes else None
    tensors = heads.eagle3(folder, drafted=words) if name == "eagle3" else getattr(heads, name)(folder)
    form, read = FORMS[name], [0, layers - 1, layers if echoes else layers - 1]
    reference = Reference(form if form.layers is None else form._replace(layers=tuple(read)), tensors, folder)
    if echoes:
        echo(name, tensors, reference.model)
    drafts: dict[str, Any] = {"method": name, "num_speculative_tokens": DRAFTS}
    if name == "mtp":
        folder = heads.write_mimo(own, folder, tensors)
    else:
        given: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": read} if name == "eagle3" else {}
        (heads.write_eagle3 if name == "eagle3" else heads.write_eagle)(own, folder, tensors, **given)
        drafts["model"] = str(own)
    return Case(config_for(folder, block_size=16, speculative_config=json.dumps(drafts)), reference)


def make_recurrent(case: Case, graphs: bool = False, fused: bool = False, adaptive: bool = True) -> Any:
    """With `graphs` all steps are recorded."""
    config, info = case.config, resolve_model(case.config)
    model = load_model(Path(info.folder))
    model.fused = FusedLayers.of(model.layers, DEVICE) if fused else None
    found = find_head(config, info, model.shape)
    assert found is not None and isinstance(found.shape, RecurrentShape) and (model.fused is not None) == fused
    head = RecurrentHead(found.shape, open_head(found), model, LENGTH)
    sizes, lookup = Sizes(ROWS, TOKENS, LENGTH, config.block_size, DRAFTS), Lookup(1, 1, DRAFTS)
    given = model, np.zeros((ROWS, LENGTH), np.int32), sizes, [1, 2, 4]
    mixed = mixed_sizes(ROWS, TOKENS // 2, True) if graphs else []
    runner = RecurrentDraftingRunner(*given, mixed=mixed, lookup=lookup, adaptive=adaptive, head=head)
    runner.pools, runner.draft_pools = (
        make_pools(shape, BLOCKS, config.block_size, torch.float32, DEVICE) for shape in (model.shape, head.shape)
    )
    if graphs:
        capture_steps(runner)
    return runner


def on_a_cpu(config: Config) -> CpuRunner:
    """What drafts of the same checkpoint there."""
    runner = make_runner(config, rows=ROWS)
    drafter = load_drafter(config, resolve_model(config), None)
    assert drafter is not None
    runner.verifier = drafter.make(config, 128, LENGTH, runner.model, None)
    return runner


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def sequences(samplings: list[Sampling], wanted: int = 8) -> list[Sequence]:
    prompts = [prompt(5, 4), prompt(20, 2), prompt(9, 1), prompt(21, 3)]
    return [Sequence(tokens, wanted, sampling) for tokens, sampling in zip(prompts, samplings, strict=False)]


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("graphs", [True, False])
def test_heads_change_no_text(name: str, graphs: bool, checkpoints: Folders, tmp_path: Path) -> None:
    """Rows that ask and rows with room for some, chunks beside them, rows that are taken again."""
    case = make_case(name, checkpoints, tmp_path, echoes=True)
    wanted = Driver(make_runner(case.config, rows=ROWS), seed=5).run(sequences(SAMPLINGS))
    driver = GpuDriver(make_recurrent(case, graphs), preempt=0.03, seed=6, drafts=DRAFTS)
    assert driver.run(sequences(SAMPLINGS)) == wanted
    assert 0 < driver.accepted < driver.drafted


@pytest.mark.parametrize("rows", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["eagle3", *OTHERS])
def test_as_many_count_as_on_a_cpu(name: str, rows: int, checkpoints: Folders, tmp_path: Path) -> None:
    """Step by step, also where rows give drafts up; greedy and drawn."""
    case = make_case(name, checkpoints, tmp_path, echoes=True)
    counts = []
    runners: list[Any] = [on_a_cpu(case.config), make_recurrent(case)]
    for runner, kind in zip(runners, (Driver, GpuDriver), strict=True):
        driver: Driver = kind(runner, seed=3, drafts=DRAFTS, steady=True)
        texts = driver.run(sequences([GREEDY, SEED, SAMPLINGS[1], GREEDY][:rows], 3 * rows + 1))
        counts.append((texts, driver.steps, driver.drafted, driver.accepted))
    assert counts[0] == counts[1] and counts[0][3] > 0


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("eagle3", ""),
        *(
            pytest.param(*which, marks=pytest.mark.slow)
            for which in (("eagle3", "fused"), ("eagle3", "graphs"), ("eagle", ""), ("mtp", ""), ("mtp", "graphs"))
        ),
    ],
)
def test_heads_say_what_their_format_says(
    name: str, way: str, checkpoints: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind prompts in pieces, rejected drafts, rows without room, preemptions; over blocks in disorder."""
    case = make_case(name, checkpoints, tmp_path, layers=2)
    runner = make_recurrent(case, way == "graphs", way == "fused", adaptive=False)
    own = sequences([GREEDY] * 2, 6)
    step, seen = runner.drafting.step, list[int]()
    unsure = 0

    def checked(size: int) -> None:
        nonlocal unsure
        step(size)
        drafting = zip(runner._at.drafting[:size].tolist(), runner._at.wanted[:size].tolist(), strict=True)
        for row, count in ((row, count) for row, count in drafting if row >= 0):
            (sequence,) = [one for one in own if one.row == row]
            ids = [*sequence.prompt, *sequence.tokens]
            words, margin = case.reference.drafts(ids, count)
            unsure += margin < 1e-3
            assert margin < 1e-3 or runner._words[:count, row].tolist() == words, (row, ids)
            seen.append(count)

    monkeypatch.setattr(runner.drafting, "step", checked)
    GpuDriver(runner, preempt=0.1, seed=7, drafts=DRAFTS).run(own)
    assert len(seen) > 3 and max(seen) > 1 and unsure < len(seen) / 5
