"""Prompts that are embeddings: the logits of transformers' model of the same rows, wherever prompts are cut; on a GPU
where there is one, else in the interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from .test_runner import Folders, GpuDriver, make_gpu_runner, prompt  # isort: skip  # before kernels are imported

from actorserve.actors.protocol.request import Sampling
from actorserve.actors.worker.cpu.prompt_embeds import RowEmbeds
from actorserve.kernels.triton.drafts import Lookup
from actorserve.shm.table.table import slot_of
from tests.support.gpu import pretended_device
from tests.support.gpu.pretended_device import on_the_host, pretended
from tests.support.models.greedy import reference
from tests.support.selection import slow

from ..driver import GREEDY, Driver, Sequence, config_for, make_runner
from . import test_runner
from .pictures.seeing import record

ROWS, WANTED = 6, 4
COUNTS = {0: 21, 2: 1, 3: 12}  # embeddings of prompts, by slot; that of slot 1 is a text
PENALTY = Sampling(
    3, temperature=0.0, repetition_penalty=1.5, repeat_last_n=3, min_tokens=3, suppress=[*range(0, 384, 2)]
)


class Area:
    """What clients gave, as it stands in shared memory."""

    def __init__(self, rows: dict[int, torch.Tensor]) -> None:
        self.rows = rows

    def given(self, ref: int) -> tuple[int, bytes] | None:
        own = self.rows.get(slot_of(ref))
        return None if own is None else (len(own), bytes(16))

    def some(self, ref: int, first: int, count: int) -> bytes | None:
        return self.rows[slot_of(ref)][first : first + count].numpy().tobytes()


def embeds_of(folder: Path) -> tuple[Any, dict[int, torch.Tensor], RowEmbeds]:
    """transformers' model, and rows near those of tokens."""
    model: Any = reference(folder)
    table = model.get_input_embeddings().weight.detach()
    chance = torch.Generator().manual_seed(1)
    made = {
        slot: table[torch.randint(len(table), (count,), generator=chance)]
        + 0.3 * table.std() * torch.randn(count, table.shape[1], generator=chance)
        for slot, count in COUNTS.items()
    }
    area: Any = Area(made)
    return model, made, RowEmbeds(area, ROWS)


def sequences(sampling: Sampling = GREEDY) -> list[Sequence]:
    prompts = ([0] * COUNTS[slot] if slot in COUNTS else prompt(15, 1) for slot in range(4))
    return [Sequence(own, WANTED, sampling) for own in prompts]


@pytest.mark.parametrize("way", ["graphs", *slow("preempted", "kernel by kernel", "drafts")])
def test_logits_are_those_of_transformers(checkpoints: Folders, way: str) -> None:
    folder = checkpoints("qwen3", num_hidden_layers=1)
    model, rows, embeds = embeds_of(folder)
    lookup = Lookup(1, 3, 3) if way == "drafts" else None
    runner = make_gpu_runner(
        config_for(folder, block_size=16), graphs=way != "kernel by kernel", embeds=embeds, lookup=lookup
    )
    logits: dict[int, dict[int, torch.Tensor]] = {}
    if way != "drafts":
        record(runner, logits)
    drafts = 3 if lookup else 0
    driver = GpuDriver(runner, budget=10, preempt=0.3 if way == "preempted" else 0.0, seed=3, drafts=drafts)
    found = driver.run(sequences())
    for slot, own in rows.items():
        behind = model.get_input_embeddings()(torch.tensor(found[slot][:-1]))
        with torch.inference_mode():
            wanted = model(inputs_embeds=torch.cat([own, behind])[None]).logits[0]
        assert found[slot] == wanted[len(own) - 1 :].argmax(-1).tolist()
        if logits:
            told = torch.stack([logits[slot][at] for at in range(len(wanted))])
            assert float((told - wanted).abs().max() / wanted.abs().max()) < 2e-5
    assert (
        found[1]
        == model.generate(torch.tensor([prompt(15, 1)]), max_new_tokens=WANTED, do_sample=False, eos_token_id=1 << 20)[
            0, 15:
        ].tolist()
    )


@pytest.mark.parametrize("kind", ["gemma3", *slow("qwen3", "granite")])
def test_tokens_are_the_cpus(checkpoints: Folders, kind: str) -> None:
    """Penalties know no token of them, and no end comes before `min_tokens`; models that scale embeddings have them as
    they are, or scaled, as on a CPU."""
    changes: dict[str, Any] = {"num_hidden_layers": 2}
    if kind == "gemma3":
        changes["layer_types"] = ["sliding_attention", "full_attention"]
    folder = checkpoints(kind, **changes)
    _, _, embeds = embeds_of(folder)
    config = config_for(folder, block_size=16)
    on_cpu = make_runner(config, rows=ROWS)
    on_cpu.embeds = embeds
    wanted = Driver(on_cpu, budget=10, seed=5).run(sequences(PENALTY))
    runner = make_gpu_runner(config, embeds=embeds, capture=True)
    assert GpuDriver(runner, budget=10, seed=4).run(sequences(PENALTY)) == wanted
    assert all(token % 2 for answer in wanted for token in answer[:3])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one that need not be pretended")
def test_no_step_waits_for_it(checkpoints: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoints("qwen3", num_hidden_layers=1)
    model, rows, embeds = embeds_of(folder)
    with torch.inference_mode(False), pretended() as device:
        monkeypatch.setattr(test_runner, "DEVICE", pretended_device.DEVICE)
        runner = make_gpu_runner(config_for(folder, block_size=16), embeds=embeds, capture=True)
        launch = runner.launch

        def hurried(step: Any) -> Any:
            with device.hurrying():
                return launch(step)

        runner.launch = hurried  # type: ignore[method-assign]
        found = GpuDriver(runner, budget=12, seed=1).run(sequences())
        with on_the_host():
            own = torch.cat([rows[0], model.get_input_embeddings()(torch.tensor(found[0][:-1]))])
            assert found[0] == model(inputs_embeds=own[None]).logits[0, COUNTS[0] - 1 :].argmax(-1).tolist()
