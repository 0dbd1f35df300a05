"""Hidden states of whole texts by a model of transformers, which keeps nothing of them.

Four ways, of which the first is taken that gives what each text alone gives, tried at load on the model itself:
- flat: all texts are one row, attention is ours (flat.py), positions come with the tokens;
- divided: they are so, too, and the model's own attention is called for each text (divided.py);
- padded: texts of like lengths side by side with transformers' own attention and masks;
- alone: one text a forward pass.
A head (labels' scores) sees the hidden states of texts of like lengths side by side, where it gives the same then, else
of one text at a time, whichever way they were made.

What a step is given is put together on the host, and sent where the model is; of a GPU nothing waits for that.
"""

from __future__ import annotations

import enum
import inspect
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from ..adapter.hooks import NAME, Unfit, attending, use_attention
from ..transfer import sent
from .divided import Divided, by_length, rows_of
from .flat import FlatAttention, for_longest, with_distances
from .grouped import GroupedAttention

log = logging.getLogger("worker")

TRIED = (7, 12, 3, 1, 30, 27, 11)  # tokens of the texts with which ways are tried; some are padded together
TOLERANCE = 1e-4  # of the deviation of what is compared


class Text(NamedTuple):
    """One prompt."""

    ids: Tensor  # int64, on the host
    second: int = 0  # where the second of a pair begins; 0: there is none


class Way(enum.Enum):
    """How a step is computed."""

    FLAT = "flat: all texts are one row"
    DIVIDED = "divided: all texts are one row, and attention sees one at a time"
    PADDED = "padded: texts of like lengths side by side"
    ALONE = "one text at a time"


class Encoder:
    """One model; its head, if it has one, is asked for by `scores`."""

    def __init__(self, model: PreTrainedModel, classifies: bool) -> None:
        self.model, self.base = model, model.base_model if classifies else model
        self.padding: int | None = None  # if the first position is what follows this id, which has no place itself
        self.way = Way.ALONE
        self.scores_together = False  # whether the head takes several texts
        found: Any = self.base  # it looks at numbers of the device in each pass:
        found.warn_if_padding_and_no_attention_mask = lambda *given: None
        self._own = str(model.config._attn_implementation)
        self._divided = Divided(self.base)
        takes = set(inspect.signature(self.base.forward).parameters)
        kinds = int(getattr(model.config, "type_vocab_size", None) or 0)
        self._types = kinds > 1 and "token_type_ids" in takes  # GPT-2 adds them as words: none are given where 0 is all
        self._positions = "position_ids" in takes
        self._distances = with_distances(self.base)
        self._pad = int(getattr(model.config, "pad_token_id", None) or 0)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.device

    # --- hidden states ---------------------------------------------------------------------------------------------

    def hidden(self, texts: Sequence[Text]) -> list[Tensor]:
        """[tokens, hidden] of each text, on the device."""
        match self.way:
            case Way.FLAT:
                return self._flat(texts)
            case Way.DIVIDED:
                return [made for row in rows_of(lengths(texts)) for made in self._row([texts[index] for index in row])]
            case Way.PADDED:
                return self._padded(texts)
        return [self._alone(text) for text in texts]

    def _kinds(self, text: Text) -> Tensor:
        """Which of a pair each token belongs to."""
        kinds = torch.zeros(len(text.ids), dtype=torch.long)
        if text.second:
            kinds[text.second :] = 1
        return kinds

    def use(self, way: Way) -> None:
        self.way = way
        use_attention(self.model, NAME if way is Way.FLAT else self._own)

    def _flat(self, texts: Sequence[Text]) -> list[Tensor]:
        sizes, on_cpu = lengths(texts), self.device.type == "cpu"
        attention = FlatAttention(sizes) if on_cpu else GroupedAttention(sizes, self.device)
        with attending(attention), for_longest(self._distances, attention.longest):
            return self._one_row(texts)

    def _row(self, texts: Sequence[Text]) -> list[Tensor]:
        self._divided.begin(lengths(texts))
        try:
            return self._one_row(texts)
        finally:
            self._divided.begin(())

    def _one_row(self, texts: Sequence[Text]) -> list[Tensor]:
        sizes = lengths(texts)
        given = {"input_ids": torch.cat([text.ids for text in texts])[None]}
        if self._positions:
            given["position_ids"] = torch.cat([self._places(text.ids) for text in texts])[None]
        if self._types:
            given["token_type_ids"] = torch.cat([self._kinds(text) for text in texts])[None]
        return list(self._base(given)[0].split(sizes))

    def _places(self, ids: Tensor) -> Tensor:
        if self.padding is None:
            return torch.arange(len(ids))
        counted = (ids != self.padding).long()
        return counted.cumsum(0) * counted + self.padding

    def _padded(self, texts: Sequence[Text]) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for group in by_length(lengths(texts)):
            some = [texts[index] for index in group]
            longest = max(len(text.ids) for text in some)
            ids = torch.full((len(some), longest), self._pad)
            types, mask = torch.zeros_like(ids), torch.zeros_like(ids)
            for row, text in enumerate(some):
                size = len(text.ids)
                ids[row, :size], types[row, :size], mask[row, :size] = text.ids, self._kinds(text), 1
            given = {"input_ids": ids, "attention_mask": mask}
            out = self._base(given | ({"token_type_ids": types} if self._types else {}))
            found |= {index: out[row, : len(texts[index].ids)] for row, index in enumerate(group)}
        return [found[index] for index in range(len(texts))]

    def _alone(self, text: Text) -> Tensor:
        given = {"input_ids": text.ids[None], "attention_mask": torch.ones(1, len(text.ids), dtype=torch.long)}
        return self._base(given | ({"token_type_ids": self._kinds(text)[None]} if self._types else {}))[0]

    def _base(self, given: dict[str, Tensor]) -> Tensor:
        made: Tensor = self.base(**self._sent(given), **_no_cache(self.base)).last_hidden_state
        return made

    def _sent(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """To where the model is."""
        return {name: sent(one, self.device) for name, one in given.items()}

    # --- scores of labels ------------------------------------------------------------------------------------------

    def scores(self, hidden: Sequence[Tensor], ids: Sequence[Tensor]) -> list[Tensor]:
        """Of each text's hidden states: [labels], or [tokens, labels] of a head that classifies tokens."""
        sizes = [len(one) for one in ids]
        found: dict[int, Tensor] = {}
        for group in by_length(sizes) if self.scores_together else [[index] for index in range(len(sizes))]:
            made = self._scores([hidden[index] for index in group], [ids[index] for index in group])
            found |= zip(group, made, strict=True)
        return [found[index][:size] if found[index].dim() == 2 else found[index] for index, size in enumerate(sizes)]

    def _scores(self, hidden: list[Tensor], ids: list[Tensor]) -> Tensor:
        """Of texts side by side."""
        masks = [torch.ones_like(one) for one in ids]
        given = {"input_ids": _filled(ids, self._pad), "attention_mask": _filled(masks, 0)}
        with self._answered(_filled(hidden, 0)):
            made: Tensor = self.model(**self._sent(given)).logits
        return made

    @contextmanager
    def _answered(self, hidden: Tensor) -> Iterator[None]:
        """The base answers with these meanwhile."""
        answer = BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=hidden, pooler_output=_summary(self.base, hidden)
        )
        self.base.forward = lambda *args, **kwargs: answer
        try:
            yield
        finally:
            del self.base.forward

    def try_out(self, tokens: int, longest: int) -> None:
        """The largest step: torch.OutOfMemoryError if the device has no room for it."""
        sizes = [longest] * max(1, tokens // longest)
        self.hidden([Text(torch.full((size,), 3)) for size in sizes])

    # --- which way is right ------------------------------------------------------------------------------------------

    def choose(self, longest: int) -> dict[Way, str]:
        """Take the first way that is right; returns why those before it are not."""
        texts = tried(self.model, longest)
        self.use(Way.ALONE)
        expected = [self._alone(text) for text in texts]
        reasons: dict[Way, str] = {}
        for way, padding in self._candidates():
            self.padding = padding
            self.use(way)
            try:
                _compare(expected, self.hidden(texts))
            except Exception as error:  # models fail as they like in a way that is not theirs
                reasons[way] = str(error).splitlines()[0] if isinstance(error, Unfit) else repr(error)
                continue
            return reasons
        self.use(Way.ALONE)
        return reasons

    def _candidates(self) -> Iterator[tuple[Way, int | None]]:
        """Ways, and whether positions are counted from behind the padding token's id on, and of which."""
        for way in (Way.FLAT, Way.DIVIDED):
            yield way, None
            for padding in self._paddings():
                yield way, padding
        yield Way.PADDED, None

    def _paddings(self) -> list[int]:
        """The padding token's id, as the model says and as its embeddings have it."""
        own = getattr(getattr(self.base, "embeddings", None), "padding_idx", None)
        return sorted({self._pad, *([] if own is None else [int(own)])}) if self._positions else []

    def check_scores(self, longest: int) -> None:
        """See whether the head takes several texts. Unfit if it gives something else of hidden states than in its own
        forward pass."""
        texts, way = tried(self.model, longest), self.way
        ids = [text.ids for text in texts]
        self.use(Way.ALONE)
        expected = [self.model(input_ids=own[None], attention_mask=torch.ones_like(own)[None]).logits[0] for own in ids]
        hidden = [self._alone(text) for text in texts]
        self.use(way)
        if not _are_close(self.scores(hidden, ids), expected):
            raise Unfit("has a head that looks at more than hidden states")
        self.scores_together = True
        try:
            self.scores_together = _are_close(self.scores(hidden, ids), expected)
        except Exception as error:  # it fails as it likes of several
            self.scores_together = False
            log.info("labels are scored text by text: %r", error)


def _summary(base: Any, hidden: Tensor) -> Tensor | None:
    """What a model's own pooler makes, for heads that look at that."""
    pooler = getattr(base, "pooler", None)
    if not isinstance(pooler, nn.Module):
        return None
    activation = getattr(base, "pooler_activation", None)
    if activation is not None:  # ALBERT's pooler is a plain layer
        made: Tensor = activation(pooler(hidden[:, 0]))
        return made
    whole: Tensor = pooler(hidden)
    return whole


def _no_cache(base: nn.Module) -> dict[str, bool]:
    """Decoders keep nothing, either."""
    parameters = inspect.signature(base.forward).parameters
    return {"use_cache": False} if "use_cache" in parameters else {}


def _filled(parts: Sequence[Tensor], value: float) -> Tensor:
    """Side by side, as long as the longest."""
    return pad_sequence(list(parts), batch_first=True, padding_value=value)


def _are_close(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    return all(torch.allclose(*both, rtol=1e-4, atol=1e-5) for both in zip(found, expected, strict=True))


def lengths(texts: Sequence[Text]) -> list[int]:
    """Their tokens."""
    return [len(text.ids) for text in texts]


def tried(model: PreTrainedModel, longest: int) -> list[Text]:
    """Texts with which ways are tried, as long as the model takes them."""
    random, words = np.random.default_rng(0), int(model.config.get_text_config().vocab_size)
    return [Text(torch.from_numpy(random.integers(3, max(4, words), min(size, longest)))) for size in TRIED]


def _compare(expected: Sequence[Tensor], found: Sequence[Tensor]) -> None:
    for one, other in zip(expected, found, strict=True):
        off = float((one - other).abs().max() / one.float().std())
        if not off <= TOLERANCE * (1 if one.dtype == torch.float32 else 300):
            raise Unfit(f"hidden states are off by {off:.2g} of their deviation")
