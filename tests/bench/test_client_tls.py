"""Clients of ours before a server that wants to see a certificate."""

from __future__ import annotations

import asyncio
import ssl
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError

import pytest

from actorserve.actors.batch.servers import RunningServer
from actorserve.actors.bench.client_tls import ClientTls, add_client_certificate, client_tls, wants_certificate
from actorserve.actors.bench.load.client import Target
from actorserve.actors.bench.load.prompts import Prompt
from actorserve.actors.bench.load.session import first_model, run_load
from actorserve.actors.bench.server import NotLetInError, ServerError, wait_ready
from actorserve.actors.chat.client import ChatError, Client
from actorserve.actors.cli import main
from actorserve.actors.options.config import ConfigError
from tests.support.certificates import OPENSSL, Certificates

from .fake import Fake

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="there is no openssl command to make certificates with")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def fake(files: Certificates) -> Iterator[Fake]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*files.server)
    tls.load_verify_locations(files.authority[0])
    tls.verify_mode = ssl.CERT_REQUIRED
    with Fake(tls=tls) as server:
        yield server


def shown(certificate: tuple[Path, Path], own: bool = True) -> ClientTls:
    return ClientTls(own, *map(str, certificate))


def test_with_a_certificate_they_are_let_in(fake: Fake, files: Certificates) -> None:
    tls = shown(files.client)
    wait_ready(fake.base_url, 30, tls)
    assert first_model(fake.base_url, {}, tls) == "fake" == Client(fake.base_url, None, tls).models()[0]
    records, _ = asyncio.run(run_load(Target(fake.base_url, "fake", tls=tls), [Prompt("some words", 6)], [0.0]))
    assert not records[0].error


@pytest.mark.parametrize("stranger", [False, True])
def test_without_the_right_one_it_is_said_at_once(fake: Fake, files: Certificates, stranger: bool) -> None:
    tls = shown(files.stranger) if stranger else ClientTls(own=True)
    with pytest.raises(NotLetInError, match="--client-certfile"):
        wait_ready(fake.base_url, 30, tls)
    with pytest.raises(ChatError, match="--client-certfile"):
        Client(fake.base_url, None, tls).models()
    with pytest.raises(ServerError, match="not ready"):
        asyncio.run(RunningServer(fake.base_url, 0.0, tls).address())


@pytest.mark.parametrize(
    "alert", ["TLSV13_ALERT_CERTIFICATE_REQUIRED", "TLSV1_ALERT_UNKNOWN_CA", "WRONG_VERSION_NUMBER"]
)
def test_servers_that_say_why(alert: str) -> None:
    (error := ssl.SSLError()).reason = alert
    assert wants_certificate(error) == wants_certificate(URLError(error)) == ("ALERT" in alert)
    assert not wants_certificate(URLError("no host"))


def test_a_server_that_runs_somewhere_is_verified(fake: Fake, files: Certificates) -> None:
    with pytest.raises(ServerError, match="not ready"):
        wait_ready(fake.base_url, 0.0, shown(files.client, own=False))
    assert shown(files.client, own=False).context().verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--client-keyfile", "KEY"], "--client-keyfile: there is no certificate without --client-certfile"),
        (["--client-certfile", "none"], "--client-certfile: none cannot be read"),
        (["--client-certfile", "KEY"], "--client-certfile: .* holds no certificate"),
        (["--client-certfile", "CERT"], "--client-keyfile: .* holds no key"),
        (["--client-certfile", "CERT", "--client-keyfile", "OTHER"], "--client-keyfile: .* is not the key of"),
    ],
)
def test_files_that_will_not_do(words: list[str], message: str, files: Certificates) -> None:
    named = {"CERT": str(files.client[0]), "KEY": str(files.client[1]), "OTHER": str(files.server[1])}
    add_client_certificate(parser := ArgumentParser())
    with pytest.raises(ConfigError, match=message):
        client_tls(parser.parse_args([named.get(word, word) for word in words]), own=True)


@pytest.mark.parametrize("command", [["run"], ["run-batch", "-i", "IN", "-o", "OUT"]])
def test_a_server_that_would_not_let_us_in_is_not_started(
    command: list[str], files: Certificates, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_text('{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"a"}}\n')
    named = {"IN": str(tmp_path / "in"), "OUT": str(tmp_path / "out")}
    words = [named.get(word, word) for word in command]
    assert main([*words, *files.options(), "--ssl-ca-certs", str(files.authority[0])]) == 2
    assert "--ssl-ca-certs: the server will let nobody in without a certificate" in capsys.readouterr().err
