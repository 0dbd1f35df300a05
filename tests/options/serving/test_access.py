"""Who is let in: what of it cannot be."""

from __future__ import annotations

import pytest

from actorserve.actors.options.config import ConfigError, make_config


def test_cookies_are_for_named_sites() -> None:
    with pytest.raises(ConfigError, match=r"--allow-credentials: .*give --allowed-origins"):
        make_config({"allow_credentials": True})
    assert make_config({"allow_credentials": True, "allowed_origins": ["https://chat.example.com"]}).allow_credentials


@pytest.mark.parametrize("origin", ["*", "null", "localhost", "http://localhost:3000", "https://chat.example.com"])
def test_sites(origin: str) -> None:
    assert make_config({"allowed_origins": [origin]}).allowed_origins == [origin]
    with pytest.raises(ConfigError, match=r"--allowed-origins: .*/ is neither \*, localhost nor the beginning"):
        make_config({"allowed_origins": [f"{origin}/"]})


@pytest.mark.parametrize("path", ["llm", "/llm/", "/", "/a b", "/a?b", "//a", "/ä"])
def test_a_root_that_is_no_path(path: str) -> None:
    with pytest.raises(ConfigError, match=r"--root-path: .* no path such as /llm"):
        make_config({"root_path": path})


def test_a_root() -> None:
    assert make_config({"root_path": "/llm/v2.1"}).root_path == "/llm/v2.1"


@pytest.mark.parametrize("name", ["default_chat_template_kwargs", "override_generation_config"])
def test_objects(name: str) -> None:
    option = f"--{name.replace('_', '-')}"
    for wrong in ("{", "[1]", '"text"'):
        with pytest.raises(ConfigError, match=rf"{option}: .* is no JSON object"):
            make_config({name: wrong})
    assert make_config({name: {"top_k": 4}}).json_object(name) == {"top_k": 4}
    assert make_config({}).json_object(name) == {}


@pytest.mark.parametrize(
    ("host", "uds", "left"),
    [
        ("/run/a.sock", "/run/a.sock", "127.0.0.1"),
        ("~/a.sock", "/home/me/a.sock", "127.0.0.1"),
        ("::1, /run/a.sock,10.0.0.1", "/run/a.sock", "::1,10.0.0.1"),
        ("server.socket", None, "server.socket"),
    ],
)
def test_a_host_that_is_a_socket(host: str, uds: str | None, left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with llama-server."""
    monkeypatch.setenv("HOME", "/home/me")
    config = make_config({"host": host})
    assert (config.uds, config.host) == (uds, left)


def test_there_is_one_socket() -> None:
    assert make_config({"host": "/run/a.sock", "uds": "/run/a.sock", "uds_mode": "600"}).uds == "/run/a.sock"
    for given in ({"host": "/run/a.sock", "uds": "/run/b.sock"}, {"host": "/run/b.sock,/run/a.sock"}):
        with pytest.raises(ConfigError, match=r"^--host: /run/a\.sock and /run/b\.sock: at one Unix socket alone"):
            make_config(dict(given))


def test_the_mode_of_a_socket_goes_with_the_socket() -> None:
    """Whoever says it alone would wait for a socket that there is not."""
    with pytest.raises(ConfigError, match=r"^--uds-mode 600 goes with --uds, "):
        make_config({"uds_mode": "600"})
    with pytest.raises(ConfigError, match=r"^--uds: the path of a Unix socket is missing$"):
        make_config({"uds": ""})
    assert make_config({"uds": "/run/socket"}).uds_mode is None
    with pytest.raises(ConfigError, match=r"^--uds-mode: "):
        make_config({"uds": "/run/socket", "uds_mode": "6x0"})
