"""--tool-server: what names a server, and what is no name of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.options.objects.tool_servers import tool_servers


def test_names(tmp_path: Path) -> None:
    file = tmp_path / "servers.json"
    file.write_text(
        json.dumps({"mcpServers": {"files": {"command": "run", "args": ["x"]}, "web": {"url": "https://a.b/c"}}})
    )
    config = make_config({"tool_server": [f"demo, 127.0.0.1:9,{file}", "https://tools.example/mcp"]})
    found = tool_servers(config)
    assert list(found) == ["demo", "127-0-0-1", "files", "web", "tools-example"]
    assert found["demo"].demo and found["files"].args == ["x"] and config.has_tools
    assert found["127-0-0-1"].url == "http://127.0.0.1:9/mcp" and found["web"].url == "https://a.b/c"


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        ('{"mcpServers": {"a b": {"command": "x"}}}', "no name"),
        ('{"mcpServers": {"a": {}}}', "a command or a url"),
        ('{"mcpServers": {"a": {"command": "x", "url": "http://x"}}}', "a command or a url"),
        ('{"mcpServers": {"a": {"url": "ftp://x"}}}', "no URL"),
        ('{"servers": {}}', "mcpServers"),
        ("no json", "malformed"),
    ],
)
def test_files_that_cannot_be(tmp_path: Path, servers: str, words: str) -> None:
    file = tmp_path / "servers.json"
    file.write_text(servers)
    with pytest.raises(ConfigError, match=rf"--tool-server: .*{words}"):
        make_config({"tool_server": [str(file)]})


@pytest.mark.parametrize("given", ["nothing", "demo,demo", "ftp://host/mcp", "host:port", "missing.json"])
def test_what_names_no_server(given: str) -> None:
    with pytest.raises(ConfigError, match="--tool-server: "):
        make_config({"tool_server": [given]})
