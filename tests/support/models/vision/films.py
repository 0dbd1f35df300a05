"""Films: a few frames of colours, in a container."""

from __future__ import annotations

import io
from typing import Any

import numpy as np


def frames_of(count: int, width: int, height: int, seed: int = 0) -> np.ndarray:
    """[frames, height, width, 3]: large squares of colours at random, the same for the same seed."""
    small = np.random.default_rng(seed).integers(0, 255, (count, -(-height // 8), -(-width // 8), 3), dtype=np.uint8)
    return small.repeat(8, 1).repeat(8, 2)[:, :height, :width]


def film(
    count: int = 12,
    width: int = 48,
    height: int = 32,
    seed: int = 0,
    *,
    rate: int = 4,
    container: str = "mp4",
    codec: str = "mpeg4",
    whole_every: int = 5,
) -> bytes:
    """A file; every so many frames one is whole."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=container) as made:
        stream: Any = made.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.gop_size = width, height, whole_every
        stream.pix_fmt = "yuv420p" if codec != "gif" else "rgb8"
        for one in frames_of(count, width, height, seed):
            for packet in stream.encode(av.VideoFrame.from_ndarray(one, format="rgb24")):
                made.mux(packet)
        for packet in stream.encode():
            made.mux(packet)
    return file.getvalue()


def decoded(data: bytes) -> list[Any]:
    """All frames of a file, as pictures of Pillow."""
    import av

    with av.open(io.BytesIO(data), "r") as container:
        frames: Any = container.decode(container.streams.video[0])
        return [frame.to_image() for frame in frames]
