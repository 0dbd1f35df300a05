"""Pictures, films and sounds."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .files import FileOptions


class MediaOptions(FileOptions, frozen=True, kw_only=True):
    """Which pictures, films and sounds requests may have."""

    limit_mm_per_prompt: Annotated[
        str | None,
        Meta(
            description='how many pictures, films and sounds a prompt may have: JSON such as {"image": 8, "video": 1}; '
            "128 together if left out"
        ),
    ] = None
    allowed_media_domains: Annotated[
        list[str], Meta(description="hosts, and all below them, from which pictures are fetched; any if left out")
    ] = []
    allowed_local_media_path: Annotated[
        str | None, Meta(description="a folder whose files requests may name by file:// addresses; none if left out")
    ] = None
    allow_private_media: Annotated[
        bool, Meta(description="pictures are fetched also from addresses that are not public, such as 127.0.0.1")
    ] = False
    max_media_bytes: Annotated[
        int, Meta(ge=1 << 10, le=1 << 30, description="of one picture, film or sound as it comes")
    ] = 20 << 20
    max_audio_bytes: Annotated[
        int,
        Meta(
            ge=1 << 10,
            le=256 << 20,
            description="of a sound that is sent to be written down (/v1/audio/transcriptions and /translations)",
        ),
    ] = 25 << 20
    max_media_pixels: Annotated[
        int, Meta(ge=1 << 10, le=1 << 30, description="of one picture; of a film, in each frame that is taken")
    ] = 50_000_000
    max_media_redirects: Annotated[int, Meta(ge=0, le=20, description="that an address may lead through")] = 3
    media_fetch_timeout: Annotated[
        float, Meta(gt=0, le=60, description="seconds in which a picture must have come from its address")
    ] = 10.0
    media_memory_bytes: Annotated[
        int, Meta(ge=1 << 20, description="for pictures as the model takes them: of running requests, and a cache")
    ] = 1 << 30
    media_io_kwargs: Annotated[
        str | None,
        Meta(
            description='how files are read: JSON such as {"image": {"rgba_background_color": [255, 255, 255]}, '
            '"video": {"num_frames": 32}}'
        ),
    ] = None
    mm_processor_kwargs: Annotated[
        str | None,
        Meta(description="for the model's own processor of pictures, if not as its files say: JSON"),
    ] = None
    trust_request_mm_kwargs: Annotated[
        bool, Meta(description="requests may change both, by mm_processor_kwargs and media_io_kwargs")
    ] = True
    enable_mm_embeds: Annotated[
        bool,
        Meta(description="requests may give embeddings in the place of pictures (image_embeds): for trusted clients"),
    ] = False
    enable_prompt_embeds: Annotated[
        bool,
        Meta(
            description="completions may give a prompt as embeddings (prompt_embeds), in the place of its tokens: for "
            "trusted clients"
        ),
    ] = False
