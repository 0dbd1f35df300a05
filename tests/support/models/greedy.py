"""What transformers' own models draw, to compare texts with."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .checkpoints import decoders


@functools.lru_cache(maxsize=64)
def reference(folder: Path, **options: Any) -> Any:
    """The checkpoint's model; read once a process, since tests only ask it."""
    return decoders().from_pretrained(folder, **{"dtype": torch.float32, **options}).eval()


def generate(model: Any, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens, one after the other."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():  # as whoever else asks it: what a model keeps of one call goes into the next
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, eos_token_id=None
        )
    return list(out[0, len(prompt) :].tolist())


def behind(model: Any, prompt: Sequence[int], drawn: Sequence[int]) -> torch.Tensor:
    """The logits behind the prompt and behind each drawn token but the last, of one pass over all of them."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([[*prompt, *drawn[:-1]]])).logits[0]
    return logits[len(prompt) - 1 :].float()


def greedy(model: Any, prompt: Sequence[int], drawn: Sequence[int]) -> list[int]:
    """The likeliest token behind the prompt and behind each drawn one but the last.

    These are `drawn` itself just if it is the greedy text, which takes one pass instead of one a token.
    """
    found: list[int] = behind(model, prompt, drawn).argmax(-1).tolist()
    return found


def assert_greedy(model: Any, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], count: int) -> None:
    """Each answer has so many tokens, and is the model's greedy one."""
    assert {len(drawn) for drawn in answers} == {count}
    assert [greedy(model, prompt, drawn) for prompt, drawn in zip(prompts, answers, strict=True)] == answers
