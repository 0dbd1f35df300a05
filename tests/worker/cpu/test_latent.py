"""Latent attention (DeepSeek): its two ways, what is kept of a token, and a model's part in a group."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from actorserve.actors.model.config_json import find_architecture, read_architecture
from actorserve.actors.model.info import read_json, resolve_model
from actorserve.actors.model.pipeline.stages import stage_shapes
from actorserve.actors.model.sharding import shard_shape
from actorserve.actors.model.weights.weight_files import check_tensors, check_weights
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.cpu.layers import indexer, latent
from actorserve.actors.worker.cpu.layers.latent import LatentStep
from actorserve.actors.worker.inspection import inspect
from actorserve.actors.worker.models.sharding import Alone, shard
from actorserve.actors.worker.models.weights import open_checkpoint
from tests.support.models.greedy import assert_greedy, reference

from ..driver import Driver, Sequence, config_for, make_runner, plain_memory, prompt_logits
from .test_executor import prompts

Folders = Callable[..., Path]
ALL = slice(None)


def seen_ways(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of each step: how many spans are expanded, and how many tokens are not."""
    found: list[tuple[int, int]] = []
    make = LatentStep.__init__

    def noted(self: LatentStep, kv: Any, spans: Any, sizes: Any) -> None:
        make(self, kv, spans, sizes)
        found.append((len(self.spans), sum(span.size for span in spans) - sum(span.size for span in self.spans)))

    monkeypatch.setattr(LatentStep, "__init__", noted)
    return found


@pytest.mark.parametrize("at_once", [1 << 24, 1 << 12])
@pytest.mark.parametrize("kind", ["deepseek_v2_groups", "deepseek_v3"])
def test_both_ways_in_one_step(kind: str, at_once: int, checkpoints: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long chunks beside short ones and decoding; of all heads at once, and of some at a time."""
    ways = seen_ways(monkeypatch)
    monkeypatch.setattr(latent, "EXPANDED", at_once)
    folder = checkpoints(kind)
    texts = prompts((1, 230, 17, 190, 5))
    tokens = Driver(make_runner(config_for(folder, block_size=16)), budget=130).run([Sequence(p, 20) for p in texts])
    model = reference(folder)
    assert_greedy(model, texts, tokens, 20)
    assert any(expanded and others for expanded, others in ways) and (0, 5) in ways


def test_in_bfloat16(checkpoints: Folders) -> None:
    """As near to float32 as transformers' own pass, within a factor; of the router that is its own type's business."""
    folder = checkpoints("deepseek_v2", n_routed_experts=3)  # all of which are chosen
    (prompt,) = prompts((130,))
    logits = []
    for budget in (25, 200):
        runner = make_runner(config_for(folder, block_size=16, dtype="bfloat16"))
        logits.append(prompt_logits(runner, prompt, budget))
    with torch.inference_mode():
        exact = reference(folder)(torch.tensor([prompt])).logits[0]
        half = reference(folder, dtype=torch.bfloat16)(torch.tensor([prompt])).logits[0].float()
    for own in logits:
        assert 0 < (own - exact).square().mean() < 4 * (half - exact).square().mean()


def test_a_latent_is_kept_once(checkpoints: Folders) -> None:
    """32 numbers and 16 that turn of each token in each layer, whatever the number of heads."""
    folder = checkpoints("deepseek_v3")
    config = config_for(folder, device="cpu")
    (memory,) = plain_memory(make_runner(config, blocks=8))
    assert memory.values[0].untyped_storage().data_ptr() == memory.keys[0].untyped_storage().data_ptr()
    facts = {name: value for part in inspect(config, resolve_model(config)) for name, value in part.items()}
    assert facts["kv_bytes_per_token"] == 3 * (32 + 16) * 4


def test_what_tokens_are_chosen_by_is_kept_behind_their_latents(checkpoints: Folders) -> None:
    shape = read_architecture(read_json(checkpoints("deepseek_v32") / "config.json"))
    assert shape.kv.block_bytes(1, 4) == 3 * (32 + 16 + 20) * 4


def test_queries_are_chosen_for_some_at_a_time(checkpoints: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long chunks that begin where all is seen, beside rows that decode; one layer chooses for the next."""
    monkeypatch.setattr(indexer, "SCORED", 1 << 12)
    monkeypatch.setattr(latent, "EXPANDED", 1 << 12)
    folder = checkpoints("glm_moe_dsa")
    texts = prompts((1, 130, 17, 23, 24))
    tokens = Driver(make_runner(config_for(folder, block_size=16)), budget=90).run([Sequence(p, 12) for p in texts])
    assert_greedy(reference(folder), texts, tokens, 12)


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({"indexer_types": None}, (True, True, True)),
        ({"indexer_types": None, "index_topk_pattern": "FSS"}, (True, False, False)),
        ({"indexer_types": None, "index_topk_freq": 4, "index_skip_topk_offset": 1}, (True, False, False)),
        ({"indexer_types": None, "index_topk_pattern": ["full", "shared", "full"]}, (True, False, True)),
        ({"indexer_types": None, "index_topk_pattern": ["F", "F", "S", "S"]}, (True, True, False)),
        ({"indexer_types": ["full", "shared", "full", "full"]}, (True, False, True)),  # the last predicts a token more
        ({"indexer_types": ["shared", "full", "full"]}, "indexer_types = .*; full for the first layer is needed"),
        ({"indexer_types": ["full"]}, "indexer_types = .*; for each of 3 layers full or shared is needed"),
        ({"indexer_types": "full"}, "indexer_types = 'full'; for each of 3 layers"),
        (
            {"indexer_types": None, "index_topk_pattern": "FSX"},
            "index_topk_pattern = 'FSX'; for each of 3 layers full or",
        ),
        (
            {"indexer_types": None, "index_topk_pattern": [["F"]] * 3},
            "index_topk_pattern = .*; for each of 3 layers full or",
        ),
        ({"index_head_dim": 14}, "index_head_dim = 14; an even number, and at least 16"),
        ({"index_topk": 0}, "index_topk = 0"),
    ],
)
def test_which_layers_choose(changes: dict[str, Any], layers: tuple[bool, ...] | str, checkpoints: Folders) -> None:
    values = read_json(checkpoints("glm_moe_dsa") / "config.json") | changes
    if isinstance(layers, str):
        with pytest.raises(ConfigError, match=layers):
            read_architecture(values)
        return
    shape = read_architecture(values)
    assert shape.latent is not None and shape.latent.index is not None and shape.latent.index.layers == layers
    own = {name.split(".")[2] for name in shape.tensors() if ".indexer." in name}
    assert own == {str(layer) for layer, chooses in enumerate(layers) if chooses}


def test_a_checkpoint_may_have_what_layers_choose_by_where_they_do_not(checkpoints: Folders) -> None:
    folder = checkpoints("deepseek_v32")  # all of whose layers choose
    shape = read_architecture(read_json(folder / "config.json") | {"indexer_types": ["full", "shared", "full"]})
    found = check_weights(folder, shape)
    there = found["model.layers.1.self_attn.indexer.wk.weight"]
    check_tensors(folder, shape, found | {"model.layers.1.self_attn.indexer.wk.weight_scale_inv": there})
    with pytest.raises(ConfigError, match=r"layers\.2\..*\.weight_scale_inv, for which the model has no use"):
        check_tensors(folder, shape, found | {"model.layers.2.self_attn.indexer.wk.weight_scale_inv": there})


def test_layers_that_choose_are_not_in_several_stages(checkpoints: Folders) -> None:
    shape = read_architecture(read_json(checkpoints("glm_moe_dsa") / "config.json"))
    assert stage_shapes(shape, 1) == [shape]
    with pytest.raises(ConfigError, match=r"^--pipeline-parallel-size: queries of the model see"):
        stage_shapes(shape, 2)


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3", "deepseek_v32"])
def test_heads_are_divided(kind: str, checkpoints: Folders) -> None:
    """The parts of attention of two add up; both keep the same latents."""
    folder = checkpoints(kind)
    shape = read_architecture(read_json(folder / "config.json"))
    read = open_checkpoint(folder, shape)
    gets = [shard(read, shape, Alone(rank, 2)) for rank in range(2)]
    name = "model.layers.1.self_attn."
    for own, rows in (("kv_b_proj", 0), ("o_proj", 1), ("q_proj" if kind == "deepseek_v2" else "q_b_proj", 0)):
        parts = [get(f"{name}{own}.weight") for get in gets]
        assert torch.equal(torch.cat(parts, rows), read(f"{name}{own}.weight", ALL, None)), own
    for own in ("kv_a_proj_with_mqa", *(("indexer.wq_b", "indexer.weights_proj") if kind == "deepseek_v32" else ())):
        assert torch.equal(*(get(f"{name}{own}.weight") for get in gets)), "it is everybody's"
    part = shard_shape(shape, 2)
    assert (part.heads, part.kv_heads, part.kv.block_bytes(1, 1)) == (2, 1, shape.kv.block_bytes(1, 1))
    x, parts = torch.randn(9, 64), []
    with torch.inference_mode():
        for own_shape, get in ((shape, lambda name: read(name, ALL, None)), (part, gets[0]), (part, gets[1])):
            model = CpuModel(own_shape, get, torch.float32, 64)
            layer = model.layers[1].latent
            assert layer is not None
            queries = torch.cat([linear(x)[:, : -layer.sizes.rank - layer.sizes.turning] for linear in layer.down], 1)
            parts.append(queries if layer.q_up is None else layer.q_up(queries))
        torch.testing.assert_close(torch.cat(parts[1:], 1), parts[0], rtol=1e-5, atol=1e-5)


def in_fp8(source: Path, folder: Path) -> tuple[Path, Path]:
    """(as V3 and V3.2 are published: blocks of 8 bits, floats of what chooses experts and weighs heads of an indexer
    that nothing tells of, a layer that drafts; the same in floats)."""
    plain = Path(shutil.copytree(source, folder / "plain"))
    packed = Path(shutil.copytree(source, folder / "packed"))
    tensors = load_file(source / "model.safetensors")
    stored = dict(tensors)
    for name, tensor in tensors.items():
        if "weights_proj" not in name and re.search(r"(layers\..*_proj|_mqa|\.wq_b|\.wk)\.weight$", name):
            stored[name] = tensor.to(torch.float8_e4m3fn)
            rows, columns = (-(-size // 16) for size in tensor.shape)
            scale = torch.rand(rows, columns) + 0.5
            stored[f"{name}_scale_inv"] = scale
            wide = scale.repeat_interleave(16, 0).repeat_interleave(16, 1)[: tensor.shape[0], : tensor.shape[1]]
            tensors[name] = stored[name].float() * wide
    stored["model.layers.3.eh_proj.weight"] = torch.zeros(4, 4)
    save_file(stored, packed / "model.safetensors")
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    values = read_json(source / "config.json")
    form = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 16]}
    (packed / "config.json").write_text(
        json.dumps(values | {"quantization_config": form, "num_nextn_predict_layers": 1})
    )
    return packed, plain


@pytest.mark.parametrize("kind", ["deepseek_v3", "deepseek_v32"])
def test_as_it_is_published(kind: str, checkpoints: Folders, tmp_path: Path) -> None:
    packed, plain = in_fp8(checkpoints(kind), tmp_path)
    texts = prompts((3, 40))
    tokens = Driver(make_runner(config_for(packed, quantization="none"))).run([Sequence(p, 12) for p in texts])
    model = reference(plain)
    assert_greedy(model, texts, tokens, 12)


@pytest.mark.parametrize(
    ("field", "value", "is_refused"),
    [
        ("rope_interleave", False, False),
        ("scoring_func", "softmax", False),
        ("moe_layer_freq", 2, False),
        ("n_group", 5, True),
        ("topk_group", 9, True),
        ("kv_lora_rank", 0, True),
        ("qk_rope_head_dim", 15, True),
        ("num_experts_per_tok", 7, True),
    ],
)
def test_what_these_layers_cannot(field: str, value: object, is_refused: bool, checkpoints: Folders) -> None:
    """It is for the layers of transformers, or for none."""
    values = read_json(checkpoints("deepseek_v3") / "config.json") | {field: value}
    if not is_refused:
        assert find_architecture(values, "auto") is None
    with pytest.raises(ConfigError, match=field if field != "num_experts_per_tok" else "from 1 to 6"):
        find_architecture(values, "native")
