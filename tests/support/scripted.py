"""A checkpoint that says what it is told to: each prompt that is one script's name is answered with that script.

A llama whose only layer adds nothing: embeddings are one-hot, and the output layer maps each token to its successor.
The vocabulary has all bytes, so that a grammar can force a text: byte by byte, and then it ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers.convert_slow_tokenizer import bytes_to_unicode

from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.layers import EMBEDDINGS, HEAD, Kind

END = "<|end|>"
ENDS = (0,)  # what comes last: END
LAST = "{{ messages[-1].content }}"
BYTES: dict[int, str] = bytes_to_unicode()


def scripted(
    folder: Path, scripts: Mapping[str, str], special: Sequence[str] = (), template: str = LAST, drawn: str = ""
) -> Path:
    """Write the checkpoint: the prompt `<name>` is answered with the text scripts[name].

    Texts are cut into short pieces of which no two are alike. `special` are special tokens; each comes once in all.
    Each `drawn` in a text is followed by its number and a digit that is drawn, all of which are as likely.
    """
    words = [END, *(f"<{name}>" for name in scripts)]
    after: dict[int, Sequence[int]] = {0: ENDS}
    used = set(words) | set(special)
    for number, text in enumerate(scripts.values(), 1):
        last: Sequence[int] = (number,)
        for piece in _pieces(text, used, [*special, *drawn]):
            first = len(words)
            words += [f"{drawn}{first}.{digit}" for digit in range(10)] if piece == drawn else [piece]
            following = range(first, len(words))
            after |= dict.fromkeys(last, following)
            last = following
        after |= dict.fromkeys(last, ENDS)
    names = [END, *(f"<{name}>" for name in scripts), *special]
    spelt = [word if word in names else "".join(BYTES[byte] for byte in word.encode()) for word in words]
    spelt += sorted(set(BYTES.values()) - set(spelt))
    after |= dict.fromkeys(range(len(words), len(spelt)), ENDS)
    _write_model(folder, after, len(spelt))
    _write_tokenizer(folder, spelt, names, template)
    return folder


def _pieces(text: str, used: set[str], special: Sequence[str]) -> list[str]:
    parts = re.split(f"({'|'.join(map(re.escape, special))})", text) if special else [text]
    pieces: list[str] = []
    for part in parts:
        if part in special:
            pieces.append(part)
            continue
        while part:
            size = next((n for n in range(2 + len(pieces) % 3, len(part)) if part[:n] not in used), len(part))
            piece, part = part[:size], part[size:]
            while piece in used:  # the last one: longer by those before it
                piece = pieces.pop() + piece
            used.add(piece)
            pieces.append(piece)
    return pieces


def _write_model(folder: Path, after: Mapping[int, Sequence[int]], count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-count // 64) * 64
    heads, width = 2, 16
    head = torch.zeros(size, size)
    for token, following in after.items():
        head[list(following), token] = 1
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": size,
        "hidden_size": size,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": width,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "eos_token_id": 0,
        "tie_word_embeddings": False,
    }
    shape = read_architecture(config)
    shapes = {name: (shape.tensor_shape(spec), spec.kind) for name, spec in shape.specs().items()}
    tensors = {name: torch.full(sizes, float(kind is Kind.GAIN)) for name, (sizes, kind) in shapes.items()}
    tensors |= {f"{EMBEDDINGS}.weight": torch.eye(size), f"{HEAD}.weight": head}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


def _write_tokenizer(folder: Path, words: Sequence[str], special: Sequence[str], template: str) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab={word: token for token, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": END}))
