"""Files as an answer's body."""

from __future__ import annotations

from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path

from aiohttp import web

from actorserve.actors.files.threads import on_disk

AT_ONCE = 1 << 20  # bytes that are one piece of an answer, which another frontend can go on with
PIECE = 256 << 10


async def send_files(request: web.Request, paths: list[Path], kind: str) -> web.StreamResponse:
    """One behind the other, piece by piece as the client reads them. FileNotFoundError before anything is sent."""
    with ExitStack() as stack:
        files = await on_disk(_opened, paths, stack)
        sizes = [await on_disk(_size, file) for file in files]
        if sum(sizes) <= AT_ONCE:
            parts = [await on_disk(file.read) for file in files]
            return web.Response(body=b"".join(parts), content_type=kind)
        response = web.StreamResponse()
        response.content_type, response.content_length = kind, sum(sizes)
        await response.prepare(request)
        if request.method != "HEAD":
            for file in files:
                while piece := await on_disk(file.read, PIECE):
                    await response.write(piece)
        await response.write_eof()
        return response


def _opened(paths: list[Path], stack: ExitStack) -> list[BufferedReader]:
    return [stack.enter_context(path.open("rb")) for path in paths]


def _size(file: BufferedReader) -> int:
    return file.seek(0, 2) - file.seek(0)
