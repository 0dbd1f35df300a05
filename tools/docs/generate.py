"""Write the tables of options.md, coming-from-vllm.md and api.md anew, from the options and parameters themselves, and
count the rows of features.md.

.venv/bin/python tools/docs/generate.py
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from pathlib import Path
from typing import NamedTuple, get_args, get_type_hints

from actorserve.actors.options import other_servers
from actorserve.actors.options.command_line import OTHER_NAMES, describe_options
from actorserve.actors.options.fields import flag
from actorserve.actors.protocol.request import default_of
from actorserve.actors.protocol.sampling.fields import SamplingFields, sampling_parameters
from actorserve.http.output.parsers.markup import MARKUPS
from actorserve.http.output.parsers.registry import JSON_ARRAY, REASONING_PARSERS, TOOL_PARSERS

DOCS = Path(__file__).resolve().parent
END = "<!-- end -->\n"
STATES = ("yes", "untried", "part", "no")  # of a feature
ROW_ENDS = re.compile(r"(?<!\\)\|")  # between the cells of a row
JSON_TYPES: dict[type, str] = {
    **{float: "number", int: "integer", bool: "boolean", str: "string"},
    **{list: "list", dict: "object"},
}


MODELS = {  # who writes in a format, by the parser's name
    "hermes": "Hermes, Qwen 2.5, Qwen 3; taken where the template shows no form",
    "qwen3_coder": "Qwen3-Coder, Qwen 3.5, Nemotron 3",
    "qwen3_xml": "the same",
    "mimo": "MiMo: as qwen3_coder",
    "step3p5": "Step 3.5: as qwen3_coder",
    "qwen3": "Qwen 3, LFM2.5 and all others that think in `<think>`",
    "llama3_json": "Llama 3",
    "llama4_json": "Llama 4, asked for JSON",
    "pythonic": "Llama 3.2, Gemma 3 asked for lists of Python",
    "llama4_pythonic": "Llama 4",
    "lfm2": "LFM2, LFM2.5",
    "mistral": "Mistral, Magistral",
    "deepseek_r1": "DeepSeek R1",
    "deepseek_v3": "DeepSeek V3 and R1; V3.1 and V3.2 think so",
    "deepseek_v31": "DeepSeek V3.1",
    "deepseek_v32": "DeepSeek V3.2 (DSML)",
    "deepseek_v4": "DeepSeek V4 (DSML)",
    "deepseek_v41": "DeepSeek V4.1 (DSML with spaces); thinks as V4",
    "openai": "gpt-oss",
    "openai_gptoss": "gpt-oss",
    "glm45": "GLM 4.5, 4.6",
    "glm47": "GLM 4.7",
    "kimi_k2": "Kimi K2; Kimi K2 Thinking",
    "kimi_k3": "Kimi K3",
    "kimi": "Kimi-VL Thinking",
    "gemma4": "Gemma 4",
    "functiongemma": "FunctionGemma",
    "gemma3": "Gemma 3, asked for blocks of `tool_code`",
    "cohere_command_r": "Command R and R+, with lists behind `Action:`",
    "apertus": "Apertus",
    "gigachat3": "GigaChat 3",
    "gigachat35": "GigaChat 3.5 (GCML)",
    "cohere_command3": "Command R7B, Command A",
    "cohere_command4": "Command A+, North",
    "granite": "Granite 3.0 to 3.2",
    "granite33": "Granite 3.3, with `<response>`",
    "granite4": "Granite 4: as hermes",
    "granite_20b_fc": "Granite 20B function calling",
    "seed_oss": "Seed-OSS",
    "minimax": "MiniMax M1",
    "minimax_m2": "MiniMax M2",
    "minimax_m2_append_think": "MiniMax M2, with `<think>…</think>` left in the content",
    "minimax_m3": "MiniMax M3",
    "hunyuan_a13b": "Hunyuan A13B, 7B and smaller, with `<answer>`",
    "hy_v3": "Hunyuan 3 and 4 (Hy3, Hy4)",
    "minicpm5": "MiniCPM 5",
    "dots": "dots",
    "solar_open2": "Solar Open 2",
    "plamo3": "PLaMo 3",
    "apriel": "Apriel 1.6 Thinker",
    "jamba": "Jamba",
    "nemotron_json": "Nemotron Nano 2, Llama-Nemotron",
    "nemotron_v3": "Nemotron 3; Granite 4.2 thinks so",
    "longcat": "LongCat-Flash",
    "phi4_mini_json": "Phi-4 mini",
    "xlam": "xLAM, the first of them with an object of `tool_calls`, too",
    "step3": "Step 3",
    "ernie45": "ERNIE 4.5, with `<response>`",
    "olmo3": "OLMo 3",
    "functionary": "Functionary 3.1, 3.2",
    "internlm": "InternLM 2.5, Intern-S1",
}


def options() -> str:
    """A row for each option."""
    rows = "".join(f"| `{option}` | {text} |\n" for option, text in describe_options())
    return f"| option | what it sets (default) |\n|---|---|\n{rows}"


def other_names() -> str:
    """Names of other servers' options that set one of ours."""
    rows: dict[str, list[str]] = {}
    for name, meaning in other_servers.MEANINGS.items():
        if meaning.field and name not in OTHER_NAMES.get(meaning.field, ()):
            ours = "MODEL" if meaning.field == "model" else " ".join((*meaning.words(), meaning.key)).strip()
            rows.setdefault(ours, []).append(f"`{name}`")
    return "| theirs | here |\n|---|---|\n" + "".join(
        f"| {' '.join(names)} | `{ours}` |\n" for ours, names in sorted(rows.items(), key=lambda row: row[0].lower())
    )


def other_values() -> str:
    """Names of other servers' values."""
    rows: dict[tuple[str, str], list[str]] = {}
    for field, names in other_servers.VALUES.items():
        for theirs, ours in names.items():
            rows.setdefault((flag(field), ours), []).append(f"`{theirs}`")
    return "| option | theirs | here |\n|---|---|---|\n" + "".join(
        f"| `{option}` | {' '.join(names)} | `{ours}` |\n" for (option, ours), names in rows.items()
    )


def needless() -> str:
    """Names that ask for what is always so."""
    return _by_reason(other_servers.NEEDLESS)


def refused() -> str:
    """Names of what there is not."""
    return _by_reason(other_servers.REFUSED)


def sampling() -> str:
    """A row for each parameter of sampling."""
    hints = get_type_hints(SamplingFields)
    rows = []
    for name, parameter in sampling_parameters().items():
        kind, default, limit = get_args(hints[name])[0], default_of(name), parameter.range
        said = "" if default in (None, [], "") else str(default).lower().removesuffix(".0")
        types = "object" if isinstance(kind, type(SamplingFields)) else JSON_TYPES.get(kind)
        types = types or f"{JSON_TYPES[getattr(kind, '__origin__', kind)]} of {_inside(kind)}"
        words = str(limit) if limit and limit.text else f"{types}, {limit}" if limit else types
        file = "yes" if parameter.configurable and parameter.in_file else ""
        cells = (f"`{name}`", words, said, file, parameter.about)
        rows.append(f"| {' | '.join(cells)} |\n")
    return f"| field | type and range | default | file | what it does |\n|---|---|---|---|---|\n{''.join(rows)}"


def formats() -> str:
    """A row for each parser of tool calls or thinking."""
    names = {*TOOL_PARSERS, *REASONING_PARSERS} - {JSON_ARRAY}
    if names != MODELS.keys():
        raise ValueError(f"MODELS and the parsers differ in {sorted(names ^ MODELS.keys())}")
    rows = []
    for name, models in MODELS.items():
        held = any(markup.trigger for markup in MARKUPS.get(name, ()))
        does = (name in TOOL_PARSERS, held, name in REASONING_PARSERS)
        rows.append(f"| `{name}` | {models} | {' | '.join('yes' if one else '' for one in does)} |\n")
    return f"| name | models | calls | held to schemas | thinking |\n|---|---|---|---|---|\n{''.join(rows)}"


def counts() -> str:
    """How many features there are of each state."""
    found = Counter(row.state for row in features())
    return "| state | features |\n|---|---|\n" + "".join(f"| {state} | {found[state]} |\n" for state in STATES)


class Feature(NamedTuple):
    """A row of features.md."""

    name: str
    state: str
    how: str
    test: str


def features() -> list[Feature]:
    """All rows of features.md, of which each has four cells."""
    lines = (DOCS / "features.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in ROW_ENDS.split(line)[1:-1]] for line in lines if line.startswith("| ")]
    return [Feature(*row) for row in rows if len(row) == len(Feature._fields) and row[0] != "feature"]


def _inside(kind: type) -> str:
    """What there is in a list or an object."""
    return f"{JSON_TYPES[get_args(kind)[-1]]}s"


def _by_reason(names: dict[str, str]) -> str:
    plain = {reason: [name.partition("=")[0] for name in these.split()] for reason, these in names.items()}
    said = (f"- {reason}: {' '.join(f'`{name}`' for name in these)}" for reason, these in plain.items())
    return "".join(f"{_wrapped(line)}\n" for line in said)


def _wrapped(line: str) -> str:
    return textwrap.fill(line, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


TABLES = {  # page: name of the mark before a table, and what makes the table
    "options.md": {"options": options},
    "api.md": {"sampling": sampling, "formats": formats},
    "features.md": {"counts": counts},
    "coming-from-vllm.md": {
        "names": other_names,
        "values": other_values,
        "needless": needless,
        "refused": refused,
    },
}


def written(page: str) -> str:
    """The page as it should be; ValueError if the place of a table is not marked."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, make in TABLES[page].items():
        begin = f"<!-- {name} -->\n"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(END)
        if not (found and ended):
            raise ValueError(f"{page}: there is no {begin.strip()} with {END.strip()} behind it")
        text = f"{before}{begin}\n{make()}\n{END}{after}"
    return text


def main() -> None:
    """Write all pages."""
    for page in TABLES:
        (DOCS / page).write_text(written(page), encoding="utf-8")


if __name__ == "__main__":
    main()
