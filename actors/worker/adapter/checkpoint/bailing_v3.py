"""Ling 3.0 and Ring 3.0, whose checkpoints say BailingMoeV3ForCausalLM: transformers' BailingHybrid, and what it lacks.

- Queries may be made of a latent (`q_lora_rank`): q = B · norm(A · x).
- Layers may have a limit L of their own for what a gate lets through, of routed experts (`expert_swiglu_limit_list`)
  and of the shared one (`share_expert_swiglu_limit_list`), 0 for none: min(silu(g), L) · max(-L, min(u, L)). The code
  beside the checkpoints does not heed them; their publisher serves them so.
- Layers behind the last whole group of `layer_group_size` attend over latents, as the last one of each group does.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import BailingHybridConfig
from transformers.models.bailing_hybrid.modeling_bailing_hybrid import (
    BailingHybridAttention,
    BailingHybridExperts,
    BailingHybridForCausalLM,
    BailingHybridMLP,
    BailingHybridMoE,
    BailingHybridRMSNorm,
)
from transformers.models.step3p7.modeling_step3p7 import Step3p7Experts

ROUTED, SHARED = "expert_swiglu_limit_list", "share_expert_swiglu_limit_list"


class BailingMoeV3ForCausalLM(BailingHybridForCausalLM):
    """A model as it is published."""

    def __init__(self, config: BailingHybridConfig) -> None:
        super().__init__(config)
        own: Any = config
        for number, layer in enumerate(self.model.layers):
            if isinstance(layer.self_attn, BailingHybridAttention) and getattr(own, "q_lora_rank", None):
                layer.self_attn = LatentQueryAttention(config, number)
            if isinstance(layer.mlp, BailingHybridMoE):
                _limit(layer.mlp, own, number)
        drafting = range(own.num_hidden_layers, own.num_hidden_layers + own.num_mtp_layers)
        self._keys_to_ignore_on_load_unexpected = [rf"^model\.layers\.{number}\." for number in drafting]
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def is_custom_code(cls) -> bool:
        """What transformers asks before it gives tensors the names that they have in its class."""
        return False


class LatentQueryAttention(BailingHybridAttention):
    """Its queries are made of a latent."""

    def __init__(self, config: BailingHybridConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        own: Any = config
        del self.q_proj
        self.q_a_proj = nn.Linear(own.hidden_size, own.q_lora_rank, bias=own.attention_bias)
        self.q_a_layernorm = BailingHybridRMSNorm(own.q_lora_rank, own.rms_norm_eps)
        self.q_b_proj = nn.Linear(own.q_lora_rank, self.num_heads * self.qk_head_dim, bias=False)

    def q_proj(self, hidden_states: Tensor) -> Tensor:  # type: ignore[override]
        """In place of the product that others have."""
        queries: Tensor = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
        return queries


class LimitedExperts(BailingHybridExperts):
    """Those of a layer that has a limit for them, which Step 3.7 keeps to in the same way."""

    def __init__(self, config: BailingHybridConfig, limit: float) -> None:
        super().__init__(config)  # type: ignore[no-untyped-call]
        self.limit = limit

    forward = Step3p7Experts.forward
    _apply_gate = Step3p7Experts._apply_gate


class LimitedMLP(BailingHybridMLP):
    """The shared expert of a layer that has a limit for it."""

    def __init__(self, config: BailingHybridConfig, intermediate_size: int, limit: float) -> None:
        super().__init__(config, intermediate_size)  # type: ignore[no-untyped-call]
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        gate = self.act_fn(self.gate_proj(x)).clamp(max=self.limit)
        product: Tensor = self.down_proj(gate * self.up_proj(x).clamp(-self.limit, self.limit))
        return product


def layer_types(config: Any) -> list[str]:
    """Of a config.json that does not tell them."""
    layers, group = config.num_hidden_layers, config.layer_group_size
    latent = [layer // group == layers // group or (layer + 1) % group == 0 for layer in range(layers)]
    return ["full_attention" if one else "linear_attention" for one in latent]


def _limit(block: Any, config: Any, layer: int) -> None:
    """What this layer has limits for."""
    if (limit := _limit_of(config, ROUTED, layer)) is not None:
        block.experts = LimitedExperts(config, limit)
    if (limit := _limit_of(config, SHARED, layer)) is not None:
        block.shared_experts = LimitedMLP(config, block.shared_experts.intermediate_size, limit)


def _limit_of(config: Any, name: str, layer: int) -> float | None:
    limits = getattr(config, name, None) or ()
    return (limits[layer] or None) if layer < len(limits) else None
