"""A picture at the end of a prompt is part of the hash of the block that generated tokens fill up."""

from __future__ import annotations

from array import array

from actorserve.actors.protocol.block_hash import Span, extend_hashes
from actorserve.actors.scheduler.policy.pictures import Picture, Pictures
from actorserve.shm.kv_map.notes import BlockNotes, NoteSizes

from .engine_model import BLOCK, Bench, prompt_of


def hashes(tokens: list[int], spans: list[Span]) -> list[bytes]:
    packed = extend_hashes(b"", array("i", tokens).tobytes(), BLOCK, spans=spans)
    return [packed[at : at + 16] for at in range(0, len(packed), 16)]


def test_blocks_with_pictures_say_which_and_where() -> None:
    tokens = [5] * (3 * BLOCK)
    plain = hashes(tokens, [])
    one = hashes(tokens, [(BLOCK + 1, BLOCK + 3, b"a" * 16)])
    other = hashes(tokens, [(BLOCK + 1, BLOCK + 3, b"b" * 16)])
    moved = hashes(tokens, [(BLOCK + 2, BLOCK + 4, b"a" * 16)])
    assert plain[0] == one[0] == other[0] == moved[0]
    assert len({found[1] for found in (plain, one, other, moved)}) == 4
    assert len({found[2] for found in (plain, one, other, moved)}) == 4, "what comes behind depends on it"
    long = hashes(tokens, [(1, 2 * BLOCK + 1, b"a" * 16)])
    assert len({*long, *plain}) == 6
    assert hashes(tokens, [(3 * BLOCK, 3 * BLOCK + 4, b"a" * 16)]) == plain, "it begins behind"


def test_whoever_goes_on_with_another_picture_finds_nothing() -> None:
    """Two answers to the same text, with other pictures in the prompt's last block, which they fill up."""
    bench = Bench()
    text = prompt_of(BLOCK - 1, 7)
    for digest in (b"a" * 16, b"b" * 16):
        ref = bench.submit(text, limit=BLOCK + 2, ignore_eos=True)
        picture = Picture(BLOCK - 3, BLOCK - 1, 2, digest)
        bench.scheduler.sequences[ref].pictures = Pictures((picture,))
        bench.run()
        whole = [*text, *bench.answer(ref)]
        spans = [(BLOCK - 3, BLOCK - 1, digest)]
        assert bench.scheduler.pool.match(hashes(whole, spans)), "with the same picture"
        assert not bench.scheduler.pool.match(hashes(whole, [])), "without one"
        assert not bench.scheduler.pool.match(hashes(whole, [(*spans[0][:2], b"c" * 16)])), "with another"


def test_nobody_is_told_fillers() -> None:
    """Of a prompt of embeddings, or from its first picture on: neither of blocks that its answer fills. Where they are
    found follows from what the fillers stand for.
    """
    bench = Bench()
    sizes = NoteSizes(1, bench.scheduler.pool.count, BLOCK)
    notes = bench.scheduler.prefix.notes = BlockNotes(BlockNotes.create(sizes), sizes, 0)
    long, picture = prompt_of(BLOCK + 3, 2), Picture(BLOCK + 1, BLOCK + 3, 2, b"a" * 16)
    for text, given, count in (
        (prompt_of(BLOCK - 1, 1), Pictures(), None),
        ([0] * (BLOCK - 1), Pictures(given=(BLOCK - 1, b"a" * 16)), 0),
        (long, Pictures((picture,)), 1),
    ):
        ref = bench.submit(text, limit=3 * BLOCK, ignore_eos=True)
        bench.scheduler.sequences[ref].pictures = given
        bench.run()
        whole = [*text, *bench.answer(ref)]
        blocks = bench.scheduler.pool.match(hashes(whole, given.spans))
        assert len(blocks) > 1
        told = [note.tokens for block in blocks if (note := notes.read(block)) is not None]
        assert told == [whole[at : at + BLOCK] for at in range(0, len(blocks) * BLOCK, BLOCK)][:count]
