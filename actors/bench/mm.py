"""`actorserve bench mm`: what a picture costs before its prompt is computed: its processor, and its encoder.

Each picture is asked about three times, behind a text that nobody has sent before: as a new one; when it is processed
and its embeddings are forgotten (POST /reset_encoder_cache); and when both are kept. What the first takes longer than
the second is the processor's, with reading and decoding; what the second takes longer than the third is the encoder's.
"""

from __future__ import annotations

import argparse
import base64
import io
import itertools
import json
import random
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

import actorserve

from ..options.config import ConfigError
from . import options
from .client_tls import ClientTls, client_tls
from .results.report import check_writable, save
from .server import ServerError, StartedServer, ask, wait_ready
from .target import address_of

RESET = "/reset_encoder_cache"
STEPS = ("new", "processed", "known")
PARTS = ("processor", "encoder", "both")
Times = dict[str, list[float]]


def mm(arguments: argparse.Namespace, console: Console) -> int:
    """Measure each size; the exit status."""
    sizes = sizes_of(arguments.image_sizes)
    if arguments.output_json:
        check_writable(Path(arguments.output_json))
    if arguments.num_prompts < 1:
        raise ConfigError("--num-prompts: at least 1")
    if arguments.base_url and arguments.engine:
        raise ConfigError(f"{arguments.engine[0]}: --base-url names a server that runs already")
    tls = client_tls(arguments, own=not arguments.base_url)
    if not arguments.base_url:
        key = arguments.admin_api_key or secrets.token_hex(16)
        words = [*([arguments.model] if arguments.model else []), *arguments.engine, "--admin-api-key", key]
        with StartedServer(words, arguments.ready_timeout, tls=tls) as server:
            found = measure(Client(server.base_url, arguments, key, tls), sizes, arguments)
    else:
        base_url = address_of("--base-url", arguments.base_url)
        wait_ready(base_url, arguments.ready_timeout, tls, options.headers_of(arguments))
        found = measure(Client(base_url, arguments, arguments.admin_api_key, tls), sizes, arguments)
    show(console, found)
    if arguments.output_json:
        about = {"schema": "actorserve-bench-mm/1", "version": actorserve.__version__}
        save(Path(arguments.output_json), {**about, "sizes": found})
        console.print(f"written to {arguments.output_json}", markup=False)
    return 0


def sizes_of(text: str) -> list[tuple[int, int]]:
    """`640x480,1024x768`."""
    found = []
    for word in text.split(","):
        width, _, height = word.strip().partition("x")
        if not (width.isdecimal() and height.isdecimal() and int(width) and int(height)):
            raise ConfigError(f"--image-sizes: {word!r} is no size such as 640x480")
        found.append((int(width), int(height)))
    return found


def picture(width: int, height: int, draw: random.Random) -> str:
    """A new one, as an address that holds it. Few colours in large spots, so that its bytes are not what takes long."""
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError("mm: needs Pillow: pip install pillow") from None
    spots = Image.frombytes("RGB", (8, 8), draw.randbytes(8 * 8 * 3))
    file = io.BytesIO()
    spots.resize((width, height), Image.Resampling.NEAREST).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


class Client:
    """One server, asked one thing after the other. Without the key of administration nothing is forgotten."""

    def __init__(self, base_url: str, arguments: argparse.Namespace, admin_key: str | None, tls: ClientTls) -> None:
        self._base_url, self._limit = base_url, arguments.request_timeout
        self._tls = tls
        self._headers = {"Content-Type": "application/json", **options.headers_of(arguments)}
        self._admin_key = admin_key
        self._texts = itertools.count()
        self._seed = secrets.token_hex(4)  # of texts that no earlier run has sent

    def ask(self, address: str) -> tuple[float, int]:
        """(seconds, tokens of the prompt) of one token about a picture."""
        text = f"{self._seed} {next(self._texts)}:"
        parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": address}}]
        body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1, "temperature": 0}
        begun = time.monotonic()
        answer = self._post("/v1/chat/completions", body, self._headers)
        return time.monotonic() - begun, answer["usage"]["prompt_tokens"]

    def forget(self) -> bool:
        """Embeddings of pictures are made anew; False: nobody may say so."""
        if self._admin_key is None:
            return False
        self._post(RESET, None, {"X-Api-Key": self._admin_key})
        return True

    def _post(self, path: str, body: object, headers: dict[str, str]) -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base_url + path, data, headers, method="POST")
        try:
            with ask(request, self._limit, self._tls) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            raise ServerError(f"{path}: {error.code}: {error.read().decode(errors='replace')[:500]}") from None
        except OSError as error:
            raise ServerError(f"{self._base_url}: {error}") from None


def measure(client: Client, sizes: list[tuple[int, int]], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """What each size took, in ms."""
    return [_of_size(client, size, arguments) for size in sizes]


def _of_size(client: Client, size: tuple[int, int], arguments: argparse.Namespace) -> dict[str, Any]:
    draw = random.Random(arguments.seed)
    times: Times = {step: [] for step in STEPS}
    tokens = 0
    for number, address in enumerate(_pictures(size, draw, arguments.num_prompts + 1)):
        for step in STEPS:
            if step == "processed" and not client.forget():
                continue
            taken, tokens = client.ask(address)
            if number:  # the first picture warms up
                times[step].append(1e3 * taken)
    found: dict[str, Any] = {"size": f"{size[0]}x{size[1]}", "prompt_tokens": tokens, "ms": times}
    return found | {
        "processor_ms": _longer(times["new"], times["processed"]),
        "encoder_ms": _longer(times["processed"], times["known"]),
        "both_ms": _longer(times["new"], times["known"]),
    }


def _pictures(size: tuple[int, int], draw: random.Random, count: int) -> Iterator[str]:
    for _ in range(count):
        yield picture(*size, draw)


def _longer(some: list[float], others: list[float]) -> float | None:
    """The median of the differences."""
    return median(a - b for a, b in zip(some, others, strict=True)) if some and others else None


def show(console: Console, found: list[dict[str, Any]]) -> None:
    """A row for each size."""
    table = Table(title="bench mm: ms, p50", title_justify="left")
    table.add_column("picture")
    for title in ("prompt tokens", "first token", "known", "processor", "encoder", "both"):
        table.add_column(title, justify="right")
    for one in found:
        cells = (median(one["ms"]["new"]), median(one["ms"]["known"]), *(one[f"{part}_ms"] for part in PARTS))
        written = ("-" if value is None else f"{value:.1f}" for value in cells)
        table.add_row(one["size"], str(one["prompt_tokens"]), *written)
    console.print(table)
