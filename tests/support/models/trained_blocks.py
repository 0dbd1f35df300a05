"""A drafter of blocks (DFlash) that is trained on what its model says, in seconds: one whose drafts are often right.

As its authors train it, in small: at random places of the model's texts it is shown the hidden states before, the token
there and masks, and learns the model's own distributions of the tokens that follow.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import heads
from .trained_heads import Texts, command, embeddings, say, turned

log = logging.getLogger("blocks")
LAYERS = [0, 1, 2]  # whose output is read, of the demo model's four
BLOCK, MASK, INNER = 4, 1, 256  # tokens with the first one; the mask's word; numbers in the MLP
AT_ONCE, PLACES = 8, 16  # texts, and places in each


class Trainee:
    """The drafter at several places of texts at once, with gradients."""

    def __init__(self, tensors: heads.Tensors, config: dict[str, Any], table: Tensor) -> None:
        self.tensors, self.config, self.table = tensors, config, table
        size, length = config["hidden_size"] // config["num_attention_heads"], 1024
        angles = torch.outer(torch.arange(length).float(), 10_000.0 ** -(torch.arange(0, size, 2) / size))
        self.cos, self.sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    def logits(self, texts: Texts, places: Tensor) -> Tensor:
        """[texts, places, drafts, words]."""
        length, count = texts.ids.shape[1], len(places)
        context = self._norm("hidden_norm", texts.states @ self.tensors["fc.weight"].T)
        ids = torch.full((len(texts.ids), count, BLOCK), MASK)
        ids[:, :, 0] = texts.ids[:, places]
        x = self.table[ids.flatten(1)]
        own = (places[:, None] + torch.arange(BLOCK)).flatten()
        number = torch.arange(count).repeat_interleave(BLOCK)
        sees = torch.cat([torch.arange(length) < places[number][:, None], number == number[:, None]], 1)
        for layer in range(2):
            x = self._layer(f"layers.{layer}.", x, context, own, sees)
        x = x.unflatten(1, (count, BLOCK))[:, :, 1:]
        found: Tensor = self._norm("norm", x) @ self.table.T
        return found

    def _layer(self, prefix: str, x: Tensor, context: Tensor, own: Tensor, sees: Tensor) -> Tensor:
        heads_, kv = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        seen = self._norm(f"{prefix}input_layernorm", x)
        both, positions = torch.cat([context, seen], 1), torch.cat([torch.arange(context.shape[1]), own])
        q = self._turned(f"{prefix}self_attn.q", self._heads(f"{prefix}self_attn.q_proj", seen, heads_), own)
        k = self._turned(f"{prefix}self_attn.k", self._heads(f"{prefix}self_attn.k_proj", both, kv), positions)
        v = self._heads(f"{prefix}self_attn.v_proj", both, kv)
        k, v = (values.repeat_interleave(heads_ // kv, 1) for values in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=sees).transpose(1, 2).flatten(2)
        x = x + mixed @ self.tensors[f"{prefix}self_attn.o_proj.weight"].T
        inner = self._norm(f"{prefix}post_attention_layernorm", x)
        gate, up, down = (self.tensors[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return x + (F.silu(inner @ gate.T) * (inner @ up.T)) @ down.T

    def _heads(self, name: str, x: Tensor, count: int) -> Tensor:
        found: Tensor = (x @ self.tensors[f"{name}.weight"].T).unflatten(-1, (count, -1)).transpose(1, 2)
        return found

    def _turned(self, name: str, x: Tensor, positions: Tensor) -> Tensor:
        x = self._norm(f"{name}_norm", x)
        return x * self.cos[positions] + turned(x) * self.sin[positions]

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], self.config["rms_norm_eps"])


def train(target: Path, folder: Path, steps: int = 150, texts: int = 60, tokens: int = 96, seed: int = 1) -> Path:
    """Train and write a drafter for the model of `target`."""
    torch.set_num_threads(1)  # several would wait for each other beside busy neighbours
    said = say(target, texts, tokens, seed, LAYERS)
    config = heads.config_of(target) | {"intermediate_size": INNER}
    weights = heads.dflash(target, seed, reads=len(LAYERS), config={"intermediate_size": INNER})
    tensors = {name: tensor * 0.2 if tensor.dim() == 2 else torch.ones_like(tensor) for name, tensor in weights.items()}
    for tensor in tensors.values():
        tensor.requires_grad_()
    optimizer = torch.optim.AdamW(tensors.values(), lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    trainee, generator = Trainee(tensors, config, embeddings(target)), torch.Generator().manual_seed(seed)
    for number in range(steps):
        some = torch.randint(len(said.ids), (AT_ONCE,), generator=generator)
        places = torch.randint(1, tokens - BLOCK, (PLACES,), generator=generator)
        loss = _loss(trainee, Texts(*(values[some] for values in said)), places)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if number % 20 == 0 or number == steps - 1:
            log.info("step %d of %d: loss %.3f", number, steps, loss.item())
    made = {name: tensor.detach() for name, tensor in tensors.items()}
    own = {"mask_token_id": MASK, "target_layer_ids": LAYERS}
    return heads.write_dflash(folder, target, made, own, block_size=BLOCK, intermediate_size=INNER)


def _loss(trainee: Trainee, texts: Texts, places: Tensor) -> Tensor:
    """How far its distributions are from the model's, of the first tokens of blocks more than of those behind them."""
    found = trainee.logits(texts, places).log_softmax(-1)
    wanted = texts.logits[:, places[:, None] + torch.arange(BLOCK - 1)].softmax(-1)
    far = -(wanted * found).sum(-1).mean((0, 1))
    return (far * 0.8 ** torch.arange(BLOCK - 1)).sum()


if __name__ == "__main__":
    command(train, __doc__)
