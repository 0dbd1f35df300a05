"""What a prompt has of pictures, films and sounds, as the worker and the scheduler see it.

Leaf module. A media actor makes a `MediaItem` of each; the numbers lie in the media arena, the items with the slot. The
prompt's token ids hold the model's placeholder ids where embeddings of an item go: of the positions [start,
start + length) those whose id is a placeholder, in order.
"""

from __future__ import annotations

import msgspec

IMAGE, VIDEO, AUDIO = "image", "video", "audio"
MODALITIES = (IMAGE, VIDEO, AUDIO)


class MediaTensor(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An array in the arena, C-contiguous. `name` is what the model's processor calls it ("pixel_values")."""

    name: str
    dtype: str  # numpy's name
    shape: list[int]
    offset: int  # bytes from the arena's beginning


class MediaItem(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One picture, film or sound of a prompt."""

    modality: str  # of MODALITIES
    digest: bytes  # 16 bytes: the same digest and the same model, the same embeddings
    start: int  # the first of its positions in the prompt; an encoder–decoder's input has none: 0 and length 0
    length: int  # positions from the first to the last placeholder
    tensors: list[MediaTensor]


class MediaSource(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a client gave: an address, or bytes, which the frontend puts into its inbox (shm/media/inbox.py)."""

    modality: str
    field: str  # its place in the request
    url: str = ""  # http, https or file
    data: bytes = b""  # until it is in the inbox
    form: str = ""  # of the bytes: BASE64 of a file, FILE, a picture's pixels as PIXELS, FRAMES, EMBEDS, or CACHED
    width: int = 0  # of PIXELS
    offset: int = 0  # in the inbox's record
    length: int = 0
    uuid: str = ""  # the client's own name for it, by which it is found again
    changes: bytes = b""  # JSON: how the model's processor shall treat it, if not as ever


BASE64, FILE, PIXELS = "base64", "file", "RGB"
EMBEDS = "embeds"  # JSON of tensors in base64: embeddings that the client has made
CACHED = "cached"  # nothing but a uuid
FRAMES = "frames"  # of a film: pictures in base64, with commas between them


class PreparedMedia(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a media actor made of it, for the renderer: what is written in a placeholder's place, and the tensors."""

    modality: str
    digest: bytes
    placeholder: str  # as chat templates and prompts write it
    text: str  # what is written instead
    token: int  # the id in `text` in whose places embeddings go
    count: int  # of that
    tensors: list[MediaTensor]
    name: bytes = b""  # by which clients find it again, of a uuid
