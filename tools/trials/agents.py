"""Sessions of coding agents, as their makers ship them: each makes three tool calls and says so.

The model is a checkpoint whose next words follow from how many results of tools are in the conversation: it calls the
agent's own tools in turn, in a folder of its own. Nothing but npm's registry is asked, and that only to install.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from .launched import ROOT, Launched

PACKAGES = ("@openai/codex", "@anthropic-ai/claude-code")
DONE = "All three are done: it has one line."
TEMPLATE = (
    "{# <tool_call> #}{% if tools %}{% endif %}"
    "<turn{{ messages | selectattr('role', 'equalto', 'tool') | list | length }}>"
)
SESSION_S = 120.0
CODEX_CONFIG = """model = "agent"
model_provider = "local"
[model_providers.local]
name = "local"
base_url = "http://{host}:{port}/v1"
wire_api = "responses"
env_key = "AGENT_KEY"
"""


def install(folder: Path) -> None:
    """The current releases, once."""
    folder.mkdir(parents=True, exist_ok=True)
    if not all((folder / "node_modules" / name).exists() for name in PACKAGES):
        subprocess.run(["npm", "install", "--prefix", str(folder), *PACKAGES], check=True, stdout=sys.stderr)


def _call(name: str, arguments: Mapping[str, str]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _scripts(agent: str, file: Path) -> dict[str, str]:
    if agent == "claude":
        calls = [("Write", {"file_path": str(file), "content": "one\n"}), ("Read", {"file_path": str(file)})]
        calls.append(("Bash", {"command": f"wc -l < {file.name}", "description": "count its lines"}))
    else:
        commands = (f"echo one > {file.name}", f"cat {file.name}", f"wc -l < {file.name}")
        calls = [("exec_command", {"cmd": command}) for command in commands]
    said = ("I write it.", "I read it.", "I count.")
    turns = {f"turn{n}": f"{said[n]}\n{_call(*call)}" for n, call in enumerate(calls)}
    return {**turns, "turn3": DONE}


COMPACTED = (  # of Codex: told to compact after the first call, it goes on by the summary
    "{% set ns = namespace(turn='') %}{% for message in messages %}"
    "{% if message.content is string and 'is left out. This is a summary' in message.content %}"
    "{% set ns.turn = '3' %}{% endif %}{% endfor %}"
    "{% set last = messages[-1].content %}{% if last is string and last.startswith('Sum up this') %}<sum>"
    "{% elif ns.turn %}<turn3>{% else %}" + TEMPLATE + "{% endif %}"
)


COMPACTING = "model_auto_compact_token_limit = 20\nmodel_context_window = 60000\n"  # before CODEX_CONFIG


def _command(agent: str, npm: Path, work: Path, address: tuple[str, int]) -> tuple[list[str], dict[str, str]]:
    program = str(npm / "node_modules" / ".bin" / agent.partition(",")[0])
    home = work / "home"
    (home / ".codex").mkdir(parents=True)
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "IS_SANDBOX": "1", "AGENT_KEY": "none"}
    if agent != "claude":
        config = CODEX_CONFIG.format(host=address[0], port=address[1])
        if agent == "codex, compacting":  # it asks only a provider of this name for it
            config = COMPACTING + config.replace('name = "local"', 'name = "OpenAI"')
        (home / ".codex" / "config.toml").write_text(config)
        flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
        return [program, "exec", *flags, "Make a file."], environment
    environment |= {
        "ANTHROPIC_BASE_URL": f"http://{address[0]}:{address[1]}",
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_MODEL": "agent",
        "ANTHROPIC_SMALL_FAST_MODEL": "agent",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    flags = ["--dangerously-skip-permissions", "--output-format", "stream-json", "--verbose"]
    return [program, "-p", "Make a file.", *flags], environment


def _session(agent: str, npm: Path, found: Counter[str]) -> None:
    from tests.support.scripted import (
        scripted,  # the one thing of the project's tests: a checkpoint that says what it is told
    )

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (place := work / "place").mkdir()
        compacts = agent == "codex, compacting"
        scripts = {**_scripts(agent, place / "hello.txt"), "sum": "The file was begun."}
        model = scripted(work / "model", scripts, template=COMPACTED if compacts else TEMPLATE)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 65536}))
        options = ("--served-model-name", "agent", "--enable-auto-tool-choice", "--max-num-seqs", "4")
        with Launched(str(model), *options) as server:
            command, environment = _command(agent, npm, work, server.address)
            done = subprocess.run(
                command,
                cwd=place,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SESSION_S,
            )
        written = (place / "hello.txt").read_text() if (place / "hello.txt").exists() else ""
        for what, holds in {
            "ended well": done.returncode == 0,
            "wrote the file": written == "one\n",
            "said that it is done": DONE in done.stdout,
            "counted": compacts or '"1' in done.stdout or "1\\n" in done.stdout,
        }.items():
            found["right" if holds else f"{agent} has not {what}: {done.stdout[-300:]} {done.stderr[-200:]}"] += 1


def agents(npm: Path) -> Counter[str]:
    """Codex and Claude Code, as npm has them, each with three tool calls against a scripted checkpoint; and Codex once
    with a conversation that is compacted behind the first.
    """
    sys.path.insert(0, str(ROOT))
    install(npm)
    found: Counter[str] = Counter()
    for agent in ("claude", "codex", "codex, compacting"):
        _session(agent, npm, found)
    return found
