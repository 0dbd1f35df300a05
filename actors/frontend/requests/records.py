"""What a frontend keeps by keys in shared memory: its successor finds it there, and the others read it."""

from __future__ import annotations

from actorserve.shm.journals.keyed_log import KeyedLog, OtherLog

from ...protocol.file_sizes import LOGS
from ...runtime.process import Context

LEAST_OF_OTHERS = 256  # bytes: a kept response is longer, and of the keys' records there may be a hundred thousand


class FrontendRecords:
    """Implements http.generation.idempotency_keys.Records: one log of each frontend."""

    def __init__(self, context: Context, kind: int) -> None:
        """`kind`: which of its logs."""
        self._own, self._kind = context.spec.index, kind
        self.log = KeyedLog(context.files["recent"], *context.system.files.recent, self._region(self._own))
        self._others: dict[int, OtherLog] = {}

    def _region(self, frontend: int) -> int:
        return frontend * LOGS + self._kind

    def put(self, key: bytes, payload: bytes) -> bool:
        """See Records."""
        return self.log.put(key, payload)

    def get(self, key: bytes, frontend: int | None = None) -> bytes | None:
        """See Records; of another frontend what is long."""
        if frontend is None or frontend == self._own:
            return self.log.get(key)
        if frontend not in self._others:
            self._others[frontend] = self.log.other(self._region(frontend), LEAST_OF_OTHERS)
        return self._others[frontend].get(key)

    def payloads(self) -> list[bytes]:
        """Of all that is not forgotten."""
        return [payload for key in self.log.keys() if (payload := self.log.get(key))]
