"""Fetching what clients name by addresses, in a thread of its own: many at once, none for long, none of much.

Each host is resolved, each of its addresses looked at (addresses.py), and a connection made to these very addresses:
who answers otherwise at a second question is not asked. So it is again behind each redirect. Nothing of this thread
touches shared memory; who waits is woken by a descriptor.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ..options.config import Config
from ..runtime.addresses import is_below, is_public
from .refused import MediaRefused

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

SCHEMES = ("http", "https")
AT_ONCE = 256  # connections
MOST_HELD = 1 << 30  # bytes that have come and nobody has processed; beyond it the newest is given up
PART = 1 << 16
REDIRECTS = (301, 302, 303, 307, 308)
LONGEST_SHOWN = 200  # characters of an address in a message
HEADERS = {"User-Agent": "actorserve", "Accept": "*/*", "Accept-Encoding": "identity"}


def shown(url: str) -> str:
    """An address in a message: without a key in it, and not all of a long one."""
    text = url.partition("?")[0]
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


class Fetched:
    """What is fetched: `future` has the bytes, or MediaRefused."""

    def __init__(self) -> None:
        self.future: Future[bytes] = Future()
        self.size = 0  # bytes that have come, and are counted
        self.unwanted = False


class Fetcher:
    """Fetches; `wake` is called from its thread when something has come."""

    def __init__(self, config: Config, wake: Callable[[], None]) -> None:
        self._config, self._wake = config, wake
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held = 0
        self._lock = threading.Lock()

    # --- for the actor's thread ----------------------------------------------------------------------------------

    def fetch(self, url: str) -> Fetched:
        """What is there. Whoever wants it no more says so by `let_go`."""
        fetched = Fetched()
        fetched.future = asyncio.run_coroutine_threadsafe(self._fetch(url, fetched), self._running())
        fetched.future.add_done_callback(lambda _: self._wake())
        return fetched

    def let_go(self, fetched: Fetched) -> None:
        """Its bytes are processed, or nobody wants them."""
        fetched.future.cancel()
        with self._lock:
            self._held -= fetched.size
            fetched.size, fetched.unwanted = 0, True

    def close(self) -> None:
        """End the thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop = None

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._places = asyncio.Semaphore(AT_ONCE)
            self._thread = threading.Thread(target=self._run, args=(self._loop,), name="media-fetch", daemon=True)
            self._thread.start()
        return self._loop

    # --- its own thread ------------------------------------------------------------------------------------------

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    async def _fetch(self, url: str, fetched: Fetched) -> bytes:
        if urlsplit(url).scheme.lower() == "file":
            return await asyncio.to_thread(self._read_file, url, fetched)
        limit = self._config.media_fetch_timeout
        async with self._places:
            try:
                async with asyncio.timeout(limit):
                    return await self._follow(url, fetched)
            except TimeoutError:
                text = f"{shown(url)} was not there within {limit:g} s (--media-fetch-timeout)."
                raise MediaRefused(text) from None  # no 408: clients would send it all again

    async def _follow(self, url: str, fetched: Fetched) -> bytes:
        import aiohttp
        from yarl import URL

        most = self._config.max_media_redirects
        connector = aiohttp.TCPConnector(resolver=_checked_resolver(self._config), limit=0, force_close=True)
        options: dict[str, Any] = {"auto_decompress": False, "trust_env": False, "cookie_jar": aiohttp.DummyCookieJar()}
        async with aiohttp.ClientSession(connector=connector, headers=HEADERS, **options) as session:
            for _ in range(most + 1):
                asked = check_url(url, self._config)
                try:
                    async with session.get(asked, allow_redirects=False) as response:
                        if response.status not in REDIRECTS:
                            return await self._body(url, response, fetched)
                        url = str(response.url.join(URL(response.headers.get("Location", ""))))
                except MediaRefused:
                    raise
                except (aiohttp.ClientError, OSError, ValueError, UnicodeError) as error:
                    refused = _refusal_in(error)
                    raise refused or MediaRefused(f"{shown(url)} could not be fetched: {_reason(error)}.") from None
        raise MediaRefused(f"its address leads on more than {most} times (--max-media-redirects).")

    async def _body(self, url: str, response: aiohttp.ClientResponse, fetched: Fetched) -> bytes:
        most = self._config.max_media_bytes
        if response.status != 200:
            raise MediaRefused(f"{shown(url)} answers {response.status}.")
        if (response.content_length or 0) > most:
            raise too_long(most)
        parts: list[bytes] = []
        async for part in response.content.iter_chunked(PART):
            if fetched.size + len(part) > most:
                raise too_long(most)
            self._hold(fetched, len(part))
            parts.append(part)
        return b"".join(parts)

    def _hold(self, fetched: Fetched, size: int) -> None:
        with self._lock:
            if fetched.unwanted:
                raise asyncio.CancelledError
            if self._held + size > MOST_HELD:
                raise MediaRefused("the server holds as many bytes of pictures as it takes. Try again soon.", 503)
            self._held += size
            fetched.size += size

    def _read_file(self, url: str, fetched: Fetched) -> bytes:
        path = local_path(url, self._config)
        most = self._config.max_media_bytes
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would be waited for
            with open(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise MediaRefused("its address names no file.")
                if not Path(f"/proc/self/fd/{descriptor}").resolve().is_relative_to(_root(self._config)):
                    raise MediaRefused("its file is outside of --allowed-local-media-path.")
                data = file.read(most + 1)
        except OSError as error:
            raise MediaRefused(f"its file cannot be read: {error.strerror}.") from None
        if len(data) > most:
            raise too_long(most)
        self._hold(fetched, len(data))
        return data


def too_long(most: int) -> MediaRefused:
    return MediaRefused(f"it has more than the {most} bytes that --max-media-bytes allows.", 413)


def check_url(url: str, config: Config) -> URL:
    """As it is asked; MediaRefused for an address that is not asked at all.

    It is read by what the client library reads it with, and the host is the one that is connected to: another reader
    would see no number in `127。0。0。1`, which is one, and is resolved by nobody.
    """
    from yarl import URL

    try:
        asked = URL(url)
        host = asked.raw_host or ""
    except (ValueError, UnicodeError):
        raise MediaRefused("its address cannot be read.") from None
    if asked.scheme not in SCHEMES or not host:
        raise MediaRefused("its address must begin with https://, http:// or data:, and name a host.")
    allowed = config.allowed_media_domains
    if allowed and not (is_below(host, allowed) or is_below(asked.host or "", allowed)):  # by either spelling
        raise MediaRefused(f"{shown(host)} is none of --allowed-media-domains.")
    if not config.allow_private_media and _is_address(host) and not is_public(host):
        raise _private(host)
    return asked


def local_path(url: str, config: Config) -> Path:
    """The file that a file:// address names, below the folder that is allowed: a whole path, or as llama-server has it
    one from that folder, file://a/b.png.
    """
    if config.allowed_local_media_path is None:
        raise MediaRefused("files of the server are read only with --allowed-local-media-path.")
    parts, root = urlsplit(url), _root(config)
    is_whole = parts.netloc in ("", "localhost")
    if "\0" in (path := unquote(parts.path if is_whole else f"{parts.netloc}{parts.path}")):
        raise MediaRefused("its address must be file:///PATH.")
    found = (root / path).resolve()  # which is a whole path's own
    if not found.is_relative_to(root):
        raise MediaRefused("its file is outside of --allowed-local-media-path.")
    return found


def _root(config: Config) -> Path:
    return Path(config.allowed_local_media_path or "/nothing").expanduser().resolve()


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


def _private(host: str) -> MediaRefused:
    return MediaRefused(f"{shown(host)} is no public address; --allow-private-media allows others.")


def _refusal_in(error: BaseException) -> MediaRefused | None:
    """What the resolver said, below what the client library made of it."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, MediaRefused):
            return inner
        inner = inner.__cause__ or inner.__context__ or getattr(inner, "os_error", None)
    return None


def _reason(error: BaseException) -> str:
    """Short, and without what is inside a network."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__


def _checked_resolver(config: Config) -> Any:
    """Of all of a host's addresses; MediaRefused if one is not public, whatever the others are."""
    from aiohttp.abc import AbstractResolver, ResolveResult

    class CheckedResolver(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
            results: list[ResolveResult] = []
            for kind, _, protocol, _, address in found:
                name = str(address[0])
                if not config.allow_private_media and not is_public(name):
                    raise _private(host)
                results.append(
                    ResolveResult(
                        hostname=host, host=name, port=port, family=kind, proto=protocol, flags=socket.AI_NUMERICHOST
                    )
                )
            return results

        async def close(self) -> None:
            """There is nothing to close."""

    return CheckedResolver()
