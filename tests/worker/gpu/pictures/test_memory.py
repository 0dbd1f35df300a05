"""Which models that see a GPU can have, and what is kept for pictures of its memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from msgspec import structs
from transformers import PreTrainedModel

from ..test_runner import DEVICE, load_model  # isort: skip  # before kernels are imported

from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.info import read_json, resolve_model
from actorserve.actors.model.vision.spec import VisionSpec
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker import inspection
from actorserve.actors.worker.gpu import memory
from actorserve.actors.worker.gpu.adapted import load
from actorserve.actors.worker.gpu.adapted.load import load_on_gpu
from actorserve.actors.worker.gpu.adapted.trial import verify_on_device
from actorserve.actors.worker.gpu.load import check_shape
from actorserve.actors.worker.gpu.memory import RESERVE, kv_block_bytes
from actorserve.actors.worker.gpu.pictures import pictures_bytes
from actorserve.actors.worker.vision.encoder import BadItem, Embeddings, VisionEncoder
from actorserve.actors.worker.vision.start import NoMedia
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


def test_so_are_those_of_layers_of_transformers(tmp_path: Path) -> None:
    """Gemma 4 31B, had it narrower windows."""
    folder = checkpoint("gemma4_together", tmp_path)
    config = config_for(folder, device="cpu", block_size=16)
    with pytest.raises(ConfigError, match=r"fewer tokens back than the 70 of a picture.*--device cpu"):
        load_on_gpu(config, resolve_model(config), DEVICE)


def test_what_check_says_of_a_tower_beside_layers_of_transformers(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tower's weights are counted once."""
    reference, folder = made("gemma4")
    config = config_for(folder, device="cpu", block_size=16)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(load, "verify_on_device", lambda twin, device: verify_on_device(twin, DEVICE))
    monkeypatch.setattr(load, "reason_against_graphs", lambda *given: "")
    monkeypatch.setattr(memory, "device_memory", lambda device: (8 << 30, 8 << 30))
    facts = {
        name: value
        for fact in inspection._adapted_on_gpu(config, resolve_model(config))
        for name, value in fact.items()
    }
    assert re.search(r", by CUDA graphs, and a tower of [\d,]+ parameters$", facts["way"])
    assert facts["weights_bytes"] == 4 * sum(weight.numel() for weight in reference.model.parameters())


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


@pytest.mark.parametrize(
    ("said", "raised"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", torch.OutOfMemoryError),
        ("Triton Error [CUDA]: cudaErrorMemoryAllocation", torch.OutOfMemoryError),
        ("Unable to find a valid cuDNN algorithm to run convolution", torch.OutOfMemoryError),
        ("CUDA error: an illegal memory access was encountered\nIt may be of a step before", RuntimeError),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", RuntimeError),
        ("shape '[2, 3]' is invalid for input of size 7", BadItem),
    ],
)
def test_errors_of_the_device_are_no_picture_s(said: str, raised: type[Exception]) -> None:
    """A CPU has none."""

    def fail(modality: str, given: dict[str, torch.Tensor]) -> Embeddings:
        raise RuntimeError(said)

    spec = VisionSpec(kind="llava", placeholders=(1,), hidden=4)
    for device, wanted in ((torch.device("cuda", 0), raised), (torch.device("cpu"), BadItem)):
        encoder = VisionEncoder(PreTrainedModel, spec, torch.float32, NoMedia(), 0, device)  # type: ignore[arg-type]
        encoder._encode = fail  # type: ignore[method-assign]
        with pytest.raises(wanted) as error:
            encoder._made_of("image", {})
        assert type(error.value) is wanted and said.splitlines()[0] in str(error.value)
