"""Checkpoints that every server can load: random float32 weights, and a byte-level BPE tokenizer of 8192 words.

Weights have the variance of 1 / inputs, so that each layer turns the hidden state, and queries and keys are larger, so
that each word looks at few others: greedy texts vary (62 different words of 64), with few close decisions. Only the
tokenizer's learned words are ever drawn, never half a letter: the head's other rows are small. There is no end token
in the configuration, so that nobody stops early.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.layers import ROTATED, Axis, Kind

FLOATS = "float32"
QUANTISED = ("BF16", "Q8_0", "Q4_K_M")  # by llama.cpp's names
WORDS = 8192
BYTES = 256  # the first words
SEED = 7
LOOKING_GAIN = 2.0
# llama.cpp's `qwen2`, nearly
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": WORDS,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
QWEN3_06B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 2048,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}
COMMON = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "torch_dtype": "float32",
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
SHAPES = {"tiny": TINY, "tiny-16k": TINY | {"max_position_embeddings": 16384}, "0.6B": QWEN3_06B}
Tensors = Iterator[tuple[str, np.ndarray[Any, np.dtype[np.float32]]]]


@dataclass(frozen=True)
class Checkpoint:
    """A folder in the form of the Hugging Face hub, and the same weights as GGUF."""

    folder: Path
    gguf: Path

    def gguf_of(self, weights: str) -> Path:
        """The file with weights in this form."""
        return self.gguf if weights == FLOATS else self.gguf.with_name(f"model-{weights}.gguf")


def made(name: str, folder: Path) -> Checkpoint:
    """The checkpoint of a shape under `folder`; one that is there is taken as it is, since only whole ones are kept."""
    from .gguf_file import write_gguf

    found = folder / name
    if not found.exists():
        part = folder / f"{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        write_folder(part, SHAPES[name])
        write_gguf(part, part / "model.gguf")
        part.rename(found)
    return Checkpoint(found, found / "model.gguf")


def quantise(checkpoint: Checkpoint, weights: str, command: str) -> None:
    """Make the file with weights of this form of that in float32, by llama.cpp's llama-quantize; or it is there."""
    path = checkpoint.gguf_of(weights)
    if path.exists():
        return
    part = path.with_suffix(".part")
    done = subprocess.run([command, checkpoint.gguf, part, weights], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"tools/bench/peers: {command} made no {weights}:\n{done.stdout}{done.stderr}"[-2000:])
    part.rename(path)


def write_folder(folder: Path, shape: dict[str, Any]) -> None:
    """Configuration, tokenizer and weights."""
    from safetensors.numpy import save_file

    config = {**shape, **COMMON}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    generation = {"do_sample": False, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    write_tokenizer(folder)
    save_file(dict(_tensors(config)), folder / "model.safetensors", {"format": "pt"})


def _tensors(config: dict[str, Any]) -> Tensors:
    """Every tensor of a model without biases by its name."""
    random = np.random.default_rng(SEED)
    shape = read_architecture(config)

    def matrix(sizes: tuple[int, ...], gain: float) -> np.ndarray[Any, np.dtype[np.float32]]:
        return random.standard_normal(sizes, np.float32) * np.float32(gain / np.sqrt(sizes[-1]))

    head = matrix((shape.vocab_size, shape.hidden_size), 3.0)
    head[:BYTES] *= 0.01
    head[WORDS:] *= 0.01
    for name, spec in shape.specs().items():
        sizes = shape.tensor_shape(spec)
        if name == f"{shape.head.name}.weight":
            yield name, head
        elif spec.kind is Kind.EMBEDDING:
            yield name, matrix(sizes, 3.0)
        elif spec.kind is Kind.GAIN:
            yield name, np.full(sizes, LOOKING_GAIN if spec.rows == (Axis.HEAD_DIM,) else 1, np.float32)
        else:
            yield name, matrix(sizes, LOOKING_GAIN if spec.rows[0] in ROTATED else 1.0)


def write_tokenizer(folder: Path) -> None:
    """Words of syllables, learned from text of such words: 8192 exactly."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    if tokenizer.get_vocab_size() != WORDS:
        raise RuntimeError(f"the tokenizer has {tokenizer.get_vocab_size()} words, not {WORDS}")
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 2048}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _texts() -> Iterator[str]:
    random = np.random.default_rng(SEED)
    syllables = [
        first + vowel + last for first in "bdfgklmnprstvz" for vowel in "aeiou" for last in ("", "n", "r", "s")
    ]
    for _ in range(100):
        lengths = random.integers(1, 4, 200)
        yield " a ".join("".join(random.choice(syllables, length)) for length in lengths)  # the bench fills up with `a`
