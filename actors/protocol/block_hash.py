"""Names of KV blocks: block i's hash covers every token up to its end, so equal hashes mean equal prefixes.

h(i) = blake2b-128(h(i-1) + int32 ids of block i + pictures in it), h(-1) = empty, or blake2b-128(cache salt), which has
the adapter as its key, so that no salt, which clients choose, gives an adapter's blocks another name.
All positions of a picture have the same id, so that a block with some of them says which picture it is, and where it
begins. Leaf module, for the renderer (prompts) and the scheduler (generated tokens).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

HASH_BYTES = 16
Span = tuple[int, int, bytes]  # of a picture in a prompt: its first position, the one behind its last, its digest


def first_hash(salt: str, adapter: int = 0) -> bytes:
    """What stands before the first block: only requests of one cache salt and of one adapter share blocks. `adapter` is
    the id of one load of it: what another load has computed, of whatever name, is not found.
    """
    if not salt and not adapter:
        return b""
    own = b"%d" % adapter if adapter else b""
    return blake2b(salt.encode(errors="surrogatepass"), digest_size=HASH_BYTES, key=own).digest()


def extend_hashes(
    previous: bytes, tokens: bytes | memoryview, block_size: int, first: int = 0, spans: Sequence[Span] = ()
) -> bytes:
    """The hashes, one behind the other, of the full blocks in `tokens` (int32 ids) that follow the block `previous`.

    `first`: the position of the first of the tokens; `spans`: the prompt's pictures, in order.
    """
    data = memoryview(tokens).cast("B")
    size = 4 * block_size
    hashes = []
    for start in range(0, len(data) - size + 1, size):
        block = previous + data[start : start + size]
        if spans:
            block += _pictures(first + start // 4, block_size, spans)
        previous = blake2b(block, digest_size=HASH_BYTES).digest()
        hashes.append(previous)
    return b"".join(hashes)


def _pictures(first: int, block_size: int, spans: Sequence[Span]) -> bytes:
    """Which pictures stand in a block, and where each begins, seen from it."""
    inside = [(start, digest) for start, end, digest in spans if start < first + block_size and end > first]
    return b"".join(digest + (start - first).to_bytes(8, "little", signed=True) for start, digest in inside)
