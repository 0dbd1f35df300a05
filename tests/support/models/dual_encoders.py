"""Tiny models of two encoders (CLIP, SigLIP, SigLIP 2), and what transformers makes of texts and pictures by itself."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.models.checkpoints import VOCABULARY, write_tokenizer
from tests.support.models.embedders import add_marks

SMALL: dict[str, Any] = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
}
NORMAL = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.4, 0.3]}
LONGEST = {"clip": 40, "siglip": 24, "siglip2": 24}
VISION: dict[str, dict[str, Any]] = {
    "clip": {"image_size": 24, "patch_size": 8},
    "siglip": {"image_size": 32, "patch_size": 8},
    "siglip2": {"num_patches": 16, "patch_size": 8},
}
PIXELS: dict[str, dict[str, Any]] = {
    "clip": {
        **{"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 24}, "do_center_crop": True},
        "crop_size": {"height": 24, "width": 24},
    },
    "siglip": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 32, "width": 32}, "resample": 3},
    "siglip2": {"image_processor_type": "Siglip2ImageProcessor", "patch_size": 8, "max_num_patches": 16},
}
END, PAD = "<|im_end|>", "<|endoftext|>"


def write_dual_encoder(kind: str, folder: Path, seed: int = 0) -> None:
    """A checkpoint of this model_type."""
    import torch
    from transformers import AutoConfig, AutoModel

    from actorserve.actors.worker.adapter.verify import randomise

    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    add_marks(folder / "tokenizer.json")
    text = {**SMALL, "vocab_size": VOCABULARY, "max_position_embeddings": LONGEST[kind], "projection_dim": 20}
    text |= {"eos_token_id": token_id(folder, END), "pad_token_id": token_id(folder, PAD)}
    vision = {**SMALL, **VISION[kind], "projection_dim": 20}
    config: Any = AutoConfig.for_model(kind, text_config=text, vision_config=vision, projection_dim=20)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModel.from_config(config).float().eval()
    randomise(model, seed + 1)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({**NORMAL, **PIXELS[kind]}))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    if kind == "siglip2":
        settings["do_lower_case"] = True
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_clip_modules(folder: Path, *behind: str) -> None:
    """sentence-transformers' files beside a CLIP in 0_CLIPModel."""
    kinds = ["CLIPModel", *behind]
    modules = [
        {"idx": at, "name": str(at), "path": f"{at}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for at, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {}}))


def token_id(folder: Path, token: str) -> int:
    from tokenizers import Tokenizer

    found = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(token)
    assert found is not None
    return int(found)


def text_vectors(folder: Path, texts: list[str]) -> np.ndarray:
    """Normalised, each text alone, by get_text_features."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModel

    model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    kind, tokenizer = model.config.model_type, Tokenizer.from_file(str(folder / "tokenizer.json"))
    made = []
    for text in texts:
        ids = tokenizer.encode(text.lower() if kind == "siglip2" else text).ids
        if kind != "clip":
            ids += [token_id(folder, PAD)] * (LONGEST[kind] - len(ids))
        with torch.inference_mode():
            made.append(model.get_text_features(input_ids=torch.tensor([ids])).pooler_output[0].numpy())
    return _normal(np.stack(made))


def picture_vectors(folder: Path, pictures: list[bytes]) -> np.ndarray:
    """The same of pictures' files, by get_image_features."""
    import torch
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModel

    model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    process: Any = AutoImageProcessor.from_pretrained(folder, backend="pil")
    made = []
    for data in pictures:
        given = process(images=[Image.open(io.BytesIO(data)).convert("RGB")], return_tensors="pt")
        with torch.inference_mode():
            made.append(model.get_image_features(**given).pooler_output[0].numpy())
    return _normal(np.stack(made))


def _normal(made: np.ndarray) -> np.ndarray:
    found: np.ndarray = made / np.linalg.norm(made, axis=1, keepdims=True)
    return found
