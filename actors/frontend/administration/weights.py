"""What a change of weights means for requests that come then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from actorserve.shm.weights import WeightsRecord

from ...protocol.request import Generation
from ...runtime.process import Context


class WeightsSalt:
    """Only requests of the same weights share prefixes, also where these are kept outside of a worker's memory."""

    def __init__(self, context: Context) -> None:
        self._record = WeightsRecord(context.files["weights"], 0)
        self._decode, self._encode = msgspec.msgpack.Decoder(Generation).decode, msgspec.msgpack.Encoder().encode

    def add(
        self, packed: list[bytes], renderings: list[Mapping[str, Any]]
    ) -> tuple[list[bytes], list[Mapping[str, Any]]]:
        """A request's parameters and its prompts' renderings, with the generation in their cache salt. One that another
        is loaded for before it is computed has the salt of the one before, whose prefixes were dropped.
        """
        generation = self._record.generation
        if not generation:
            return packed, renderings
        mark = f"\0weights {generation}"
        params = [self._decode(one) for one in packed]
        salted = [msgspec.structs.replace(one, cache_salt=one.cache_salt + mark) for one in params]
        return list(map(self._encode, salted)), [
            {**rendering, "cache_salt": rendering.get("cache_salt", "") + mark} for rendering in renderings
        ]
