"""One server for all dialects: a model that says what its scripts say, behind two frontends that may be killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.server.api.test_tool_calls import QWEN
from tests.support.scripted import LAST, scripted
from tests.support.server import Server

INFILL = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
SEPARATOR = "<|file_sep|>"
FILLED = " return a + b"
OTHER_FILE = f"{SEPARATOR}other.py\nimport os\n"  # which a model may go on with
LONG = "".join(f"{number} bottles, " for number in range(300))


@pytest.fixture(scope="session")
def scripted_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = scripted(
        tmp_path_factory.mktemp("dialects"),
        {**QWEN.scripts, "long": LONG, "infill": "".join(INFILL) + FILLED + OTHER_FILE},
        (*INFILL, SEPARATOR),
        template=f"{{% if false %}}{QWEN.mark}{{% endif %}}{LAST}",
    )
    options = ["--threads", "1", "--frontends", "2", "--max-restarts", "100", "--served-model-name", "tiny"]
    options += ["--sse-keep-alive-interval", "0.02"]  # clients of events pass over comments, also behind a death
    with Server(str(folder), *options) as running:
        yield running


@pytest.fixture
def kill_frontends(scripted_server: Server) -> Callable[[], None]:
    """All of them, one after the other, each once the one before is up again."""

    def kill() -> None:
        for name in ("frontend-0", "frontend-1"):
            scripted_server.replace(name)

    return kill
