"""Engines on "machines" of their own for `faults --elsewhere`, behind a server that may have some as well."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.support.server import Server

OF_SERVER = {"--data-parallel-size", "--max-data-parallel-size", "--tool-server", "--key-file"}  # with a value each
SECRET = "a secret for faults alone"


def start(stack: ExitStack, folder: Path, count: int, words: list[str]) -> tuple[list[Server], list[str]]:
    """So many with these options; they, and what the server needs to know of them."""
    secret = ["--engine-secret-file", str(folder / "engine-secret")]
    (folder / "engine-secret").write_text(SECRET)
    words = [word for at, word in enumerate(words) if not {word, words[max(0, at - 1)]} & OF_SERVER]
    own = ["--steward", "127.0.0.1:0", *secret, *words]
    engines = [stack.enter_context(Server(*own, subcommand="engine")) for _ in range(count)]
    addresses = [engine.base_url.removeprefix("engine://") for engine in engines]
    return engines, ["--engines", *addresses, *secret]
