"""Which way of computing a model is right: tried on a tiny one of its class, against transformers itself.

Three texts are computed in chunks that differ, mixed with rows that decode, over blocks that lie scattered; logits of
every position must be those of transformers with its own cache, one text at a time. In the wrong way some models give
wrong logits without any exception: so nothing is served that was not compared.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from actorserve.kernels.cpu.paged_kv import PagedKV, Span

from ..cpu.layers.native import current
from ..cpu.memory.states import RowStates, StepStates
from ..memory import make_pools
from .cache.own_states import OWN_CACHE
from .hooks import Unfit
from .model import AdaptedModel, Tier
from .passes import STATE, Passes, cache_among
from .probe import Traits, probe

PROMPTS, CHUNKS, DECODED = (29, 9, 13), (7, 9, 5), 8
BLOCK = 4
TOLERANCE = 2e-3  # of the logits' deviation
_turn = threading.RLock()  # trials are within others


class Verdict(NamedTuple):
    """The first way that was right, and why each before it was not."""

    tier: Tier
    traits: Traits
    reasons: dict[Tier, str]
    seconds: float
    improved: bool  # with parts of ours (improve.py)
    without_graphs: str = ""  # on a GPU: why none holds its steps


@contextmanager
def in_one_thread() -> Iterator[None]:
    """Of what is tiny: several spend their time on waiting for one another, minutes of it on a busy machine. It is
    the whole process' number, so that trials take turns; a thread that first computes anything meanwhile keeps 1."""
    with _turn:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def randomise(model: nn.Module, seed: int = 0) -> None:
    """Weights with which attention is peaked and each layer matters, so that what is wrong shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                width = parameter.shape[-1] if parameter.dim() else 1
                if isinstance(module, nn.Embedding):
                    parameter.normal_(0, 1, generator=generator)
                elif parameter.dim() >= 2 and not isinstance(module, nn.Conv1d | nn.Conv2d):
                    parameter.normal_(0, 1.5 * width**-0.5, generator=generator)
                elif name == "sinks":
                    parameter.normal_(0, 1, generator=generator)
                elif name == "bias":
                    parameter.normal_(0, 0.1, generator=generator)
                elif name == "weight" and "norm" in type(module).__name__.lower():
                    parameter.add_(torch.empty_like(parameter).uniform_(-0.3, 0.3, generator=generator))


def verify(model: PreTrainedModel, improve: Any = None) -> Verdict:
    """Of a tiny model. Unfit says why there is no way. `improve` is what is done to a model before it is served."""
    begun = time.process_time()
    reasons: dict[Tier, str] = {}
    texts = texts_for(model)
    with torch.inference_mode():
        traits = probe(model, 512)
        expected = reference_logits(model, texts)
        for improved in (True, False):
            for tier in tiers(traits):
                own = copy.deepcopy(model)
                try:
                    if improved and improve is not None:
                        improve(own)
                    found = Trial(AdaptedModel(own, traits, tier, torch.float32)).run(texts)
                    compare(expected, found)
                except Exception as error:
                    reasons[tier] = failure_words(error)
                    continue
                return Verdict(tier, traits, reasons, time.process_time() - begun, improved)
    raise Unfit(f"is not right in any way: {'; '.join(f'{tier.value}: {reason}' for tier, reason in reasons.items())}")


def tiers(traits: Traits) -> list[Tier]:
    """Those that could be right, the quickest first."""
    if not traits.paged:
        return [Tier.SINGLE]
    if traits.stateful:
        return [Tier.ROWS, Tier.TOKENS, Tier.SINGLE]
    return [Tier.FLAT, Tier.ROWS, Tier.SINGLE] if traits.positions else [Tier.ROWS, Tier.SINGLE]


def failure_words(error: Exception) -> str:
    """What it says, for a line."""
    first = (str(error).splitlines() or [""])[0]
    return first if isinstance(error, Unfit) else f"{type(error).__name__}: {first}"


def texts_for(model: PreTrainedModel) -> list[Tensor]:
    """Tokens of prompts and of what follows them."""
    words = int(model.config.get_text_config(decoder=True).vocab_size)
    return [
        torch.from_numpy(np.random.default_rng(seed).integers(3, words - 8, size + DECODED))
        for seed, size in enumerate(PROMPTS)
    ]


def reference_logits(model: Any, texts: list[Tensor]) -> list[Tensor]:
    """Transformers' own, of all positions of each."""
    return [_reference(model, text, size) for text, size in zip(texts, PROMPTS, strict=True)]


def compare(expected: list[Tensor], found: list[Tensor], tolerance: float = TOLERANCE) -> None:
    """Unfit if they are not the same."""
    for one, other in zip(expected, found, strict=True):
        off = float((one - other).abs().max() / one.std())
        if not off <= tolerance:
            raise Unfit(f"logits are off by {off:.2g} of their deviation")


def _reference(model: Any, text: Tensor, prompt: int) -> Tensor:
    """Logits of all positions as generate() would come to them: the prompt at once, then token by token."""
    names = Passes.arguments(model)
    name = cache_among(names)
    makes_it = name in (STATE, "cache_params") or isinstance(model.config, OWN_CACHE)
    cache = None if makes_it else DynamicCache(config=model.config)
    parts, past = [], 0
    for size in (prompt, *[1] * (len(text) - prompt)):
        given: dict[str, Any] = {"use_cache": True}
        if "position_ids" in names:
            given["position_ids"] = torch.arange(past, past + size)[None]
        if cache is not None:
            given[name] = cache
        out = model(input_ids=text[None, past : past + size], **given)
        cache = out.get(name, cache)
        parts.append(out.logits[0].float())
        past += size
    return torch.cat(parts)


class Schedule:
    """Runs texts through a model as a runner would."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.blocks = sum(-(-(size + DECODED) // block) for size in PROMPTS)
        self.free = np.random.default_rng(0).permutation(self.blocks)

    def step(self, texts: list[Tensor], tables: list[Any], done: list[int], sizes: list[int]) -> Tensor:
        """Hidden states of so many tokens of each, one text's after the other's, behind those that are done."""
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        """Of such rows."""
        raise NotImplementedError

    def run(self, texts: list[Tensor]) -> list[Tensor]:
        """Logits of all positions of each."""
        tables = []
        for text in texts:
            count = -(-len(text) // self.block)
            tables.append(np.sort(self.free[:count])[::-1].copy())
            self.free = self.free[count:]
        done, logits = [0] * len(texts), [[] for _ in texts]  # type: ignore[var-annotated]
        turn = 0
        while any(at < len(text) for at, text in zip(done, texts, strict=True)):
            sizes = [
                self._size(row, at, turn, len(text)) for row, (at, text) in enumerate(zip(done, texts, strict=True))
            ]
            turn += 1
            if not any(sizes):
                continue
            hidden = self.step(texts, tables, done, sizes)
            for row, part in enumerate(hidden.split(sizes)):
                if len(part):
                    logits[row].append(self.logits(part))
                done[row] += sizes[row]
        return [torch.cat(parts) for parts in logits]

    def _size(self, row: int, at: int, turn: int, length: int) -> int:
        """How many tokens of a row a step has: chunks of the prompt, then one; some rows begin later than others."""
        prompt = length - DECODED
        if turn < row:
            return 0
        return min(CHUNKS[row], prompt - at) if at < prompt else min(1, length - at)


class Trial(Schedule):
    """The model is an adapted one on a CPU."""

    def __init__(self, model: AdaptedModel) -> None:
        super().__init__(BLOCK)
        self.model = model
        pools = make_pools(model.kv, self.blocks, BLOCK, model.dtype)
        self.kv = PagedKV(model.kv, pools, BLOCK, library=current())
        self.states = RowStates(model.kv.states, len(PROMPTS), 0, model.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden)

    def step(self, texts: list[Tensor], tables: list[Any], done: list[int], sizes: list[int]) -> Tensor:
        spans, ids, positions, slots, first = [], [], [], [], 0
        for row, size in enumerate(sizes):
            if size:
                spans.append(Span(first, size, done[row], tables[row], False))
                at = torch.arange(done[row], done[row] + size)
                ids.append(texts[row][at])
                positions.append(at)
                slots.append(torch.from_numpy(tables[row])[at // BLOCK] * BLOCK + at % BLOCK)
                first += size
        attention = self.model.attention(self.kv, spans)
        inputs = torch.cat(ids), torch.cat(positions), torch.cat(slots), self.kv, attention
        if not self.states:
            return self.model.forward(*inputs)
        rows = np.flatnonzero(sizes)
        starts = np.array(done)[rows]
        hidden = self.model.forward(*inputs, StepStates.of(self.states, rows, starts))
        self.states.length[rows] = starts + np.array(sizes)[rows]
        return hidden
