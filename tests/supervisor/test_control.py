"""The control socket: who may ask, what is answered, and that nobody can hold it up."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import secrets
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from actorserve.actors.protocol.sockets.control_wire import REQUEST_BYTES
from actorserve.actors.supervisor.control import socket as module
from actorserve.actors.supervisor.control.socket import MOST_CLIENTS, CommandRefused, Control

WAIT_S = 30.0


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, name: str) -> Client:
        return cls(*await asyncio.open_unix_connection("\0" + name))

    async def say(self, line: bytes) -> Any:
        """The answer to a line; None if the connection ends instead."""
        self.writer.write(line)
        return await self.hear()

    async def hear(self) -> Any:
        async with asyncio.timeout(WAIT_S):
            try:
                answer = await self.reader.readline()
            except ConnectionError:
                return None
        return json.loads(answer) if answer else None

    def close(self) -> None:
        self.writer.close()


@pytest.fixture
def name() -> str:
    return f"actorserve-test-{secrets.token_hex(8)}"


@pytest.fixture
async def control(name: str) -> AsyncIterator[Control]:
    async def double(arguments: dict[str, Any]) -> Any:
        if "number" not in arguments:
            raise CommandRefused("which number?")
        return 2 * arguments["number"]

    made = Control(name)
    made.add("double", double)
    await made.start()
    yield made
    made.close()


@pytest.fixture
async def client(control: Control, name: str) -> AsyncIterator[Client]:
    made = await Client.connect(name)
    yield made
    made.close()


async def test_verbs_are_answered_one_after_the_other(client: Client) -> None:
    for number in range(3):
        line = json.dumps({"verb": "double", "arguments": {"number": number}}).encode() + b"\n"
        assert await client.say(line) == {"result": 2 * number}


async def test_a_refusal_is_an_answer(client: Client) -> None:
    assert await client.say(b'{"verb": "double"}\n') == {"error": "which number?"}


async def test_an_unknown_verb_is_named_with_those_that_there_are(client: Client) -> None:
    assert await client.say(b'{"verb": "fly"}\n') == {"error": "there is no 'fly' among double"}


@pytest.mark.parametrize(
    "line", [b"status\n", b"[1]\n", b'{"verb": 1}\n', b'{"verb": "double", "x": 1}\n', b'{"verb": "\xff"}\n']
)
async def test_what_is_no_request_is_an_error(client: Client, line: bytes) -> None:
    assert (await client.say(line))["error"].startswith("this is no request")
    assert (await client.say(b'{"verb": "double", "arguments": {"number": 1}}\n')) == {"result": 2}


async def test_a_long_line_ends_the_connection(client: Client) -> None:
    answer = await client.say(b"x" * (2 * REQUEST_BYTES))
    assert answer is None or str(REQUEST_BYTES) in answer["error"]
    assert await client.hear() is None


async def test_who_says_nothing_is_cut_off(control: Control, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEADLINE_S", 0.05)
    client = await Client.connect(name)
    client.writer.write(b'{"verb": ')
    assert await client.hear() is None
    client.close()


async def test_who_does_not_take_the_answer_is_cut_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def long(arguments: dict[str, Any]) -> Any:
        return "x" * (8 << 20)

    monkeypatch.setattr(module, "DEADLINE_S", 0.2)
    control = Control(name)
    control.add("long", long)
    await control.start()
    client = await Client.connect(name)
    client.writer.write(b'{"verb": "long"}\n')
    await client.writer.drain()
    async with asyncio.timeout(WAIT_S):
        while not control._clients:
            await asyncio.sleep(0)
        await asyncio.wait(control._clients)
    assert not control._clients
    client.close()
    control.close()


async def test_only_so_many_at_once(control: Control, name: str) -> None:
    clients = [await Client.connect(name) for _ in range(MOST_CLIENTS)]
    for client in clients:
        assert await client.say(b'{"verb": "double", "arguments": {"number": 1}}\n') == {"result": 2}
    more = await Client.connect(name)
    assert await more.say(b'{"verb": "double", "arguments": {"number": 1}}\n') is None
    for client in (more, *clients):
        client.close()


async def test_a_slow_verb_holds_nobody_else_up(control: Control, name: str) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(arguments: dict[str, Any]) -> Any:
        begun.set()
        await go_on.wait()
        return "done"

    control.add("slow", slow)
    first, second = await Client.connect(name), await Client.connect(name)
    answer = asyncio.create_task(first.say(b'{"verb": "slow"}\n'))
    await begun.wait()
    assert await second.say(b'{"verb": "double", "arguments": {"number": 4}}\n') == {"result": 8}
    go_on.set()
    assert await answer == {"result": "done"}
    first.close()
    second.close()


async def test_a_mistake_in_a_verb_is_the_supervisors(control: Control, client: Client) -> None:
    failed: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.set_result(context))

    async def broken(arguments: dict[str, Any]) -> Any:
        raise RuntimeError("a mistake")

    control.add("broken", broken)
    assert await client.say(b'{"verb": "broken"}\n') is None
    async with asyncio.timeout(WAIT_S):
        assert str((await failed)["exception"]) == "a mistake"


async def test_the_end_answers_nobody(control: Control, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEADLINE_S", 100 * WAIT_S)
    client = await Client.connect(name)
    assert await client.say(b'{"verb": "double", "arguments": {"number": 1}}\n') == {"result": 2}
    control.close()
    assert await client.hear() is None
    with pytest.raises(ConnectionRefusedError):
        await Client.connect(name)
    client.close()


async def test_an_address_that_is_taken_is_an_error(control: Control, name: str) -> None:
    with pytest.raises(OSError, match="in use"):
        await Control(name).start()


def asked_by(user: int, name: str) -> Any:
    """The answer that a process of this user gets."""
    heard, says = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setuid(user)
            with socket.socket(socket.AF_UNIX) as asks:
                asks.connect("\0" + name)
                asks.sendall(b'{"verb": "double", "arguments": {"number": 1}}\n')
                os.write(says, asks.recv(1000))
        finally:
            os._exit(0)
    os.close(says)
    answer = os.read(heard, 1000)
    os.close(heard)
    os.waitpid(child, 0)
    return json.loads(answer)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
async def test_another_user_is_refused(control: Control, name: str) -> None:
    assert await asyncio.to_thread(asked_by, 0, name) == {"result": 2}
    assert (await asyncio.to_thread(asked_by, 65534, name))["error"].startswith("only the server's own user")


async def test_no_descriptor_is_left_for_a_client(control: Control, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits until there is one, and a verb that finds none says so; neither is a mistake. What else accept may say
    is of one connection.
    """
    listener, refusals = control._listener, [errno.EMFILE, errno.EPERM, errno.ENFILE]
    assert listener is not None

    class Listener(socket.socket):
        def accept(self) -> Any:
            if refusals:
                raise OSError(refusals.pop(), "none left")
            return super().accept()

    async def needy(arguments: dict[str, Any]) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    control.add("needy", needy)
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    asyncio.get_running_loop().remove_reader(listener)
    control._listener = Listener(fileno=listener.detach())
    control._listen()
    client = await Client.connect(name)
    answer = await client.say(b'{"verb": "needy"}\n')
    assert answer == {"error": "the server lacks the means for that now: Too many open files"} and not refusals
    client.close()


async def test_no_memory_is_left_for_an_answer(
    control: Control, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That client is cut off, which is no mistake of the supervisor's, and others are answered."""

    def fail(answer: object) -> bytes:
        raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))

    mistakes: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: mistakes.append(context))
    line = b'{"verb": "double", "arguments": {"number": 1}}\n'
    client.writer.write(line)
    with monkeypatch.context() as patch:
        patch.setattr(module, "encode_answer", fail)
        assert await client.hear() is None
    other = await Client.connect(control._name)
    assert await other.say(line) == {"result": 2} and not mistakes
    assert "a client of the control socket is cut off: [Errno 105]" in caplog.text
    other.close()


async def test_others_than_those_users_are_refused(
    control: Control, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_users", {os.getuid() + 1})
    other = await Client.connect(control._name)
    assert (await other.say(b'{"verb": "double"}\n'))["error"].startswith("only the server's own user")
    other.close()


def test_nothing_is_left_on_the_disk_or_in_the_kernel(name: str) -> None:
    async def live() -> None:
        made = Control(name)
        await made.start()
        made.close()

    asyncio.run(live())
    with socket.socket(socket.AF_UNIX) as again:
        again.bind("\0" + name)
