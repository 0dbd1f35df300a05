"""The options of `actorserve route`: what cannot be is told by its name, before anything is started."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from actorserve.actors.options.config import ConfigError
from actorserve.actors.route.request import MOVABLE
from actorserve.actors.route.settings import MIB, add_arguments, read_settings
from actorserve.http.routes import ROUTES
from tests.support.certificates import OPENSSL, make_authority

GOOD = ("--replicas", "http://a:8000, https://b/")


def read(*words: str) -> object:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return read_settings(parser.parse_args(words))


def test_addresses_are_trimmed() -> None:
    settings = read(*GOOD, "--max-body-mib", "2")
    assert settings.replicas == ["http://a:8000", "https://b"]  # type: ignore[attr-defined]
    assert settings.max_body_bytes == 2 * MIB  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "words",
    [
        ("http://a", "http://b", "http://c"),
        ("http://a,http://b", "http://c"),
        ("http://a", "--replicas", "http://b", "http://c"),
    ],
)
def test_addresses_are_words_or_have_commas(words: tuple[str, ...]) -> None:
    assert read("--replicas", *words).replicas == ["http://a", "http://b", "http://c"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--replicas", ""), "--replicas"),
        (("--replicas", "a:8000"), "--replicas"),
        (("--replicas", "ftp://a"), "--replicas"),
        (("--replicas", "dns+https://a"), "--replicas"),
        ((*GOOD, "--ssl-keyfile", "k"), "--ssl-keyfile goes with --ssl-certfile"),
        ((*GOOD, "--ssl-certfile", "/none"), "--ssl-certfile: /none"),
        ((*GOOD, "--ssl-certfile", __file__), "--ssl-certfile: .* holds no certificate"),
        ((*GOOD, "--replica-ca-certs", __file__), "--replica-ca-certs"),
        (("--replicas", "http://a:99999"), "--replicas"),
        (("--replicas", "http://a,http://a/"), "each address once"),
        (("--replicas", "http://a", "http://a/"), "each address once"),
        ((*GOOD, "--retries", "-1"), "--retries"),
        ((*GOOD, "--port", "65536"), "--port must be at most 65535"),
        ((*GOOD, "--patience", "nan"), "--patience"),
        ((*GOOD, "--probe-interval", "nan"), "--probe-interval"),
        ((*GOOD, "--probe-interval", "0"), "--probe-interval"),
        ((*GOOD, "--detection-limit", "0.1"), "--detection-limit"),
        ((*GOOD, "--breaker-errors", "0"), "--breaker-errors"),
        ((*GOOD, "--api-key", "k", "--admin-api-key", "k"), "--admin-api-key"),
    ],
)
def test_what_cannot_be_is_told(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read(*words)


@pytest.mark.skipif(OPENSSL is None, reason="certificates are made by the openssl command")
def test_a_certificate_without_its_key_is_told_by_the_keys_option(tmp_path: Path) -> None:
    certificate, key = make_authority(tmp_path, "own")
    with pytest.raises(ConfigError, match=f"--ssl-keyfile: {certificate} holds no key"):
        read(*GOOD, "--ssl-certfile", str(certificate))
    assert read(*GOOD, "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))


def test_streams_that_go_on_elsewhere_are_those_of_the_api() -> None:
    """The router imports nothing of it, and has the paths again."""
    assert {route.path for route in ROUTES if route.movable} == MOVABLE
