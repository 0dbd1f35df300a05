"""What is read of a folder whose config.json leaves something to its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.values import read_json
from actorserve.actors.model.weights.weight_files import float_type
from tests.model.damaged import find

pytestmark = pytest.mark.usefixtures("cache")
WEIGHTS, CONFIG = "model.safetensors", "config.json"


def change(folder: Path, **fields: Any) -> None:
    """config.json without a type, and with these fields."""
    values = {name: value for name, value in read_json(folder / CONFIG).items() if "dtype" not in name}
    (folder / CONFIG).write_text(json.dumps({**values, **fields}))


def stored_dtype(folder: Path, **options: Any) -> str:
    return read_architecture(read_json(Path(find(folder, **options).folder) / CONFIG)).stored_dtype


def test_a_type_that_is_not_said_is_that_of_the_weights(folder: Path) -> None:
    change(folder)
    assert stored_dtype(folder) == "float16"
    tensors = load_file(folder / WEIGHTS)
    norms = {name: one.float() for name, one in tensors.items() if one.dim() == 1}
    save_file({name: one.bfloat16() for name, one in tensors.items()} | norms, folder / WEIGHTS)
    assert stored_dtype(folder) == "bfloat16", "that of most numbers"


def test_scales_are_of_other_numbers(tmp_path: Path) -> None:
    packed = {"a.weight_packed": torch.ones(64, dtype=torch.uint8), "a.weight_scale": torch.ones(8)}
    save_file({**packed, "norm.weight": torch.ones(4, dtype=torch.bfloat16)}, tmp_path / WEIGHTS)
    assert float_type([tmp_path / WEIGHTS]) == "bfloat16"
    save_file(packed, tmp_path / WEIGHTS)
    assert float_type([tmp_path / WEIGHTS]) is None


def test_a_folder_that_says_its_type_or_has_float32_is_read_where_it_lies(folder: Path) -> None:
    assert Path(find(folder).folder) == folder
    change(folder, torch_dtype="bfloat16")
    assert stored_dtype(folder) == "bfloat16" and Path(find(folder).folder) == folder
    change(folder)
    save_file({name: one.float() for name, one in load_file(folder / WEIGHTS).items()}, folder / WEIGHTS)
    assert stored_dtype(folder) == "float32" and Path(find(folder).folder) == folder


def test_weights_that_are_not_there_say_no_type(folder: Path) -> None:
    change(folder)
    assert stored_dtype(folder, load_format="dummy") == "float32"
    (folder / WEIGHTS).unlink()
    assert stored_dtype(folder, load_format="dummy") == "float32"


def test_overrides_win_over_the_weights_type(folder: Path) -> None:
    change(folder)
    for name in ("dtype", "torch_dtype"):
        assert stored_dtype(folder, hf_overrides={name: "bfloat16"}) == "bfloat16"
