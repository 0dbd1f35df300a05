"""A head of EAGLE-3 that is trained on what its model says, in seconds: one whose drafts are often right.

As its authors train it, in small: the head learns the model's own distribution, first from the model's hidden states,
then from what it made of the position before itself, as when it drafts several tokens.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import heads

log = logging.getLogger("heads")
LAYERS = [0, 2, 3]  # whose output is read, of the demo model's four
PASSES = 3  # tokens that it learns to draft in a row
AT_ONCE, LENGTH = 8, 64  # parts of texts, and their tokens
WORDS, INNER = 512, 256  # that may be drafted; numbers in the MLP
PROMPTS = ("Once upon a time", "The little", "One day", "Question: What is the capital of France?", "Hello", "Tom and")


class Texts(NamedTuple):
    """What a model said, and what it computed meanwhile."""

    ids: Tensor  # [texts, tokens]
    states: Tensor  # [texts, tokens, 3 · hidden]
    logits: Tensor  # [texts, tokens, words]


def say(folder: Path, texts: int, tokens: int, seed: int, layers: Sequence[int] = LAYERS) -> Texts:
    """Texts of the model, drawn at temperature 1, and the output of these layers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(seed)
    said = []
    with torch.no_grad():
        for prompt in PROMPTS:
            start = tokenizer(prompt, return_tensors="pt").input_ids.expand(texts // len(PROMPTS), -1)
            drawn: dict[str, Any] = {"do_sample": True, "top_k": 0, "max_new_tokens": tokens, "min_new_tokens": tokens}
            said.append(model.generate(start, pad_token_id=0, **drawn)[:, :tokens])
        ids = torch.cat(said)
        out = model(ids, output_hidden_states=True)
    states = torch.cat([_unnormed(model, ids, layer + 1, out.hidden_states) for layer in layers], -1)
    return Texts(ids, states, out.logits)


def _unnormed(model: Any, ids: Tensor, layer: int, states: tuple[Tensor, ...]) -> Tensor:
    """What stands before a layer; transformers has the last state behind the norm only."""
    if layer < model.config.num_hidden_layers:
        return states[layer]
    kept: list[Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    with torch.no_grad():
        model(ids)
    hook.remove()
    return kept[0]


class Trainee:
    """The head over whole texts, as tests/worker/speculative/test_heads.py has it, with gradients."""

    def __init__(self, tensors: heads.Tensors, config: dict[str, Any], table: Tensor) -> None:
        self.tensors, self.config, self.table = tensors, config, table
        size, length = config["hidden_size"] // config["num_attention_heads"], 1024
        angles = torch.outer(torch.arange(length).float(), 10_000.0 ** -(torch.arange(0, size, 2) / size))
        self.cos, self.sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    def entries(self, hidden: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of each position."""
        pair = [self._norm("midlayer.input_layernorm", self.table[ids]), self._norm("midlayer.hidden_norm", hidden)]
        seen = torch.cat(pair, -1)
        heads_, kv = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q, k, v = (
            (seen @ self.tensors[f"midlayer.self_attn.{name}_proj.weight"].T).unflatten(-1, (count, -1)).transpose(1, 2)
            for name, count in (("q", heads_), ("k", kv), ("v", kv))
        )
        q, k = (x * self.cos[: len(ids[0])] + turned(x) * self.sin[: len(ids[0])] for x in (q, k))
        return q, k.repeat_interleave(heads_ // kv, 1), v.repeat_interleave(heads_ // kv, 1)

    def layer(self, hidden: Tensor, q: Tensor, first: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor]) -> Tensor:
        """A position sees entries of the first pass before it, and its own one."""
        before = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(-1)
        scale = q.shape[-1] ** -0.5
        scores = (q @ first[0].transpose(2, 3) * scale).masked_fill(~before, float("-inf"))
        mine = (q * own[0]).sum(-1, keepdim=True) * scale
        shares = torch.cat([scores, mine], -1).softmax(-1)
        mixed = (shares[..., :-1] @ first[1] + shares[..., -1:] * own[1]).transpose(1, 2).flatten(2)
        x = hidden + mixed @ self.tensors["midlayer.self_attn.o_proj.weight"].T
        inner = self._norm("midlayer.post_attention_layernorm", x)
        gate, up, down = (self.tensors[f"midlayer.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return x + (F.silu(inner @ gate.T) * (inner @ up.T)) @ down.T

    def logits(self, x: Tensor) -> Tensor:
        return self._norm("norm", x) @ self.tensors["lm_head.weight"].T

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], self.config["rms_norm_eps"])


def turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def train(target: Path, folder: Path, steps: int = 150, texts: int = 120, tokens: int = 128, seed: int = 1) -> Path:
    """Train and write a head for the model of `target`; it drafts the words that the model says."""
    torch.set_num_threads(1)  # several would wait for each other beside busy neighbours
    said = say(target, texts, tokens, seed)
    config = heads.config_of(target) | {"intermediate_size": INNER}
    words = said.ids.flatten().bincount(minlength=config["vocab_size"]).argsort(descending=True)[:WORDS].sort().values
    weights = heads.eagle3(target, seed, config={"intermediate_size": INNER})
    tensors = {name: tensor * 0.2 if tensor.dim() == 2 else torch.ones_like(tensor) for name, tensor in weights.items()}
    table = embeddings(target)
    tensors["lm_head.weight"] = table[words].clone()
    for tensor in tensors.values():
        tensor.requires_grad_()
    optimizer = torch.optim.AdamW(tensors.values(), lr=2e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    trainee, generator = Trainee(tensors, config, table), torch.Generator().manual_seed(seed)
    for number in range(steps):
        some = torch.randint(len(said.ids), (AT_ONCE,), generator=generator)
        first = int(torch.randint(said.ids.shape[1] - LENGTH + 1, (1,), generator=generator))
        loss = _loss(trainee, Texts(*(values[some, first : first + LENGTH] for values in said)), words)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if number % 20 == 0 or number == steps - 1:
            log.info("step %d of %d: loss %.3f", number, steps, loss.item())
    made = {name: tensor.detach() for name, tensor in tensors.items()} | {"d2t": words - torch.arange(len(words))}
    own: dict[str, Any] = {
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": LAYERS, "use_aux_hidden_state": True},
        "intermediate_size": INNER,
    }
    return heads.write_eagle3(folder, target, made, **own)


def _loss(trainee: Trainee, texts: Texts, words: Tensor) -> Tensor:
    """How far the head's distributions are from the model's, of the first tokens drafted and those behind them."""
    hidden = texts.states[:, :-1] @ trainee.tensors["fc.weight"].T
    ids, wanted = texts.ids[:, 1:], texts.logits[:, 1:][..., words].softmax(-1)
    first: tuple[Tensor, Tensor] | None = None
    loss = torch.zeros(())
    for number in range(PASSES):
        q, k, v = trainee.entries(hidden, ids)
        first = first or (k, v)
        out = trainee.layer(hidden, q, first, (k, v))
        found = trainee.logits(out).log_softmax(-1)
        loss = loss - 0.8**number * (wanted * found).sum(-1)[:, number:].mean()
        hidden = torch.cat([hidden[:, :1], out[:, :-1]], 1)
    return loss


def pairs_head(target: Path, folder: Path) -> Path:
    """A head of EAGLE-1 that knows which word follows which, as the model says of each alone: made without training."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    with torch.no_grad():
        follows = model(torch.arange(model.config.vocab_size)[:, None]).logits[:, 0]
    torch.manual_seed(1)
    hidden = model.config.hidden_size
    left, values, right = torch.svd_lowrank(follows - follows.mean(1, keepdim=True), hidden, niter=2)
    tensors = {name: torch.zeros_like(tensor) for name, tensor in heads.eagle(target).items()}
    tensors["layers.0.post_attention_layernorm.weight"] += 1
    tensors["fc.weight"][:, :hidden] = torch.eye(hidden)  # what was said last, and of hidden states nothing
    tensors |= {"embed_tokens.weight": left * values, "lm_head.weight": right}
    return heads.write_eagle(folder, target, tensors)


def embeddings(target: Path) -> Tensor:
    from safetensors.torch import load_file

    return load_file(target / "model.safetensors")["model.embed_tokens.weight"].float()


def command(train: Callable[..., Path], about: str | None) -> None:
    """python -m MODULE MODEL FOLDER [--steps N] [--texts N]."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", metavar="model", type=Path)
    parser.add_argument("folder", type=Path)
    for name in ("--steps", "--texts"):
        parser.add_argument(name, type=int, default=argparse.SUPPRESS)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    train(**vars(parser.parse_args()))


if __name__ == "__main__":
    command(train, __doc__)
