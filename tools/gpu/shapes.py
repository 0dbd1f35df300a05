"""The shapes of models that are timed, as config.json has them, and runners of random weights in these shapes."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from actorserve.actors.model.architecture import Architecture
from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.layers import EMBEDDINGS
from actorserve.actors.protocol.request import Sampling
from actorserve.actors.protocol.step import NewRow, Step
from actorserve.actors.worker.gpu.buffers import Sizes
from actorserve.actors.worker.gpu.compilations import compile_ahead
from actorserve.actors.worker.gpu.executor import GpuBuilder, GpuModel
from actorserve.actors.worker.gpu.graphs import capture_sizes, mixed_sizes
from actorserve.actors.worker.gpu.lora.sites import GpuLoraLinear, GpuLoraSites, SlotProduct
from actorserve.actors.worker.gpu.memory import make_pools
from actorserve.actors.worker.gpu.runner import GpuRunner
from actorserve.actors.worker.gpu.sampler import PendingStep
from actorserve.actors.worker.models.weights import random_tensors
from actorserve.kernels.triton.rotary_kv import Pools
from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.table import make_ref

from .report import ROOT, at_most, surviving

DEMO = ROOT / "actors" / "model" / "demo"
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "dtype": "bfloat16",
    "attention_bias": False,
}
SHAPES: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": QWEN3
    | {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "Qwen3-8B": QWEN3
    | {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "Llama-3.1-8B": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
    },
    "tiny": QWEN3
    | {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": True,
        "dtype": "float32",
    },
}
SHAPES["tiny-words"] = SHAPES["tiny"] | {"vocab_size": 4096}  # more than the demo model has
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
GREEDY = Sampling(0, temperature=0.0)
ASKING = {  # what rows may ask for, by a word for the table
    "top-p": Sampling(0, temperature=0.8, top_p=0.95),
    "penalties": Sampling(0, temperature=0.0, frequency_penalty=0.5, repetition_penalty=1.1),
    "bias": Sampling(0, temperature=0.0, logit_bias=[(7, 1.0), (11, -1.0)]),
    "logprobs": Sampling(0, temperature=0.0, logprobs=5),
}


def read_shape(name: str, **changed: Any) -> Architecture:
    return read_architecture(SHAPES[name] | changed)


def write_folder(name: str, folder: Path) -> Path:
    """A model folder of this shape without weights (--load-format dummy), with the demo model's tokens, and more of
    them up to its vocabulary: a token without a text is told of with the next that has one, or at the end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end = json.loads((DEMO / "config.json").read_text())["eos_token_id"]
    (folder / "config.json").write_text(json.dumps(SHAPES[name] | {"eos_token_id": end}))
    for file in DEMO.iterdir():
        if file.name.startswith(("tokenizer", "special_tokens", "chat_template")):
            shutil.copy(file, folder)
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    words |= {f"\u0120w{number}": number for number in range(len(words), SHAPES[name]["vocab_size"])}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def weight_bytes(shape: Architecture, itemsize: int) -> int:
    """Bytes of weights that a decode step reads; of embeddings it reads a row a token, unless they are the head."""
    sizes = {name: int(np.prod(size)) for name, size in shape.tensors().items()}
    if not shape.tied:
        sizes.pop(f"{EMBEDDINGS}.weight")
    return sum(sizes.values()) * itemsize


def kv_bytes(shape: Architecture, positions: int, itemsize: int) -> int:
    """Of keys and values of so many positions in all layers; with a byte of scale a head where they have 8 bits."""
    return 2 * positions * shape.layers * shape.kv_heads * (shape.head_dim * itemsize + (itemsize == 1))


def flops_a_token(shape: Architecture) -> int:
    """Of the products of all layers, attention and head left out."""
    sizes = [int(np.prod(size)) for name, size in shape.tensors().items() if ".layers." in name and len(size) == 2]
    return 2 * sum(sizes)


def fill(pools: Pools) -> None:
    """With random numbers; of 8 bits with scales that make them small."""
    if pools.scales is None:
        pools.keys.normal_()
        pools.values.normal_()
        return
    for codes in (pools.keys, pools.values):
        codes.view(torch.uint8).random_(0, 0x7F)
    for part in pools.scales:
        part.fill_(127 - 8)


def random_product(one: GpuLoraLinear, rank: int) -> SlotProduct:
    """What an adapter might add there."""
    inputs, sizes = one.slots.a.shape[2], one.slots.sizes
    a = torch.randn(rank * len(sizes), inputs) / inputs**0.5
    return SlotProduct(a, [torch.randn(size, rank) / 50 for size in sizes], None)


def compile_kernels(runner: GpuRunner, label: str, threads: int | None = None) -> None:
    """All that it launches, side by side, as a worker has it; else each is compiled where it is launched first."""
    with surviving(f"{label}: kernels compiled side by side"):
        compile_ahead(runner.device, runner.profile_steps, runner.try_graphs, threads=threads)


def capture_graphs(runner: GpuRunner, label: str, goal: float | None = None) -> None:
    """Where there is a GPU; the steps of those that cannot be had are started kernel by kernel, and timed so."""
    if not torch.cuda.is_available():
        return
    with surviving(f"{label}: graphs captured"):
        begun = time.perf_counter()
        count = runner.capture()
        at_most(f"{label}: {count} graphs captured in", time.perf_counter() - begun, "s", goal)


class Bench:
    """A runner of random weights, and sequences of given lengths in its rows."""

    def __init__(
        self,
        name: str,
        rows: int,
        length: int,
        tokens: int,
        block_size: int = 32,
        kind: torch.dtype | None = None,
        fused: bool = False,
        adapters: int = 0,
        rank: int = 16,
        drafts: int = 0,
        layers: int | None = None,
    ) -> None:
        """`kind`: of keys and values, where that is not the model's own type; `fused`: see layers/fused.py there;
        `adapters` of this rank of all linear layers, of ids from 1 on; `drafts` of a row in a step, at most;
        `layers`: fewer than the model has.
        """
        self.device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        self.name, self.shape = name, read_shape(name, **({} if layers is None else {"num_hidden_layers": layers}))
        self.dtype = DTYPES[SHAPES[name]["dtype"]]
        lora = GpuLoraSites(adapters, rank, self.device) if adapters else None
        build = GpuBuilder(self.shape, self.weights(self.shape, 0), self.dtype, self.device, lora=lora)
        model = GpuModel(build, length, fused)
        self.sizes = Sizes(rows, tokens + rows * (1 + drafts), length, block_size, drafts, adapters)
        self.log = np.random.default_rng(0).integers(0, self.shape.vocab_size, (rows, length), np.int32)
        mixed = mixed_sizes(rows, self.sizes.tokens, bool(drafts))
        self.told = Logprobs(Logprobs.create(rows, length), rows, length)
        given = model, self.log, self.sizes, capture_sizes([], rows)
        self.runner = self.make_runner(*given, mixed=mixed, logprobs=self.told)
        blocks = rows * -(-length // block_size)
        self.runner.pools = self.make_pools(self.shape, blocks, kind or self.dtype)
        self.table = np.random.default_rng(1).permutation(blocks).astype(np.int32).reshape(rows, -1)
        self.number = 0
        for adapter in range(1, 1 + adapters):
            self.load(adapter, rank)

    def weights(self, shape: Architecture, seed: int) -> Callable[[str], torch.Tensor]:
        """Random ones, by name."""
        read = random_tensors(shape, seed, self.device)
        return lambda name: read(name, slice(None), None)

    def make_runner(self, *given: Any, **named: Any) -> GpuRunner:
        """As GpuRunner is made."""
        return GpuRunner(*given, **named)

    def make_pools(self, shape: Architecture, blocks: int, kind: torch.dtype) -> list[Pools]:
        """KV memory, on a GPU with something in it."""
        pools = make_pools(shape, blocks, self.sizes.block_size, kind, self.device)
        if self.device.type == "cuda":
            for own in pools:
                fill(own)
        return pools

    def load(self, adapter: int, rank: int) -> None:
        """An adapter of random numbers, into a slot that is free or that it has."""
        assert self.runner.adapted is not None
        slots = self.runner.adapted.slots
        slot = slots.slot_of[adapter] if adapter in slots.slot_of else slots.take(adapter)
        assert slot is not None
        slots.write(slot, {one.number: random_product(one, rank) for one in slots.sites.linears})

    def place(
        self,
        rows: int,
        computed: int,
        known: int,
        asking: dict[int, Sampling] | None = None,
        first: int = 0,
        adapters: int = 0,
    ) -> list[NewRow]:
        """So many sequences of `known` tokens, of which `computed` are in the KV memory, in rows from `first` on; by
        turns with each of so many adapters.
        """
        ask = asking or {}
        return [
            NewRow.make(
                *(row, make_ref(1, row), known, known, computed, self.table[row], ask.get(row - first, GREEDY)),
                adapter=1 + row % adapters if adapters else 0,
            )
            for row in range(first, first + rows)
        ]

    def step(self, new: list[NewRow], counts: list[int]) -> Step:
        """Rows from 0 on, of so many tokens each."""
        self.number += 1
        return Step.make(1, self.number, new, range(len(counts)), counts)

    def seconds(self, rows: int, warm: int, steps: int) -> float:
        """What one of so many steps of decoding takes, behind `warm` others."""
        self.decode(rows, warm)
        begun = time.perf_counter()
        self.decode(rows, steps)
        return (time.perf_counter() - begun) / steps

    def decode(self, rows: int, steps: int, tokens: int = 1) -> list[PendingStep]:
        """Steps of so many tokens a row, drafts among them; one started while the one before it runs."""
        done: list[PendingStep] = []
        for _ in range(steps):
            done.append(self.runner.launch(self.step([], [tokens] * rows)))
            if len(done) > 1:
                self.runner.finish(done[-2])
        self.runner.finish(done[-1])
        return done
