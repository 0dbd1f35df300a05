"""Tiny random models that hear sounds in a conversation, and what transformers makes of the same sounds.

Their windows are two seconds long.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.models.checkpoints import BASE, VOCABULARY, write_tokenizer
from tests.support.models.vision.families import checkpoint

TWICE = "language_model.model.model."
RATE, SECONDS, MELS = 16_000, 2, 20
FRAMES = 100 * SECONDS
TEXT: dict[str, Any] = {**BASE, "vocab_size": VOCABULARY + 8}
ENCODER = {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "d_model": 32}
KINDS: dict[str, dict[str, Any]] = {
    "qwen2_audio": {
        "marks": ("<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"),
        "token": "<|AUDIO|>",
        "place": "<|audio_bos|><|AUDIO|><|audio_eos|>",
        "id": "audio_token_index",
        "text": {**TEXT, "model_type": "qwen2"},
        "audio": {**ENCODER, "model_type": "qwen2_audio_encoder"},
    },
    "voxtral": {
        "marks": ("[BEGIN_AUDIO]", "[AUDIO]"),
        "token": "[AUDIO]",
        "place": "[BEGIN_AUDIO][AUDIO]",
        "id": "audio_token_id",
        "text": {**TEXT, "model_type": "llama", "head_dim": 16},
        "audio": {
            **{"model_type": "voxtral_encoder", "hidden_size": 32, "intermediate_size": 128},
            **{"num_hidden_layers": 2, "num_attention_heads": 2},
        },
    },
}
ADAPTED = ("gemma4",)  # which see, too: models of ../vision/families.py
EVERY = (*KINDS, *ADAPTED)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'audio' %}PLACE{% elif part.type == 'text' %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def listener(kind: str, root: Path) -> Path:
    """The folder of a model of this kind below `root`, written at the first call."""
    if kind in ADAPTED:
        return checkpoint(kind, root)
    folder = root / kind
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_tokenizer(folder)
        own = KINDS[kind]
        ids = _add_marks(folder, own["marks"])
        extractor = {
            **{"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": MELS, "chunk_length": SECONDS},
            **{"sampling_rate": RATE, "hop_length": 160, "n_fft": 400, "nb_max_frames": FRAMES},
        }
        (folder / "preprocessor_config.json").write_text(json.dumps(extractor))
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings["chat_template"] = TEMPLATE.replace("PLACE", own["place"])
        settings["additional_special_tokens"] += own["marks"]
        path.write_text(json.dumps(settings), encoding="utf-8")
        _write_model(folder, kind, ids)
    return folder


def _add_marks(folder: Path, marks: tuple[str, ...]) -> dict[str, int]:
    from tokenizers import AddedToken, Tokenizer

    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    tokenizer.save(str(path))
    return {mark: tokenizer.token_to_id(mark) or 0 for mark in marks}


def _write_model(folder: Path, kind: str, ids: dict[str, int]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForMultimodalLM

    own = KINDS[kind]
    audio = {**own["audio"], "num_mel_bins": MELS, "max_source_positions": FRAMES // 2}
    config = AutoConfig.for_model(
        kind, text_config=own["text"], audio_config=audio, **{own["id"]: ids[own["token"]]}, tie_word_embeddings=False
    )
    torch.manual_seed(0)
    model = AutoModelForMultimodalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name:
                continue
            if "norm" in name and name.endswith("weight"):
                parameter.uniform_(0.5, 1.5)
            elif parameter.dim() > 1:
                parameter.normal_(0, 0.15 if "language_model" not in name and "lm_head" not in name else 0.3)
        model.lm_head.weight[list(ids.values())] = 0  # it writes no marks
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    _as_published(folder / "model.safetensors")


def _as_published(path: Path) -> None:
    """transformers before 5.23 writes a part of names twice; checkpoints that were published have it once."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    if any(name.startswith(TWICE) for name in tensors):
        named = {name.replace(TWICE, "language_model.model."): tensor for name, tensor in tensors.items()}
        save_file(named, path, metadata={"format": "pt"})


class Listening:
    """transformers' own model of a folder, whole."""

    def __init__(self, kind: str, folder: Path) -> None:
        from transformers import AutoModelForMultimodalLM, Gemma4AudioFeatureExtractor, WhisperFeatureExtractor

        self.kind = kind
        self.model = AutoModelForMultimodalLM.from_pretrained(folder).eval()
        extractor: Any = Gemma4AudioFeatureExtractor if kind == "gemma4" else WhisperFeatureExtractor
        self.extractor = extractor.from_pretrained(folder)
        name = "audio_token_id" if kind in ADAPTED else KINDS[kind]["id"]
        self.token = int(getattr(self.model.config, name))

    def inputs(self, *sounds: np.ndarray) -> dict[str, Any]:
        """As the family's processor makes them."""
        import torch

        given = [sound.astype(np.float32) / 32_768 for sound in sounds]
        if self.kind == "gemma4":
            return dict(self.extractor(given, sampling_rate=RATE, return_tensors="pt"))
        if self.kind == "qwen2_audio":
            found = self.extractor(
                given, sampling_rate=RATE, return_attention_mask=True, padding="max_length", return_tensors="pt"
            )
            return {"input_features": found["input_features"], "feature_attention_mask": found["attention_mask"]}
        made = []
        for one in given:
            more: dict[str, Any] = {"padding": True, "truncation": False, "pad_to_multiple_of": RATE * SECONDS}
            found = self.extractor(one, sampling_rate=RATE, return_tensors="pt", **more)
            made.append(found["input_features"].reshape(MELS, -1, FRAMES).transpose(0, 1))
        return {"input_features": torch.cat(made)}

    def count(self, inputs: dict[str, Any]) -> int:
        """Embeddings of one sound."""
        if self.kind == "gemma4":  # half as many frames, twice
            return int(inputs["input_features_mask"][0, ::2][::2].sum())
        if self.kind == "qwen2_audio":
            return max(1, ((int(inputs["feature_attention_mask"].sum()) - 1) // 2 + 1 - 2) // 2 + 1)
        return 25 * len(inputs["input_features"])

    def logits(self, ids: list[int], inputs: dict[str, Any]) -> Any:
        """Of all positions."""
        import torch

        with torch.inference_mode():
            return self.model(input_ids=torch.tensor([ids]), **inputs).logits[0]

    def generate(self, ids: list[int], inputs: dict[str, Any], count: int) -> list[int]:
        """Greedy."""
        tokens: list[int] = []
        for _ in range(count):
            tokens.append(int(self.logits(ids + tokens, inputs)[-1].argmax()))
        return tokens
