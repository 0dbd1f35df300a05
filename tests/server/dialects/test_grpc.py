"""grpcio's client against a running server: texts, streams, tools, ids, vectors, health, reflection, errors, deaths."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from actorserve.actors.observer.ask import ask as ask_supervisor
from actorserve.actors.observer.attach import choose, find_servers
from actorserve.actors.protocol.sockets.control_wire import DRAIN, DrainRequest
from tests.server.api.test_tool_calls import PARIS, QWEN, ROME, TOOLS
from tests.server.dialects.conftest import LONG
from tests.support.certificates import OPENSSL, Certificates, make_certificate
from tests.support.client import free_port
from tests.support.rolling import restart
from tests.support.scripted import LAST, scripted
from tests.support.server import Server

NAME = "actorserve.v1.Inference"
KEY = (("authorization", "Bearer secret"),)


class Client:
    """Knows nothing of the service but what reflection tells."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.pool = DescriptorPool(ProtoReflectionDescriptorDatabase(self.channel))
        self.service = self.pool.FindServiceByName(NAME)

    def call(self, method: str, metadata: Any = KEY, **fields: Any) -> Any:
        found = self.service.methods_by_name[method]
        answer = GetMessageClass(found.output_type)
        make = self.channel.unary_stream if found.server_streaming else self.channel.unary_unary
        stub = make(
            f"/{NAME}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return stub(GetMessageClass(found.input_type)(**fields), metadata=metadata, timeout=60)


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Server]:
    folder = scripted(
        Path(tmp_path_factory.mktemp("grpc")),
        {**QWEN.scripts, "long": LONG},
        template=f"{{% if false %}}{QWEN.mark}{{% endif %}}{LAST}",
    )
    options = ("--threads", "1", "--max-restarts", "100", "--served-model-name", "tiny", "--api-key", "secret")
    with Server(str(folder), *options, "--grpc-port", str(port)) as running:
        yield running


@pytest.fixture
def client(server: Server, port: int) -> Iterator[Client]:
    made = Client(port)
    yield made
    made.channel.close()


def say(script: str) -> str:
    return json.dumps([{"role": "user", "content": f"<{script}>"}])


def ask(client: Client, **fields: Any) -> Any:
    """The whole answer, which must be the stream's, too."""
    (whole,) = (answer := client.call("Generate", **fields)).choices
    *parts, last = client.call("GenerateStream", **fields)
    pieces = [choice for part in parts for choice in part.choices]
    assert "".join(piece.text for piece in pieces) == whole.text
    assert "".join(piece.reasoning for piece in pieces) == whole.reasoning
    assert [token for piece in pieces for token in piece.token_ids] == list(whole.token_ids)
    assert [call.arguments for call in pieces[-1].tool_calls] == [call.arguments for call in whole.tool_calls]
    assert [bool(piece.finish_reason) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].finish_reason == whole.finish_reason
    assert last.usage.completion_tokens == answer.usage.completion_tokens > 0
    return whole


def test_a_text(client: Client) -> None:
    answer = ask(client, text="<none>")
    assert answer.text == QWEN.scripts["none"] and answer.finish_reason == "stop"
    limited = ask(client, text="<none>", max_tokens=3, fields_json='{"return_token_ids": true}')
    assert limited.finish_reason == "length" and len(limited.token_ids) == 3
    stopped = ask(client, text="<none>", stop=["needed"], temperature=0.7, seed=1)
    assert stopped.stop_reason == "needed" and stopped.text == "No <tool> is "


def test_a_conversation(client: Client) -> None:
    thought = ask(client, messages_json=say("answer"))
    assert thought.reasoning.strip() == "Hm, STOP" and thought.text == "The answer, no STOP more"
    called = ask(client, messages_json=say("two"), fields_json=json.dumps({"tools": TOOLS}))
    assert [json.loads(call.arguments) for call in called.tool_calls] == [PARIS, ROME]
    assert called.finish_reason == "tool_calls" and len({call.id for call in called.tool_calls}) == 2


def test_several_choices(client: Client) -> None:
    answer = client.call("Generate", text="<none>", n=3, request_id="three")
    assert [choice.index for choice in answer.choices] == [0, 1, 2] and answer.request_id == "three"
    assert {choice.text for choice in answer.choices} == {QWEN.scripts["none"]} and answer.model == "tiny"


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"text": "a", "model": "nobody"}, grpc.StatusCode.NOT_FOUND, "nobody"),
        ({}, grpc.StatusCode.INVALID_ARGUMENT, "text"),
        ({"text": "a", "temperature": 9.0}, grpc.StatusCode.INVALID_ARGUMENT, "temperature"),
        ({"text": "a", "fields_json": "[]"}, grpc.StatusCode.INVALID_ARGUMENT, "fields_json"),
        ({"text": "a", "fields_json": '{"logprobs": 3}'}, grpc.StatusCode.INVALID_ARGUMENT, "logprobs"),
        ({"text": "<none>" * 3000}, grpc.StatusCode.INVALID_ARGUMENT, "maximum context length"),
        ({"text": "a", "metadata": ()}, grpc.StatusCode.UNAUTHENTICATED, "API key"),
        ({"text": "a", "metadata": (("x-api-key", "other"),)}, grpc.StatusCode.UNAUTHENTICATED, "API key"),
    ],
)
def test_errors(client: Client, fields: dict[str, Any], code: grpc.StatusCode, text: str) -> None:
    for method in ("Generate", "GenerateStream"):
        with pytest.raises(grpc.RpcError) as raised:
            list(getattr(client.call(method, **fields), "choices", None) or client.call(method, **fields))
        assert raised.value.code() is code and text in raised.value.details()


def test_vectors_are_another_servers(client: Client) -> None:
    with pytest.raises(grpc.RpcError, match="generates text"):
        client.call("Embed", texts=["a"])


def test_an_abort(client: Client) -> None:
    stream = client.call("GenerateStream", text="<long>", request_id="to end", max_tokens=2000)
    next(stream)
    assert list(client.call("Abort", request_ids=["to end", "nobody"]).request_ids) == ["to end"]
    with pytest.raises(grpc.RpcError) as raised:
        list(stream)
    assert raised.value.code() is grpc.StatusCode.ABORTED


def test_a_client_that_leaves(client: Client) -> None:
    """Its sequence is given up: nothing is counted as running when its next call is answered."""
    stream = client.call("GenerateStream", text="<long>", request_id="leaves", max_tokens=2000)
    next(stream)
    stream.cancel()
    while client.call("Abort", request_ids=["leaves"]).request_ids:
        pass  # the server has not seen it yet
    assert client.call("Generate", text="<none>").choices[0].text == QWEN.scripts["none"]


def test_health(client: Client) -> None:
    stub: Any = health_pb2_grpc.HealthStub(client.channel)
    serving = health_pb2.HealthCheckResponse.SERVING
    for name in ("", NAME):
        assert stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=60).status == serving
    watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
    assert next(watch).status == serving
    watch.cancel()
    with pytest.raises(grpc.RpcError) as raised:
        stub.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=60)
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_death_of_the_worker_is_not_seen(client: Client, server: Server) -> None:
    text = ""
    for number, part in enumerate(client.call("GenerateStream", text="<long>", max_tokens=2000)):
        text += "".join(choice.text for choice in part.choices)
        if number == 5:
            os.kill(server.pids()["worker"], signal.SIGKILL)
    assert text == LONG


def test_a_death_of_the_frontend_is_told_and_the_call_may_be_made_again(client: Client, server: Server) -> None:
    stream = client.call("GenerateStream", text="<long>", max_tokens=2000)
    next(stream)
    os.kill(server.pids()["frontend-0"], signal.SIGKILL)
    with pytest.raises(grpc.RpcError) as raised:
        list(stream)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    server.wait_for("frontend-0 is up")
    grpc.channel_ready_future(client.channel).result(timeout=60)
    assert client.call("Generate", text="<none>").choices[0].text == QWEN.scripts["none"]


@contextmanager
def long_call(*options: str) -> Iterator[tuple[Server, Client, Any]]:
    """A server, and a stream of 300 tokens that has begun; more than its --shutdown-timeout, if that is short."""
    port = free_port()
    slow = ("--worker", "scripted", "--scripted-step-ms", "5", "--grpc-port", str(port))
    with Server(*slow, *options) as server:
        client = Client(port)
        with closing(client.channel):
            fields = '{"ignore_eos": true}'
            stream = client.call("GenerateStream", text="Once", max_tokens=300, fields_json=fields)
            next(stream)
            yield server, client, stream


def test_calls_get_as_long_as_a_drain_allows() -> None:
    """They are no shorter than those over HTTP; who watches health is told, and keeps the server from nothing."""
    with long_call("--shutdown-timeout", "0.1") as (server, client, stream):
        stub: Any = health_pb2_grpc.HealthStub(client.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
        next(watch)
        ask_supervisor(choose(find_servers(), pid=server.pid), DRAIN, DrainRequest(600.0))
        *_, last = stream
        assert last.usage.completion_tokens == 300
        assert [told.status for told in watch] == [health_pb2.HealthCheckResponse.NOT_SERVING]
        assert server.wait() == 0


def test_a_restart_of_frontends_lets_calls_end() -> None:
    with long_call() as (server, client, stream):
        restart(server, "frontend")
        *_, last = stream
        assert last.usage.completion_tokens == 300
        assert client.call("Generate", text="Once", max_tokens=2).usage.completion_tokens == 2


def test_a_port_that_somebody_has(port: int, server: Server) -> None:
    with Server("--grpc-port", str(port), wait=False) as other:
        other.wait_for(f"cannot listen on 127.0.0.1:{port}")
        assert other.process.wait(60) == 1


def secure(port: int, files: Certificates, own: tuple[Path, Path] | None, known: bool = True) -> str:
    """What a client with TLS is answered."""
    authority = (files.authority if known else files.stranger)[0].read_bytes()
    chain, key = (own[0].read_bytes(), own[1].read_bytes()) if own is not None else (None, None)
    credentials = grpc.ssl_channel_credentials(authority, key, chain)
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        return str(health.Check(health_pb2.HealthCheckRequest(), timeout=20).status)


@pytest.mark.skipif(OPENSSL is None, reason="certificates are made by the openssl command")
def test_certificates_of_both_sides(tmp_path: Path) -> None:
    """Nobody is served without TLS, or without a certificate that is known; one that is renewed is taken."""
    files, port = Certificates(tmp_path), free_port()
    chain, key = tmp_path / "own.pem", tmp_path / "own.key"
    for source, target in zip(files.server, (chain, key), strict=True):
        target.write_bytes(source.read_bytes())
    options = ("--ssl-certfile", str(chain), "--ssl-keyfile", str(key), "--ssl-ca-certs", str(files.authority[0]))
    with Server(*options, "--grpc-port", str(port), "--worker", "scripted", "--frontends", "1") as server:
        serving = str(health_pb2.HealthCheckResponse.SERVING)
        assert secure(port, files, files.client) == serving
        for own, known in ((None, True), (files.stranger, True), (files.client, False)):
            with pytest.raises(grpc.RpcError) as refused:
                secure(port, files, own, known)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError):
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
        chain.write_bytes(b"none")
        assert secure(port, files, files.client) == serving
        server.wait_for("gRPC goes on with the certificates from before")
        for source, target in zip(make_certificate(tmp_path, "renewed", files.authority), (chain, key), strict=True):
            target.write_bytes(source.read_bytes())
        assert secure(port, files, files.client) == serving
        assert "renewed" in subject(port, files)


def subject(port: int, files: Certificates) -> str:
    """The name in the server's certificate."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
        files.context(files.client).wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        return str(connection.getpeercert())
