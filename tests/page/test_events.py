"""The stream of statistics: who may have it, how many, and how it ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from actorserve.http.dashboard.figures import PageActor, PageEngine, PageFigures, PageLane
from actorserve.http.dashboard.files import FOLDER
from actorserve.http.handlers import page as page_handlers
from tests.http.serving import PATIENCE_S, Served, serving

ENGINE = PageEngine(1, 2, 64, 60, 100, 50, 40, 20, "f0", "0f")
FIGURES = PageFigures(
    1.5,
    [PageActor("worker", "worker", "ready", 7, 0, 3.0, 0.1, 2, 9)],
    [PageLane("scheduler", "worker", 9, 2), PageLane("worker", "scheduler", None, None)],
    ENGINE,
)


def play(served: Served, figures: PageFigures = FIGURES) -> list[int]:
    """Let the engine give these figures; how often it did is in the list."""
    asked: list[int] = []

    def page_figures() -> PageFigures:
        asked.append(1)
        return figures

    served.engine.page_figures = page_figures  # type: ignore[method-assign]
    return asked


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_handlers, "PERIOD_S", 0.02)


async def test_what_it_says(quick: None) -> None:
    async with serving() as served:
        client = await served.client()
        client.raw(b"GET /page/events HTTP/1.1\r\nHost: localhost:8000\r\n\r\n")
        head = await client.head()
        assert head.status == 200 and head.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert head.headers["cache-control"] == "no-store" and head.headers["x-content-type-options"] == "nosniff"
        for _ in range(3):
            event = (await client.chunk()).decode()
            assert event.startswith("data: {") and event.endswith("}\n\n") and event.count("\n") == 2
            said = json.loads(event[6:])
        assert set(said) == {"at_s", "actors", "lanes", "engine", "adapters"}


async def test_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes are arrays, all else are objects, by the names that watch.js reads."""
    said = json.loads(msgspec.json.encode(FIGURES))
    assert said["lanes"] == [["scheduler", "worker", 9, 2], ["worker", "scheduler", None, None]]
    source = "".join((FOLDER / name).read_text() for name in ("watch.js", "blocks.js", "map.js"))
    read_by_destructuring = {"used", "cached", "blocks_total", "blocks_free"}
    for name in [*PageActor.__struct_fields__, *PageFigures.__struct_fields__, *PageEngine.__struct_fields__]:
        assert f".{name}" in source or name in read_by_destructuring or f'"{name}"' in source, name


async def raw_status(served: Served, *lines: str) -> int:
    client = await served.client()
    client.raw("\r\n".join(["GET /page/events HTTP/1.1", *lines, "", ""]).encode())
    status = (await client.head()).status
    client.leave()
    return status


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1:8000", None, 200),
        ("localhost", None, 200),
        ("a.localhost:80", None, 200),
        ("[::1]:8000", None, 200),
        ("10.0.0.7", "http://10.0.0.7", 200),
        ("llm.site.example:8000", None, 200),
        ("llm.site.example:8000", "https://chat.example", 200),
        ("evil.example:8000", None, 403),
        ("evil.example", "http://evil.example", 403),
        ("127.0.0.1.evil.example", None, 403),
        ("localhost.evil.example", None, 403),
        ("127.0.0.1:8000", "http://evil.example", 403),
        ("127.0.0.1:8000", "http://127.0.0.1:9000", 403),
        ("127.0.0.1:8000", "null", 403),
        ("[::1", None, 403),
    ],
)
async def test_no_page_of_elsewhere(host: str, origin: str | None, status: int) -> None:
    """Neither by its origin nor by a name of its own that leads here (DNS rebinding)."""
    lines = [f"Host: {host}"] + ([f"Origin: {origin}"] if origin else [])
    async with serving(allowed_origins=("https://llm.site.example", "https://chat.example")) as served:
        assert await raw_status(served, *lines) == status


async def test_pages_of_the_browsers_own_machine() -> None:
    """localhost is those of any port, as for the API."""
    async with serving(allowed_origins=("localhost",)) as served:
        for origin in ("http://localhost:3000", "https://127.0.0.1", "http://[::1]:3000"):
            assert await raw_status(served, "Host: 127.0.0.1:8000", f"Origin: {origin}") == 200
        for origin in ("http://localhost.evil.example", "null"):
            assert await raw_status(served, "Host: 127.0.0.1:8000", f"Origin: {origin}") == 403


async def test_all_origins_are_none_here() -> None:
    """What the default allows for the API, other sites' pages, is not allowed for this."""
    async with serving(allowed_origins=("*",)) as served:
        assert await raw_status(served, "Host: localhost", "Origin: http://evil.example") == 403
        assert await raw_status(served, "Host: evil.example") == 403
        assert await raw_status(served, "Host: localhost") == 200


async def test_a_key_is_asked_for() -> None:
    async with serving(api_keys=["k"]) as served:
        assert await raw_status(served, "Host: localhost") == 401
        assert await raw_status(served, "Host: localhost", "Authorization: Bearer x") == 401
        assert await raw_status(served, "Host: localhost", "Authorization: Bearer k") == 200


async def test_all_who_watch_are_told_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared memory is read once for all of them."""
    monkeypatch.setattr(page_handlers, "PERIOD_S", 3600.0)
    async with serving() as served:
        asked = play(served)
        clients = []
        for _ in range(4):
            clients.append(await served.client())
            clients[-1].raw(b"GET /page/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await clients[-1].head()
            assert b'"pid":7' in await clients[-1].chunk()
        assert len(asked) == 1 and served.engine.in_flight() == 0


async def test_there_is_a_limit(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_handlers, "MOST_WATCHERS", 1)
    async with serving() as served:
        first = await served.client()
        first.raw(b"GET /page/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await first.chunk() if (await first.head()).status == 200 else pytest.fail("refused")
        assert await raw_status(served, "Host: localhost") == 503
        first.leave()
        await until_free(served)


async def until_free(served: Served) -> None:
    """The place of a watcher that has gone can be had again."""
    async with asyncio.timeout(PATIENCE_S):
        while await raw_status(served, "Host: localhost") == 503:
            await asyncio.sleep(0.01)


async def test_one_that_does_not_read(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs no more than what the buffers hold, and is cut off."""
    monkeypatch.setattr(page_handlers, "MOST_WATCHERS", 1)
    monkeypatch.setattr(page_handlers, "STALL_S", 0.2)
    async with serving() as served:
        many: dict[str, Any] = {"used": "f" * 30_000}
        asked = play(served, msgspec.structs.replace(FIGURES, engine=msgspec.structs.replace(ENGINE, **many)))
        slow = await served.client(receive_buffer=4096)
        slow.raw(b"GET /page/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until_free(served)
        assert 0 < len(asked) < 60
        assert not (await slow.reader.read()).endswith(b"\r\n0\r\n\r\n")


async def test_a_fault_of_ours_breaks_it_off(quick: None, caplog: pytest.LogCaptureFixture) -> None:
    """Before its head it is a 500 as anywhere; the others go on."""
    async with serving() as served:

        def broken() -> PageFigures:
            raise RuntimeError("made up")

        served.engine.page_figures = broken  # type: ignore[method-assign]
        client = await served.client()
        client.raw(b"GET /page/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert not (await client.reader.read()).endswith(b"\r\n0\r\n\r\n")
        assert "made up" in caplog.text
        assert (await served.ask("GET", "/health")).status == 200
