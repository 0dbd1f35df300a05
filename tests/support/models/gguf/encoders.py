"""GGUF files of encoders, as llama.cpp's converter writes them: names are those of the `gguf` package's maps, and a
vocabulary of word pieces has ▁ before what begins a word."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ..embedders import FAMILIES
from .files import CONTROL, NORMAL, Stored, each_tensor, stored, write

ARCHITECTURES = {"bert": "bert", "nomic_bert": "nomic-bert"}
WORDS = "the quick brown fox jump ##s over lazy dog . , ? what is cap ##it ##al of france one and two a b c ##c"
MARKS = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = ["The quick brown fox jumps over the lazy dog.", "What is the capital of France?", "a, bcc", "Zwölf and one"]
NAMES = [
    (r"embeddings\.word_embeddings", "token_embd"),
    (r"embeddings\.position_embeddings", "position_embd"),
    (r"embeddings\.token_type_embeddings", "token_types"),
    (r"embeddings\.LayerNorm|emb_ln", "token_embd_norm"),
]
INSIDE = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "mlp.fc11": "ffn_up",
    "mlp.fc12": "ffn_gate",
    "mlp.fc2": "ffn_down",
    "norm1": "attn_output_norm",
    "norm2": "layer_output_norm",
}
LAYER = re.compile(r"encoder\.layers?\.(\d+)\.(.+)\.(weight|bias)")


def words(cased: bool) -> list[str]:
    """As the hub has them."""
    return [*MARKS, *WORDS.split(), *(["The", "What"] if cased else []), "##o", "z"]


def write_encoder(family: str, folder: Path, cased: bool = False, types: int = 2, **fields: Any) -> Path:
    """A checkpoint in `folder`, with a tokenizer of word pieces, and the same as a GGUF file, which is returned."""
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import AutoConfig, AutoModel

    from actorserve.actors.worker.adapter.verify import randomise

    vocabulary = words(cased)
    config = AutoConfig.for_model(
        family, **{**FAMILIES[family], "vocab_size": len(vocabulary), "type_vocab_size": types}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModel.from_config(config).float().eval()
    randomise(model, 1)
    model.save_pretrained(folder)
    made: Any = BertWordPieceTokenizer({word: number for number, word in enumerate(vocabulary)}, lowercase=not cased)
    made.save(str(folder / "tokenizer.json"))
    known = json.loads((folder / "config.json").read_text())
    path = folder / f"{family}.gguf"
    write(path, _fields(ARCHITECTURES[family], known, vocabulary) | fields, _tensors(folder))
    return path


def _fields(architecture: str, config: dict[str, Any], vocabulary: list[str]) -> dict[str, Any]:
    own = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.layer_norm_epsilon": float(config["layer_norm_eps"]),
        "attention.causal": False,
        "pooling_type": 1,
    }
    if "rope_parameters" in config:
        own["rope.freq_base"] = float(config["rope_parameters"]["rope_theta"])
    pieces = [
        word if word in MARKS else word.removeprefix("##") if word.startswith("##") else f"▁{word}"
        for word in vocabulary
    ]
    about = {
        "model": "bert",
        "pre": "jina-v2-en",
        "tokens": pieces,
        "token_type": [CONTROL if word in MARKS and "unused" not in word else NORMAL for word in vocabulary],
        "token_type_count": 2,
        "cls_token_id": MARKS.index("[CLS]"),
        "seperator_token_id": MARKS.index("[SEP]"),
        "unknown_token_id": MARKS.index("[UNK]"),
        "padding_token_id": 0,
    }
    found: dict[str, Any] = {"general.architecture": architecture}
    found |= {f"{architecture}.{name}": value for name, value in own.items()}
    return found | {f"tokenizer.ggml.{name}": value for name, value in about.items()}


def _tensors(folder: Path) -> dict[str, Stored]:
    found = {}
    for name, weight in each_tensor(folder):
        if name.startswith("pooler."):  # which files leave out
            continue
        kind = "F16" if weight.ndim == 2 and "embeddings" not in name else "F32"
        stem, _, end = name.rpartition(".")
        if match := LAYER.fullmatch(name):
            own = f"blk.{match[1]}.{INSIDE[match[2]]}"
        else:
            own = next(ours for theirs, ours in NAMES if re.fullmatch(theirs, stem))
        found[f"{own}.{end}"] = stored(kind, weight.squeeze())  # which converters do, too
    return found
