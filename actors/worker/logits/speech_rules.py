"""Which tokens a model that listens may write next: its language and task first, then texts between timestamps.

The rules are those of Whisper's own decoding: timestamps come in pairs and never fall, the first one comes first and is
small, and a timestamp is drawn where all of them together are likelier than any word.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...model.encoder_decoder.spec import SpeechSpec
from ...protocol.request import Hearing

NEVER = float("-inf")


class SpeechRules:
    """Of one row."""

    def __init__(self, spec: SpeechSpec, hearing: Hearing) -> None:
        self.spec, self.hearing = spec, hearing
        self.times = spec.no_timestamps + 1  # the id of the first timestamp
        self.languages = torch.tensor(sorted(spec.languages.values()), dtype=torch.long)

    def mask(self, logits: Tensor, answer: list[int]) -> None:
        """Change logits [words] in place, of what comes behind `answer`."""
        detects, forced = int(self.hearing.detects), self.hearing.forced
        if len(answer) < detects:
            best = int(self.languages[logits[self.languages].argmax()])
            logits.fill_(NEVER)[best] = 0
            return
        if len(answer) < detects + len(forced):
            logits.fill_(NEVER)[forced[len(answer) - detects]] = 0
            return
        text = answer[detects + len(forced) :]
        if not text:
            logits[self.spec.suppress_first] = NEVER
        logits[self.spec.suppress] = NEVER
        if self.hearing.timestamps:
            self._mask_times(logits, text)

    def _mask_times(self, logits: Tensor, text: list[int]) -> None:
        times = self.times
        logits[self.spec.no_timestamps] = NEVER
        last = bool(text) and text[-1] >= times
        before = len(text) < 2 or text[-2] >= times
        if last and before:  # a text follows
            logits[times:] = NEVER
        elif last:  # a second one, or the end
            logits[: self.spec.end] = NEVER
        if drawn := [token for token in text if token >= times]:
            least = drawn[-1] + (0 if last and not before else 1)
            logits[times:least] = NEVER
        if not text:
            logits[:times] = NEVER
            if self.spec.first_timestamp is not None:
                logits[times + self.spec.first_timestamp + 1 :] = NEVER
        shares = torch.log_softmax(logits.float(), -1)
        if shares[times:].logsumexp(-1) > shares[:times].max():
            logits[:times] = NEVER
