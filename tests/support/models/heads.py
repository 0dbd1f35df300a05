"""Heads that draft, in the formats in which they are published, with random weights: for tests.

The names and shapes of tensors are those of EAGLE's and Medusa's authors, of SpecForge, speculators, vLLM and MiMo.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]
SCALE = 0.3  # of weights, so that drafts vary
COPIED = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size", "rms_norm_eps"),
    *("hidden_act", "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters"),
)


class Weights:
    """Random ones."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def matrix(self, rows: int, columns: int) -> Tensor:
        made: Tensor = torch.randn(rows, columns, generator=self.generator) * (SCALE * (64 / columns) ** 0.5)
        return made

    def gain(self, size: int) -> Tensor:
        made: Tensor = torch.rand(size, generator=self.generator) + 0.5
        return made

    def bias(self, size: int) -> Tensor:
        made: Tensor = torch.randn(size, generator=self.generator) * SCALE
        return made

    def layer(self, config: dict[str, Any], inputs: int, biases: tuple[str, ...] = ()) -> Tensors:
        """Attention and MLP of one, whose q, k and v have so many inputs."""
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        size = config.get("head_dim") or hidden // heads
        rows = {"q": heads * size, "k": config["num_key_value_heads"] * size, "v": config["num_key_value_heads"] * size}
        made = {f"self_attn.{name}_proj.weight": self.matrix(count, inputs) for name, count in rows.items()}
        made |= {f"self_attn.{name}_proj.bias": self.bias(rows[name]) for name in biases}
        inner = config["intermediate_size"]
        return made | {
            "self_attn.o_proj.weight": self.matrix(hidden, heads * size),
            "mlp.gate_proj.weight": self.matrix(inner, hidden),
            "mlp.up_proj.weight": self.matrix(inner, hidden),
            "mlp.down_proj.weight": self.matrix(hidden, inner),
            "post_attention_layernorm.weight": self.gain(hidden),
        }


def config_of(target: Path) -> dict[str, Any]:
    """What a head's config.json takes over from its model's."""
    values = json.loads((target / "config.json").read_text())
    return {name: values[name] for name in COPIED if values.get(name) is not None}


def eagle3(
    target: Path,
    seed: int = 1,
    drafted: int | None = None,
    own_embeddings: bool = False,
    config: dict[str, Any] | None = None,
) -> Tensors:
    """EAGLE-3's; `drafted` words of the vocabulary, in random places. `config` is what differs from the model's."""
    weights, own = Weights(seed), config_of(target)
    states, config = own["hidden_size"], own | (config or {})
    hidden, words = config["hidden_size"], config["vocab_size"]
    layer = weights.layer(config, 2 * hidden)
    layer |= {f"{name}.weight": weights.gain(hidden) for name in ("hidden_norm", "input_layernorm")}
    tensors = {f"midlayer.{name}": tensor for name, tensor in layer.items()}
    tensors |= {"fc.weight": weights.matrix(hidden, 3 * states), "norm.weight": weights.gain(hidden)}
    tensors["lm_head.weight"] = weights.matrix(drafted or words, hidden)
    if own_embeddings:
        tensors["embed_tokens.weight"] = weights.matrix(words, hidden)
    if drafted is not None:
        chosen = torch.randperm(words, generator=weights.generator)[:drafted].sort().values
        tensors["d2t"] = chosen - torch.arange(drafted)
        tensors["t2d"] = torch.zeros(words, dtype=torch.bool).index_fill_(0, chosen, True)
    return tensors


def write_eagle3(folder: Path, target: Path, tensors: Tensors, pickled: bool = False, **config: Any) -> Path:
    """As SafeAILab and SpecForge write it."""
    own = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1}
    if "d2t" in tensors:
        own["draft_vocab_size"] = len(tensors["d2t"])
    return _write(folder, {**config_of(target), **own, **config}, tensors, pickled)


def write_speculators(folder: Path, target: Path, tensors: Tensors, **config: Any) -> Path:
    """The same as speculators writes it: the layer's sizes in an object, and another name of the layer."""
    outer = {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", **config}
    outer["transformer_layer_config"] = {**config_of(target), "num_hidden_layers": 1}
    outer["draft_vocab_size"] = len(tensors["lm_head.weight"])
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    return _write(folder, outer, renamed)


def eagle(target: Path, seed: int = 1, bias: bool = False) -> Tensors:
    """EAGLE-1's and EAGLE-2's."""
    config, weights = config_of(target), Weights(seed)
    hidden = config["hidden_size"]
    tensors = {f"layers.0.{name}": tensor for name, tensor in weights.layer(config, hidden).items()}
    tensors["fc.weight"] = weights.matrix(hidden, 2 * hidden)
    return tensors | ({"fc.bias": weights.bias(hidden)} if bias else {})


def write_eagle(folder: Path, target: Path, tensors: Tensors, **config: Any) -> Path:
    """As SafeAILab writes it."""
    own = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1}
    return _write(folder, {**config_of(target), **own, **config}, tensors, pickled=True)


def mtp(target: Path, seed: int = 1) -> Tensors:
    """The layer that MiMo brings along, by its names there."""
    config, weights = config_of(target), Weights(seed)
    hidden = config["hidden_size"]
    layer = weights.layer(config, hidden, ("q", "k", "v")) | {"input_proj.weight": weights.matrix(hidden, 2 * hidden)}
    for name in ("token", "hidden", "input", "final"):
        layer[f"{name}_layernorm.weight"] = weights.gain(hidden)
    return {f"model.mtp_layers.0.{name}": tensor for name, tensor in layer.items()}


def write_mimo(folder: Path, qwen2: Path, tensors: Tensors) -> Path:
    """A model of Qwen2 with such a layer, which makes it one of MiMo."""
    folder.mkdir()
    for file in qwen2.iterdir():
        if file.suffix in (".json", ".jinja"):
            (folder / file.name).write_bytes(file.read_bytes())
    values = json.loads((qwen2 / "config.json").read_text())
    own = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps({**values, **own, "attention_bias": True}))
    save_file({**load_file(qwen2 / "model.safetensors"), **tensors}, folder / "model.safetensors")
    return folder


def medusa(target: Path, seed: int = 1, heads: int = 3, blocks: int = 1) -> Tensors:
    """Medusa's heads, by the names of its authors."""
    config, weights = config_of(target), Weights(seed)
    hidden, tensors = config["hidden_size"], {}
    for head in range(heads):
        for block in range(blocks):
            tensors[f"{head}.{block}.linear.weight"] = weights.matrix(hidden, hidden)
            tensors[f"{head}.{block}.linear.bias"] = weights.bias(hidden)
        tensors[f"{head}.{blocks}.weight"] = weights.matrix(config["vocab_size"], hidden)
    return tensors


def write_medusa(folder: Path, tensors: Tensors) -> Path:
    """As its authors write it: config.json says little, and a number of heads that need not be right."""
    folder.mkdir(parents=True)
    config = {"base_model_name_or_path": "lmsys/vicuna-7b-v1.3", "medusa_num_heads": 2, "medusa_num_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(tensors, folder / "medusa_lm_head.pt")
    return folder


def write_vllm_medusa(folder: Path, tensors: Tensors) -> Path:
    """As vLLM wants it, without biases."""
    renamed = {}
    for name, tensor in tensors.items():
        head, block, *rest = name.split(".")
        if rest == ["linear", "weight"]:
            renamed[f"blocks.{head}.layers.{block}.weight"] = tensor
        elif rest == ["weight"]:
            renamed[f"lm_heads.{head}.weight"] = tensor
    return _write(folder, {"architectures": ["MedusaModel"], "model_type": "medusa"}, renamed)


def dflash(
    target: Path,
    seed: int = 1,
    reads: int = 2,
    layers: int = 2,
    biased: bool = False,
    drafted: int | None = None,
    config: dict[str, Any] | None = None,
) -> Tensors:
    """DFlash's, which reads so many layers; with embeddings and words of its own if `drafted` of these."""
    weights, own = Weights(seed), config_of(target)
    states, config = own["hidden_size"], own | (config or {})
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    size = config.get("head_dim") or hidden // heads
    tensors: Tensors = {"fc.weight": weights.matrix(hidden, reads * states)}
    tensors |= {f"{name}.weight": weights.gain(hidden) for name in ("hidden_norm", "norm")}
    for number in range(layers):
        layer = weights.layer(config, hidden, ("q", "k", "v") if biased else ())
        layer |= {f"self_attn.{name}_norm.weight": weights.gain(size) for name in "qk"}
        layer["input_layernorm.weight"] = weights.gain(hidden)
        layer |= {"self_attn.o_proj.bias": weights.bias(hidden)} if biased else {}
        tensors |= {f"layers.{number}.{name}": tensor for name, tensor in layer.items()}
    if drafted is not None:
        words = config["vocab_size"]
        tensors |= {
            "lm_head.weight": weights.matrix(drafted, hidden),
            "embed_tokens.weight": weights.matrix(words, hidden),
        }
        chosen = torch.randperm(words, generator=weights.generator)[:drafted].sort().values
        tensors["d2t"] = chosen - torch.arange(drafted)
    return tensors


def write_dflash(
    folder: Path, target: Path, tensors: Tensors, own: dict[str, Any] | None = None, **config: Any
) -> Path:
    """As z-lab writes it; `own` is what its object has otherwise."""
    layers = sum(name.endswith("q_norm.weight") for name in tensors)
    given = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": layers, "block_size": 8}
    given |= {"num_target_layers": 3, "layer_types": ["full_attention"] * layers}
    if "d2t" in tensors:
        given["draft_vocab_size"] = len(tensors["d2t"])
    inner = {"mask_token_id": 7, "target_layer_ids": [0, 1], **(own or {})}
    return _write(folder, {**config_of(target), **given, "dflash_config": inner, **config}, tensors)


def write_dflash_speculators(folder: Path, target: Path, tensors: Tensors, **config: Any) -> Path:
    """The same as speculators writes it, of which it counts the layers before which is read."""
    layers = sum(name.endswith("q_norm.weight") for name in tensors)
    outer = {"architectures": ["DFlashSpeculator"], "speculators_model_type": "dflash", "block_size": 8, **config}
    outer |= {"mask_token_id": 7, "aux_hidden_state_layer_ids": [1, 2]}
    outer["transformer_layer_config"] = {**config_of(target), "num_hidden_layers": layers}
    if "d2t" in tensors:
        outer["draft_vocab_size"] = len(tensors["d2t"])
    return _write(folder, outer, tensors)


def _write(folder: Path, config: dict[str, Any], tensors: Tensors, pickled: bool = False) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder
