"""Chats and completions of a server of the OpenAI API, streamed. Standard library alone: it starts in no time."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from ..bench.client_tls import PERHAPS_WANTED, WANTED, ClientTls, may_want_certificate, wants_certificate
from ..bench.load.sse import EventReader
from ..bench.target import is_sendable

CONNECT_S = 10.0
SILENCE_S = 600.0  # in which nothing comes of an answer: a long queue, a long prompt
DONE = b"[DONE]"
READ = 1 << 16
UNAUTHORIZED = 401
NO_OWN = ClientTls()
MOST_ERROR = 500  # characters of an error of no known form
VISIBLE = {code: 0x2400 + code for code in range(32)} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
del VISIBLE[ord("\n")], VISIBLE[ord("\t")]


class ChatError(Exception):
    """The server cannot be reached, or does not answer; the message is for people. What the server says in it does
    nothing to their terminal, as an answer does not (screen.py).
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.translate(VISIBLE))


class Piece(NamedTuple):
    """What came next: text, or thinking before it."""

    text: str
    thinking: bool


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None  # of completions
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Client:
    """One server and one of its models."""

    def __init__(self, url: str, key: str | None, tls: ClientTls = NO_OWN) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
        except ValueError as error:
            raise ChatError(f"{url} is no address of a server: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ChatError(f"{url} is no address of a server, such as http://127.0.0.1:8000")
        try:
            self._address = parts.hostname.encode("idna").decode(), parts.port
        except UnicodeError:
            raise ChatError(f"{url}: {parts.hostname} is no name of a host") from None
        except ValueError:
            raise ChatError(f"{url}: the port is no number from 0 to 65535") from None
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._prefix = quote(parts.path.rstrip("/").removesuffix("/v1"), safe="/%:@!$&'()*+,;=~")
        self._context = None if parts.scheme == "http" else tls.context()
        self._headers = {"Content-Type": "application/json"}
        if key and not is_sendable(key):
            raise ChatError("the key has characters that no key can have: a line's end, or others than ASCII's")
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self.finish_reason = ""  # of the last answer that came to its end

    def models(self) -> list[str]:
        """The names that it has for its models."""
        connection = self._connect()
        try:
            response = self._ask(connection, "GET", "/v1/models")
            found = [str(model["id"]) for model in json.loads(response.read())["data"]]
        except (ValueError, LookupError, TypeError):
            raise ChatError(f"{self.url}/v1/models is no list of models: is this a server of the OpenAI API?") from None
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from None
        finally:
            connection.close()
        if not found:
            raise ChatError(f"{self.url} has no models")
        return found

    def answer(self, model: str, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> Generator[Piece]:
        """The pieces of an answer as they come. Whoever closes this early ends the answer on the server, too."""
        body = {"model": model, "messages": list(messages), "stream": True, **options}
        return self._stream("/v1/chat/completions", body)

    def complete(self, model: str, prompt: str, options: Mapping[str, Any]) -> Generator[Piece]:
        """The same of what follows a prompt, which no chat template is laid around."""
        return self._stream("/v1/completions", {"model": model, "prompt": prompt, "stream": True, **options})

    def _stream(self, path: str, body: Mapping[str, Any]) -> Generator[Piece]:
        self.finish_reason = ""
        connection = self._connect()
        try:
            response = self._ask(connection, "POST", path, json.dumps(body).encode())
            yield from self._pieces(response)
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from None
        finally:
            connection.close()

    def _pieces(self, response: http.client.HTTPResponse) -> Iterator[Piece]:
        reader = EventReader()
        while data := response.read1(READ):
            for event in reader.feed(data):
                if event == DONE:
                    return
                yield from self._piece(event)
        if not self.finish_reason:
            raise ChatError("the answer was broken off")

    def _piece(self, event: bytes) -> Iterator[Piece]:
        try:
            chunk = _decode(event)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ChatError(f"{self.url} sent what is no chunk of an answer: {event[:100]!r}") from None
        if chunk.error is not None:
            raise ChatError(_said(chunk.error))
        for choice in chunk.choices:
            self.finish_reason = choice.finish_reason or self.finish_reason
            if choice.text:
                yield Piece(choice.text, False)
            if choice.delta is None:
                continue
            if thought := choice.delta.reasoning or choice.delta.reasoning_content:
                yield Piece(thought, True)
            if choice.delta.content:
                yield Piece(choice.delta.content, False)

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._address
        if self._context is not None:
            return http.client.HTTPSConnection(host, port, timeout=CONNECT_S, context=self._context)
        return http.client.HTTPConnection(host, port, timeout=CONNECT_S)

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None
    ) -> http.client.HTTPResponse:
        connection.connect()
        if connection.sock is not None:
            connection.sock.settimeout(SILENCE_S if body else CONNECT_S)
        connection.request(method, self._prefix + path, body, self._headers)
        response = connection.getresponse()
        if response.status == UNAUTHORIZED:
            raise ChatError(
                f"{self.url} asks for a key: put it into ACTORSERVE_API_KEY (or OPENAI_API_KEY, with --url)"
            )
        if response.status != http.client.OK:
            raise ChatError(_error_of(response))
        return response

    def _lost(self, error: Exception) -> ChatError:
        if isinstance(error, TimeoutError):
            return ChatError(f"{self.url} does not answer")
        if wants_certificate(error):
            return ChatError(f"{self.url}: {WANTED}")
        if may_want_certificate(error, self.url):
            return ChatError(f"{self.url}: {PERHAPS_WANTED}")
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return ChatError(f"{self.url} cannot be reached: {reason}")


def _error_of(response: http.client.HTTPResponse) -> str:
    """What the server says is wrong."""
    text = response.read(READ).decode(errors="replace")
    try:
        return _said(json.loads(text)["error"])
    except (ValueError, LookupError, TypeError):
        return f"{response.status} {response.reason}: {text[:MOST_ERROR].strip()}"


def _said(error: Any) -> str:
    """The message of an error object, or all of it where it has none."""
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or error)[:MOST_ERROR]
