"""CLIP's kin on a pretended GPU: vectors of texts and of pictures are made there, and are transformers'."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import AutoImageProcessor

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config
from actorserve.actors.worker.pooling import load
from actorserve.actors.worker.pooling.dual_encoder import TextEncoder, load_dual_encoder
from actorserve.actors.worker.start.beside import moved
from actorserve.actors.worker.vision.encoder import Owner, VisionEncoder
from tests.support.gpu.pretended_device import DEVICE, OnDevice, PretendedDevice, on_the_host
from tests.support.models.dual_encoders import picture_vectors, text_vectors, write_dual_encoder
from tests.support.models.embedders import cosines
from tests.support.models.vision.folders import picture
from tests.support.selection import slow

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is one that need not be pretended")

TEXTS = ["A photo of a cat", "two dogs, one fox: the lazy dog.", "a"]


class Shown:
    """A picture as the media actor hands it on."""

    def __init__(self, folder: Path, data: bytes) -> None:
        import io

        process: Any = AutoImageProcessor.from_pretrained(folder, backend="pil")
        given = process(images=[Image.open(io.BytesIO(data)).convert("RGB")], return_tensors="np")
        self.arrays: dict[str, Any] = dict(given)
        names = [SimpleNamespace(name=name) for name in self.arrays]
        self.item: Any = SimpleNamespace(tensors=names, modality="image", digest=data[:8])

    def array(self, tensor: Any) -> Any:
        return self.arrays[tensor.name]

    def intact(self, slot: int, generation: int) -> bool:
        return True


@pytest.mark.parametrize("kind", ["clip", *slow("siglip", "siglip2")])
def test_vectors_are_those_of_transformers(
    kind: str, tmp_path: Path, device: PretendedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = picture(60, 40, 1)
    with on_the_host(), torch.no_grad():
        write_dual_encoder(kind, tmp_path)
        texts, seen = text_vectors(tmp_path, TEXTS), picture_vectors(tmp_path, [data])
        config = make_config({"model": str(tmp_path), "device": "cpu", "dtype": "float32", "runner": "pooling"})
        info = resolve_model(config)
        shown = Shown(tmp_path, data)
        tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        ids = [torch.tensor(tokenizer.encode(one.lower() if kind == "siglip2" else one).ids) for one in TEXTS]
        assert info.pooling is not None
        monkeypatch.setattr(load, "moved", lambda model, at, dtype: None)
        encoders: tuple[TextEncoder, VisionEncoder] = load_dual_encoder(config, info, info.pooling, shown, DEVICE)  # type: ignore[arg-type]
    own, pictures = encoders
    moved(own._model, DEVICE, torch.float32)
    for found, wanted in ((own.vectors(ids), texts), ([pictures.embeddings(shown.item, Owner(0, 1)).rows[0]], seen)):
        assert all(isinstance(one, OnDevice) for one in found)
        made = np.stack([one.cpu().numpy() for one in found])
        assert cosines(list(made), list(wanted)).min() > 0.99999
