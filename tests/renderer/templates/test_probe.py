"""What trying shows of templates: calls one at a time, thinking in parts. The rest is beside what is done with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..made import make
from .conversations import USER, call, calls, result

FIRST = "{% set c = m.tool_calls[0] %}({{ c.id }}{{ c.function.arguments | tojson }})"
ONE_CALL = {
    "refuses several": "{% if m.tool_calls | length > 1 %}{{ raise_exception('No.') }}{% endif %}" + FIRST,
    "leaves out all but the first": FIRST,
    "writes all": "({% for c in m.tool_calls %}{{ c.id }}{{ c.function.arguments | tojson }}{% endfor %})",
}


def template_of(name: str) -> str:
    said = "<{{ m.reasoning_content }}|{{ m.content }}|{{ m.tool_call_id }}>"
    return f"{{% for m in messages %}}{said}{{% if m.tool_calls %}}{ONE_CALL[name]}{{% endif %}}{{% endfor %}}"


@pytest.mark.parametrize("name", ONE_CALL)
def test_several_calls(name: str, tmp_path: Path) -> None:
    """As with Llama 3's, gpt-oss' and GigaChat's templates: a message for each, and its results behind it."""
    first, second = call(number=1, x=1), call(number=2, x=2)
    said = calls(first, second, content="I look.", reasoning_content="Hm.")
    for results in ([result("a", 1), result("b", 2)], [result("b", 2), result("a", 1)]):
        text = make(template_of(name), tmp_path).render([USER, said, *results, USER])
        asked = f"<|{USER['content']}|>"
        if name == "writes all":
            assert '(call_00001{"x": 1}call_00002{"x": 2})' in text
            continue
        one = '<Hm.|I look.|>(call_00001{"x": 1})<|a|call_00001>'
        assert text == f'{asked}{one}<||>(call_00002{{"x": 2}})<|b|call_00002>{asked}'


def test_results_that_name_no_call_are_of_each_in_turn(tmp_path: Path) -> None:
    ours = make(template_of("refuses several"), tmp_path)
    nameless = [{"role": "tool", "content": text} for text in ("a", "b", "c")]
    text = ours.render([USER, calls(call(number=1), call(number=2), content=""), *nameless])
    assert text.endswith("<||>(call_00001{})<|a|><||>(call_00002{})<|b|><|c|>")


THINKS = (  # as Ministral 3's
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'thinking' %}[{{ p.thinking }}]{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endif %};{% endfor %}"
)


def test_thinking_in_parts(tmp_path: Path) -> None:
    said = {"role": "assistant", "content": "Four.", "reasoning_content": "Hm."}
    ours = make(THINKS, tmp_path)
    assert ours.render([said]) == "[Hm.]Four.;"
    assert ours.render([said | {"content": None}]) == "[Hm.];"
    own = [{"type": "thinking", "thinking": "Oh."}, {"type": "text", "text": "Five."}]
    assert ours.render([said | {"content": own}]) == "[Oh.]Five.;"
    both = THINKS.replace("{% if m.content is", "{{ m.reasoning_content }}{% if m.content is", 1)
    assert make(both, tmp_path).render([said]) == "Hm.Four.;"
