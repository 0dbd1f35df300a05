"""What the options make of it: who is asked for blocks, who is given some, and by what they go."""

from __future__ import annotations

from collections.abc import Callable

from ...options.kv_offload import KVTiers
from ...protocol.file_sizes import KV_LISTENER
from ...protocol.sockets.kv_wire import read_proofs
from ...runtime.process import Context
from ..host import HostTier
from .nixl import Agent, NixlError
from .pulling import Counts, Peer, Peers
from .serving import Serving


def make_peers(
    context: Context, tiers: KVTiers, host: HostTier, wake: Callable[[], None]
) -> tuple[Peers, Serving | None]:
    """Of a porter, at its start."""
    log, proofs, counts = context.log, read_proofs(context.config), Counts()
    agent: Agent | None = None
    if tiers.nixl:
        try:
            agent = Agent(host.arena.map if tiers.listen else None, log)
        except (NixlError, ImportError, OSError) as error:
            log.error("KV blocks go by TCP, not by NIXL: %s", error)

    def make(address: str) -> Peer:
        return Peer(address, proofs, agent, counts, wake, log)

    serving: Serving | None = None
    if tiers.listen:
        serving = Serving(context.files[KV_LISTENER], proofs, agent, host, wake, log)
        serving.start()
    return Peers(tiers.peers, make, counts), serving
