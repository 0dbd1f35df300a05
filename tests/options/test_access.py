"""Who is let in: what of it cannot be."""

from __future__ import annotations

import pytest

from actorserve.actors.options.config import ConfigError, make_config


def test_cookies_are_for_named_sites() -> None:
    with pytest.raises(ConfigError, match=r"--allow-credentials: .*give --allowed-origins"):
        make_config({"allow_credentials": True})
    assert make_config({"allow_credentials": True, "allowed_origins": ["https://chat.example.com"]}).allow_credentials


@pytest.mark.parametrize("path", ["llm", "/llm/", "/", "/a b", "/a?b", "//a", "/ä"])
def test_a_root_that_is_no_path(path: str) -> None:
    with pytest.raises(ConfigError, match=r"--root-path: .* no path such as /llm"):
        make_config({"root_path": path})


def test_a_root() -> None:
    assert make_config({"root_path": "/llm/v2.1"}).root_path == "/llm/v2.1"
