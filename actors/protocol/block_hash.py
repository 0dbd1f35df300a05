"""Names of KV blocks: block i's hash covers every token up to its end, so equal hashes mean equal prefixes.

h(i) = blake2b-128(h(i-1) + int32 ids of block i), h(-1) = empty, or blake2b-128(cache salt).
Leaf module, for the renderer (prompts) and the scheduler (generated tokens).
"""

from __future__ import annotations

from hashlib import blake2b

HASH_BYTES = 16


def first_hash(salt: str) -> bytes:
    """What stands before the first block: only requests of one cache salt share blocks."""
    return blake2b(salt.encode(errors="surrogatepass"), digest_size=HASH_BYTES).digest() if salt else b""


def extend_hashes(previous: bytes, tokens: bytes | memoryview, block_size: int) -> bytes:
    """The hashes, one behind the other, of the full blocks in `tokens` (int32 ids) that follow the block `previous`."""
    data = memoryview(tokens).cast("B")
    size = 4 * block_size
    hashes = []
    for start in range(0, len(data) - size + 1, size):
        previous = blake2b(previous + data[start : start + size], digest_size=HASH_BYTES).digest()
        hashes.append(previous)
    return b"".join(hashes)
