"""Which models that see a GPU can have, and what is kept for pictures of its memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from msgspec import structs

from ..test_runner import load_model  # isort: skip  # before kernels are imported

from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.info import read_json, resolve_model
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker import inspection
from actorserve.actors.worker.gpu import memory
from actorserve.actors.worker.gpu.memory import RESERVE, kv_block_bytes
from actorserve.actors.worker.gpu.pictures import pictures_bytes
from actorserve.actors.worker.gpu.start import check_shape
from tests.support.models.vision.families import checkpoint

from ...driver import config_for
from .seeing import Made

LAYERS = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}


def test_pictures_wider_than_windows_are_for_a_cpu(made: Made, tmp_path: Path) -> None:
    folder = checkpoint("gemma3", tmp_path, **LAYERS, sliding_window=8)
    config = config_for(folder, device="cpu", block_size=16)
    with pytest.raises(ConfigError, match=r"fewer tokens back than the 9 of a picture.*--device cpu"):
        check_shape(config, load_model(folder).shape)
    check_shape(config, load_model(made("gemma3")[1]).shape)


def test_pictures_have_memory_of_their_own(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept, and what the tower computes in, is no KV memory; `check` counts the tower's weights, too."""
    folder = made("llava")[1]
    config = config_for(folder, device="cpu", block_size=16, max_num_seqs=4096, encoder_cache_gb=1.0)
    info = resolve_model(config)
    shape = read_architecture(read_json(folder / "config.json"))
    size = kv_block_bytes(shape, 16, torch.float32)
    room = pictures_bytes(config) + RESERVE + 1000 * size
    assert pictures_bytes(config) == 2 << 30
    monkeypatch.setattr(memory, "device_memory", lambda device: (room, room))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    config = structs.replace(config, gpu_memory_utilization=1.0)
    facts = {name: value for fact in inspection._on_gpu(config, info, shape) for name, value in fact.items()}
    tower = int(re.findall(r"of ([\d,]+)", facts["way"])[0].replace(",", ""))
    assert tower > 1000 and facts["weights_bytes"] > 4 * tower
    assert facts["blocks"] == 1000 - -(-facts["weights_bytes"] // size)
