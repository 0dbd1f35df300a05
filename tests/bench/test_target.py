"""Addresses and headers are looked at before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorserve.actors.bench.target import address_of, check_headers, own_key, proxy_of
from actorserve.actors.options.config import ConfigError, make_config


def test_addresses() -> None:
    for text in ("http://a:1", "http://a:1/", "http://a:1/v1/", "http://a:1/v1"):
        assert address_of("--url", text) == "http://a:1"
    assert address_of("--url", "https://[::1]:8000/llm/v1") == "https://[::1]:8000/llm"


@pytest.mark.parametrize(
    "text",
    ["a:1", "", "ftp://a", "http://", "http://a..b", "http://a:x", "http://a:99999", "http://[::1", "http://a/ b"],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--url: .* is no address of a server"):
        address_of("--url", text)


def test_no_proxy_stands_before_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "near.example")
    for here in ("http://localhost:8000", "http://127.0.0.2:80/ready", "http://[::1]:9", "http://near.example:8000"):
        assert proxy_of(here) is None
    assert proxy_of("http://far.example:8000/v1") == "http://proxy:3128"
    assert proxy_of("https://far.example") is None  # there is none for it


def test_a_server_with_a_key_file_lets_whoever_started_it_in(tmp_path: Path) -> None:
    hashes = f"keys:\n- {{name: a, sha256: {'a' * 64}}}\n"
    (tmp_path / "hashes.yaml").write_text(hashes)
    (tmp_path / "keys.yaml").write_text(hashes + "- {name: b, key: limited, concurrent: 1}\n- {name: c, key: free}\n")
    for values, key in (
        ({}, None),
        ({"api_key": ["first", "second"]}, "first"),
        ({"key_file": str(tmp_path / "keys.yaml")}, "free"),
        ({"key_file": str(tmp_path / "keys.yaml"), "api_key": ["first"]}, "first"),
        ({"key_file": str(tmp_path / "hashes.yaml")}, None),
    ):
        assert own_key(make_config(dict[str, object](values))) == key


@pytest.mark.parametrize(("name", "value"), [("X y", "a"), ("X", "a\nb"), ("X", "€"), ("", "a"), ("X:", "a")])
def test_what_no_header_can_have(name: str, value: str) -> None:
    check_headers({"X-Own_one": "a b"}, "--header")
    with pytest.raises(ConfigError, match="--header: ") as raised:
        check_headers({name: value}, "--header")
    assert value == "a" or value not in str(raised.value), "it may be a key"
