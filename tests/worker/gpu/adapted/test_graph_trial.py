"""Which models of transformers have CUDA graphs of their steps: seen by tiny ones where a GPU is pretended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.actors.worker.adapter.hooks import Unfit, register
from actorserve.actors.worker.adapter.model import Tier
from actorserve.actors.worker.adapter.verify import Verdict
from actorserve.actors.worker.gpu.adapted.graph_trial import reason_against_graphs
from actorserve.actors.worker.gpu.adapted.load import graph_words
from actorserve.actors.worker.gpu.adapted.model import AdaptedGpuModel
from actorserve.actors.worker.gpu.graphs import Graphs
from tests.support.gpu.pretended_device import DEVICE, on_the_host, pretended
from tests.support.models.census import write_tiny
from tests.support.models.greedy import reference
from tests.support.selection import slow

from .test_adapted import PUBLISHED
from .test_states import FIELDS

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is one that need not be pretended")

ROWS_ALONE = "it counts positions by itself, so that each row goes alone"


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with pretended():
        yield


def small(name: str, folder: Path) -> Any:
    with on_the_host():
        register()
        kind, fields = PUBLISHED.get(name, (name, None))
        write_tiny(kind, folder / "model", fields, **FIELDS.get(name, {"num_hidden_layers": 1}))
        return reference(folder / "model")


def reason(twin: Any, tier: Tier = Tier.FLAT, dtype: torch.dtype = torch.bfloat16) -> str:
    return reason_against_graphs(twin, tier, dtype, DEVICE)


@pytest.mark.parametrize(
    ("name", "tier"),
    [
        ("mamba2", Tier.ROWS),
        *slow(("opt", Tier.FLAT), ("olmoe", Tier.FLAT), ("qwen3_next", Tier.ROWS), ("mamba", Tier.TOKENS)),
        *slow(("Gemma 4 26B-A4B", Tier.FLAT), ("mimo_v2_flash", Tier.FLAT), ("falcon_h1", Tier.ROWS)),
    ],
)
def test_steps_that_graphs_hold(name: str, tier: Tier, tmp_path: Path) -> None:
    """Whatever rows fill them up, and whatever was before; of experts in bfloat16, too."""
    assert reason(small(name, tmp_path), tier) == ""


def test_where_experts_are_counted_by_the_host(tmp_path: Path) -> None:
    """Torch makes their products one by one but in bfloat16; it is said where, and nothing is captured."""
    found = reason(small("olmoe", tmp_path), dtype=torch.float32)
    assert found.startswith("it waits for the device (moe.py, line ") and "_grouped_mm" in found


def changed(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """A model whose logits are made in another way."""
    own = AdaptedGpuModel.forward

    def forward(self: Any, batch: Any, pools: Any) -> Any:
        hidden = own(self, batch, pools)
        return hidden._replace(added=change(hidden.added, batch))

    monkeypatch.setattr(AdaptedGpuModel, "forward", forward)


def test_what_looks_at_a_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changed(monkeypatch, lambda added, batch: added * float(batch.inputs.lengths.max() > 0))
    assert reason(small("opt", tmp_path)).startswith("it waits for the device (")


def test_what_is_of_the_capture_for_good(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A number of Python's that changes from step to step."""
    steps = iter(range(1 << 30))
    changed(monkeypatch, lambda added, batch: added + (next(steps) % 5))
    assert "it computes something else: logits are off by" in reason(small("opt", tmp_path))


def test_what_asks_how_many_positions_were_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a model with states they are always said to be one."""
    changed(monkeypatch, lambda added, batch: added * 2 if batch.kept.groups[0].past == 1 else added)
    assert "it computes something else: logits are off by" in reason(small("mamba2", tmp_path), Tier.ROWS)


def test_rows_that_go_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = AdaptedGpuModel.__init__

    def alone(self: Any, *given: Any, **named: Any) -> None:
        own(self, *given, **named)
        self.groups = self.groups._replace(together=False)

    monkeypatch.setattr(AdaptedGpuModel, "__init__", alone)
    assert reason(small("mamba2", tmp_path), Tier.ROWS) == ROWS_ALONE


def test_a_capture_that_fails_ends_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever torch has not refused: it is not to be gone on with what such a capture leaves behind."""

    def captured(graphs: Any, size: Any, pool: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Graphs, "_captured", captured)
    with pytest.raises(Unfit, match=r"^cannot be captured \(operation not permitted .*--enforce-eager"):
        reason(small("mamba2", tmp_path), Tier.ROWS)


def test_nothing_is_tried_without_a_gpu() -> None:
    assert reason_against_graphs(None, Tier.FLAT, torch.float32, torch.device("cpu")) == "there is no GPU"


def test_what_is_said() -> None:
    kept: Any = type("Kept", (), {"stateful": True})
    flat: Any = type("Flat", (), {"stateful": False})
    assert graph_words(Verdict(Tier.FLAT, flat, {}, 0.0, False)) == "by CUDA graphs"
    assert graph_words(Verdict(Tier.ROWS, kept, {}, 0.0, False)) == "decoding by CUDA graphs, prompts without"
    why = Verdict(Tier.ROWS, kept, {}, 0.0, False, ROWS_ALONE)
    assert graph_words(why) == f"without CUDA graphs: {ROWS_ALONE}"
