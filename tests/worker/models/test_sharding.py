"""Which part of each tensor a rank reads: all parts together are the tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.info import read_json
from actorserve.actors.model.sharding import shard_shape
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.models.sharding import shard, vocabulary_per_rank
from actorserve.actors.worker.models.weights import open_checkpoint

Folders = Callable[..., Path]


class Place:
    """One of a group of four."""

    size = 4

    def __init__(self, rank: int) -> None:
        self.rank = rank


def test_the_parts_are_the_whole(checkpoints: Folders) -> None:
    """Rows and columns of all ranks, side by side, are the checkpoint's tensors."""
    folder = checkpoints("llama_biased", num_key_value_heads=2)
    shape = read_architecture(read_json(folder / "config.json"))
    read = open_checkpoint(folder, shape)

    gets = [shard(read, shape, Place(rank)) for rank in range(4)]
    for name in shape.tensors():
        parts, whole = [get(name) for get in gets], read(name, slice(None), None)
        if "norm" in name:
            assert all(torch.equal(part, whole) for part in parts)
        elif name.endswith(("o_proj.bias", "down_proj.bias")):
            assert torch.equal(sum(parts[1:], parts[0]), whole)
        elif "k_proj" in name or "v_proj" in name:
            assert torch.equal(torch.cat(parts[::2]), whole) and torch.equal(parts[0], parts[1])
        elif "embed" in name or "lm_head" in name:
            assert torch.equal(torch.cat(parts)[: len(whole)], whole)
            assert len(parts[0]) == vocabulary_per_rank(len(whole), 4)
        else:
            dimension = 1 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0
            assert torch.equal(torch.cat(parts, dimension), whole), name


def test_of_what_is_fused_a_rank_has_its_part_of_each(checkpoints: Folders) -> None:
    """The same weights, fused and apart: the ranks read the same numbers."""
    fused, apart = (read_architecture(read_json(checkpoints(kind) / "config.json")) for kind in ("phi3", "llama"))
    shapes = fused.tensors()
    generator = torch.Generator().manual_seed(1)
    tensors = {name: torch.randn(size, generator=generator) for name, size in shapes.items()}
    at = "model.layers.1."
    q, k, v = tensors[f"{at}self_attn.qkv_proj.weight"].split([64, 32, 32])
    gate, up = tensors[f"{at}mlp.gate_up_proj.weight"].chunk(2)
    split = {"self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v, "mlp.gate_proj": gate}
    others = {f"{at}{name}.weight": tensor for name, tensor in (split | {"mlp.up_proj": up}).items()}
    for rank in range(Place.size):
        get = shard(lambda name, rows, columns: tensors[name][rows], fused, Place(rank))
        other = shard(lambda name, rows, columns: others[name][rows], apart, Place(rank))
        qkv = [other(f"{at}self_attn.{name}_proj.weight") for name in "qkv"]
        assert [len(part) for part in qkv] == [16, 16, 16], "two KV heads for four ranks"
        assert torch.equal(get(f"{at}self_attn.qkv_proj.weight"), torch.cat(qkv))
        gate_up = [other(f"{at}mlp.{name}_proj.weight") for name in ("gate", "up")]
        assert torch.equal(get(f"{at}mlp.gate_up_proj.weight"), torch.cat(gate_up))


@pytest.mark.parametrize(
    ("kind", "size", "words"),
    [("llama", 3, "attention heads"), ("llama", 8, "attention heads"), ("olmo2", 2, "norms all of its heads together")],
)
def test_models_that_cannot_be_cut(checkpoints: Folders, kind: str, size: int, words: str) -> None:
    shape = read_architecture(read_json(checkpoints(kind) / "config.json"))
    with pytest.raises(ConfigError, match=words):
        shard_shape(shape, size)
