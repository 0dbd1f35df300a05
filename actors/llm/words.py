"""What an LLM object and the process that supervises its actors say to each other, over one sequenced-packet socket.

to the host    Config (msgpack), once; the end of the stream says that it is to stop
from it        Begun with the descriptors of Memory.inherited, Ready, and Ended; or Ended at once
"""

from __future__ import annotations

import msgspec

from ..runtime.process import Boot

MOST_BYTES = 1 << 17  # of one packet
MOST_DESCRIPTORS = 253  # the kernel's limit of one message (SCM_MAX_FD)


class Begun(msgspec.Struct, frozen=True, tag=1):
    """The shared memory is there; the caller is the actor that `boot` names. The descriptors come beside it."""

    boot: Boot


class Ready(msgspec.Struct, frozen=True, tag=2):
    """All actors are up."""


class Ended(msgspec.Struct, frozen=True, tag=3):
    """Nothing is generated any more; `status` is the exit status that follows."""

    status: int
    reason: str


Word = Begun | Ready | Ended
encode = msgspec.msgpack.Encoder().encode
decode_word = msgspec.msgpack.Decoder(Word).decode
