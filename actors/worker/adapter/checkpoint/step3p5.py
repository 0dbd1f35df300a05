"""Step 3.5, whose checkpoints say Step3p5ForCausalLM: transformers has it as the text part of Step 3.7 alone.

Its tensors are called as those of Step 3.7's text part are in a checkpoint.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationMixin, Step3p7TextConfig
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.modeling_outputs import MoeCausalLMOutputWithPast
from transformers.models.step3p7.modeling_step3p7 import Step3p7PreTrainedModel, Step3p7TextModel

WHOLE = "step3p7"
IN_LAYERS = "mlp."  # what the whole model has under other names beside its parts themselves


class Step3p5(Step3p7PreTrainedModel, GenerationMixin):
    """A model of texts. Its name is not that of the class beside the weights, whose tensors are called as they are
    stored."""

    config_class = Step3p7TextConfig
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: Step3p7TextConfig) -> None:
        super().__init__(config)
        self.model = Step3p7TextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> MoeCausalLMOutputWithPast:
        """As of any other; 0 keeps the logits of all tokens."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        logits: torch.FloatTensor = self.lm_head(outputs.last_hidden_state[:, -logits_to_keep:])
        return MoeCausalLMOutputWithPast(logits=logits, past_key_values=outputs.past_key_values)


def _names() -> list[Any]:
    """What becomes of a checkpoint's tensors."""
    known: list[Any] = get_checkpoint_conversion_mapping(WHOLE) or []
    return [one for one in known if all(IN_LAYERS in pattern for pattern in one.target_patterns)]


register_checkpoint_conversion_mapping(Step3p5.__name__, _names(), overwrite=True)
