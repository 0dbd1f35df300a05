"""The cases that are timed on a GPU: each runs, in small shapes, and counts what it moves."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ["TRITON_INTERPRET"] = "0" if torch.cuda.is_available() else "1"  # read when kernels are imported

from tests.kernels.triton.capture import Launch, captured

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def load() -> Any:
    path = Path(__file__).parents[2] / "tools" / "gpu" / "kernels" / "cases.py"
    spec = importlib.util.spec_from_file_location("timed_cases", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


timed_cases = load()
latents: Any = importlib.import_module("tools.gpu.kernels.latents")
FULL = latents.Latents("DeepSeek-V2-Lite", 16), latents.Latents("DeepSeek-V3", 128)
MODULES = [
    getattr(timed_cases, name)
    for name in ("gpu_logits", "gpu_sampling", "paged_decode", "paged_prefill", "rms_norm", "rotary_kv", "silu_mul")
]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All cases of two small models."""
    for name, value in (("BATCHES", (2,)), ("CONTEXTS", (40,)), ("CHUNKS", ((5, 40),))):
        monkeypatch.setattr(timed_cases, name, value)
    tiny = {"hidden": 48, "heads": 4, "kv_heads": 2, "head_dim": 32, "mlp": 40, "words": 90, "block_size": 16}
    models = tuple(replace(model, **tiny) for model in timed_cases.MODELS)
    return list(timed_cases.cases(DEVICE, models, torch.float16))


def test_each_runs(small: list[Any]) -> None:
    names = [(case.kernel, case.shape) for case in small]
    assert len(set(names)) == len(names) == 2 * (2 * 3 + 2 + len(timed_cases.FILTERS) + 3)
    for case in small[:16] + [case for case in small[16:] if case.kernel == "rotary"]:  # that knows norms
        found = case.make()()
        assert found is None or torch.as_tensor(found).float().isfinite().all(), case
        assert case.moved > 0 and case.least(1e9, 1e12) >= case.moved / 1e9, case


def test_what_is_moved_is_what_tensors_hold(small: list[Any]) -> None:
    """Of kernels that read all of what they are given: their inputs and outputs, in-place ones twice."""
    whole = {case.kernel: case for case in small if case.kernel in ("silu_mul", "add_rms_norm", "prefill")}
    assert len(whole) == 3
    sizes = {kernel: sum(tensor.nbytes for tensor in memory(case)) for kernel, case in whole.items()}
    assert whole["silu_mul"].moved == sizes["silu_mul"]
    assert whole["add_rms_norm"].moved == sizes["add_rms_norm"] + 2 * 48 * 2  # the residual is written, too
    rest = 3 * 4 + 4 + 2 * 4 + 8 * (2 * 2 * 33)  # table, length, starts; slots behind the 40th position
    assert whole["prefill"].moved == sizes["prefill"] - rest


def memory(case: Any) -> list[torch.Tensor]:
    """Each tensor that a case's kernel is given, once."""
    call = case.make()
    with captured(*MODULES) as launches:
        call()
    launch = launches[0]  # another one puts parts together
    assert isinstance(launch, Launch)
    return list({value.data_ptr(): value for value in launch.arguments if isinstance(value, torch.Tensor)}.values())


def test_latents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel runs, and is given what counts as moved, beside tables and scratch."""
    for name, value in (("BATCHES", (2,)), ("CONTEXTS", (48,)), ("CHUNKS", ((5, 48),))):
        monkeypatch.setattr(latents, name, value)
    models = latents.TOY, replace(latents.TOY, name="another", heads=64)
    small = list(latents.cases(torch.device(DEVICE), models, torch.float16))
    assert len({(case.kernel, case.shape) for case in small}) == len(small) == 2 * 2
    for case in small:
        assert case.make()().float().isfinite().all() and case.flops > 0, case
        held = {part.untyped_storage() for part in memory(case) if part.dtype == torch.float16}  # values are in keys
        assert case.moved == sum({one.data_ptr(): one.nbytes() for one in held}.values()), case


def test_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores and slots are made, also of parts where there may be more positions than there are."""
    monkeypatch.setattr(latents.indexer, "UNDIVIDED", 48)
    for name, value in (("CHOOSING", (2,)), ("CHOSEN_OF", ((24, 24), (48, 48), (48, 96)))):
        monkeypatch.setattr(latents, name, value)
    toys = (latents.Choice("a toy", 4, 16, 24, 16),)
    cases = list(latents.choices(torch.device(DEVICE), toys, torch.float32))
    assert len({case.shape for case in cases}) == len(cases) == 3
    for case, counted in zip(cases, (0, 0, 4), strict=True):
        with captured(latents.indexer) as launches:
            case.make()()
        names = ["score_kernel", *["digits_kernel"] * counted, "select_kernel"]
        assert [launch.kernel.__name__ for launch in launches] == names
        for launch in launches:
            launch.replay()
        slots = launches[-1].arguments[4]
        assert slots.shape == (2, 24) and len(slots.unique()) == 48 and 0 <= slots.min() < slots.max() < 128
        assert case.moved > 0 and case.flops > 0


def test_models_fit_what_kernels_take() -> None:
    """In full size, without memory: nothing is refused before a launch."""
    meta = torch.device("meta")
    full = latents.Choice("DeepSeek-V3.2", 64), latents.Choice("GLM-5", 32)
    own = [*latents.cases(meta, FULL, torch.bfloat16), *latents.choices(meta, full, torch.bfloat16)]
    for case in [*timed_cases.cases("meta"), *own]:
        with captured(*MODULES, latents.indexer) as launches:
            case.make()()
        assert launches, case
