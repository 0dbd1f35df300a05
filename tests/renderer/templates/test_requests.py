"""Templates that come with requests: compiled in the same sandbox, kept within bounds, refused by their name."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorserve.actors.renderer.templates import cache as compiled
from actorserve.actors.renderer.templates.cache import LONGEST, MAX_KEPT, RequestTemplates
from actorserve.actors.renderer.templates.chat_template import TemplateProblem
from actorserve.actors.renderer.templates.sandbox import make_environment

from ..made import make
from .conversations import TOOLS, USER
from .templates import ALL, CHATML
from .test_chat_template import by_transformers


def test_a_request_brings_its_own_template(tmp_path: Path) -> None:
    ours = make(CHATML, tmp_path, bos_token="<s>", eos_token="</s>")
    for text in ALL.values():
        options = {"tools": TOOLS, "add_generation_prompt": True}
        try:
            expected = by_transformers(text, [USER], options)
        except Exception:
            with pytest.raises(TemplateProblem):
                ours.render([USER], TOOLS, chat_template=text)
        else:
            assert ours.render([USER], TOOLS, chat_template=text) == expected
    assert ours.render([USER]) == by_transformers(CHATML, [USER], {"add_generation_prompt": True})


def test_a_model_without_a_template_takes_one(tmp_path: Path) -> None:
    assert make("", tmp_path).render([USER], chat_template="{{ messages[0].content }}") == USER["content"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must be the text"),
        ("x" * (LONGEST + 1), "65,536 are allowed"),
        ("\n{% if %}", "line 2"),
        ("{% for x in messages %}", "line 1"),
        ("{{ x | no_such_filter }}", "no_such_filter"),
        ("{{ x is no_such_test }}", "no_such_test"),
        ("{% no_such_tag %}", "no_such_tag"),
        ("{% break %}", "cannot be compiled"),
        ("{% if x %}" * 200 + "{% endif %}" * 200, "cannot be compiled|nested"),
        ("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}", "nested"),
        ("{{ " + "-" * 5_000 + "1 }}", "nested|compiled"),
        ("{{ " + "1+" * 30_000 + "1 }}", "nested|compiled"),
        ("{{ " + "9" * 5_000 + " }}", "compiled|integer"),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_name(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(TemplateProblem, match=words) as caught:
        make(CHATML, tmp_path).render([USER], chat_template=text)
    assert caught.value.param == "chat_template"
    assert str(caught.value).startswith("chat_template")


@pytest.mark.parametrize(
    ("text", "words", "param"),
    [
        ("{{ raise_exception('not so') }}", "^not so$", "messages"),
        ("x\n{{ nothing.at.all }}", "in line 2: 'nothing' is undefined", "chat_template"),
        ("{{ 'x'.center(10 ** 9) }}", "too much", "chat_template"),
        ("{{ messages.append(1) }}", "unsafe", "chat_template"),
        ("{{ '{a}'.format(b=1) }}", "there is no 'a'", "chat_template"),
    ],
)
def test_what_fails_while_it_runs(text: str, words: str, param: str, tmp_path: Path) -> None:
    with pytest.raises(TemplateProblem, match=words) as caught:
        make(CHATML, tmp_path).render([USER], chat_template=text)
    assert caught.value.param == param


def test_those_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    templates = RequestTemplates(make_environment(), "auto")
    first = templates.get("0{{ x }}")
    for number in range(1, MAX_KEPT):
        templates.get(f"{number}{{{{ x }}}}")
    assert templates.get("0{{ x }}").template is first.template
    templates.get("one more")
    assert templates.get("0{{ x }}").template is first.template and len(templates) == MAX_KEPT
    assert "1{{ x }}" not in templates and "2{{ x }}" in templates
    monkeypatch.setattr(compiled, "MAX_KEPT_TEXT", 1000)
    templates.get("x" * 900)
    assert len(templates) <= 14 and "x" * 900 in templates
    again = templates.get("x" * 1001)
    assert again.template.render() == "x" * 1001 and len(templates) == 0


def test_a_renderer_does_not_stand_still_while_one_is_tried() -> None:
    """How slow a template is, its first rendering takes no longer than any: each try is one of its own."""
    environment, seen = make_environment(), list[str]()
    environment.globals["seen"] = lambda: seen.append("rendered")
    RequestTemplates(environment, "auto", lambda: seen.append("beat")).get("{{ seen() }}{{ messages[0].content }}")
    assert seen[1::2] == ["beat"] * len(seen[::2]) and seen[::2] == ["rendered"] * len(seen[1::2])
    assert len(seen) > 2


def test_what_failed_is_not_kept() -> None:
    templates = RequestTemplates(make_environment(), "auto")
    for _ in range(2):
        with pytest.raises(TemplateProblem, match="line 1"):
            templates.get("{% if %}")
    assert len(templates) == 0
