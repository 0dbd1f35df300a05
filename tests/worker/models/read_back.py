"""What a file says, and what the checkpoint says that it was made of."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.values import read_json
from actorserve.actors.worker.models.sharding import Read
from actorserve.actors.worker.models.weights import open_checkpoint

from ..driver import config_for


def read_both(folder: Path, file: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], Read]:
    """(weights of the checkpoint, those of the file, what reads the file), whose shapes are the same."""
    shapes, weights = [], []
    for place in (folder, file):
        home = Path(resolve_model(config_for(place)).folder)
        shape = read_architecture(read_json(home / "config.json"))
        read = open_checkpoint(home, shape)
        shapes.append(shape)
        weights.append({name: read(name, slice(None), None) for name in shape.specs()})
    assert shapes[0] == shapes[1]
    return weights[0], weights[1], read
