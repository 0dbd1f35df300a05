"""Ling 3.0 by its formulas: small checkpoints of it, and their logits in plain torch, token by token.

With x a layer's input behind its norm, of each head:
- linear attention: q, k, v = silu of convolutions over the last tokens' products; q and k of length 1, q / √width;
  d = exp(bound · sigmoid(exp(A) · (F x + bias))) of each number of a key; b = sigmoid(B x);
  S ← d S; S ← S + b · k (v - kᵀ S); y = O (norm(qᵀ S) · sigmoid(G x))
- latent attention: q = Qb norm(Qa x), or Q x; a latent l = norm(L x) with a turned part r; keys are (K l, r) and values
  V l; y = O (attention · sigmoid(G x)), a gate for each head
- experts: of groups those whose two best are best, of these the experts with the largest sigmoid(R x) + bias, which
  share by sigmoid(R x); a shared one beside them; min(silu(g), L) · max(-L, min(u, L)) where a layer has a limit L
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from actorserve.actors.worker.adapter.checkpoint.bailing_v3 import BailingMoeV3ForCausalLM
from actorserve.actors.worker.adapter.verify import randomise
from tests.support.models.checkpoints import VOCABULARY, write_tokenizer

LAYERS = 8
NUMBER = re.compile(r"\.layers\.(\d+)\.")
TINY: dict[str, Any] = {  # fields of Ling 3.0 tiny's config.json
    "architectures": ["BailingMoeV3ForCausalLM"],
    "model_type": "bailing_hybrid",
    "auto_map": {"AutoModelForCausalLM": "modeling_bailing_moe_v3.BailingMoeV3ForCausalLM"},
    **{"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": LAYERS},
    **{"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "layer_group_size": 4},
    **{"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16},
    **{"num_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "num_shared_experts": 1},
    **{"moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32, "first_k_dense_replace": 1},
    **{"norm_topk_prob": True, "routed_scaling_factor": 2.5, "score_function": "sigmoid"},
    **{"expert_swiglu_limit_list": None, "share_expert_swiglu_limit_list": None},
    **{"kda_lower_bound": -5, "kda_safe_gate": True, "no_kda_lora": True, "short_conv_kernel_size": 4},
    **{"gated_attention_proj_granularity_type": "head_wise", "rope_interleave": True, "num_nextn_predict_layers": 1},
    **{"partial_rotary_factor": 0.5, "rope_theta": 6_000_000, "rms_norm_eps": 1e-6, "max_position_embeddings": 512},
    **{"tie_word_embeddings": False, "hidden_act": "silu", "dtype": "float32", "eos_token_id": 2, "pad_token_id": 0},
}
# Ling 3.0 Flash: queries are of no latents, and the last layers have limits; of 4 to 7, which this one would not meet.
FLASH = TINY | {
    "q_lora_rank": None,
    "expert_swiglu_limit_list": [0] * 5 + [0.3] * 3,
    "share_expert_swiglu_limit_list": [0] * 4 + [0.2] * 3 + [0.4],
}


# Two layers behind the last whole group, which attend over latents.
UNEVEN = TINY | {"num_hidden_layers": 6}


def is_latent(layer: int, fields: dict[str, Any]) -> bool:
    """Or linear?"""
    group, layers = int(fields["layer_group_size"]), int(fields["num_hidden_layers"])
    return layer % group == group - 1 or layer // group == layers // group


def write(folder: Path, fields: dict[str, Any]) -> None:
    """A checkpoint with these in config.json."""
    from transformers import BailingHybridConfig

    torch.manual_seed(0)
    latent = [is_latent(layer, fields) for layer in range(fields["num_hidden_layers"])]
    kinds = ["full_attention" if one else "linear_attention" for one in latent]
    config = BailingHybridConfig(**fields | {"kda_lower_bound": -5.0, "layer_types": kinds})
    made: Any = BailingMoeV3ForCausalLM._from_config(config)  # type: ignore[no-untyped-call]
    model = made.float().eval()
    randomise(model)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(0, 0.2)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {_published(name, fields): one for name, one in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(fields))


def _published(name: str, fields: dict[str, Any]) -> str:
    """What transformers saves under another name."""
    linear = (number := NUMBER.search(name)) is not None and not is_latent(int(number[1]), fields)
    named = name.replace(".attention.dense.", ".attention.o_proj.") if linear else name
    return named.replace("model.embed_tokens.", "model.word_embeddings.")


class Reference:
    """A checkpoint's logits."""

    def __init__(self, folder: Path) -> None:
        self.of = json.loads((folder / "config.json").read_text())
        self.tensors = load_file(folder / "model.safetensors")

    def logits(self, ids: list[int]) -> Tensor:
        """Behind each token."""
        x = self.tensors["model.word_embeddings.weight"][ids]
        for layer in range(self.of["num_hidden_layers"]):
            at = f"model.layers.{layer}"
            mixed = self._norm(x, f"{at}.input_layernorm")
            x = x + (self._latent if is_latent(layer, self.of) else self._linear)(mixed, f"{at}.attention")
            found = self._norm(x, f"{at}.post_attention_layernorm")
            dense = layer < self.of["first_k_dense_replace"]
            x = x + (self._mlp(found, f"{at}.mlp", None) if dense else self._experts(found, f"{at}.mlp", layer))
        return self._times(self._norm(x, "model.norm"), "lm_head")

    def greedy(self, ids: list[int], answer: list[int]) -> list[int]:
        """The likeliest token behind each part of an answer: the answer, if it is that of who always takes it."""
        return self.logits(ids + answer)[len(ids) - 1 : -1].argmax(-1).tolist()

    def _times(self, x: Tensor, name: str) -> Tensor:
        return x @ self.tensors[f"{name}.weight"].t()

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale: Tensor = (x.square().mean(-1, keepdim=True) + self.of["rms_norm_eps"]).rsqrt()
        return x * scale * self.tensors[f"{name}.weight"]

    def _linear(self, x: Tensor, at: str) -> Tensor:
        tokens, heads, width = len(x), self.of["num_attention_heads"], self.of["head_dim"]
        q, k, v = (self._convolved(x, at, name).view(tokens, heads, width) for name in "qkv")
        q, k = (part * (part.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for part in (q, k))
        rate = self.tensors[f"{at}.A_log"].view(heads, 1).exp()
        told = (self._times(x, f"{at}.f_proj") + self.tensors[f"{at}.dt_bias"]).view(tokens, heads, width)
        decay = (self.of["kda_lower_bound"] * (rate * told).sigmoid()).exp()
        share = self._times(x, f"{at}.b_proj").sigmoid()
        state, rows = torch.zeros(heads, width, width), []
        for token in range(tokens):
            state = state * decay[token, :, :, None]
            known = (k[token, :, :, None] * state).sum(1)
            state = state + k[token, :, :, None] * (share[token, :, None] * (v[token] - known))[:, None]
            rows.append((q[token, :, :, None] * state).sum(1) * width**-0.5)
        gate = self._times(x, f"{at}.g_proj").view(tokens, heads, width).sigmoid()
        return self._times((self._norm(torch.stack(rows), f"{at}.o_norm") * gate).flatten(1), f"{at}.o_proj")

    def _convolved(self, x: Tensor, at: str, name: str) -> Tensor:
        """Over the last tokens of each number."""
        taps = self.tensors[f"{at}.{name}_conv1d.weight"]
        product = F.pad(self._times(x, f"{at}.{name}_proj").t(), (taps.shape[-1] - 1, 0))
        return F.silu((product.unfold(1, taps.shape[-1], 1) * taps).sum(-1).t())

    def _latent(self, x: Tensor, at: str) -> Tensor:
        tokens, heads = len(x), self.of["num_attention_heads"]
        plain, turned, width = (self.of[f"{name}_head_dim"] for name in ("qk_nope", "qk_rope", "v"))
        if self.of["q_lora_rank"]:
            q = self._times(self._norm(self._times(x, f"{at}.q_a_proj"), f"{at}.q_a_layernorm"), f"{at}.q_b_proj")
        else:
            q = self._times(x, f"{at}.q_proj")
        q_plain, q_turned = q.view(tokens, heads, -1).split([plain, turned], -1)
        latent, k_turned = self._times(x, f"{at}.kv_a_proj_with_mqa").split([self.of["kv_lora_rank"], turned], -1)
        both = self._times(self._norm(latent, f"{at}.kv_a_layernorm"), f"{at}.kv_b_proj").view(tokens, heads, -1)
        keys, values = both.split([plain, width], -1)
        scores = torch.einsum("qhd,khd->hqk", q_plain, keys)
        scores = scores + torch.einsum("qhd,kd->hqk", self._turned(q_turned), self._turned(k_turned[:, None])[:, 0])
        seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        shares = (scores * (plain + turned) ** -0.5).masked_fill(~seen, -torch.inf).softmax(-1)
        gate = self._times(x, f"{at}.g_proj").sigmoid()
        mixed = torch.einsum("hqk,khd->qhd", shares, values) * gate[:, :, None]
        return self._times(mixed.flatten(1), f"{at}.dense")

    def _turned(self, x: Tensor) -> Tensor:
        """Neighbours turn as pairs; their order in the product does not matter."""
        pairs = x.shape[-1] // 2
        angles = torch.arange(len(x))[:, None] * self.of["rope_theta"] ** -(torch.arange(pairs) / pairs)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        one, other = x[..., ::2], x[..., 1::2]
        return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)

    def _mlp(self, x: Tensor, at: str, limit: float | None) -> Tensor:
        gate, up = F.silu(self._times(x, f"{at}.gate_proj")), self._times(x, f"{at}.up_proj")
        if limit:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return self._times(gate * up, f"{at}.down_proj")

    def _experts(self, x: Tensor, at: str, layer: int) -> Tensor:
        routed, shared = (self.of[f"{name}_swiglu_limit_list"] for name in ("expert", "share_expert"))
        scores = self._times(x, f"{at}.gate").sigmoid()
        ranked = (scores + self.tensors[f"{at}.gate.expert_bias"]).view(len(x), self.of["n_group"], -1)
        best = ranked.topk(2, -1).values.sum(-1).topk(self.of["topk_group"], -1).indices
        outside = torch.ones(ranked.shape[:2], dtype=torch.bool).scatter_(1, best, False)
        chosen = ranked.masked_fill(outside[..., None], -torch.inf).flatten(1).topk(self.of["num_experts_per_tok"], -1)
        own = scores.gather(1, chosen.indices)
        shares = own / own.sum(-1, keepdim=True) * self.of["routed_scaling_factor"]
        out = self._mlp(x, f"{at}.shared_experts", shared and shared[layer])
        for token, (experts, parts) in enumerate(zip(chosen.indices.tolist(), shares, strict=True)):
            for expert, part in zip(experts, parts, strict=True):
                row = self._mlp(x[token], f"{at}.experts.{expert}", routed and routed[layer])
                out[token] = out[token] + part * row
        return out
