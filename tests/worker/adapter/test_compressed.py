"""DeepSeek V4, whose layers see what groups of tokens are compressed into, and a window."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from actorserve.actors.model.formats.stored import Float4Weight
from actorserve.actors.worker.adapter import hooks, verify
from actorserve.actors.worker.adapter.cache.layers import CARRIERS
from actorserve.actors.worker.adapter.hollow import hollow
from actorserve.actors.worker.adapter.hooks import Unfit
from actorserve.actors.worker.adapter.improve import improve
from actorserve.actors.worker.adapter.model import Tier
from actorserve.actors.worker.adapter.probe import probe
from actorserve.actors.worker.adapter.twin import shrink
from actorserve.actors.worker.formats.floats import float4
from actorserve.actors.worker.speculative.ngram import NgramProposer
from tests.worker.cpu.test_runner import prompt
from tests.worker.driver import Driver, Sequence, config_for, make_runner

from .loaded import BY_TRANSFORMERS, logits_of

hooks.register()
KINDS = ("heavily_compressed_attention", "compressed_sparse_attention")
SIZES = dict(zip(KINDS, (8, 4), strict=True))
WINDOW, HEAD, INDEX = 8, 16, 16
PACKED = re.compile(r"layers\.\d+\.(attn\.w\w+|ffn\.(shared_)?experts\.(\d+\.)?w\d)\.weight")


def made(sizes: dict[str, int] = SIZES) -> Any:
    """One layer of each kind, of which one routes by a table; an indexer that chooses few of the entries."""
    layers = {
        "num_hidden_layers": 3,
        "layer_types": [*KINDS, "sliding_attention"],
        "mlp_layer_types": ["moe", "hash_moe", "moe"],
    }
    config = shrink(AutoConfig.for_model("deepseek_v4", compress_rates=sizes, index_topk=3, **layers))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    verify.randomise(model)
    (table,) = (buffer for name, buffer in model.named_buffers() if name.endswith("tid2eid"))
    table.copy_(torch.stack([torch.randperm(config.n_routed_experts)[: table.shape[1]] for _ in table]))
    return model


def test_logits_are_those_of_transformers_wherever_prompts_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks end in groups, in blocks and in windows, or at their borders."""
    monkeypatch.setattr(verify, "PROMPTS", (61, 22, 40))
    monkeypatch.setattr(verify, "CHUNKS", (13, 3, 8))
    verdict = verify.verify(made(), lambda model: improve(model, torch.float32))
    assert verdict.tier is Tier.SINGLE and verdict.improved


def test_what_is_kept_of_a_token() -> None:
    """Keys that are values, what entries are made of, and its share of an entry."""
    traits = probe(made(), 512)
    heavy, sparse = HEAD * 2, (HEAD + INDEX) * 4
    assert traits.kv.block_bytes(1, 1) == 3 * HEAD + heavy + sparse + (2 * HEAD + INDEX) // CARRIERS
    assert [layer.window for layer in traits.kv.layers[:3] if layer is not None] == 3 * [WINDOW]


def test_it_is_seen_without_weights_and_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of groups of heads are seen by their shapes alone, too."""
    small, multiply = made(), torch.bmm
    kept = probe(small, 512).kv

    def on_meta(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        assert x.is_meta
        return multiply(x, y)

    shell = hollow(lambda: AutoModelForCausalLM.from_config(small.config))
    monkeypatch.setattr(torch, "bmm", on_meta)
    assert probe(shell, 512).kv == kept


def test_drafts_that_are_taken_back_change_no_token(tmp_path: Path) -> None:
    """Tokens are computed once more from the middle of a group that had ended."""
    made().save_pretrained(tmp_path)
    config = config_for(tmp_path, **BY_TRANSFORMERS, skip_tokenizer_init=True)
    prompts = [prompt(size, size) * 3 for size in (3, 9, 5)]
    plain = Driver(make_runner(config)).run([Sequence(ids, 20) for ids in prompts])
    driver = Driver(make_runner(config, proposer=NgramProposer(1, 3)), drafts=6, preempt=0.05)
    assert driver.run([Sequence(ids, 20) for ids in prompts]) == plain
    assert driver.drafted > 0


def test_groups_whose_entries_cannot_be_spread() -> None:
    with pytest.raises(Unfit, match="compresses groups of 6 tokens, which is no multiple of 4"):
        probe(made(SIZES | {KINDS[0]: 6}), 512)


# --- as it is published -----------------------------------------------------------------------------------------------


def published(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Under the names that they have there, with what predicts further tokens."""
    names = {"model.embed_tokens.": "embed.", "model.hc_head.hc_": "hc_head_", ".attn.norm.": ".attn.kv_norm."}
    found = {"mtp.0.attn.wq_a.weight": torch.ones(8, 8).to(torch.float8_e4m3fn)}
    for name, tensor in tensors.items():
        for old, new in names.items():
            name = name.replace(old, new)
        found[name.removeprefix("model.")] = tensor
    return found


def packed(name: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Tensors of an expert's weight in 4 bits, of any other in 8, and the numbers that they make."""
    random = torch.Generator().manual_seed(len(name))
    stem = name.removesuffix("weight")
    if ".experts." in name:
        rows, columns = weight.shape
        bytes_ = torch.randint(0, 256, (rows, columns // 2), generator=random, dtype=torch.uint8)
        powers = torch.randint(122, 125, (rows, columns // 32), generator=random, dtype=torch.uint8)
        form = Float4Weight(group=32, weight="weight", scale_type="U8")
        exact = float4(form, {"weight": bytes_, "weight_scale": powers}, rows, columns)
        bytes_ = bytes_.view(torch.int8)
    else:
        bytes_ = weight.mul(16).to(torch.float8_e4m3fn)
        powers, exact = torch.full((1, 1), 127 - 4, dtype=torch.uint8), bytes_.float() / 16
    return {name: bytes_, f"{stem}scale": powers.view(torch.float8_e8m0fnu)}, exact


def test_weights_of_4_and_8_bits(tmp_path: Path) -> None:
    """They compute what their numbers do in floats."""
    made().save_pretrained(tmp_path / "tiny")
    values = json.loads((tmp_path / "tiny" / "config.json").read_text())
    exact, small = (published(load_file(tmp_path / "tiny" / "model.safetensors")) for _ in range(2))
    for name in [name for name in exact if PACKED.match(name)]:
        of_it, exact[name] = packed(name, exact[name])
        small |= of_it
    exact.pop("mtp.0.attn.wq_a.weight")
    assert {str(tensor.dtype) for tensor in small.values()} > {"torch.int8", "torch.float8_e4m3fn", "torch.int64"}
    stored = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}
    folders = (tmp_path / "small", tmp_path / "exact")
    given = values | {"expert_dtype": "fp4", "quantization_config": stored}
    for folder, tensors, config in zip(folders, (small, exact), (given, values), strict=True):
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config))
    found, wanted = (logits_of(one, quantization="none", skip_tokenizer_init=True) for one in folders)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
