"""Models that are computed step by step: an encoder's vectors, and Whisper's logits, there and on the host."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForSpeechSeq2Seq

from .report import TINY, at_least, say, surviving

from actorserve.actors.model.info import resolve_model  # isort: skip
from actorserve.actors.options.config import make_config  # isort: skip
from actorserve.actors.worker.adapter.hooks import register  # isort: skip
from actorserve.actors.worker.adapter.twin import shrink  # isort: skip
from actorserve.actors.worker.adapter.verify import randomise  # isort: skip
from actorserve.actors.worker.eager.trial import BLOCK, trial_kv  # isort: skip
from actorserve.actors.worker.encoder_decoder.load import _reader  # isort: skip
from actorserve.actors.worker.encoder_decoder.verify import verify, verify_there  # isort: skip
from actorserve.actors.worker.pooling.encoder import Encoder, Text  # isort: skip
from actorserve.actors.worker.pooling.load import load_encoder  # isort: skip
from tests.support.models.embedders import write_model  # isort: skip

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
LONGEST = 512
SIZES = [12, 40, 500, 7, 128, 130, 33, 1]
NEAR = {"float32": 0.999999, "float16": 0.9999}  # cosines of vectors with those of float32 on the host


def encoder(folder: Path, dtype: str, device: torch.device) -> Encoder:
    options = {"model": str(folder), "device": "cpu", "runner": "pooling", "dtype": dtype, "max_model_len": LONGEST}
    config = make_config({**options, "model_impl": "transformers"})
    info = resolve_model(config)
    assert info.pooling is not None
    return load_encoder(config, info, info.pooling, device)


def vectors(model: Encoder, texts: list[Text]) -> torch.Tensor:
    return torch.stack([states.float().mean(0).cpu() for states in model.hidden(texts)])


def encoders(root: Path) -> None:
    """All texts of a step at once."""
    write_model("bert", root, **({} if TINY else SHAPE), max_position_embeddings=LONGEST + 2)
    random = np.random.default_rng(1)
    texts = [Text(torch.from_numpy(random.integers(3, 300, size))) for size in SIZES]
    wanted = vectors(encoder(root, "float32", torch.device("cpu")), texts)
    for dtype, least in NEAR.items():
        with surviving(f"an encoder in {dtype}") as name:
            model = encoder(root, dtype, DEVICE)
            near = torch.nn.functional.cosine_similarity(vectors(model, texts), wanted).min()
            at_least(f"{name}, {model.way.name.lower()}: cosine with the host's vectors", float(near), "", least)


def whisper() -> None:
    """Logits in float32, prompts and decoding, over blocks that lie scattered."""
    with surviving("Whisper, float32") as name:
        register()
        config: Any = shrink(AutoConfig.for_model("whisper"), 128)
        config.max_source_positions = 20 if TINY else 300
        torch.manual_seed(0)
        model = AutoModelForSpeechSeq2Seq.from_config(config).float().eval()
        randomise(model)
        read = _reader(config, 128)
        way = verify(model, read).way
        verify_there(model, read, way, DEVICE, trial_kv, BLOCK)  # Unfit, a finding, if logits are others
        say(f"{name}, {way.name.lower()}: logits as transformers'", "yes", "", "yes", True)


def main() -> int:
    torch.set_float32_matmul_precision("highest")
    with tempfile.TemporaryDirectory() as root, torch.inference_mode():
        encoders(Path(root))
        whisper()
    return 0


if __name__ == "__main__":
    sys.exit(main())
