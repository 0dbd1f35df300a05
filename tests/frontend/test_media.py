"""What a frontend writes into its inbox for media actors."""

from __future__ import annotations

import msgspec
import pytest

from actorserve.actors.frontend.media import HEAD_BYTES, REF_BYTES, Record
from actorserve.actors.options.objects.media import MOST_MEDIA
from actorserve.actors.protocol.media import BASE64, MediaSource
from actorserve.actors.protocol.messages import MediaRequest, Render
from actorserve.actors.protocol.topics.prompts import TextPrompt
from actorserve.http.media.schemas import PixelBounds, ProcessorChanges

LONGEST_NAME = "renderer-100+" + "a" * 24
BOUNDS = PixelBounds(shortest_edge=1 << 24, longest_edge=1 << 24)
CHANGES = ProcessorChanges(BOUNDS, 1 << 24, 1 << 24, fps=0.12345678901234567, num_frames=768)


@pytest.mark.parametrize("field", ["a", "messages[0].content[0].image_url.url"])
def test_a_record_has_room_for_all_that_is_said_of_its_sources(field: str) -> None:
    """What comes behind it is another request's."""
    changes, refs = msgspec.json.encode(CHANGES), [1 << 63] * 8
    sources = [MediaSource("image", field, data=b"ab", form=BASE64, changes=changes)] * MOST_MEDIA
    record = Record(Render([], TextPrompt("x")), sources)
    placed = [msgspec.structs.replace(one, data=b"", offset=1 << 40, length=1 << 40) for one in sources]
    message = msgspec.structs.replace(record.message, refs=refs)
    written = msgspec.msgpack.encode(MediaRequest(LONGEST_NAME, message, placed))
    size = HEAD_BYTES + len(written) + sum(len(one.data) for one in sources)
    assert size <= record.most_bytes + REF_BYTES * len(refs)
