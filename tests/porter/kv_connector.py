"""A connector for KV blocks: files in a folder; `wrong` of its argument says what is wrong with it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from actorserve import KVConnector

NEVER = threading.Event()


class Files(KVConnector):
    """FOLDER, or FOLDER?WRONG."""

    def __init__(self, argument: str) -> None:
        folder, _, self.wrong = argument.partition("?")
        self.folder = Path(folder)
        if self.wrong == "made":
            raise RuntimeError("made wrong")

    def place(self, fingerprint: bytes, key: bytes) -> Path:
        return self.folder / fingerprint.hex() / key.hex()

    def lookup(self, fingerprint: bytes, keys: list[bytes]) -> int:
        if self.wrong == "hangs":
            NEVER.wait()
        if self.wrong == "raises":
            raise ValueError("looked up wrong")
        there = [self.place(fingerprint, key).is_file() for key in keys]
        return [*there, False].index(False)

    def load(self, fingerprint: bytes, keys: list[bytes]) -> Iterable[bytes]:
        if self.wrong == "nothing":
            return []
        return self.loaded(fingerprint, keys)

    def loaded(self, fingerprint: bytes, keys: list[bytes]) -> Iterator[bytes]:
        for index, key in enumerate(keys):
            data = self.place(fingerprint, key).read_bytes()
            yield data[:-1] if self.wrong == "torn" and index else data

    def store(self, fingerprint: bytes, key: bytes, data: bytes) -> None:
        if self.wrong == "full":
            raise OSError("no room")
        place = self.place(fingerprint, key)
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_suffix(".part")
        beside.write_bytes(data)
        beside.replace(place)

    def forget(self, fingerprint: bytes) -> None:
        shutil.rmtree(self.folder / fingerprint.hex(), ignore_errors=True)
