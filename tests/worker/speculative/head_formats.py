"""The formats of heads that draft, written down once more in plain operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.support.models import heads


class Form(NamedTuple):
    """What sets one recurrent format apart from another; names as checkpoints have them."""

    layers: tuple[int, ...] | None  # of the model, whose inputs are read; None: behind the last one
    normed: bool  # the last one is
    prefix: str


FORMS = {
    "eagle3": Form((0, 1, 2), False, "midlayer."),  # of three layers: 2, 3 // 2 and 3 - 3, in their order
    "eagle": Form(None, True, "layers.0."),
    "mtp": Form(None, False, "model.mtp_layers.0."),
}


class Reference:
    """A head over whole sequences, without a cache."""

    def __init__(self, form: Form, tensors: heads.Tensors, target: Path, **config: Any) -> None:
        self.form, self.tensors = form, tensors
        self.model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        self.config = {**heads.config_of(target), **config}

    def drafts(self, ids: list[int], count: int) -> tuple[list[int], float]:
        """The likeliest words behind `ids`, and by how much the least sure was it."""
        hidden, tokens, margin = self._states(torch.tensor([ids[:-1]])), list(ids[1:]), float("inf")
        for _ in range(count):
            out, logits = self._forward(hidden, torch.tensor(tokens))
            best = logits.topk(2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            word = int(best.indices[0])
            if "d2t" in self.tensors:
                word += int(self.tensors["d2t"][word])
            tokens.append(word)
            hidden = torch.cat([hidden, out[-1:]])
        return tokens[len(ids) - 1 :], margin

    def _states(self, ids: Tensor) -> Tensor:
        if self.form.layers is not None:
            found = self.model(ids, output_hidden_states=True).hidden_states
            joined = torch.cat([found[layer][0] for layer in self.form.layers], -1)
            return joined @ self.tensors["fc.weight"].T
        kept: list[Tensor] = []
        hook = self.model.model.norm.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
        self.model(ids)
        hook.remove()
        return self.model.model.norm(kept[0])[0] if self.form.normed else kept[0][0]

    def _forward(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(what is handed on from each position, the logits behind the last one)."""
        own, prefix = self.tensors, self.form.prefix
        table = own.get("embed_tokens.weight", self.model.model.embed_tokens.weight)
        token, head = table[tokens], own.get("lm_head.weight", self.model.lm_head.weight)
        if prefix == "midlayer.":
            token, normed = self._norm("midlayer.input_layernorm", token), self._norm("midlayer.hidden_norm", hidden)
            x = normed if self.config.get("norm_before_residual") else hidden
            x = self._layer(x, torch.cat([token, normed], -1))
            return x, head @ self._norm("norm", x[-1])
        if prefix == "layers.0.":
            x = F.linear(torch.cat([token, hidden], -1), own["fc.weight"], own.get("fc.bias"))
            x = self._layer(x, x)
            return x, head @ x[-1]
        pair = [self._norm(f"{prefix}hidden_layernorm", hidden), self._norm(f"{prefix}token_layernorm", token)]
        x = torch.cat(pair, -1) @ own[f"{prefix}input_proj.weight"].T
        x = self._norm(f"{prefix}final_layernorm", self._layer(x, self._norm(f"{prefix}input_layernorm", x)))
        return x, head @ x[-1]

    def _norm(self, name: str, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x * scale * self.tensors[f"{name}.weight"]

    def _linear(self, name: str, x: Tensor) -> Tensor:
        whole = f"{self.form.prefix}{name}"
        return F.linear(x, self.tensors[f"{whole}.weight"], self.tensors.get(f"{whole}.bias"))

    def _layer(self, x: Tensor, seen: Tensor) -> Tensor:
        heads_, kv = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q, k, v = (
            self._linear(f"self_attn.{name}_proj", seen).view(len(x), count, -1).transpose(0, 1)
            for name, count in (("q", heads_), ("k", kv), ("v", kv))
        )
        q, k = self._rotated(q), self._rotated(k)
        k, v = (values.repeat_interleave(heads_ // kv, 0) for values in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1)
        x = x + self._linear("self_attn.o_proj", mixed)
        inner = self._norm(f"{self.form.prefix}post_attention_layernorm", x)
        gate = F.silu(self._linear("mlp.gate_proj", inner)) * self._linear("mlp.up_proj", inner)
        return x + self._linear("mlp.down_proj", gate)

    def _rotated(self, x: Tensor) -> Tensor:
        size, length = x.shape[-1], x.shape[-2]
        angles = torch.outer(torch.arange(length).float(), 10_000.0 ** -(torch.arange(0, size, 2) / size))
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin


class MedusaReference:
    """Medusa's heads."""

    def __init__(self, tensors: heads.Tensors, target: Path, blocks: int = 1) -> None:
        self.tensors, self.blocks = tensors, blocks
        self.model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)

    def drafts(self, ids: list[int], count: int) -> tuple[list[int], float]:
        """See Reference."""
        hidden = self.model.model(torch.tensor([ids[:-1]])).last_hidden_state[0, -1]
        words, margin = [], float("inf")
        for head in range(count):
            x = hidden
            for block in range(self.blocks):
                name = f"{head}.{block}.linear"
                x = x + F.silu(F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias")))
            best = (self.tensors[f"{head}.{self.blocks}.weight"] @ x).topk(2)
            words.append(int(best.indices[0]))
            margin = min(margin, float(best.values[0] - best.values[1]))
        return words, margin
