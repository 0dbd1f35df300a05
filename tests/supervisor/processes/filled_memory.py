"""A process whose memory is filled and put into a file, as a template's is: it says what came of it, as JSON."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
import threading
from typing import Any

from actorserve.actors.supervisor.processes import memory_file
from actorserve.actors.supervisor.processes.mappings import Mapping, mapped_ranges, read_mappings

BLOCK, BLOCKS = 1 << 20, 6
LARGE = 40 << 20  # of which malloc makes a mapping of its own in any case


def digest(blocks: list[bytearray]) -> str:
    return hashlib.sha256(b"".join(blocks)).hexdigest()


def mapping_of(block: bytearray) -> Mapping:
    middle = ctypes.addressof(ctypes.c_char.from_buffer(block)) + len(block) // 2
    (found,) = (one for one in read_mappings() if one.start <= middle < one.end)
    return found


def in_a_child(old: bytearray, blocks: list[bytearray]) -> bool:
    """Whether one finds all, and changes it for itself alone."""
    before = digest(blocks)
    child = os.fork()
    if not child:
        found = digest(blocks) == before
        for block in (old, *blocks):
            block[100] ^= 255
        os._exit(not (found and digest(blocks) != before))
    return os.waitpid(child, 0)[1] == 0 and digest(blocks) == before


def main() -> None:
    old = bytearray(os.urandom(2 * BLOCK))
    before = mapped_ranges()
    blocks = [bytearray(os.urandom(BLOCK)) for _ in range(BLOCKS)]
    written = digest(blocks)
    grows = bytearray(os.urandom(LARGE if "grows" in sys.argv else 1))
    begins = digest([grows])
    release = threading.Event()
    if "thread" in sys.argv:
        threading.Thread(target=release.wait).start()
    memory_file.LIMIT_MS = -1 if "no time" in sys.argv else 60_000
    if "slow compiler" in sys.argv:
        memory_file.COMPILE_S = 0.1
    if "no memory" in sys.argv:
        memory_file.SHARE = 1 << 30
    function, mappings = memory_file.map_function(), read_mappings()
    size = 0 if function is None else memory_file.put_away(before, mappings, function)
    release.set()
    told: dict[str, Any] = {
        "wanted": sum(end - start for start, end in memory_file.grown(before, memory_file.own_memory(mappings))),
        "size": size,
        "same": digest(blocks) == written,
        "of files": sum(mapping_of(block).is_of_file for block in blocks),
        "old": mapping_of(old).is_of_file,
        "child": in_a_child(old, blocks),
    }
    grows += bytes(len(grows))
    told["grown"] = digest([grows[: len(grows) // 2]]) == begins and not any(grows[len(grows) // 2 :])
    for block in blocks:
        block[0] = 1
    told["written"] = all(block[0] == 1 for block in blocks)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
