"""What is asked about a sound when its text is there: when each token was said, and whether anything was.

The decoder goes once more over the whole text, which lies in the slot's log; so it does not matter which worker, or
which life of it, has written that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import Tensor

from actorserve.shm.table.table import RequestTable

from ...model.encoder_decoder.spec import EncoderSpec
from ...protocol.request import Hearing, Rendition
from ..adapter.hooks import attending
from ..logits.speech_rules import SpeechRules
from ..transfer import sent
from .alignment import LookingOn, begins
from .model import EncoderDecoder, Way


class Listening:
    """Of one worker whose model listens."""

    def __init__(
        self,
        model: EncoderDecoder,
        spec: EncoderSpec,
        table: RequestTable,
        block_size: int,
        sounds: Callable[[int], Tensor],
    ) -> None:
        self._model, self._spec, self._table, self._block_size, self._sounds = model, spec, table, block_size, sounds
        self._rendition = msgspec.msgpack.Decoder(Rendition)

    def look(self, ref: int, samples: int, timed: bool) -> dict[str, Any]:
        """`samples`: of the window. "no_speech": how likely it is that nothing is said; "logprob": how likely the text
        is; "times", if wanted: in seconds, where each token of the text ends (and the next begins).
        """
        spec, speech = self._spec, self._spec.speech
        assert speech is not None
        if self._model.way is not Way.FLAT:
            raise ValueError("times of words cannot be told by this model: it is right with its own attention only")
        rendition = self._rendition.decode(self._table.rendition(ref))
        prompt, count = self._table.prompt_length(ref) or 0, self._table.generated(ref)
        place = spec.room(self._block_size, rendition.encoder)
        ids = list(self._table.token_ids(ref, place, prompt + count))
        hearing = rendition.hearing
        begun = prompt - place + (int(hearing.detects) + len(hearing.forced) if hearing is not None else 0)
        frames = -(-samples // speech.hop)
        heads = speech.alignment or _later_half(self._model)
        step = LookingOn(heads, max(1, frames // 2))
        passes = self._model.passes
        fed = ids[: len(ids) - 1] if len(ids) > begun else ids  # nothing follows the last one
        with torch.inference_mode(), attending(step):
            answer, there = self._model.encode(self._sounds(ref)), self._model.device
            order = torch.arange(len(fed), device=there)
            hidden = passes.decode(sent(torch.tensor([fed]), there), order, step, answer)
        start = fed.index(spec.start[0])
        shares = self._model.logits(hidden[0, start : start + 1])[0].softmax(-1)
        found: dict[str, Any] = {"no_speech": float(shares[speech.no_timestamps - 1])}
        found["logprob"] = self._likely(hidden[0, begun - 1 :], ids[begun:], hearing)
        if timed:
            places = begins(step.weights[:, begun:].cpu(), speech.median) if len(fed) > begun else []
            times = [place * speech.step for place in places]
            found["times"] = [*times, *times[-1:]]
        return found

    def _likely(self, hidden: Tensor, text: list[int], hearing: Hearing | None) -> float:
        """The mean logprob of a text's tokens, among those that could be written where each stands."""
        assert self._spec.speech is not None
        rules = SpeechRules(self._spec.speech, Hearing(timestamps=hearing is not None and hearing.timestamps))
        found = 0.0
        for at, token in enumerate(text):
            logits = self._model.logits(hidden[at : at + 1])[0]
            rules.mask(logits, text[:at])
            found += float(logits.log_softmax(-1)[token])
        return found / max(1, len(text))


def _later_half(model: EncoderDecoder) -> list[tuple[int, int]]:
    """All heads of the later layers: what follows a sound where nobody has looked for better ones."""
    heads = int(model.passes.model.config.decoder_attention_heads)
    return [(layer, head) for layer in range(model.layers // 2, model.layers) for head in range(heads)]
