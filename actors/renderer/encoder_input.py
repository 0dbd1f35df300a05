"""The log of a sequence whose prompt an encoder reads: its ids, fillers up to a block's end, the decoder's first."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..model.encoder_decoder.spec import EncoderSpec
from ..protocol.request import Hearing, Rendition


class EncoderLog(NamedTuple):
    """As it goes to a slot."""

    tokens: list[int]
    rendition: bytes
    room: int  # tokens that the decoder may yet write


def lay_out(
    spec: EncoderSpec,
    block_size: int,
    read: list[int],
    begun: list[int],
    rendition: bytes = b"",
    hearing: Hearing | None = None,
) -> EncoderLog:
    """`read` by the encoder, `begun` by the decoder; `rendition` is what else was made of the request."""
    place = spec.room(block_size, len(read))
    made = msgspec.msgpack.decode(rendition, type=Rendition) if rendition else Rendition()
    whole = msgspec.structs.replace(made, encoder=len(read), hearing=hearing)
    tokens = [*read, *[spec.filler] * (place - len(read)), *begun]
    return EncoderLog(tokens, msgspec.msgpack.encode(whole), spec.decoder_longest - len(begun))
