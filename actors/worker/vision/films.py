"""Films in pieces: as many of a film's frames as the tower computes together.

No frame sees another, of whatever family: attention is that of each time of a grid by itself, or each frame is a
picture. So the pieces' embeddings are those of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

PIXELS = "pixel_values_videos", "pixel_values"
GRID = "video_grid_thw"  # patches of time, height and width
PLACES, COUNT = "video_position_ids", "num_frames_per_video"  # where frames' patches are listed


def in_pieces(film: Mapping[str, Tensor], most: int) -> Iterator[dict[str, Tensor]]:
    """The tower's arguments for some frames after the others, of up to `most` numbers, or of one frame."""
    name = next(name for name in PIXELS if name in film)
    pixels, grid = film[name], film.get(GRID)
    axis, frames, each = max(0, pixels.dim() - 4), 0, 1  # pictures side by side
    if grid is not None:
        frames, high, wide = grid.view(-1).tolist()
        axis, each = 0, high * wide
    else:
        frames = pixels.shape[axis]
    together = max(1, most * frames // pixels.numel())
    for first in range(0, frames, together):
        count = min(together, frames - first)
        piece = {name: pixels.narrow(axis, first * each, count * each)}
        if grid is not None:
            piece[GRID] = torch.tensor([[count, high, wide]])
        if PLACES in film:
            piece |= {PLACES: film[PLACES].narrow(0, first, count), COUNT: torch.tensor([count])}
        yield {**film, **piece}
