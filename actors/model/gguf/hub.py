"""The header of a GGUF file of the hub, read before the file is fetched: gigabytes need not come for a refusal."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...options.config import ConfigError
from .header import LONGEST_HEADER, GgufHeader, read_beginning

FIRST = 1 << 20  # bytes; four times as many, where these are too few
TIMEOUT = 30.0  # seconds, of each answer
TOTAL = re.compile(r"bytes \d+-\d+/(\d+)")

Peek = Callable[[GgufHeader], object]  # ConfigError: the file is not wanted


def look_at_header(
    name: str, file: str, revision: str | None, peek: Peek, failures: tuple[type[Exception], ...]
) -> None:
    """Give `peek` the header of a file that is not here yet. A hub that does not answer is told by who fetches it."""
    from huggingface_hub import hf_hub_url, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, file, revision=revision), str):
        return
    with tempfile.TemporaryDirectory(prefix="actorserve-") as folder:
        path = Path(folder) / file.rpartition("/")[2]
        try:
            header = _fetch_header(hf_hub_url(name, file, revision=revision), path, failures)
            if header is not None:
                peek(header)
        except ConfigError as error:
            raise type(error)(str(error).replace(str(path), f"{name}/{file}")) from None


def _fetch_header(url: str, path: Path, failures: tuple[type[Exception], ...]) -> GgufHeader | None:
    """The file at `path` is as long as that of the hub, and empty behind what was fetched."""
    wanted = FIRST
    while wanted <= LONGEST_HEADER:
        try:
            there, whole = _fetch(url, path, wanted)
        except failures:
            return None
        if not there:
            return None
        with path.open("r+b") as file:
            file.truncate(whole)
        header = read_beginning(path, there)
        if header is not None:
            return header
        wanted *= 4
    return None


def _fetch(url: str, path: Path, count: int) -> tuple[int, int]:
    """(bytes that were written, those of the whole file); (0, 0) if the hub does not say."""
    from huggingface_hub import HfApi, get_session

    headers = HfApi()._build_hf_headers() | {"Range": f"bytes=0-{count - 1}", "Accept-Encoding": "identity"}
    session: Any = get_session()
    with session.stream("GET", url, headers=headers, follow_redirects=True, timeout=TIMEOUT) as answer:
        ranged = TOTAL.fullmatch(answer.headers.get("Content-Range", "")) if answer.status_code == 206 else None
        length = ranged[1] if ranged else answer.headers.get("Content-Length", "")
        if answer.status_code not in (200, 206) or not length.isdigit():
            return 0, 0
        there = 0
        with path.open("wb") as file:
            for part in answer.iter_bytes():
                file.write(part[: count - there])
                there += min(len(part), count - there)
                if there == count:
                    break
    return there, int(length)
