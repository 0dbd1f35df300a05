"""Models that are computed step by step, there and on the host: an encoder's vectors, hidden states of a decoder that
pools, and logits of Whisper and T5. A part of `python -m tools.gpu.numerics`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq

from ..report import TINY, at_least, at_most, say, surviving

from actorserve.actors.model.info import resolve_model  # isort: skip
from actorserve.actors.options.config import make_config  # isort: skip
from actorserve.actors.worker.adapter.hooks import register  # isort: skip
from actorserve.actors.worker.adapter.model import Spans  # isort: skip
from actorserve.actors.worker.adapter.twin import shrink  # isort: skip
from actorserve.actors.worker.adapter.verify import randomise  # isort: skip
from actorserve.actors.worker.eager.decoder import make_decoder  # isort: skip
from actorserve.actors.worker.eager.kv import DeviceKV  # isort: skip
from actorserve.actors.worker.eager.trial import BLOCK, trial_kv  # isort: skip
from actorserve.actors.worker.encoder_decoder.load import _reader  # isort: skip
from actorserve.actors.worker.encoder_decoder.verify import verify, verify_there  # isort: skip
from actorserve.actors.worker.gpu.memory import make_pools  # isort: skip
from actorserve.actors.worker.pooling.decoder import hidden_shape, open_hidden  # isort: skip
from actorserve.actors.worker.pooling.encoder import Encoder, Text  # isort: skip
from actorserve.actors.worker.pooling.load import load_encoder  # isort: skip
from actorserve.kernels.cpu.paged_kv import Span  # isort: skip
from tests.support.models import embedders  # isort: skip
from tests.support.models.checkpoints import VOCABULARY, write_model  # isort: skip

ENCODER = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
LONGEST_TEXT = 512
TEXTS = [12, 40, 500, 7, 128, 130, 33, 1]
NEAR = {"float32": 0.999999, "float16": 0.9999}  # cosines of vectors with those of float32 on the host
READING: dict[str, Any] = {"whisper": AutoModelForSpeechSeq2Seq, "t5": AutoModelForSeq2SeqLM}
CUTS = ((21, 9), (1, 29))  # two prompts, each in two steps
OFF = 1e-4  # of the largest number of hidden states in float32


def compare(root: Path, at: torch.device) -> None:
    """All of it."""
    encoders(root / "encoder", at)
    with surviving("a decoder that pools, float32") as name:
        at_most(f"{name}: hidden states off transformers', of the largest", decoder(root / "decoder", at), "", OFF)
    for kind, make in READING.items():
        reading(kind, make, at)


def configured(folder: Path, dtype: str, **options: Any) -> Any:
    given = {"model": str(folder), "device": "cpu", "runner": "pooling", "max_model_len": LONGEST_TEXT}
    return make_config({**given, "dtype": dtype, **options})


def encoder(folder: Path, dtype: str, at: torch.device) -> Encoder:
    config = configured(folder, dtype, model_impl="transformers")
    info = resolve_model(config)
    assert info.pooling is not None
    return load_encoder(config, info, info.pooling, at)


def vectors(model: Encoder, texts: list[Text]) -> torch.Tensor:
    return torch.stack([states.float().mean(0).cpu() for states in model.hidden(texts)])


def encoders(root: Path, at: torch.device) -> None:
    """All texts of a step at once."""
    embedders.write_model("bert", root, **({} if TINY else ENCODER), max_position_embeddings=LONGEST_TEXT + 2)
    random = np.random.default_rng(1)
    texts = [Text(torch.from_numpy(random.integers(3, 300, size))) for size in TEXTS]
    wanted = vectors(encoder(root, "float32", torch.device("cpu")), texts)
    for dtype, least in NEAR.items():
        with surviving(f"an encoder in {dtype}") as name:
            model = encoder(root, dtype, at)
            near = torch.nn.functional.cosine_similarity(vectors(model, texts), wanted).min()
            at_least(f"{name}, {model.way.name.lower()}: cosine with the host's vectors", float(near), "", least)


def decoder(folder: Path, at: torch.device) -> float:
    """By this server's own layers, prompts in parts, the second of which sees the first's blocks."""
    write_model("qwen3", folder, num_hidden_layers=2)
    config = configured(folder, "float32", block_size=BLOCK)
    info = resolve_model(config)
    assert info.pooling is not None
    shape = hidden_shape(config, info, info.pooling)
    model = make_decoder(config, info, shape, open_hidden(config, info, info.pooling, shape)[0], at)
    blocks = -(-sum(CUTS[0]) // BLOCK) * len(CUTS)
    kv = DeviceKV(make_pools(model.model.shape, blocks, BLOCK, torch.float32, at), BLOCK, LONGEST_TEXT, at)
    tables = np.random.default_rng(0).permutation(blocks).reshape(len(CUTS), -1)
    prompts = torch.from_numpy(np.random.default_rng(1).integers(3, VOCABULARY, (len(CUTS), sum(CUTS[0]))))
    found: list[list[torch.Tensor]] = [[] for _ in CUTS]
    for turn in range(2):
        sizes = [cut[turn] for cut in CUTS]
        begins = [cut[0] * turn for cut in CUTS]
        spans = [
            Span(sum(sizes[:row]), size, begin, tables[row], False)
            for row, (size, begin) in enumerate(zip(sizes, begins, strict=True))
        ]
        places = [torch.arange(begin, begin + size) for size, begin in zip(sizes, begins, strict=True)]
        ids = torch.cat([prompt[at_] for prompt, at_ in zip(prompts, places, strict=True)])
        slots = [torch.from_numpy(tables[row])[own // BLOCK] * BLOCK + own % BLOCK for row, own in enumerate(places)]
        made = model.forward(ids, torch.cat(places), torch.cat(slots), kv, Spans(spans))
        for own, part in zip(found, made.cpu().split(sizes), strict=True):
            own.append(part)
    wanted: torch.Tensor = AutoModel.from_pretrained(folder, dtype=torch.float32)(prompts).last_hidden_state
    off = [(torch.cat(own) - exact).abs().max() for own, exact in zip(found, wanted, strict=True)]
    return float(max(off) / wanted.abs().max())


def reading(kind: str, make: Any, at: torch.device) -> None:
    """Logits in float32, prompts and decoding, over blocks that lie scattered: all rows at once, or one by one."""
    with surviving(f"{kind}, float32") as name:
        register()
        config: Any = shrink(AutoConfig.for_model(kind), 128)
        if kind == "whisper":
            config.max_source_positions = 20 if TINY else 300
        torch.manual_seed(0)
        model = make.from_config(config).float().eval()
        randomise(model)
        read = _reader(config, 128)
        way = verify(model, read).way
        verify_there(model, read, way, at, trial_kv, BLOCK)  # Unfit, a finding, if logits are others
        say(f"{name}, {way.name.lower()}: logits as transformers'", "yes", "", "yes", True)
