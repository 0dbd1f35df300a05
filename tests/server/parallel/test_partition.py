"""An engine in a network namespace, whose link is cut in mid-stream, and which is another one behind that."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import LAUNCH, Server, stopped
from tests.support.streams.elsewhere import OF_ANY_SERVER, SECRET, all_answers

from .cluster import is_there
from .namespaces import Network

pytestmark = pytest.mark.slow
PORT = "8100"


def test_what_a_cut_link_takes_away_goes_on_here(network: Network, tmp_path: Path) -> None:
    """No end comes from either side. What the engine still has ends there with its lease; when the way is mended, and
    when there is another engine at its address, that is used again.
    """
    (tmp_path / "secret").write_text(SECRET["ACTORSERVE_ENGINE_SECRET"])
    own = ("--threads", "1", "--debug", "--max-restarts", "100", "--engine-secret-file", str(tmp_path / "secret"))
    there = ("--steward", f"{network.far}:{PORT}", *own)
    command = (*network.inside, *LAUNCH[:-1], "engine")

    def engine() -> Server:
        return Server(*there, subcommand="engine", command=command)

    async def cut(server: Server, other: Server) -> list[list[Any]]:
        """The engine computes on when it knows: before, it would have sent all into the cut."""
        begun = asyncio.Event()
        reading = asyncio.create_task(all_answers(server, 1, count=OF_ANY_SERVER, begun=begun))
        await begun.wait()
        with stopped(other, "worker"):
            network.cut()
            await asyncio.to_thread(other.wait_for, "the server at .* is gone: nothing was heard for 1.5 s")
        return await reading

    with engine() as other, Server("--engines", f"{network.far}:{PORT}", *own) as server:
        server.wait_for("engine 1 at .* is there", since_start=True)
        wanted = asyncio.run(all_answers(server, 0, count=OF_ANY_SERVER))
        assert asyncio.run(cut(server, other)) == wanted
        server.wait_for("engine 1 at .* is gone: nothing was heard for 1.5 s", since_start=True)
        other.wait_for("a server has not come back: [1-9][0-9]* sequences end", since_start=True)
        network.mend()
        is_there(server)
        assert asyncio.run(all_answers(server, 1, count=OF_ANY_SERVER)) == wanted
        assert asyncio.run(cut(server, other)) == wanted
        other.process.kill()
        other.process.wait()
        with engine():
            network.mend()
            is_there(server)
            assert asyncio.run(all_answers(server, 1, count=OF_ANY_SERVER)) == wanted
