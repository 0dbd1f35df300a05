"""Tiny models that pool, of all families, with sentence-transformers' files; and what transformers makes of texts by
itself, each text alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.models.checkpoints import VOCABULARY, write_tokenizer

TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 130,
    "pad_token_id": 0,
}
DECODER: dict[str, Any] = {**TINY, "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": None}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": TINY,
    "roberta": TINY,
    "xlm-roberta": TINY,
    "camembert": TINY,
    "distilbert": {
        **{"vocab_size": VOCABULARY, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4},
        **{"max_position_embeddings": 130, "pad_token_id": 0},
    },
    "mpnet": TINY,
    "modernbert": {
        **TINY,
        "local_attention": 16,
        "global_attn_every_n_layers": 2,
        "cls_token_id": 0,
        "sep_token_id": 2,
    },
    "nomic_bert": TINY,
    "electra": {**TINY, "embedding_size": 24},
    "albert": {**TINY, "embedding_size": 24},
    "deberta-v2": {
        **TINY,
        **{"relative_attention": True, "position_biased_input": False, "pos_att_type": ["p2c", "c2p"]},
    },
    "gte": TINY,
    "jina_embeddings_v3": TINY,
    "eurobert": {**TINY, "num_key_value_heads": 2, "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 1},
    "t5": {
        **{"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
        **{"n_positions": 130, "feed_forward_proj": "gated-gelu"},
    },
    "gpt2": {
        **{"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 130},
        **{"bos_token_id": 0, "eos_token_id": 0},
    },
    "qwen3": {**DECODER, "head_dim": 16},
    "gemma3_text": {  # EmbeddingGemma
        **{**DECODER, "head_dim": 16, "query_pre_attn_scalar": 16, "use_bidirectional_attention": True},
        **{"sliding_window": 16, "num_hidden_layers": 6, "pad_token_id": 0},
    },
    "mistral": DECODER,
    "qwen2": DECODER,
}
SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "What is the capital of France?",
    "Hello, how are you? I am fine, thank you. One and one is two; two and two is four; four and four is eight.",
    "def main(context): return context",
    "a",
]


def write_model(family: str, folder: Path, head: str = "", labels: int = 3, seed: int = 0, **fields: Any) -> None:
    """A checkpoint of this family; `head`: SequenceClassification or TokenClassification."""
    import torch
    import transformers
    from transformers import AutoConfig

    from actorserve.actors.worker.adapter.verify import randomise

    config = AutoConfig.for_model(family, **{**FAMILIES[family], **fields})
    if head:
        config.num_labels = labels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, f"AutoModel{f'For{head}' if head else ''}").from_config(config).float().eval()
    randomise(model, seed + 1)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    add_marks(folder / "tokenizer.json")


def add_marks(path: Path) -> None:
    """Texts stand between special tokens, as those of most encoders, and the second of two is told apart."""
    made = json.loads(path.read_text())
    begin, end = "<|im_start|>", "<|im_end|>"
    ids = {token["content"]: token["id"] for token in made["added_tokens"]}
    made["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [_mark(begin), _sequence("A"), _mark(end)],
        "pair": [_mark(begin), _sequence("A"), _mark(end), _sequence("B", 1), _mark(end, 1)],
        "special_tokens": {mark: {"id": mark, "ids": [ids[mark]], "tokens": [mark]} for mark in (begin, end)},
    }
    path.write_text(json.dumps(made))


def _mark(token: str, kind: int = 0) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": kind}}


def _sequence(name: str, kind: int = 0) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": kind}}


def write_modules(
    folder: Path,
    mode: str = "mean_tokens",
    dense: int = 0,
    normalize: bool = True,
    prompts: dict[str, str] | None = None,
    hidden: int = 32,
    also: str = "",
) -> None:
    """sentence-transformers' files beside a model; `also`: a second mode; `dense`: so many numbers come out of a linear
    layer."""
    base = "sentence_transformers.models."
    modules: list[dict[str, Any]] = [{"idx": 0, "name": "0", "path": "", "type": f"{base}Transformer"}]
    modules.append({"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{base}Pooling"})
    (folder / "1_Pooling").mkdir()
    modes = [mode, also] if also else [mode]
    pooling = {"word_embedding_dimension": hidden, **{f"pooling_mode_{one}": True for one in modes}}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if dense:
        modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": f"{base}Dense"})
        _write_dense(folder / "2_Dense", hidden * len(modes), dense)
    if normalize:
        modules.append({"idx": 3, "name": "3", "path": "3_Normalize", "type": f"{base}Normalize"})
    (folder / "modules.json").write_text(json.dumps(modules))
    about = {"prompts": prompts or {}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(about))


def _write_dense(folder: Path, inputs: int, outputs: int) -> None:
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    about: dict[str, Any] = {"in_features": inputs, "out_features": outputs, "bias": True}
    about["activation_function"] = "torch.nn.modules.activation.Tanh"
    (folder / "config.json").write_text(json.dumps(about))
    generator = torch.Generator().manual_seed(5)
    weight, bias = torch.randn(outputs, inputs, generator=generator), torch.randn(outputs, generator=generator)
    save_file({"linear.weight": weight / inputs**0.5, "linear.bias": bias}, folder / "model.safetensors")


# --- what is expected ------------------------------------------------------------------------------------------------


def encode(folder: Path, text: str, second: str | None = None) -> tuple[list[int], list[int]]:
    """(ids, which text each belongs to)."""
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, second)
    return made.ids, made.type_ids


def hidden_states(folder: Path, texts: list[str]) -> list[np.ndarray]:
    """Of each text alone, by transformers."""
    import torch
    from transformers import AutoConfig, AutoModel, T5EncoderModel

    kind = T5EncoderModel if AutoConfig.from_pretrained(folder).is_encoder_decoder else AutoModel
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [model(input_ids=torch.tensor([encode(folder, text)[0]])).last_hidden_state[0].numpy() for text in texts]


def vectors(folder: Path, texts: list[str], mode: str) -> np.ndarray:
    """Normalised vectors of texts, pooled from the same."""
    pool: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "mean": lambda x: x.mean(0),
        "cls": lambda x: x[0],
        "last": lambda x: x[-1],
        "max": lambda x: x.max(0),
    }
    made = np.stack([pool[mode](states) for states in hidden_states(folder, texts)])
    found: np.ndarray = made / np.linalg.norm(made, axis=1, keepdims=True)
    return found


def logits(folder: Path, head: str, texts: list[tuple[str, str | None]]) -> list[np.ndarray]:
    """Of a head, for texts or pairs of texts, each alone."""
    import inspect

    import torch
    import transformers

    kind = getattr(transformers, f"AutoModelFor{head}")
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    typed = "token_type_ids" in inspect.signature(model.forward).parameters
    found = []
    with torch.inference_mode():
        for text, second in texts:
            ids, types = encode(folder, text, second)
            given = {"input_ids": torch.tensor([ids])}
            if typed and getattr(model.config, "type_vocab_size", 0) > 1:
                given["token_type_ids"] = torch.tensor([types])
            found.append(model(**given).logits[0].numpy())
    return found


def cosines(one: Any, other: Any) -> np.ndarray:
    """Of rows, one by one."""
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    found: np.ndarray = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    return found
