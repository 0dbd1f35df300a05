"""What clients may read of the model."""

from __future__ import annotations

import json
from pathlib import Path

from actorserve.actors.frontend.model_card import card_of
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config


def test_sizes_of_the_packaged_model() -> None:
    config = make_config({"max_model_len": 256})
    model = resolve_model(config)
    said = json.loads((Path(model.folder) / "config.json").read_text())
    card = card_of(config, model)
    assert (card.hidden, card.trained_len) == (said["hidden_size"], said["max_position_embeddings"])
    assert card.parameters > 3_000_000 and card.size >= card.parameters
