"""How large the files of shared memory are beside the segment of topology.py, mapped by those who need them.

Computed alike by whoever creates them and by whoever maps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actorserve.shm.kv_map.notes import NoteSizes
from actorserve.shm.kv_tier.layout import TierSizes
from actorserve.shm.layout import PAGE, whole
from actorserve.shm.media.arena import CHUNK, ArenaSizes

from ..options.config import Config
from ..options.kv_offload import read_tiers
from .request import USUAL_LOGPROBS
from .served import ServedModel, embedded_numbers, hidden_numbers, pooled_numbers

KV_LISTENER = "kv_listener"  # in Context.files, where other servers fetch KV blocks: it has no size
SECRET = "secret"  # likewise, of the key by which the batcher asks (files/owner.py)
MAX_TABLES = 2  # block tables of windows take no more blocks than the one of all tokens
JOURNALED = 1024  # connections, the lowest numbers first
RECENT_BYTES = 16 << 20  # of each of a frontend's logs
KEPT, CONVERSATIONS = range(2)  # which these are: of all that is found again by keys, and of conversations alone
LOGS = 2
BODY_PICTURES = 2  # of the longest that a body has room for, in base64 as well
FORM_FIELDS = 128 << 10  # bytes of a form beside its sound
MOST_INBOX = 8  # of the longest bodies, whose pictures wait for a media actor, of each frontend


def form_bytes(config: Config) -> int:
    """The longest form with a sound."""
    return config.max_audio_bytes + FORM_FIELDS


@dataclass(frozen=True)
class FileSizes:
    """By the name that a file has in Context.files; None where these options have no such file."""

    config: Config
    models: Sequence[ServedModel]
    slots: int
    max_blocks: int  # of an engine's block table
    media_actors: int

    @property
    def body_bytes(self) -> int:
        """The longest body of a request. Where it may hold pictures, these cross no lane."""
        sees = any(one.info.media for one in self.models)
        return self.config.max_body_bytes + (BODY_PICTURES * self.config.max_media_bytes if sees else 0)

    @property
    def form_bytes(self) -> int:
        """The longest form with a sound; 0 where no model writes them down."""
        return form_bytes(self.config) if any(one.hears for one in self.models) else 0

    @property
    def journal(self) -> tuple[int, int]:
        """(records, bytes of each): the requests of so many connections can be taken over by another frontend."""
        longest = max(self.body_bytes, self.form_bytes)
        return min(self.config.max_connections, JOURNALED), longest + self.config.max_header_bytes

    @property
    def answers(self) -> int:
        """Records: the answers on so many connections can be gone on with by another frontend."""
        return min(self.config.max_connections, JOURNALED)

    @property
    def logprobs(self) -> tuple[int, int, int]:
        """(slots, tokens of each, most likely tokens of each, which requests may ask for and beams take)."""
        most = max(self.config.most_logprobs, USUAL_LOGPROBS)
        return self.slots, max(one.info.max_model_len for one in self.models), most

    @property
    def vectors(self) -> tuple[int, int] | None:
        """(slots, numbers of each) where a model pools: a vector, or one of each token."""
        numbers = max(map(pooled_numbers, self.models))
        return (self.slots, numbers) if numbers else None

    @property
    def media(self) -> ArenaSizes | None:
        """Of what requests have of pictures and sounds, where the model takes such."""
        actors = self.media_actors
        if not actors:
            return None
        return ArenaSizes(self.slots, actors, max(CHUNK, self.config.media_memory_bytes // actors // CHUNK * CHUNK))

    @property
    def media_inbox(self) -> tuple[int, int]:
        """(frontends, bytes of each), where the model takes pictures or sounds."""
        return self.config.frontends, whole(MOST_INBOX * self.body_bytes, PAGE)

    @property
    def sounds(self) -> tuple[int, int] | None:
        """(slots, numbers of each) of a model that listens: the features of a window."""
        encoders = [one.info.encoder for one in self.models if one.info.encoder is not None]
        numbers = [one.speech.mels * one.speech.frames for one in encoders if one.speech is not None]
        return (self.slots, max(numbers)) if numbers else None

    @property
    def prompt_embeds(self) -> tuple[int, int] | None:
        """(slots, numbers of each), where prompts may be embeddings."""
        numbers = max(map(embedded_numbers, self.models))
        return (self.slots, numbers) if numbers else None

    @property
    def hidden_states(self) -> tuple[int, int] | None:
        """(slots, numbers of each), where requests may be told hidden states."""
        numbers = max(map(hidden_numbers, self.models))
        return (self.slots, numbers) if numbers else None

    @property
    def kv_notes(self) -> NoteSizes | None:
        """Of what stands in cached blocks, where somebody is told."""
        if not self.config.tells_kv:
            return None
        return NoteSizes(self.models[-1].engines.stop, MAX_TABLES * self.max_blocks, self.config.block_size)

    @property
    def kv_tier(self) -> TierSizes | None:
        """Of the KV blocks that are kept in the host's memory."""
        tiers = read_tiers(self.config)
        return None if tiers is None else TierSizes(self.models[-1].engines.stop, tiers.memory_bytes)

    @property
    def recent(self) -> tuple[int, int]:
        """(regions, bytes of each): what frontends must find again by keys."""
        return LOGS * self.config.frontends, RECENT_BYTES
