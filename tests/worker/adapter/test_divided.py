"""Models by layers of transformers that a group shares: each member's part, and what cannot be divided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.adapter import verify
from actorserve.actors.worker.adapter.divided import trial
from actorserve.actors.worker.adapter.divided.cuts import Division
from actorserve.actors.worker.adapter.facts import facts
from actorserve.actors.worker.adapter.load import load_adapted, try_model
from actorserve.actors.worker.adapter.model import AdaptedModel
from tests.support.models.census import write_tiny
from tests.support.models.weight_formats import write
from tests.worker.driver import config_for

from .loaded import BY_TRANSFORMERS, load

SIZE = 2
KINDS = ("starcoder2", "cohere", "glm", "gpt_neox", "olmo2", "gemma3_text")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in KINDS]


def texts() -> list[torch.Tensor]:
    return [torch.arange(3, 3 + verify.DECODED + 5), torch.arange(40, 40 + verify.DECODED + 11)]


def logits_of_members(
    folder: Path, size: int = SIZE, **options: Any
) -> tuple[list[AdaptedModel], list[list[torch.Tensor]]]:
    """Each has read its part of the weights; what they come to together."""
    config = config_for(folder, **BY_TRANSFORMERS, tensor_parallel_size=size, **options)
    turns = trial.Turns(size)
    groups: list[Any] = [trial.Member(rank, turns) for rank in range(size)]
    members = [load_adapted(config, resolve_model(config), group) for group in groups]
    turns.run([lambda member=member: verify.Trial(member).run(texts()) for member in members])  # type: ignore[misc]
    return members, turns.found


@pytest.mark.parametrize("name", ["granite", *SLOW])
def test_two_come_to_what_one_does(name: str, tmp_path: Path) -> None:
    """And both to the same bits, with half of the heads; all of them where q and k are normed together."""
    write_tiny(name, tmp_path)
    whole = load(tmp_path)
    with torch.inference_mode():
        expected = verify.Trial(whole).run(texts())
    members, found = logits_of_members(tmp_path)
    for truth, *own in zip(expected, *found, strict=True):
        assert all(float((one - truth).abs().max()) <= 1e-4 * max(1.0, float(truth.std())) for one in own)
        assert torch.equal(*own)
    layer, times = whole.kv.layers[0], 1 if name == "olmo2" else SIZE
    assert layer is not None
    for member in members:
        part = member.kv.layers[0]
        assert part is not None and (times * part.heads, times * part.kv_heads) == (layer.heads, layer.kv_heads)


@pytest.mark.slow
def test_four_share_a_model(tmp_path: Path) -> None:
    write_tiny("granite", tmp_path)
    with torch.inference_mode():
        expected = verify.Trial(load(tmp_path)).run(texts())
    for own in logits_of_members(tmp_path, 4)[1]:
        for truth, found in zip(expected, own, strict=True):
            assert float((found - truth).abs().max()) <= 1e-4 * float(truth.std())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["w8a8", "gptq"])
def test_weights_as_they_are_published(name: str, tmp_path: Path) -> None:
    """Products of 8 bits round what is multiplied, each member its own part: no more is lost by that than by one."""
    write_tiny("granite", tmp_path / "source")
    packed, plain = write(tmp_path / "source", name, tmp_path / "stored")
    with torch.inference_mode():
        exact, one = (verify.Trial(load(folder)).run(texts()) for folder in (plain, packed))
    _, (own, other) = logits_of_members(packed)
    lost, by_one = (float((torch.cat(found) - torch.cat(exact)).square().mean()) for found in (own, one))
    assert lost <= 2 * by_one and all(map(torch.equal, own, other))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"quantization": "int8"}, {"load_format": "dummy"}], ids=["int8", "dummy"])
def test_numbers_of_eight_bits_and_random_ones(options: dict[str, Any], tmp_path: Path) -> None:
    """Each quantises its own part, whose rows have scales of their own, so that no more is lost than by one worker;
    random weights are those of one worker."""
    write_tiny("granite", tmp_path)
    with torch.inference_mode():
        exact, one = (
            verify.Trial(load(tmp_path, **some)).run(texts()[:1])[0]
            for some in (options | {"quantization": "none"}, options)
        )
    _, (own, other) = logits_of_members(tmp_path, **options)
    lost, by_one = (float((found - exact).abs().max() / exact.std()) for found in (own[0], one))
    assert lost <= 1e-4 + 1.5 * by_one and torch.equal(own[0], other[0])


def test_what_a_member_has_is_said_before_weights_are_read(tmp_path: Path) -> None:
    write_tiny("granite", tmp_path)
    found = []
    for size in (1, SIZE):
        config = config_for(tmp_path, **BY_TRANSFORMERS, tensor_parallel_size=size)
        found.append(facts(config, resolve_model(config)))
    whole, part = found
    assert whole.known["parameters"] == part.known["parameters"]
    assert whole.known["weights_bytes"] / SIZE < part.known["weights_bytes"] < 0.8 * whole.known["weights_bytes"]
    assert [layer and layer.kv_heads * SIZE for layer in part.kv.layers] == [
        layer and layer.kv_heads for layer in whole.kv.layers
    ]


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        ("gpt2", 2, "it has no plan by which transformers divides it"),
        ("mixtral", 2, r"it has experts \(model.layers.0.mlp.experts"),
        ("starcoder2", 4, "it has 2 KV heads, which 4 does not divide"),
        ("granite", 3, "it has 64 outputs in model.layers.0.self_attn.q_proj, which 3 does not divide"),
        ("minicpm3", 2, "it divides .* in a way that is not known here"),
        ("qwen3_5_text", 2, "it keeps states of rows"),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(name: str, size: int, said: str, tmp_path: Path) -> None:
    write_tiny(name, tmp_path)
    config = config_for(tmp_path, **BY_TRANSFORMERS, tensor_parallel_size=size)
    with pytest.raises(ConfigError, match=said) as refused:
        try_model(config, resolve_model(config))
    told = str(refused.value)
    assert told.startswith(f"--tensor-parallel-size {size}: ") and "\n" not in told
    assert told.endswith("leave the option out")


def test_a_plan_that_is_wrong_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes are right, and numbers are not: the small model says so."""
    write_tiny("granite", tmp_path)
    right = Division.own

    def wrong(self: Division, whole: torch.Tensor, side: int) -> torch.Tensor:
        return right(Division(SIZE - 1 - self.rank, SIZE) if side else self, whole, side)

    monkeypatch.setattr(Division, "own", wrong)
    config = config_for(tmp_path, **BY_TRANSFORMERS, tensor_parallel_size=SIZE)
    with pytest.raises(ConfigError, match=r"GraniteForCausalLM cannot be divided: it is not right .* logits are off"):
        try_model(config, resolve_model(config))
