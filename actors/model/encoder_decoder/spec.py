"""What every actor needs to know of a model whose encoder reads an input that its decoder then writes about.

Leaf module. A sequence's log begins with the encoder's part: the ids of a text, or fillers for what an encoder makes of
a sound; fillers follow up to the end of a block, and behind them the decoder's tokens begin. KV blocks follow the log:
those of the encoder's part hold the keys and values of cross attention, which are computed once, when the prompt is.
"""

from __future__ import annotations

import msgspec


class SpeechSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How a model that listens (Whisper) is told what to write, by tokens, and which it may write."""

    languages: dict[str, int]  # by code ("en"); empty: it knows one, and is not told
    tasks: dict[str, int]  # "transcribe" and "translate"; empty: it only transcribes
    end: int  # ends a text; all ids before it are of texts
    no_timestamps: int  # timestamps are all ids behind this one
    previous: int | None = None  # begins the text that was said before
    suppress: list[int] = []  # never written
    suppress_first: list[int] = []  # not written first
    first_timestamp: int | None = None  # the first timestamp is one of so many and one
    mels: int  # features of a frame
    frames: int  # of a window, which is what one sequence hears
    n_fft: int = 400  # samples of a frame's spectrum
    hop: int = 160  # samples from one frame to the next
    rate: int = 16000  # samples of a second
    step: float = 0.02  # seconds between two timestamps
    alignment: list[tuple[int, int]] = []  # (layer, head) of cross attention that follow the sound; empty: not known
    median: int = 7  # positions over which these are smoothed

    @property
    def samples(self) -> int:
        """Of a window."""
        return self.frames * self.hop

    @property
    def seconds(self) -> float:
        """Of a window."""
        return self.samples / self.rate


class EncoderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Of one model."""

    longest: int  # positions that the encoder reads, at most; of sounds: always
    decoder_longest: int  # positions of the decoder
    start: list[int]  # the decoder begins with
    filler: int  # a token's id
    speech: SpeechSpec | None = None  # it listens; None: it reads texts

    def room(self, block_size: int, count: int | None = None) -> int:
        """Positions of the log in which so many of the encoder's stand; None: as many as there may be."""
        return -(-(self.longest if count is None else count) // block_size) * block_size
