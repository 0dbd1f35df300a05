"""Texts of models for each parser, and what they mean.

Most are scenes, the same for all formats, written down by a function for each format; the rest is each format's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from actorserve.http.output.events import OutputParser, Turn
from actorserve.http.output.parsers.registry import make_parser

Asked = tuple[str, dict[str, Any]]  # a call's name and its arguments


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": _object(city={"type": "string"}, days={"type": "integer"}, detailed={"type": "boolean"}),
    "search": _object(
        query={"type": "string"},
        limit={"type": "integer"},
        ratio={"type": "number"},
        filters={"type": "object"},
        tags={"type": "array", "items": {"type": "string"}},
        note={"anyOf": [{"type": "string"}, {"type": "null"}]},
    ),
    "now": _object(),
    "keep": _object(a={}, b={"title": "B"}, c={}, d={"description": "anything"}),
    "write_file": _object(path={"type": "string"}, content={"type": "string"}),
}


@dataclass(frozen=True)
class Sample:
    """A text, the names of its parsers, and what must come out."""

    label: str
    text: str
    tools: str | None = None
    reasoning: str | None = None
    opened: bool = False
    named: str | None = None
    content: str = ""
    thought: str = ""
    calls: tuple[Asked, ...] = ()
    ids: tuple[str | None, ...] | None = None
    raw: tuple[str, ...] | None = None  # the arguments' very text, where it is no JSON or its form matters

    def __str__(self) -> str:
        return f"{self.reasoning or ''}-{self.tools or ''}-{self.label}"

    def parser(self) -> OutputParser:
        """A new one, as this sample needs it."""
        return make_parser(
            reasoning=self.reasoning, tools=self.tools, schemas=SCHEMAS, opened=self.opened, named=self.named
        )

    def turn(self) -> Turn:
        """What comes out in one go."""
        parser, turn = self.parser(), Turn()
        turn.add(parser.feed(self.text))
        turn.add(parser.finish())
        return turn

    def check(self, turn: Turn) -> None:
        """Is it what the text means?"""
        assert turn.content == self.content
        assert turn.reasoning == self.thought
        assert [call.name for call in turn.calls] == [name for name, _ in self.calls]
        if self.raw is None:
            assert [json.loads(call.arguments) for call in turn.calls] == [value for _, value in self.calls]
        else:
            assert tuple(call.arguments for call in turn.calls) == self.raw
        if self.ids is not None:
            assert tuple(call.id for call in turn.calls) == self.ids


@dataclass(frozen=True)
class Scene:
    """What a model may want to say."""

    label: str
    calls: tuple[Asked, ...]
    before: str = ""
    after: str = ""


_PARIS: Asked = ("get_weather", {"city": "Paris"})
_HARD = "a \"quoted\" \\ back\\\\slash, {braces}, [lists], 'single', a tab\tand\nlines\n"
SCENES = (
    Scene("one", (_PARIS,)),
    Scene("nothing asked", (("now", {}),)),
    Scene("parallel", (_PARIS, ("get_weather", {"city": "Oslo", "days": 3}))),
    Scene("three", (("now", {}), _PARIS, ("search", {"query": "rain", "limit": -1}))),
    Scene("same twice", (_PARIS, _PARIS)),
    Scene("content before", (_PARIS,), before="Let me look < that up.\n"),
    Scene("content after", (_PARIS,), after="Done: see {above}."),
    Scene("content around", (_PARIS, ("now", {})), before="First, [1] this.\n\n", after="Then <b>that</b>."),
    Scene("types", (("search", {"query": "7", "limit": 7, "ratio": -2.5e-3, "note": None}),)),
    Scene("true and false", (("get_weather", {"city": "", "detailed": True}), ("get_weather", {"detailed": False}))),
    Scene("nested", (("search", {"filters": {"a": [{"b": {}}, [], [1, [2]]], "c": None}, "tags": ["x", "}", "]"]}),)),
    Scene("hard text", (("write_file", {"path": "C:\\temp\\n.txt", "content": _HARD}),)),
    Scene("unicode", (("search", {"query": "Zürich ☔ 東京 😀 \u2028", "tags": ["é", "\u0001"]}),)),
    Scene("markup inside", (("write_file", {"path": "</tool_call>", "content": "<tool_call>\n</function>[ARGS]{"}),)),
    Scene("no name known", (("other.tool-2", {"a": 1, "b": [True, None]}),)),
    Scene("unlike its schema", (("get_weather", {"city": "x", "days": [1]}), ("now", {"extra": {"a": "b"}}))),
)

_ASCII = json.dumps
Write = Callable[[Scene], str]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _hermes(scene: Scene) -> str:
    calls = (
        f'<tool_call>\n{{"name": {_json(name)}, "arguments": {_json(value)}}}\n</tool_call>'
        for name, value in scene.calls
    )
    return scene.before + "\n".join(calls) + scene.after


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _qwen3_coder(scene: Scene) -> str:
    def one(name: str, value: dict[str, Any]) -> str:
        given = "".join(f"<parameter={key}>\n{_plain(one)}\n</parameter>\n" for key, one in value.items())
        return f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"

    return scene.before + "\n".join(one(*call) for call in scene.calls) + scene.after


def _seed_oss(scene: Scene) -> str:
    def one(name: str, value: dict[str, Any]) -> str:
        given = "".join(f"<parameter={key}>{_plain(one)}</parameter>\n" for key, one in value.items())
        return f"<seed:tool_call>\n<function={name}>\n{given}</function>\n</seed:tool_call>"

    return scene.before + "\n".join(one(*call) for call in scene.calls) + scene.after


def _hy_v3(scene: Scene) -> str:
    def one(name: str, value: dict[str, Any]) -> str:
        given = "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{_plain(one)}</arg_value>\n" for key, one in value.items()
        )
        return f"<tool_call>{name}<tool_sep>\n{given}</tool_call>\n"

    calls = "".join(one(*call) for call in scene.calls)
    return f"{scene.before}<tool_calls>\n{calls}</tool_calls>{scene.after}"


def _minicpm5(scene: Scene) -> str:
    def said(value: Any) -> str:
        text = _plain(value)
        return f"<![CDATA[{text}]]>" if isinstance(value, str) and any(char in text for char in "<&\n") else text

    def one(name: str, value: dict[str, Any]) -> str:
        given = "".join(f'<param name="{key}">{said(one)}</param>' for key, one in value.items())
        return f'<function name="{name}">{given}</function>'

    return scene.before + "\n".join(one(*call) for call in scene.calls) + scene.after


def _minimax_m2(scene: Scene) -> str:
    def one(name: str, value: dict[str, Any]) -> str:
        given = "".join(f'<parameter name="{key}">{_plain(one)}</parameter>\n' for key, one in value.items())
        return f'<invoke name="{name}">\n{given}</invoke>\n'

    calls = "".join(one(*call) for call in scene.calls)
    return f"{scene.before}<minimax:tool_call>\n{calls}</minimax:tool_call>{scene.after}"


def _step3(scene: Scene) -> str:
    def one(name: str, value: dict[str, Any]) -> str:
        tag = "steptml:parameter"
        given = "".join(f'<{tag} name="{key}">{_plain(one)}</{tag}>\n' for key, one in value.items())
        call = f'<steptml:invoke name="{name}">\n{given}</steptml:invoke>'
        return f"<｜tool_call_begin｜>function<｜tool_sep｜>{call}<｜tool_call_end｜>\n"

    calls = "".join(one(*call) for call in scene.calls)
    return f"{scene.before}<｜tool_calls_begin｜>\n{calls}<｜tool_calls_end｜>{scene.after}"


def _dsml(mark: str, section: str) -> Write:
    def parameter(key: str, value: Any) -> str:
        kind = "true" if isinstance(value, str) else "false"
        return f'<{mark}parameter name="{key}" string="{kind}">{_plain(value)}</{mark}parameter>\n'

    def one(name: str, value: dict[str, Any]) -> str:
        given = "".join(parameter(*argument) for argument in value.items())
        return f'<{mark}invoke name="{name}">\n{given}</{mark}invoke>\n'

    def write(scene: Scene) -> str:
        calls = "".join(one(*call) for call in scene.calls)
        return f"{scene.before}<{mark}{section}>\n{calls}</{mark}{section}>{scene.after}"

    return write


def _solar_open2(scene: Scene) -> str:
    def one(name: str, value: dict[str, Any]) -> str:
        given = "".join(
            f"<|tool_arg:start|>{key}<|tool_arg:value|>{_plain(one)}<|tool_arg:end|>\n" for key, one in value.items()
        )
        return f"<|tool_call:start|>{name}\n{given}<|tool_call:end|>"

    return scene.before + "\n".join(one(*call) for call in scene.calls) + scene.after


def _kimi_k3(scene: Scene) -> str:
    def argument(key: str, value: Any) -> str:
        kind = "string" if isinstance(value, str) else "object"
        return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{_plain(value)}<|close|>argument<|sep|>'

    calls = "".join(
        f'<|open|>call tool="{name}" index="{at}"<|sep|>'
        + "".join(argument(*one) for one in value.items())
        + "<|close|>call<|sep|>"
        for at, (name, value) in enumerate(scene.calls, 1)
    )
    return f"{scene.before}<|open|>tools<|sep|>{calls}<|close|>tools<|sep|>{scene.after}"


def _gemma4(scene: Scene) -> str:
    def said(value: Any) -> str:
        match value:
            case str():
                return f'<|"|>{value}<|"|>'
            case dict():
                return f"{{{','.join(f'{key}:{said(one)}' for key, one in value.items())}}}"
            case list():
                return f"[{','.join(map(said, value))}]"
        return _json(value)

    calls = "".join(f"<|tool_call>call:{name}{said(value)}<tool_call|>" for name, value in scene.calls)
    return scene.before + calls + scene.after


def _glm45(scene: Scene) -> str:
    def one(name: str, value: dict[str, Any]) -> str:
        tags = "\n".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{_plain(one)}</arg_value>" for key, one in value.items()
        )
        return f"<tool_call>{name}\n{tags}\n</tool_call>"

    return scene.before + "\n".join(one(*call) for call in scene.calls) + scene.after


def _llama3_json(scene: Scene) -> str:
    calls = "; ".join(_ASCII({"name": name, "parameters": value}) for name, value in scene.calls)
    return f"{scene.before}<|python_tag|>{calls}{scene.after}"


def _pythonic(scene: Scene) -> str:
    def one(name: str, value: dict[str, Any]) -> str:
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in value.items())})"

    calls = ", ".join(one(*call) for call in scene.calls)
    return f"{scene.before}<|python_start|>[{calls}]<|python_end|>{scene.after}"


def _olmo3(scene: Scene) -> str:
    def one(name: str, value: dict[str, Any]) -> str:
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in value.items())})"

    calls = "\n".join(one(*call) for call in scene.calls)
    return f"{scene.before}<function_calls>\n{calls}\n</function_calls>{scene.after}"


def _cohere(scene: Scene) -> str:
    calls = ",\n    ".join(
        f'{{"tool_call_id": "{at}", "tool_name": {_json(name)}, "parameters": {_json(value)}}}'
        for at, (name, value) in enumerate(scene.calls)
    )
    return f"{scene.before}<|START_ACTION|>[\n    {calls}\n]<|END_ACTION|>{scene.after}"


def _functionary(scene: Scene) -> str:
    calls = "\n".join(f">>>{name}\n{_json(value)}" for name, value in scene.calls)
    after = f"\n>>>all\n{scene.after}" if scene.after else ""
    return f"{'all' if scene.before else '>>>all'}\n{scene.before}{calls}{after}"


def _each(scene: Scene, begin: str, end: str) -> str:
    """An object between markers for each call."""
    calls = (f'{begin}{{"name": {_json(name)}, "arguments": {_json(value)}}}{end}' for name, value in scene.calls)
    return scene.before + "\n".join(calls) + scene.after


def _command_r(scene: Scene) -> str:
    return json.dumps([{"tool_name": name, "parameters": value} for name, value in scene.calls], indent=4)


def _by_name(scene: Scene) -> str:
    return _json([{name: value} for name, value in scene.calls])


def _objects(scene: Scene, key: str = "arguments") -> str:
    return _json([{"name": name, key: value} for name, value in scene.calls])


def _mistral(scene: Scene) -> str:
    calls = "".join(f"[TOOL_CALLS]{name}[ARGS]{_json(value)}" for name, value in scene.calls)
    return scene.before + calls + scene.after


def _deepseek_v3(scene: Scene) -> str:
    calls = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{_json(value)}\n```<｜tool▁call▁end｜>"
        for name, value in scene.calls
    )
    return f"{scene.before}<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>{scene.after}"


def _deepseek_v31(scene: Scene) -> str:
    calls = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{_json(value)}<｜tool▁call▁end｜>" for name, value in scene.calls
    )
    return f"{scene.before}<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>{scene.after}"


def _plamo3(scene: Scene) -> str:
    def between(what: str, text: str) -> str:
        return f"<|plamo:begin_{what}:plamo|>{text}<|plamo:end_{what}:plamo|>"

    def one(name: str, value: dict[str, Any]) -> str:
        given = between("tool_arguments", f"<|plamo:constrain|>json<|plamo:msg|>{_json(value)}")
        return between("tool_request", between("tool_name", name) + given)

    calls = between("tool_requests", "".join(one(*call) for call in scene.calls))
    return f"{scene.before}{calls}{scene.after}"


def _kimi_k2(scene: Scene) -> str:
    calls = "".join(
        f"<|tool_call_begin|>functions.{name}:{at}<|tool_call_argument_begin|>{_json(value)}<|tool_call_end|>"
        for at, (name, value) in enumerate(scene.calls)
    )
    return f"{scene.before}<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>{scene.after}"


def _openai(scene: Scene) -> str:
    texts = [f"<|channel|>commentary<|message|>{scene.before}<|end|>"] if scene.before else []
    texts += [
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{_json(value)}<|call|>"
        for name, value in scene.calls
    ]
    texts += [f"<|channel|>final<|message|>{scene.after}<|return|>"] if scene.after else []
    return "<|start|>assistant".join(texts)


WRITERS: dict[str, Write] = {
    "hermes": _hermes,
    "qwen3_coder": _qwen3_coder,
    "seed_oss": _seed_oss,
    "minimax_m2": _minimax_m2,
    "hy_v3": _hy_v3,
    "minicpm5": _minicpm5,
    "dots": lambda scene: _minimax_m2(scene).replace("minimax:tool_call", "dots_function_call"),
    "solar_open2": _solar_open2,
    "glm45": _glm45,
    "llama3_json": _llama3_json,
    "pythonic": _pythonic,
    "mistral": _mistral,
    "deepseek_v3": _deepseek_v3,
    "deepseek_v31": _deepseek_v31,
    "kimi_k2": _kimi_k2,
    "plamo3": _plamo3,
    "openai": _openai,
    "granite": lambda scene: f"{scene.before}<|tool_call|>{_objects(scene)}{scene.after}",
    "hunyuan_a13b": lambda scene: f"{scene.before}<tool_calls>{_objects(scene)}</tool_calls>{scene.after}",
    "nemotron_json": lambda scene: f"{scene.before}<TOOLCALL>{_objects(scene)}</TOOLCALL>{scene.after}",
    "step3": _step3,
    "deepseek_v32": _dsml("｜DSML｜", "function_calls"),
    "deepseek_v41": _dsml("｜DSML｜ ", "calls"),
    "gigachat35": _dsml("｜GCML｜", "tool_calls"),
    "kimi_k3": _kimi_k3,
    "gemma4": _gemma4,
    "olmo3": _olmo3,
    "cohere_command3": _cohere,
    "functionary": _functionary,
    "internlm": lambda scene: _each(scene, "<|action_start|><|plugin|>\n", "<|action_end|>"),
    "phi4_mini_json": lambda scene: f"{scene.before}functools{_objects(scene)}{scene.after}",
    "xlam": lambda scene: f"{scene.before}<tool_call>{_objects(scene)}</tool_call>{scene.after}",
    "cohere_command_r": lambda scene: f"{scene.before}Action: ```json\n{_command_r(scene)}\n```{scene.after}",
    "apertus": lambda scene: f"{scene.before}<|tools_prefix|>{_by_name(scene)}<|tools_suffix|>{scene.after}",
    "gigachat3": lambda scene: _each(scene, "function call<|role_sep|>\n", ""),
    "json_array": lambda scene: _objects(scene, "parameters"),
}
TAGGED = (
    "qwen3_coder",
    "seed_oss",
    "minimax_m2",
    "glm45",
    "step3",
    "hy_v3",
    "minicpm5",
    "dots",
    "solar_open2",
)  # their values are plain texts
_OLD_MISTRAL: Write = lambda scene: f"{scene.before}[TOOL_CALLS]{_objects(scene)}{scene.after}"  # noqa: E731


def _as_tags_say(call: Asked) -> Asked:
    """Tags do not tell a value's type: without one in the schema it is the text that stands there."""
    name, values = call
    typed = SCHEMAS.get(name, {}).get("properties", {})
    return name, {key: value if key in typed else _plain(value) for key, value in values.items()}


def _written(tools: str, write: Write, scene: Scene, form: str = "") -> Sample:
    ids: tuple[str, ...] | None = None
    if tools in ("kimi_k2", "cohere_command3"):
        ids = tuple(
            f"functions.{name}:{at}" if tools == "kimi_k2" else f"{at}" for at, (name, _) in enumerate(scene.calls)
        )
    content = scene.before + scene.after if tools != "json_array" else ""
    calls = tuple(map(_as_tags_say, scene.calls)) if tools in TAGGED else scene.calls
    return Sample(scene.label + form, write(scene), tools, content=content, calls=calls, ids=ids)


def scenes() -> list[Sample]:
    """Each scene in each format."""
    found = [
        _written(tools, write, scene)
        for tools, write in WRITERS.items()
        for scene in SCENES
        if tools != "json_array" or not (scene.before or scene.after)
    ]
    return found + [_written("mistral", _OLD_MISTRAL, scene, ", old") for scene in SCENES]
