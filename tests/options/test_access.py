"""Who is let in: what of it cannot be."""

from __future__ import annotations

import pytest

from actorserve.actors.options.config import ConfigError, make_config


def test_cookies_are_for_named_sites() -> None:
    with pytest.raises(ConfigError, match=r"--allow-credentials: .*give --allowed-origins"):
        make_config({"allow_credentials": True})
    assert make_config({"allow_credentials": True, "allowed_origins": ["https://chat.example.com"]}).allow_credentials
