"""Attention, MLPs and layers of transformers that become few operations: which do, and that they do the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from actorserve.actors.worker.adapter import model as adapted
from actorserve.actors.worker.adapter import steps, verify
from actorserve.actors.worker.adapter.fused.parts import FusedAttention, FusedLayer, FusedMlp
from actorserve.actors.worker.adapter.fused.trial import fuse
from actorserve.actors.worker.adapter.hooks import Unfit
from actorserve.actors.worker.adapter.improve import improve
from actorserve.actors.worker.adapter.probe import probe
from actorserve.kernels.cpu.native.layers import PlainLayers
from tests.worker.adapter.loaded import BY_TRANSFORMERS, load
from tests.worker.adapter.test_adapter import made
from tests.worker.cpu.test_runner import prompt
from tests.worker.driver import Driver, Sequence, config_for, make_runner

pytestmark = pytest.mark.usefixtures("native_kernels")
Checkpoints = Callable[..., Path]


def fused_parts(model: Any) -> tuple[int, int, int]:
    """How many attentions, MLPs and layers are computed by few operations."""
    forwards = [vars(module).get("forward") for module in model.modules()]
    kinds = (FusedAttention, FusedMlp, FusedLayer)
    return tuple(sum(isinstance(one, kind) for one in forwards) for kind in kinds)  # type: ignore[return-value]


def verified(model: Any) -> tuple[int, int, int]:
    """What a model has of them, whose logits are those of transformers with them."""
    found = []

    def better(own: Any) -> None:
        improve(own, torch.float32)
        fuse(own, torch.float32)
        found.append(fused_parts(own))

    verdict = verify.verify(model, better)
    assert verdict.improved, verdict.reasons
    return found[-1]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3", (2, 2, 2)),  # norms of heads
        ("ernie4_5", (2, 2, 2)),  # pairs turn
        ("smollm3", (4, 4, 4)),  # some layers do not turn
        ("olmo2", (2, 2, 0)),  # norms behind attention; all heads are normed together
        ("cohere", (2, 2, 0)),  # attention and MLP side by side
        ("glm", (2, 0, 0)),  # some of a head turns; gate and up are one weight
        ("qwen3_moe", (2, 0, 0)),
        ("diffllama", (0, 2, 0)),  # changes values behind the cache
        ("falcon_h1", (2, 2, 0)),  # with states
        ("gpt2", (0, 0, 0)),
    ],
)
def test_what_is_fused(name: str, expected: tuple[int, int, int]) -> None:
    assert verified(made(name)) == expected


def test_limits_of_large_numbers_are_kept() -> None:
    """MLPs of DeepSeek V4 cut their gates at 10, which numbers of a small model never come to: they were dropped."""
    model = made("deepseek_v4")
    assert model.config.swiglu_limit == 10.0
    improve(model, torch.float32)
    fuse(model, torch.float32)
    assert fused_parts(model)[1] == 0


def limited(x: Any, limit: float | None) -> Any:
    """Also of what attention answers."""
    if limit is None:
        return x
    return (limited(x[0], limit), *x[1:]) if isinstance(x, tuple) else x.clamp(-limit, limit)


@pytest.mark.parametrize(
    ("part", "inside", "outside", "expected"),
    [
        ("", None, 50, (2, 2, 0)),
        ("mlp", 5, None, (2, 0, 0)),
        ("self_attn", 5, None, (0, 2, 0)),
        ("self_attn", None, 50, (0, 2, 0)),
    ],
)
def test_limits_before_and_behind_products_are_kept(
    part: str,
    inside: float | None,
    outside: float | None,
    expected: tuple[int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of what a module is given, and of what it answers: numbers of a trial did not come to them."""
    model = made("qwen3")
    kind = type(model.model.layers[0].get_submodule(part))
    own = kind.forward

    def forward(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        return limited(own(self, limited(hidden_states, inside), *args, **kwargs), outside)

    monkeypatch.setattr(kind, "forward", forward)
    improve(model, torch.float32)
    fuse(model, torch.float32)
    assert fused_parts(model) == expected


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("llama", {"hidden_act": "gelu"}, (2, 0, 0)),
        ("granite", {"residual_multiplier": 0.5}, (2, 2, 0)),
        ("granite", {"residual_multiplier": 1.0}, (2, 2, 2)),
        ("smollm3", {"no_rope_layers": [0, 1] * 18}, (4, 4, 4)),  # the first does not turn
        ("olmo", {"clip_qkv": 0.5}, (0, 2, 0)),
        ("olmo", {"clip_qkv": 8.0}, (0, 2, 0)),  # as it is published: only large numbers are cut
        ("qwen2", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}, (2, 2, 2)),
    ],
)
def test_what_a_config_asks_for(name: str, fields: dict[str, Any], expected: tuple[int, int, int]) -> None:
    assert verified(made(name, **fields)) == expected


def test_a_layer_at_once_and_by_parts_are_the_same_bits(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(checkpoints("qwen3"))
    assert fused_parts(model.model)[2] > 0
    calls: list[bool] = []
    own = steps.PagedStep.whole_layer

    def counted(*args: Any) -> Any:
        found = own(*args)
        calls.append(found is not None)
        return found

    sizes: list[int] = []
    at_once = PlainLayers.forward_all

    def noted(*args: Any) -> None:
        sizes.append(len(args[1]))
        at_once(*args)

    monkeypatch.setattr(steps.PagedStep, "whole_layer", counted)
    monkeypatch.setattr(PlainLayers, "forward_all", noted)
    text = torch.arange(3, 3 + verify.DECODED + 5)
    found = []
    with torch.inference_mode():
        found.append(verify.Trial(model).run([text])[0])
        assert not calls, "the decoder is computed as one"
        model.whole = model.head = None
        for few in (64, 0):
            monkeypatch.setattr(steps, "FEW_TOKENS", few)
            found.append(verify.Trial(model).run([text])[0])
    assert True in calls and False in calls
    assert sum(sizes) == 2 * len(text), "the first layer computes all of them"
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("qwen3", {}, (True, True)),
        ("qwen2", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}, (True, True)),
        ("smollm3", {"no_rope_layers": [0, 1] * 18}, (True, True)),  # some layers do not turn
        ("granite", {"residual_multiplier": 1.0, "logits_scaling": 3.0}, (True, False)),
        ("granite", {"residual_multiplier": 1.0, "embedding_multiplier": 3.0}, (False, False)),
    ],
)
def test_which_decoders_are_computed_as_one(name: str, fields: dict[str, Any], expected: tuple[bool, bool]) -> None:
    model = made(name, **fields)
    improve(model, torch.float32)
    fuse(model, torch.float32)
    with torch.inference_mode():
        whole = adapted.AdaptedModel(model, probe(model, 512), adapted.Tier.FLAT, torch.float32)
    assert (whole.whole is not None, whole.head is not None) == expected


def test_what_stands_between_layers_is_seen(checkpoints: Checkpoints) -> None:
    """A model that does more between its layers than when it was tried gives no wrong logits."""
    model = load(checkpoints("qwen3"))
    layer: Any = model.model.model.layers[0]
    own = layer.forward
    layer.forward = lambda *args, **kwargs: own(*args, **kwargs) + 1
    model = adapted.AdaptedModel(model.model, model.traits, model.tier, model.dtype)
    assert model.whole is None, "that is tried, too"
    with torch.inference_mode(), pytest.raises(Unfit, match="does more between its layers"):
        verify.Trial(model).run([torch.arange(3, 3 + verify.DECODED + 5)])


@pytest.mark.parametrize("options", [{}, {"kv_cache_dtype": "int8"}, {"quantization": "int8"}], ids=str)
def test_the_answers_are_those_of_our_own_layers(options: dict[str, str], checkpoints: Checkpoints) -> None:
    folder = checkpoints("qwen3")
    prompts = [prompt(size, size) for size in (5, 70, 17)]
    answers = [
        Driver(make_runner(config_for(folder, **own, **options)), preempt=0.05).run(
            [Sequence(ids, 12) for ids in prompts]
        )
        for own in (BY_TRANSFORMERS, {"model_impl": "native"})
    ]
    assert answers[0] == answers[1]
