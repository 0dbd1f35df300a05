"""What an encoder–decoder keeps and how it attends, seen as it computes; and which way of computing it is right.

Both are asked of a tiny model of the same class with random weights: a recording pass tells shapes and scales, then
three rows are computed in each way, over blocks that lie scattered, and logits of every position must be those of
transformers alone. Nothing is served that was not compared.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from actorserve.kernels.cpu.paged_kv import PagedKV, Span

from ...model.memory.kv import KVSpec, LayerAttention
from ..adapter.hooks import NAME, Call, Unfit, as_scale, attending, use_attention
from ..adapter.verify import compare, failure_words
from ..memory import make_pools
from .model import EncoderDecoder, RowInput, Way
from .passes import EncoderDecoderPasses
from .rows_kv import AnyRowsKV, RowsKV

READ, BEGUN, DECODED = (21, 8, 13), (3, 1, 2), 9
BLOCK = 4  # on a CPU
Reader = Callable[[int], Tensor]  # what row n's encoder reads
MakeKV = Callable[[EncoderDecoder, int], AnyRowsKV]  # KV memory of so many blocks


class Verdict(NamedTuple):
    """The first way that was right, and why each before it was not."""

    way: Way
    reasons: dict[Way, str]
    seconds: float
    improved: bool  # with parts of ours


class _Recorder:
    """Plays the part of who computes."""

    past = 0
    read_length = 1

    def __init__(self, paged: bool) -> None:
        self.paged = paged
        self.own: dict[int, Tensor] = {}
        self.crossed: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.calls: dict[tuple[int, bool], Call] = {}

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.own[layer], self.values[layer] = keys, values
        return keys, values

    def cross_update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if keys.shape[1] != self.own[layer].shape[1] or keys.shape[3] != self.own[layer].shape[3]:
            raise Unfit("has other heads in cross attention")
        self.crossed[layer] = keys
        return keys, values

    def cross(self, layer: int) -> tuple[Tensor, Tensor]:
        raise Unfit("asks for keys of cross attention before it has made them")

    def attend(self, call: Call) -> Tensor:
        for crosses, known in ((False, self.own), (True, self.crossed)):
            layer = next((layer for layer, keys in known.items() if keys is call.keys), None)
            if layer is not None:
                self.calls[layer, crosses] = call
                return call.queries.new_zeros(
                    call.queries.shape[0], call.queries.shape[2], call.queries.shape[1], call.values.shape[3]
                )
        raise Unfit("changes keys and values behind its cache")


def describe(passes: EncoderDecoderPasses, way: Way) -> tuple[KVSpec, set[nn.Module]]:
    """What a decoder keeps: of each layer keys and values of its own tokens and, at other positions, of what was read.
    And which of its parts are cross attention, where that is seen.

    Unfit says why it cannot be had in this way.
    """
    recorder = _Recorder(way is Way.FLAT)
    before = passes.decoder.config._attn_implementation
    if way is Way.FLAT:
        if not passes.positions:
            raise Unfit("counts positions by itself")
        use_attention(passes.decoder, NAME)
    try:
        with torch.inference_mode(), attending(recorder):
            answer = torch.zeros(1, 3, passes.read_width, dtype=passes.model.dtype)
            passes.decode(torch.ones(1, 2, dtype=torch.long), torch.arange(2), recorder, answer)
    finally:
        use_attention(passes.decoder, before)
    cross = {call.module for (_, crosses), call in recorder.calls.items() if crosses}
    return _spec(recorder, passes.layers, way), cross


def _spec(recorder: _Recorder, layers: int, way: Way) -> KVSpec:
    if sorted(recorder.own) != list(range(layers)) or sorted(recorder.crossed) != list(range(layers)):
        raise Unfit("does not keep keys and values of every layer")
    own: list[LayerAttention] = []
    cross: list[LayerAttention] = []
    for layer in range(layers):
        for crosses, found in ((False, own), (True, cross)):
            call = recorder.calls.get((layer, crosses))
            if way is Way.FLAT and call is None:
                raise Unfit(f"attends by itself in layer {layer}")
            found.append(_attention(recorder, layer, call, crosses))
    return KVSpec(layers=(*own, *cross) if way is Way.FLAT else tuple(own))


def _attention(recorder: _Recorder, layer: int, call: Call | None, crosses: bool) -> LayerAttention:
    keys, values = recorder.own[layer], recorder.values[layer]
    scale = 1.0
    if call is not None:
        biases = [name for name, value in call.options.items() if isinstance(value, Tensor) and value.dim() > 1]
        biases += [name for name in ("softcap", "sliding_window") if call.options.get(name) is not None]
        if biases:
            raise Unfit(f"asks for attention with {biases[0]}")
        scale = as_scale(call.options.get("scaling"), call.queries.shape[3])
    return LayerAttention(
        heads=keys.shape[1] if call is None else call.queries.shape[1],
        kv_heads=keys.shape[1],
        key_dim=keys.shape[3],
        value_dim=values.shape[3],
        scale=scale,
        source=layer if crosses else None,
    )


def verify(model: PreTrainedModel, read: Reader, improve: Callable[..., None] | None = None) -> Verdict:
    """Of a tiny model. Unfit says why there is no way. `improve` is what is done to a model before it is served."""
    begun = time.process_time()
    reasons: dict[Way, str] = {}
    with torch.inference_mode():
        texts, given, expected = _asked(model, read)
        for improved in (True, False) if improve is not None else (False,):
            for way in Way:
                try:
                    passes = EncoderDecoderPasses(copy.deepcopy(model))
                    kv, cross = describe(passes, way)
                    if improve is not None and improved:
                        improve(passes.model, apart=cross)
                    found = _Trial(EncoderDecoder(passes, kv, way, torch.float32), given, _host_kv, BLOCK).run(texts)
                    compare(expected, found)
                except Exception as error:
                    reasons[way] = failure_words(error)
                    continue
                return Verdict(way, reasons, time.process_time() - begun, improved)
    raise Unfit(f"is not right in any way: {'; '.join(f'{way.name.lower()}: {why}' for way, why in reasons.items())}")


def verify_there(
    model: PreTrainedModel, read: Reader, way: Way, device: torch.device, make_kv: MakeKV, block_size: int
) -> None:
    """The same in one way on a GPU, as it is: its own kernels, over memory of its own. Unfit says why it is not."""
    with torch.inference_mode():
        texts, given, expected = _asked(model, read)
        own = EncoderDecoderPasses(copy.deepcopy(model))
        kv, _ = describe(own, way)
        whole: Any = own.model
        whole.to(device)
        compare(expected, _Trial(EncoderDecoder(own, kv, way, torch.float32), given, make_kv, block_size).run(texts))


def _asked(model: PreTrainedModel, read: Reader) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """(texts of three rows, what their encoders read, logits of transformers alone)."""
    words = int(model.config.get_text_config(decoder=True).vocab_size)
    rng = np.random.default_rng(0)
    texts = [torch.from_numpy(rng.integers(3, words - 8, size + DECODED)) for size in BEGUN]
    given = [read(row) for row in range(len(BEGUN))]
    return texts, given, [_reference(model, one, text) for one, text in zip(given, texts, strict=True)]


def _host_kv(model: EncoderDecoder, blocks: int) -> RowsKV:
    pools = make_pools(model.kv, blocks, BLOCK, model.dtype)
    return RowsKV(PagedKV(model.kv, pools, BLOCK), PagedKV(model.kv, pools, BLOCK))


def _reference(model: Any, given: Tensor, text: Tensor) -> Tensor:
    """Logits of all of the decoder's positions, of transformers alone."""
    name = "input_ids" if given.dim() == 2 else "input_features"
    logits: Tensor = model(**{name: given}, decoder_input_ids=text[None], use_cache=False).logits[0]
    return logits.float()


class _Trial:
    """Runs rows through a model as a runner would: prompts beside each other and later, then all side by side."""

    def __init__(self, model: EncoderDecoder, given: list[Tensor], make_kv: MakeKV, block: int) -> None:
        self.model, self.given, self.block = model, given, block
        self.lengths = [int(model.encode(one).shape[1]) for one in given]
        self.places = [-(-length // block) * block for length in self.lengths]
        sizes = [-(-(place + begun + DECODED) // block) for place, begun in zip(self.places, BEGUN, strict=True)]
        self.kv = make_kv(model, sum(sizes))
        free = np.random.default_rng(0).permutation(sum(sizes))
        self.tables = np.split(free, np.cumsum(sizes)[:-1])

    def run(self, texts: list[Tensor]) -> list[Tensor]:
        """Logits of the decoder's positions of each."""
        read = [one[0] if one.dim() == 2 else torch.zeros(0, dtype=torch.long) for one in self.given]
        logs = [
            torch.cat([ids, torch.zeros(place - len(ids), dtype=torch.long), text])
            for ids, place, text in zip(read, self.places, texts, strict=True)
        ]
        done, logits = [0] * len(texts), [[] for _ in texts]  # type: ignore[var-annotated]
        turn = 0
        while any(at < len(log) for at, log in zip(done, logs, strict=True)):
            turn += 1
            sizes = [self._size(row, at, turn, len(log)) for row, (at, log) in enumerate(zip(done, logs, strict=True))]
            hidden = self._step(logs, done, sizes)
            for row, part in enumerate(hidden.split(sizes)):
                own = part[self.places[row] if done[row] == 0 else 0 :]
                if sizes[row]:
                    logits[row].append(self.model.logits(own))
                done[row] += sizes[row]
        return [torch.cat(parts) for parts in logits]

    def _size(self, row: int, at: int, turn: int, length: int) -> int:
        if turn < row:  # the first two begin beside each other
            return 0
        return self.places[row] + BEGUN[row] if at == 0 else min(1, length - at)

    def _step(self, logs: list[Tensor], done: list[int], sizes: list[int]) -> Tensor:
        spans, inputs, ids, slots, first = [], [], [], [], 0
        for row, size in enumerate(sizes):
            if size:
                at = torch.arange(done[row], done[row] + size)
                table = self.tables[row]
                spans.append(Span(first, size, done[row], table, False))
                features = self.given[row] if self.given[row].dim() > 2 and done[row] == 0 else None
                inputs.append(RowInput(self.lengths[row], features))
                ids.append(logs[row][at])
                slots.append(torch.from_numpy(table)[at // self.block] * self.block + at % self.block)
                first += size
        return self.model.compute(torch.cat(ids), torch.cat(slots), self.kv, spans, inputs)
