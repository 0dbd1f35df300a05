"""Embeddings of sounds, by transformers' tower and projector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import create_bidirectional_mask


def heard(tower: Any, features: Tensor, mask: Tensor | None) -> Tensor:
    """[tokens, hidden] of a sound; `mask`: which frames are its own, where the tower hears nothing of others."""
    if mask is None:
        found: Tensor = tower.get_audio_features(features, return_dict=True).pooler_output
        return found
    encoder = tower.audio_tower
    if not hasattr(tower, "multi_modal_projector"):  # Gemma's, which tells which of its embeddings are the sound's own
        told = tower.get_audio_features(features, mask.bool(), return_dict=True)
        own: Tensor = told.pooler_output[told.attention_mask]
        return own
    lengths, made = encoder._get_feat_extract_output_lengths(mask.sum(-1))
    places = torch.arange((features.shape[-1] - 2) // 2 + 1, device=features.device)
    seen = create_bidirectional_mask(
        config=encoder.config,
        inputs_embeds=torch.zeros(len(features), len(places), 1, dtype=features.dtype, device=features.device),
        attention_mask=(places[None] < lengths[:, None]).long(),
    )
    rows = tower.multi_modal_projector(encoder(features, attention_mask=seen).last_hidden_state)
    return torch.cat([one[:count] for one, count in zip(rows, made.tolist(), strict=True)])
