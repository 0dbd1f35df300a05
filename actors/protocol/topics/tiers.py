"""KV blocks that are kept beside the workers' memory: what scheduler, porter and workers say of them."""

from __future__ import annotations

from ..wire import Message


class Fetched(Message, frozen=True, tag=113):
    """Porter → scheduler: the first of the blocks of this Fetch are in these slots, which stay until it is settled."""

    number: int
    packed_slots: bytes


class BlocksLoaded(Message, frozen=True, tag=114):
    """Worker → scheduler: it has copied them."""

    number: int
    rank: int  # of the member of a group


class Fetch(Message, frozen=True, tag=110):
    """Scheduler → porter: have these blocks ready; answered by Fetched with the same number, or not in time."""

    engine: int
    number: int
    keys: bytes  # block hashes, one behind the other
    peer: str = ""  # host:port of the server that has them, as the request says


class ForgetTiers(Message, frozen=True, tag=111):
    """Scheduler → porter: nothing that is kept now is to be found again. It may be done twice."""


ToPorter = Fetch | ForgetTiers


class LoadBlocks(Message, frozen=True, tag=112):
    """Scheduler → worker: copy slots of the KV tier into blocks; answered by BlocksLoaded of each of a group."""

    number: int
    packed_blocks: bytes
    packed_slots: bytes
