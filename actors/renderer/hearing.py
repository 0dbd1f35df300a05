"""Sounds to write down: decoded, cut into windows, made features of, and the tokens with which the decoder begins.

The last file is kept decoded: it is asked for twice, first how many windows it has and then for these. Who is begun
anew in between decodes it again, to the same windows. Of more files it is known where their windows lie: the successor
of a frontend asks again, and nobody takes the slots of an hour of sound back before it has the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ..model.encoder_decoder.spec import EncoderSpec, SpeechSpec
from ..protocol.request import Hearing
from ..protocol.topics.prompts import SoundPrompt
from ..sound.decode import decode
from ..sound.features import LogMel
from ..sound.windows import cut
from .encoder_input import EncoderLog, lay_out
from .templates.escaping import longest_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_MEASURED = 64  # files


class Hearer:
    """Of one model that listens."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        encoder: EncoderSpec,
        speech: SpeechSpec,
        block_size: int,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """`beat` is called as it gets on: an hour of sound may take longer than a renderer may stand still."""
        self._tokenizer, self._encoder, self._speech, self._block_size = tokenizer, encoder, speech, block_size
        self._beat = beat
        self._mel: LogMel | None = None
        self._last: tuple[bytes, np.ndarray, list[tuple[int, int]]] | None = None
        self._measured: dict[bytes, tuple[float, list[tuple[float, float]]]] = {}  # the one used last at the end

    def _heard(self, data: bytes, name: bytes) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """Samples and windows of a file. SoundError says why there are none."""
        if self._last is None or self._last[0] != name:
            self._last = None
            samples = decode(data, self._speech.rate, self._beat)
            self._last = name, samples, cut(samples, self._speech.rate, self._speech.seconds)
        return self._last[1:]

    def measure(self, data: bytes) -> tuple[float, list[tuple[float, float]]]:
        """(seconds, begin and end of each window in seconds)."""
        name, rate = _name_of(data), self._speech.rate
        found = self._measured.pop(name, None)
        if found is None:
            samples, windows = self._heard(data, name)
            found = len(samples) / rate, [(start / rate, end / rate) for start, end in windows]
        self._measured[name] = found
        if len(self._measured) > MOST_MEASURED:
            del self._measured[next(iter(self._measured))]
        return found

    def features(self, data: bytes, windows: Sequence[int]) -> list[np.ndarray]:
        """Of these windows."""
        speech = self._speech
        if self._mel is None:
            self._mel = LogMel(speech.mels, speech.n_fft, speech.hop, speech.rate, speech.samples)
        samples, places = self._heard(data, _name_of(data))
        return [self._of_window(self._mel, samples[slice(*places[window])]) for window in windows]

    def _of_window(self, mel: LogMel, samples: np.ndarray) -> np.ndarray:
        self._beat()
        return mel(samples)

    def log(self, prompt: SoundPrompt) -> EncoderLog:
        """The log of a window: fillers for what is heard, then what the decoder begins with."""
        speech, start = self._speech, self._encoder.start[0]
        begun = [*self._before(prompt.text), start]
        marks = [] if prompt.timestamps else [speech.no_timestamps]
        task = [speech.tasks[prompt.task]] if prompt.task in speech.tasks else []
        detects = bool(speech.languages) and not prompt.language
        if detects:
            hearing = Hearing(True, [*task, *marks], prompt.timestamps)
        else:
            begun += [speech.languages[prompt.language], *task] if speech.languages else []
            begun += marks
            hearing = Hearing(timestamps=prompt.timestamps, language=prompt.language)
        read = [self._encoder.filler] * self._encoder.longest
        return lay_out(self._encoder, self._block_size, read, begun, hearing=hearing)

    def _before(self, text: str) -> list[int]:
        """What was said before, as much of its end as the model is made for."""
        if not text.strip() or self._speech.previous is None:
            return []
        ids = self._plain_ids(" " + text.strip())
        return [self._speech.previous, *ids[-(self._encoder.decoder_longest // 2 - 1) :]]

    def _plain_ids(self, text: str) -> list[int]:
        """Of a client's text. What reads like a token of control is cut behind its first character: else it would tell
        the model another language, task or time than the request.
        """
        cuts = [found.start() + 1 for found in self._controls.finditer(text)]
        parts = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
        return [token for part in parts for token in self._tokenizer.encode(part, add_special_tokens=False).ids]

    @cached_property
    def _controls(self) -> re.Pattern[str]:
        """Finds where one begins: all that are no part of a text have ids of the end's or above."""
        added = self._tokenizer.get_added_tokens_decoder().items()
        names = {token.content for number, token in added if number >= self._speech.end and len(token.content) > 1}
        return re.compile(f"(?={longest_of(names) or '(?!)'})")


def _name_of(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
