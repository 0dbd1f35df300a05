"""The native models against transformers, on the same random weights in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.cpu.layers.linear import PackedLinear
from tests.support.models.checkpoints import KINDS, VOCABULARY
from tests.support.models.greedy import generate, greedy, reference

from ..driver import Driver, Sequence, config_for, make_runner, prompt_logits

Folders = Callable[..., Path]


def prompts(lengths: tuple[int, ...], seed: int = 1) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(3, VOCABULARY, length).tolist() for length in lengths]


# In what is kept of a token, which of them are seen, and what goes where: these are driven as a server would.
DIFFERENT = (
    "llama_biased", "qwen2_windows", "qwen3_moe", "deepseek_v2_groups", "deepseek_v3", "llama4", "gpt_oss", "phi3_long",
    "gemma2", "gemma3", "olmo3", "ministral3", "mistral4", "deepseek_v32", "glm_moe_dsa",
)  # fmt: skip
BY_TORCH = ("llama_biased", "deepseek_v3", "gpt_oss", "gemma3")  # of them, since blocks and chunks are the same code
PACKED = ("llama", "llama_biased", "llama_tied", "phi3", "qwen3", "gemma3")  # the others have such products, too


@pytest.fixture
def weights(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny weights are not worth packing: most runs pack them all the same, as of a small or a large model."""
    if request.param == "native":
        request.getfixturevalue("native_kernels")
        return
    if request.param in ("packed", "from memory"):
        if not PackedLinear.works(torch.float32):
            pytest.skip("this torch has no packed products")
        monkeypatch.setattr(PackedLinear, "SMALLEST", 0)
    if request.param == "from memory":
        monkeypatch.setattr(PackedLinear, "CACHED", 0)


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        (kind, form)
        for kind in KINDS
        for form in ("plain", "native", *(("packed", "from memory") if kind in PACKED else ()))
    ],
    indirect=["weights"],
)
@pytest.mark.usefixtures("weights")
def test_logits_are_those_of_transformers(kind: str, checkpoints: Folders) -> None:
    folder = checkpoints(kind)
    (prompt,) = prompts((150,))
    logits = prompt_logits(make_runner(config_for(folder, block_size=16)), prompt)
    with torch.inference_mode():
        expected = reference(folder)(torch.tensor([prompt])).logits[0]
    assert logits.shape == expected.shape
    torch.testing.assert_close(logits, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("kind", "preempt", "weights"),
    [
        pytest.param(
            *(kind, preempt, form),
            marks=() if preempt and kind in (DIFFERENT if form == "native" else BY_TORCH) else pytest.mark.slow,
        )
        for preempt, form in ((0.0, "plain"), (0.1, "plain"), (0.1, "native"))
        for kind in KINDS
    ],
    indirect=["weights"],
)
@pytest.mark.usefixtures("weights")
def test_greedy_text_is_that_of_transformers(kind: str, preempt: float, checkpoints: Folders) -> None:
    """Chunked prompts and decoding mixed in one batch, over blocks in disorder, with and without preemption."""
    folder = checkpoints(kind)
    model = reference(folder)
    runner = make_runner(config_for(folder, block_size=16), rows=6)
    texts = prompts((1, 17, 40, 64, 100, 5))
    sequences = [Sequence(prompt, 16) for prompt in texts]
    tokens = Driver(runner, preempt=preempt).run(sequences)
    for prompt, drawn in zip(texts, tokens, strict=True):
        assert len(drawn) == 16 and drawn == greedy(model, prompt, drawn)
    assert len({token for drawn in tokens for token in drawn}) > 30, "the text says nothing if it does not vary"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral", "phi3_long", "gemma3", "olmo2"])
def test_half_types_are_near(kind: str, dtype: str, checkpoints: Folders) -> None:
    """16-bit weights: as near to float32 as transformers' own pass over the same weights, within a factor."""
    folder = checkpoints(kind)
    (prompt,) = prompts((60,))
    logits = prompt_logits(make_runner(config_for(folder, block_size=16, dtype=dtype)), prompt, budget=25)
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        exact = reference(folder)(ids).logits[0]
        half = reference(folder, dtype=getattr(torch, dtype))(ids).logits[0].float()
    error, tolerated = (logits - exact).square().mean().sqrt(), (half - exact).square().mean().sqrt()
    assert 0 < error < 2 * tolerated


@pytest.mark.parametrize("kind", ["llama", "phi3_long", "gemma3", "olmo3", "smollm3"])
def test_the_prefix_cache_is_read_from_the_blocks(kind: str, checkpoints: Folders) -> None:
    """A row whose first tokens' KV is there already computes only the rest."""
    from actorserve.actors.protocol.step import NewRow, Step

    from ..driver import GREEDY

    folder = checkpoints(kind)
    (prompt,) = prompts((70,))
    runner = make_runner(config_for(folder, block_size=16))
    runner.log[0, :70] = runner.log[1, :70] = prompt
    first, second = [5, 6, 7, 2, 3], [5, 6, 7, 2, 9]
    with torch.inference_mode():
        tokens = runner.run(Step.make(1, 1, [NewRow.make(0, 0, 70, 70, 0, first, GREEDY)], [0], [70]))
        again = runner.run(Step.make(1, 2, [NewRow.make(0, 1, 70, 70, 64, second, GREEDY)], [0], [6]))
    assert again.tolist() == tokens.tolist() == generate(reference(folder), prompt, 1)


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("kind", ["llama", "llama_biased", "qwen3", "ministral3"])
@pytest.mark.usefixtures("native_kernels")
def test_layers_at_once_have_the_bits_of_their_parts(kind: str, quantization: str, checkpoints: Folders) -> None:
    runner = make_runner(config_for(checkpoints(kind), block_size=16, quantization=quantization))
    model = runner.model
    assert isinstance(model, CpuModel) and model.fused is not None
    found: list[torch.Tensor] = []
    inner = model.forward
    runner.model.forward = lambda *args: found.append(inner(*args)) or found[-1]  # type: ignore[method-assign, func-returns-value]
    for fused in (model.fused, None):
        model.fused = fused
        Driver(runner, budget=40, seed=5).run([Sequence(prompt, 6) for prompt in prompts((1, 17, 40))])
    half = len(found) // 2
    assert half > 6
    for one, other in zip(found[:half], found[half:], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("length", "grows"), [(16, False), (17, True)])
def test_queries_grow_where_a_text_may_be_so_long(length: int, grows: bool, checkpoints: Folders) -> None:
    model = make_runner(config_for(checkpoints("ministral3"), block_size=16, max_model_len=length)).model
    assert isinstance(model, CpuModel) and (model.growth is not None) == grows
    assert model.grown(torch.tensor([0, 15])) is None, "the first positions' queries stay"


@pytest.mark.parametrize("kind", ["gemma3", "olmo2", "qwen3_moe"])
@pytest.mark.usefixtures("native_kernels")
def test_other_layers_go_part_by_part(kind: str, checkpoints: Folders) -> None:
    model = make_runner(config_for(checkpoints(kind))).model
    assert isinstance(model, CpuModel) and model.fused is None
