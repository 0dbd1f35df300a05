"""Files of certificates that cannot be used: told at the start of the server, waited for by a frontend's successor."""

from __future__ import annotations

import ssl

import pytest

from actorserve.actors.options.config import Config, ConfigError
from actorserve.actors.options.serving import certificates
from actorserve.actors.options.serving.certificates import first_context


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is found at each look; the files are whole at the third."""
    found: list[object] = []

    def make(config: Config) -> ssl.SSLContext:
        found.append(ConfigError("half of it") if len(found) < 2 else ssl.create_default_context())
        if isinstance(found[-1], ConfigError):
            raise found[-1]
        assert isinstance(found[-1], ssl.SSLContext)
        return found[-1]

    monkeypatch.setattr(certificates, "make_context", make)
    monkeypatch.setattr(certificates, "LOOK_S", 0.0)
    return found


def test_a_successor_waits_for_them(tries: list[object]) -> None:
    assert first_context(Config(), False) is tries[2]


def test_the_server_does_not_start_with_them(tries: list[object]) -> None:
    with pytest.raises(ConfigError):
        first_context(Config(), True)
    assert len(tries) == 1


def test_nobody_waits_for_ever(tries: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "PATIENCE_S", 0.0)
    with pytest.raises(ConfigError):
        first_context(Config(), False)
