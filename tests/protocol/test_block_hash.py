"""Names of blocks: who shares them, and who cannot, whatever a client sends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from actorserve.actors.protocol.block_hash import HASH_BYTES, first_hash

SALTS = st.one_of(
    st.text(max_size=20), st.sampled_from(["", "\0adapter\0" + "7", "7", "\0weights 7", "adapter 7", "\ud800"])
)
ADAPTERS = st.sampled_from([0, 1, 7, 1024, 1 << 40])


@given(st.tuples(SALTS, ADAPTERS), st.tuples(SALTS, ADAPTERS))
def test_another_salt_or_adapter_has_others(one: tuple[str, int], other: tuple[str, int]) -> None:
    assert (first_hash(*one) == first_hash(*other)) == (one == other)
    assert len(first_hash(*one)) == (0 if one == ("", 0) else HASH_BYTES)
