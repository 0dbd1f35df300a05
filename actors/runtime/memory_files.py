"""Files of memory beside the segment, which some servers have, and as which actors read and write them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from actorserve.shm.kv_map.notes import BlockNotes
from actorserve.shm.media.arena import MediaArena
from actorserve.shm.table.hidden_states import HiddenStates
from actorserve.shm.table.mirostat import MirostatStates
from actorserve.shm.table.prompt_embeds import PromptEmbeds
from actorserve.shm.table.vectors import Vectors

from ..files.owner import SECRET_BYTES
from ..protocol.actor_spec import ActorSpec
from ..protocol.file_sizes import SECRET
from ..protocol.media import MediaItem
from ..protocol.topology import System

if TYPE_CHECKING:
    from actorserve.shm.kv_tier.arena import TierArena


class MemoryFiles:
    """Those that this actor was given."""

    system: System
    spec: ActorSpec
    files: dict[str, int]  # descriptors

    def vectors(self) -> Vectors | None:
        """What a pooling model makes of prompts; None of any other."""
        sizes = self.system.files.vectors
        return None if sizes is None else Vectors(self.files["vectors"], *sizes)

    def media(self) -> MediaArena | None:
        """What requests have of pictures and sounds; None of a model that takes none."""
        sizes = self.system.files.media
        return None if sizes is None else MediaArena(self.files["media"], sizes, MediaItem)

    def sounds(self) -> Vectors | None:
        """Features of sounds, of a model that listens, as renderers write them and the worker reads them."""
        sizes = self.system.files.sounds
        return None if sizes is None else Vectors(self.files["sounds"], *sizes)

    def prompt_embeds(self) -> PromptEmbeds | None:
        """Prompts that clients gave as embeddings; None where they cannot."""
        sizes = self.system.files.prompt_embeds
        return None if sizes is None else PromptEmbeds(self.files["prompt_embeds"], *sizes)

    def hidden_states(self) -> HiddenStates | None:
        """Of requests that are told them; None where none may be."""
        sizes = self.system.files.hidden_states
        return None if sizes is None else HiddenStates(self.files["hidden_states"], *sizes)

    def mirostat(self) -> MirostatStates:
        """The states of sequences that are drawn so."""
        return MirostatStates(self.files["mirostat"], self.system.slots)

    def kv_notes(self) -> BlockNotes | None:
        """What stands in its engine's cached blocks; None where nobody is told."""
        sizes = self.system.files.kv_notes
        return None if sizes is None else BlockNotes(self.files["kv_notes"], sizes, self.spec.engine)

    def secret(self) -> bytes:
        """By which the batcher shows for whom it asks, of a server with --files-dir."""
        return os.pread(self.files[SECRET], SECRET_BYTES, 0)

    def kv_tier(self) -> TierArena | None:
        """KV blocks that are kept in the host's memory; None without --kv-offload."""
        from actorserve.shm.kv_tier.arena import TierArena  # numpy with it, which the supervisor has no use for

        sizes = self.system.files.kv_tier
        return None if sizes is None else TierArena(self.files["kv_tier"], sizes)
