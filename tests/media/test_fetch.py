"""Fetching pictures: what is never asked, and that whatever answers badly costs its own request alone."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.media.fetch import Fetcher, shown
from actorserve.actors.media.refused import MediaRefused
from actorserve.actors.options.config import Config
from actorserve.actors.runtime.addresses import is_below, is_public

WAIT_S = 30.0
LIMIT = 4096
ASKED: list[str] = []  # paths that were asked for


class Pages(BaseHTTPRequestHandler):
    """A server that does what its paths say."""

    protocol_version = "HTTP/1.1"
    over = threading.Event()

    def do_GET(self) -> None:
        ASKED.append(self.path)
        kind, _, rest = self.path.strip("/").partition("/")
        getattr(self, f"_{kind}")(rest)

    def _file(self, size: str) -> None:
        self._say(200, bytes(int(size)))

    def _status(self, code: str) -> None:
        self._say(int(code), b"no")

    def _to(self, url: str) -> None:
        self._say(302, b"", Location=url)

    def _round(self, rest: str) -> None:
        self._say(302, b"", Location=f"/round/{rest}x")

    def _announces(self, size: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", size)
        self.end_headers()

    def _endless(self, _: str) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.over.wait(0.001):
            try:
                self.wfile.write(bytes(1024))
            except OSError:
                return

    def _slow(self, _: str) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.over.wait(0.05):
            try:
                self.wfile.write(b"x")
            except OSError:
                return

    def _silent(self, _: str) -> None:
        self.over.wait(WAIT_S)

    def _cut(self, _: str) -> None:
        self._announces("1000")
        self.wfile.write(b"x")
        self.close_connection = True

    def _say(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


class Server(ThreadingHTTPServer):
    request_queue_size = 200


@pytest.fixture(scope="module")
def pages() -> Iterator[str]:
    server = Server(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    Pages.over.set()
    server.shutdown()
    server.server_close()


def fetcher(**options: Any) -> Fetcher:
    values: dict[str, Any] = {"max_media_bytes": LIMIT, "media_fetch_timeout": WAIT_S, "allow_private_media": True}
    return Fetcher(Config(**{**values, **options}), lambda: None)


@pytest.fixture
def own() -> Iterator[Fetcher]:
    made = fetcher()
    yield made
    made.close()


def refusal(own: Fetcher, url: str) -> str:
    fetched = own.fetch(url)
    with pytest.raises(MediaRefused) as raised:
        fetched.future.result(WAIT_S)
    own.let_go(fetched)
    assert own._held == 0, "what was refused takes nothing"
    return str(raised.value)


PRIVATE = (
    *("127.0.0.1", "127.8.9.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
    *("100.100.100.200", "168.63.129.16", "192.0.0.192", "224.0.0.1", "255.255.255.255", "240.0.0.1", "198.18.0.1"),
    *("::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:a9fe:a9fe", "fe80::1", "fe80::1%eth0", "fd00:ec2::254"),
    *("ff02::1", "64:ff9b::7f00:1", "64:ff9b:1::808:808", "2002:7f00:1::", "2002:a9fe:a9fe::1", "fec0::1"),
    *("2001:0:7f00:1::", "2001:db8::1", "2130706433", "0x7f.1", "127.1", "", "localhost"),
)


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
def test_addresses_that_are(address: str) -> None:
    assert is_public(address)


def test_domains() -> None:
    domains = ["Example.com", "*.images.net", ".w3.org"]
    for host in ("example.com", "EXAMPLE.com.", "a.b.example.com", "x.images.net", "www.w3.org", "w3.org"):
        assert is_below(host, domains), host
    for host in ("badexample.com", "example.com.evil.net", "net", "", "images.net.x"):
        assert not is_below(host, domains), host


def test_a_file_comes_and_is_counted_until_it_is_let_go(own: Fetcher, pages: str) -> None:
    fetched = own.fetch(f"{pages}/file/1000")
    assert fetched.future.result(WAIT_S) == bytes(1000) and own._held == 1000
    own.let_go(fetched)
    assert own._held == 0
    redirected = own.fetch(f"{pages}/to/{pages}/file/7")
    assert redirected.future.result(WAIT_S) == bytes(7)
    own.let_go(redirected)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/status/404", "answers 404"),
        ("/status/500", "answers 500"),
        ("/announces/5000", "--max-media-bytes"),
        ("/file/5000", "--max-media-bytes"),
        ("/endless/", "--max-media-bytes"),
        ("/slow/", "--media-fetch-timeout"),
        ("/silent/", "--media-fetch-timeout"),
        ("/round/", "--max-media-redirects"),
        ("/cut/", "could not be fetched"),
        ("/to/file:///etc/passwd", "must begin with https://"),
        ("/to/gopher://127.0.0.1/", "must begin with https://"),
        ("/to/http://[::1", "could not be fetched"),
    ],
)
def test_whoever_answers_badly_is_refused(pages: str, path: str, said: str) -> None:
    own = fetcher(media_fetch_timeout=1.0) if said == "--media-fetch-timeout" else fetcher()
    assert said in refusal(own, pages + path)
    own.close()


def test_slow_ones_are_in_nobodys_way(own: Fetcher, pages: str) -> None:
    slow = [own.fetch(f"{pages}/silent/{number}") for number in range(50)]
    good = [own.fetch(f"{pages}/file/{number}") for number in range(1, 20)]
    assert [len(one.future.result(WAIT_S)) for one in good] == list(range(1, 20))
    assert not any(one.future.done() for one in slow)
    for one in (*slow, *good):
        own.let_go(one)
    assert own._held == 0


@pytest.mark.parametrize("options", [{"allow_private_media": False}, {"allowed_media_domains": ["example.com"]}])
def test_of_a_long_host_not_all_is_told(options: dict[str, Any]) -> None:
    """The refusal is a message to a frontend, whose lane has an end."""
    made = fetcher(**options)
    assert 0 < len(refusal(made, f"http://{'1' * 1_000_000}/")) < 1000
    made.close()


def test_what_nobody_wants_any_more_is_not_waited_for(own: Fetcher, pages: str) -> None:
    endless = own.fetch(f"{pages}/slow/")
    own.let_go(endless)
    assert endless.future.cancelled() and own._held == 0


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1/", "http://127.1/", "http://2130706433/", "http://0x7f000001/", "http://[::1]/"),
        *("http://localhost/", "http://LOCALHOST./", "http://user:key@127.0.0.1/", "http://[::ffff:7f00:1]/"),
        *("http://169.254.169.254/latest/meta-data/", "http://0/", "http://127.0.0.1./", "http://017700000001/"),
        *("http://127。0。0。1/", "http://127．0.0．1/", "http://①②⑦.0.0.1/", "http://%31%32%37.0.0.1/"),
    ],
)
def test_private_addresses_are_not_asked(pages: str, url: str) -> None:
    port = pages.rpartition(":")[2]
    public = fetcher(allow_private_media=False)
    scheme, _, rest = url.partition("//")
    host, _, path = rest.partition("/")
    said = refusal(public, f"{scheme}//{host}:{port}/{path}private")
    assert "no public address" in said or "could not be fetched" in said, said
    assert not any(asked.endswith("private") for asked in ASKED)  # what others have asked for may come late
    public.close()


class Names:
    """A resolver whose answers are these, one for each question."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def getaddrinfo(self, loop: Any, host: str, port: int, **_: Any) -> list[Any]:
        self.asked += 1
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        kinds = [socket.AF_INET6 if ":" in one else socket.AF_INET for one in found]
        return [(kind, socket.SOCK_STREAM, 6, "", (one, port)) for kind, one in zip(kinds, found, strict=True)]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    made = Names(["127.0.0.1"])

    async def ask(loop: Any, host: str, port: int, **options: Any) -> list[Any]:
        return await made.getaddrinfo(loop, host, port, **options)

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", ask)
    return made


@pytest.mark.parametrize("answer", [["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["::1"], ["64:ff9b::7f00:1"]])
def test_a_name_of_a_private_address_is_not_asked_whatever_else_it_has(
    names: Names, pages: str, answer: list[str]
) -> None:
    names.answers = [answer]
    public = fetcher(allow_private_media=False)
    before = len(ASKED)
    assert "pictures.example is no public address" in refusal(public, f"http://pictures.example:{pages[-5:]}/file/1")
    assert len(ASKED) == before
    public.close()


def test_a_name_is_resolved_once_and_the_address_that_was_looked_at_is_asked(names: Names, pages: str) -> None:
    """Whoever answers with a public address first and with a private one then gets no connection to the latter."""
    names.answers = [["192.88.99.1"], ["127.0.0.1"]]  # nobody is there
    public = fetcher(allow_private_media=False, media_fetch_timeout=1.0)
    before = len(ASKED)
    refusal(public, f"http://rebinding.example:{pages.rpartition(':')[2]}/file/1")
    assert names.asked == 1 and len(ASKED) == before
    public.close()


def test_redirects_are_looked_at_as_the_first_address_was(pages: str) -> None:
    named = fetcher(allowed_media_domains=["127.0.0.1"])
    assert "localhost is none of --allowed-media-domains" in refusal(named, f"{pages}/to/http://localhost:1/x")
    assert "none of --allowed-media-domains" in refusal(named, pages.replace("127.0.0.1", "localhost"))
    named.close()


def test_files_below_a_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a b.png").write_bytes(b"data")
    (tmp_path / "out.png").write_bytes(b"secret")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out.png")
    os.mkfifo(tmp_path / "in" / "pipe")
    own = fetcher(allowed_local_media_path=str(tmp_path / "in"))
    for url in (f"file://{tmp_path}/in/a%20b.png", "file://a%20b.png"):
        fetched = own.fetch(url)
        assert fetched.future.result(WAIT_S) == b"data"
        own.let_go(fetched)
    for path in ("out.png", "in/link", "in/../out.png", "in/%2e%2e/out.png"):
        assert "outside" in refusal(own, f"file://{tmp_path}/{path}"), path
    assert "names no file" in refusal(own, f"file://{tmp_path}/in/pipe")
    assert "cannot be read" in refusal(own, f"file://{tmp_path}/in")
    assert "cannot be read" in refusal(own, f"file://{tmp_path}/in/none.png")
    assert "cannot be read" in refusal(own, "file://elsewhere/x.png")
    for path in ("../secret.png", "..%2fsecret.png", "sub/../../secret.png", "%2e%2e/secret.png"):
        assert "outside" in refusal(own, f"file://{path}"), path
    assert "file:///PATH" in refusal(own, "file://a/x%00.png")
    own.close()
    other = fetcher()
    assert "--allowed-local-media-path" in refusal(other, f"file://{tmp_path}/in/a%20b.png")
    other.close()


def test_a_key_in_an_address_is_not_said_again() -> None:
    assert shown("https://x.com/a.png?key=secret") == "https://x.com/a.png"
    assert len(shown("https://x.com/" + "a" * 5000)) < 300
