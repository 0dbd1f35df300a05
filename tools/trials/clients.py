"""Sessions of other projects' clients, in environments of their own: chats, streams, tools, formats, errors.

The model is a checkpoint: the word behind an @ in the last user's message says which script it follows. What a grammar
forces it says in any case. Nothing but the packages' indexes are asked, and these only to install.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from .launched import ROOT, Launched

SESSIONS = Path(__file__).resolve().parent / "sessions"
SESSION_S = 180.0
POLL_S = 0.01  # between two looks at /metrics
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
LONG_WORDS = 1500  # some seconds
SCRIPTS = {
    "hello0": "Hello from the model, and more of it.",
    "any0": "Any words, where no grammar forces others.",
    "tool0": "I look.\n" + CALL,
    "silent0": CALL,
    "tool1": "It is 7 degrees in Oslo.",
    "silent1": "It is 7 degrees in Oslo.",
    "fenced0": 'So:\n```json\n{"city": "Oslo", "degrees": 7}\n```\nThat is all.',
    "report0": '<tool_call>\n{"name": "Report", "arguments": {"city": "Oslo", "degrees": 7}}\n</tool_call>',
    "fields0": "[[ ## town ## ]]\nOslo\n\n[[ ## completed ## ]]",
    "json0": '{"town": "Oslo"}',
    "tags0": "<town>\nOslo\n</town>",
    "think0": "<think>\nI ponder it.\n</think>\n\nThought and said.",
    "ponder0": "<think>\nI should look.\n</think>\n\n" + CALL,
    "ponder1": "It is 7 degrees in Oslo.",
    "long0": " ".join(f"word{number}" for number in range(LONG_WORDS)),
    "edit0": "As you wish:\n\nhello.py\n```python\nprint('hello')\n```\n",
}
TEMPLATE = (  # the script is the last word that was asked for, and the number of tools' results since then
    "{% set ns = namespace(word='hello', results=0) %}{% for message in messages %}{% if message.role == 'user' %}"
    "{% for word in [WORDS] %}{% if '@' ~ word in (message.content or '') %}"
    "{% set ns.word = word %}{% set ns.results = 0 %}{% endif %}{% endfor %}"
    "{% elif message.role == 'tool' %}{% set ns.results = ns.results + 1 %}{% endif %}{% endfor %}"
    "{% if tools %}{% endif %}<{{ ns.word }}{{ ns.results }}>"
).replace("WORDS", ", ".join(sorted({repr(name[:-1]) for name in SCRIPTS})))
THINKING = "{% if false %}<think></think>{% endif %}"  # by it a template's model is known to think
Session = Callable[[Path, str, Path], Iterator[tuple[str, str | None]]]


def _environment(work: Path, **more: str) -> dict[str, str]:
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}
    return {"HOME": str(work), "PATH": os.environ["PATH"], **offline, **more}


def _of_python(script: str) -> Session:
    """A session by the client's own Python: each step is a line."""

    return _lines_of(lambda place: [str(place / "bin" / "python"), "-W", "ignore", str(SESSIONS / f"of_{script}.py")])


def _of_node(script: str) -> Session:
    """The same by node: the script stands beside its packages, where node looks for them."""

    def command(place: Path) -> list[str]:
        shutil.copy(SESSIONS / "node" / "told.mjs", place)
        return ["node", shutil.copy(SESSIONS / "node" / f"of_{script}.mjs", place)]

    return _lines_of(command)


def _lines_of(command: Callable[[Path], list[str]]) -> Session:
    def session(place: Path, url: str, work: Path) -> Iterator[tuple[str, str | None]]:
        with (work / "told").open("w+") as told, (work / "errors").open("w+") as errors:
            try:
                status: int | str = subprocess.run(
                    [*command(place), url], env=_environment(work), stdout=told, stderr=errors, timeout=SESSION_S
                ).returncode
            except subprocess.TimeoutExpired:
                status = "not within its time"
            told.seek(0)
            errors.seek(0)
            for line in told:
                if line.startswith('["'):
                    name, wrong = json.loads(line)
                    yield name, wrong
            yield "session's end", None if status == 0 else f"{status}: {errors.read()[-600:]}"

    return session


def _aider(place: Path, url: str, work: Path) -> Iterator[tuple[str, str | None]]:
    """It edits a file, streamed and not."""
    environment = _environment(work, OPENAI_API_BASE=url + "/v1", OPENAI_API_KEY="none")
    flags = ["--yes-always", "--no-git", "--no-check-update", "--no-analytics", "--no-show-model-warnings"]
    for stream in ("--stream", "--no-stream"):
        (file := work / "hello.py").write_text("print('x')\n")
        command = [str(place / "bin" / "aider"), "--model", "openai/client", "--edit-format", "whole", *flags, stream]
        done = subprocess.run(
            [*command, "--message", "@edit, please", file.name],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SESSION_S,
        )
        right = done.returncode == 0 and file.read_text() == "print('hello')\n"
        yield f"an edit, {stream}", None if right else done.stdout[-600:] + done.stderr[-300:]


def _open_webui(place: Path, url: str, work: Path) -> Iterator[tuple[str, str | None]]:
    """It lists the model, chats, streamed and not, makes a title, and is stopped in the middle, as its page does."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        own = f"http://127.0.0.1:{free.getsockname()[1]}"
    settings = {"DATA_DIR": str(work / "data"), "WEBUI_AUTH": "False", "ENABLE_OLLAMA_API": "False"}
    settings |= {"OPENAI_API_BASE_URL": url + "/v1", "OPENAI_API_KEY": "none", "RAG_EMBEDDING_ENGINE": "openai"}
    command = [str(place / "bin" / "open-webui"), "serve", "--host", "127.0.0.1", "--port", own.rpartition(":")[2]]
    environment = _environment(work, OFFLINE_MODE="1", WEBUI_SECRET_KEY="x", **settings)
    with (
        (work / "log").open("w") as log,
        subprocess.Popen(command, cwd=work, env=environment, stdout=log, stderr=log) as run,
    ):
        try:
            token = json.loads(_waited(own + "/api/v1/auths/signin", {"email": "", "password": ""}))["token"]
            listed = _asked(own + "/api/models", None, token)
            yield "the model is listed", None if '"id":"client"' in listed else listed[:300]
            for stream in (False, True):
                body = {"model": "client", "stream": stream, "messages": [{"role": "user", "content": "@hello"}]}
                said = _asked(own + "/api/chat/completions", body, token)
                holds = said.endswith("data: [DONE]\n\n") if stream else SCRIPTS["hello0"] in said
                yield f"a chat, stream {stream}", None if holds else said[-300:]
            wrong = _asked(own + "/api/chat/completions", {**body, "temperature": 9}, token)
            yield "an error", None if "temperature must be" in wrong else wrong[-300:]
            body = {"model": "client", "messages": [{"role": "user", "content": "@json"}]}
            titled = _asked(own + "/api/v1/tasks/title/completions", body, token)
            yield "a title", None if "Oslo" in titled else titled[-300:]
            yield "a stop in the middle", _stopped(own, url, token)
        finally:
            run.terminate()


def _stopped(own: str, url: str, token: str) -> str | None:
    """The page's stop button: what is wrong with it. The answer runs in a task of Open WebUI's."""
    history = {"messages": {}, "currentId": None}
    chat = {"chat": {"title": "x", "models": ["client"], "messages": [], "history": history}}
    begun: dict[str, object] = {"session_id": "session", "id": "answer", "model": "client", "stream": True}
    begun["chat_id"] = json.loads(_asked(own + "/api/v1/chats/new", chat, token))["id"]
    begun["messages"] = [{"role": "user", "content": "@long"}]
    before = _figure(url, "vllm:generation_tokens_total")
    task = json.loads(_asked(own + "/api/chat/completions", begun, token))["task_ids"][0]
    deadline = time.monotonic() + SESSION_S
    while _figure(url, "vllm:generation_tokens_total") == before:
        if time.monotonic() > deadline:
            return "nothing was generated"
        time.sleep(POLL_S)
    said = _asked(f"{own}/api/tasks/stop/{task}", {}, token)
    while _figure(url, "vllm:num_requests_running"):
        if time.monotonic() > deadline:
            return f"it runs on: {said[-300:]}"
        time.sleep(POLL_S)
    tokens = _figure(url, "vllm:generation_tokens_total") - before
    return None if tokens < LONG_WORDS else f"{tokens:.0f} tokens were generated: {said[-300:]}"


def _figure(url: str, name: str) -> float:
    """Of /metrics, of all models."""
    lines = _asked(url + "/metrics", None).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + "{", name + " ")))


def _asked(url: str, body: Mapping[str, object] | None, token: str = "") -> str:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


def _waited(url: str, body: Mapping[str, object]) -> str:
    """The answer of a server that starts."""
    deadline = time.monotonic() + SESSION_S
    while True:
        try:
            return _asked(url, body)
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)  # between two tries: what is waited for is said nowhere else


CLIENTS: dict[str, tuple[tuple[str, ...], Session]] = {  # packages, session
    "langchain": (("langchain-openai", "langgraph"), _of_python("langchain")),
    "litellm": (("litellm", "mcp"), _of_python("litellm")),
    "instructor": (("instructor",), _of_python("instructor")),
    "pydantic_ai": (("pydantic-ai-slim[openai,anthropic,mistral]", "mcp"), _of_python("pydantic_ai")),
    "openai_agents": (("openai-agents",), _of_python("openai_agents")),
    "llama_index": (("llama-index-llms-openai-like", "llama-index-embeddings-openai-like"), _of_python("llama_index")),
    "huggingface_hub": (("huggingface_hub[inference]", "pydantic"), _of_python("huggingface_hub")),
    "mistralai": (("mistralai",), _of_python("mistralai")),
    "cohere": (("cohere",), _of_python("cohere")),
    "ollama": (("ollama",), _of_python("ollama")),
    "haystack": (("haystack-ai", "ollama-haystack"), _of_python("haystack")),
    "dspy": (("dspy", "numpy", "mcp"), _of_python("dspy")),
    "aider": (("aider-chat",), _aider),
    "open_webui": (("open-webui",), _open_webui),
}
PROVIDERS = ("openai", "openai-compatible", "anthropic", "cohere", "mistral")
AI_SDK = ("ai", "zod", *(f"@ai-sdk/{name}" for name in PROVIDERS))
BY_NPM: dict[str, tuple[tuple[str, ...], Session]] = {
    "ai_sdk": (AI_SDK, _of_node("ai_sdk")),
    "openai_js": (("openai@6", "zod", "ws"), _of_node("openai")),  # 7 asks for node 22
    "anthropic_js": (("@anthropic-ai/sdk", "zod"), _of_node("anthropic")),
    "ollama_js": (("ollama",), _of_node("ollama")),
    "mistralai_js": (("@mistralai/mistralai", "zod"), _of_node("mistralai")),
    "cohere_js": (("cohere-ai",), _of_node("cohere")),
    "langchain_js": (("@langchain/openai", "@langchain/anthropic", "@langchain/core", "zod"), _of_node("langchain")),
    "openai_agents_js": (("@openai/agents", "openai@6", "zod"), _of_node("openai_agents")),
}


def install(place: Path, packages: tuple[str, ...], by_npm: bool) -> None:
    """The current releases, once: what is there is kept."""
    done = place / ".installed"
    if done.exists() and done.read_text().split() == [*packages]:
        return
    if by_npm:
        command = ["npm", "install", "--prefix", str(place), *packages]
        place.mkdir(parents=True, exist_ok=True)
    else:
        venv.create(place, with_pip=True)
        command = [str(place / "bin" / "python"), "-m", "pip", "install", "-q", *packages]
    subprocess.run(command, check=True, stdout=sys.stderr)
    done.write_text(" ".join(packages))


def clients(folder: Path, only: tuple[str, ...] = ()) -> Counter[str]:
    """LangChain, LlamaIndex, the SDKs by npm and others (--client) against a scripted checkpoint."""
    sys.path.insert(0, str(ROOT))
    from tests.support.models.embedders import write_model  # of the project's tests only this: a checkpoint that
    from tests.support.scripted import scripted  # says what it is told, and one that makes vectors

    found: Counter[str] = Counter()
    chosen = {name: client for name, client in (CLIENTS | BY_NPM).items() if not only or name in only}
    for name, (packages, _) in chosen.items():
        install(folder / name, packages, name in BY_NPM)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        also = []
        for name, template in (("client", TEMPLATE), ("thinker", TEMPLATE + THINKING)):
            model = scripted(work / name, SCRIPTS, template=template)
            config = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 65536}))
        write_model("bert", work / "embedder")
        for name in ("embedder", "thinker"):
            also += ["--also", f"{work / name},served-model-name={name}"]
        options = ("--served-model-name", "client", "--enable-auto-tool-choice", "--tool-call-parser", "hermes", *also)
        kept = ("--files-dir", str(work / "files"))
        with Launched(str(work / "client"), *options, *kept, "--max-num-seqs", "4") as server:
            url = "http://{}:{}".format(*server.address)
            for name, (_, session) in chosen.items():
                (place := work / name).mkdir()
                for step, wrong in session(folder / name, url, place):
                    found["right" if wrong is None else f"{name}: {step}: {wrong}"] += 1
    return found
