"""What servers of tests, and of benches, have of the environment of whoever runs them."""

from __future__ import annotations

import pytest

from tests.support.warm import server_environment


@pytest.mark.parametrize("name", ["ACTORSERVE_API_KEY", "ACTORSERVE_ADMIN_API_KEY", "VLLM_API_KEY"])
def test_a_key_is_given_to_a_server_by_name_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that found it by itself would want it from clients, which send none."""
    monkeypatch.setenv(name, "of whoever runs this")
    assert name not in server_environment()
    assert server_environment({name: "a test's"})[name] == "a test's"
