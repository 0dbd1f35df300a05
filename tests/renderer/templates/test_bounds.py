"""What makes much of little is refused before it is made; what is made in many steps meets the bound on memory."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from actorserve.actors.renderer.templates.chat_template import TemplateProblem
from tests.support.selection import slow

from ..made import make
from .conversations import USER
from .test_chat_template import by_transformers

MUCH = 64 << 20  # bytes that Python may take while it refuses

REFUSED = [
    "{{ 'x'.ljust(10 ** 9) }}",
    "{{ 'x'.rjust(999999999, 'y') }}",
    "{{ 'x'.center(999999999) }}",
    "{{ 'x' | center(999999999) }}",
    "{{ ['x'] | map('center', 999999999) | list }}",
    "{{ ('x' | attr('zfill'))(999999999) }}",
    "{{ 'x'.zfill(999999999) }}",
    "{{ ('x' | safe).zfill(999999999) }}",
    "{{ 'x\ty'.expandtabs(999999999) }}",
    "{{ 'x\ty'.expandtabs(tabsize=999999999) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%.999999999f' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%-*d' | format(999999999, 1) }}",
    "{{ '%(a)999999999s' % {'a': 1} }}",
    "{{ '%999999999s' | format(1) }}",
    "{{ ('%(a)s' * 1000) % {'a': 'x' * 999999} }}",
    "{{ 'é'.encode().center(999999999) }}",
    "{{ (b % 1) if b is defined else '%999999999d'.encode() % 1 }}",
    "{{ 'x'.encode() * 999999999 }}",
    "{{ (1).to_bytes(999999999, 'big') }}",
    "{{ '{:>999999999}'.format('x') }}",
    "{{ '{:.999999999f}'.format(1.0) }}",
    "{{ '{:{}}'.format('x', 999999999) }}",
    "{{ '{a:>999999999}'.format_map({'a': 1}) }}",
    "{{ ('{:>999999999}' | safe).format('x') }}",
    "{{ ('{0}' * 1000).format('x' * 999999) }}",
    "{{ '{0!r}'.format([['x' * 999999] * 999] * 999) }}",
    "{{ 'x\ny' | indent(width=999999999) }}",
    "{{ ('x\n' * 9999) | indent('y' * 9999) }}",
    "{{ ('x ' * 9999) | wordwrap(1, wrapstring='y' * 9999) }}",
    "{{ 'x'.replace('', 'y' * 30000000) }}",
    "{{ ('a' * 9999) | replace('a', 'b' * 9999) }}",
    "{{ ('a' * 9999).replace('a', 'b' * 9999) }}",
    "{{ ('a' * 9999).translate({97: 'b' * 9999}) }}",
    "{{ (['a' * 9999] * 9999) | join }}",
    "{{ (['a'] * 9999) | join('b' * 9999) }}",
    "{{ ('b' * 9999).join(['a'] * 9999) }}",
    "{{ ('b' * 9999).join('a' * 9999) }}",
    "{{ ([{'x': 'a' * 9999}] * 9999) | join(attribute='x') }}",
    "{{ ''.join(range(9999) | map('string') | map('replace', '', 'x' * 99999)) }}",
    "{{ ([1] * 999999) * 2 }}",
    "{{ [1] * 1048577 }}",
    "{% set x = [['a' * 9999] * 9999] %}{{ x }}",
    "{% set x = [['a' * 9999] * 9999] %}{{ x ~ 1 }}",
    "{% set x = [['a' * 9999] * 9999] %}{{ '%s' % x }}",
    "{% set x = [['a' * 9999] * 9999] %}{{ x | tojson }}",
    "{{ ([1] * 9999) | tojson(indent=9999) }}",
    "{{ ([1] * 9999) | tojson(indent='x' * 9999) }}",
    "{{ ([1] * 9999) | tojson(separators=['x' * 9999, ':']) }}",
    "{{ [1] | batch(999999999, 0) | list }}",
    "{{ lipsum(n=1000000) }}",
    "{{ lipsum(n=1, min=1, max=100000000) }}",
    "{{ strftime_now('%c' * 10000) }}",
    "{{ 'www.a.b ' | urlize(target='x' * 9999) }}",
    "{% set n = namespace(x='xxxxxxxx') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x='xxxxxxxx') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x=2) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "{% set n = namespace(x='\"') %}{% for i in range(99) %}{% set n.x = n.x | tojson %}{% endfor %}",
    "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set y %}{{ n.x }}{{ n.x }}{% endset %}"
    "{% set n.x = y %}{% endfor %}",
    "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}"
    "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = m(n.x) %}{% endfor %}",
    "{% set x = 'x' * 9999999 %}{% filter upper %}{{ x }}{{ x }}{{ x }}{{ x }}{% endfilter %}",
    "{% autoescape true %}{% set x = 'x' * 9999999 %}{{ x ~ x ~ x ~ x }}{% endautoescape %}",
]


@pytest.mark.parametrize("text", REFUSED)
def test_what_makes_too_much_is_refused_before_it_is_made(text: str, tmp_path: Path) -> None:
    ours = make(text, tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(TemplateProblem, match="makes too much"):
            ours.render([USER])
        assert tracemalloc.get_traced_memory()[1] < 2 * MUCH
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", [text for text in REFUSED if "999999999" in text])
def test_compiling_makes_nothing(text: str, tmp_path: Path) -> None:
    """Jinja computes what is constant when it compiles."""
    tracemalloc.start()
    make(text, tmp_path)
    assert tracemalloc.get_traced_memory()[1] < MUCH
    tracemalloc.stop()


def test_what_stays_small_is_as_ever(tmp_path: Path) -> None:
    """All the operations that are bounded, in sizes that make sense: what transformers' environment gives."""
    text = """{{ 'x'.ljust(5) }}{{ 'x'.rjust(5, 'y') }}{{ 'x' | center(7) }}{{ '7'.zfill(3) }}{{ 'a\tb'.expandtabs(4) }}
{{ '%5d|%-5s|%05.1f|%%|%s' % (1, 'a', 2.5, [1]) }}{{ '%(a)s%(b)3d' % {'a': 1, 'b': 2} }}{{ '%*d' % (4, 1) }}
{{ '{:>4}{!r}{a[0]}{:{}}'.format('x', 'y', 1, 5, a=[7]) }}{{ '{a}'.format_map({'a': 2}) }}{{ '{}'.format([1]) }}
{{ ('<{}>' | safe).format('<b>') }}{{ ('<' | safe) ~ '<' }}{{ ('<' | safe) + '<' }}{{ ('%s' | safe) % '<' }}
{{ 'a\n\nb' | indent(2) }}{{ 'a\nb' | indent('> ', true, true) }}{{ 'a b c' | wordwrap(2, wrapstring='/') }}
{{ 'aXa'.replace('a', 'bb') }}{{ 'aaa' | replace('a', 'b', 2) }}{{ 'aaa'.replace('a', 'b', 1) }}
{{ 12 | replace(1, 3) }}
{{ [1, 'a', none] | join('-') }}
{{ [{'x': 1}, {'x': 2}] | join(',', attribute='x') }}{{ '-'.join(['a', 'b']) }}{{ '-'.join('ab') }}
{{ [1, 2] + [3] }}{{ [0] * 3 }}{{ 3 * 'ab' }}{{ 2 ** 10 }}{{ 7 % 4 }}{{ 1.5 + 1 }}{{ 'a' + 'b' ~ 1 ~ none ~ [1] }}
{{ {'a': [1, 'é<']} | tojson(indent=2) }}
{{ [1, 2] | tojson(separators=(',', ':')) }}{{ [1, 2, 3] | batch(2, 0) | list }}
{{ 'abc'.translate({97: 'xx'}) }}{{ (5).to_bytes(2, 'big') }}{{ 'é'.encode() + 'x'.encode() }}{{ nothing ~ 'x' }}
{% for m in messages %}{{ 'x'.ljust(3) ~ 'x'.replace('x', 'y') ~ '-'.join(['a']) }}{% endfor %}
{% autoescape true %}{{ '<' ~ ('<' | safe) }}
{{ ['<', '<' | safe] | join('<') }}{{ '<' | replace('<', '>') }}{% endautoescape %}
{{ 'see www.a.b/c' | urlize }}{{ [1, 2] | map('string') | join }}{{ messages | string | length }}"""
    assert make(text, tmp_path).render([USER]) == by_transformers(text, [USER], {"add_generation_prompt": True})


GROWING = [
    "{% set n = namespace(x=[]) %}{% for i in range(999) %}{% set n.x = n.x + [i ~ 'x' * 999999] %}{% endfor %}",
    "{{ ('x ' * 9999999).split() | length }}",
    "{{ ('你' * 9999999) | list | length }}",
    "{{ [[1] * 999999] | batch(1) | list | length }}{{ range(99999) | map('center', 9999) | list | length }}",
    "{% macro m(i) %}{% set y = 'x' * 9999999 ~ i %}{{ m(i - 1) if i }}{{ y }}{% endmacro %}{{ m(90) }}",
    "{% set n = namespace(d={}) %}{% for i in range(9999) %}"
    "{% set n.d = dict(n.d, **{'x%d' % i: 'x' * 999999 ~ i}) %}{% endfor %}",
]


@pytest.mark.parametrize("text", [*GROWING[::2], *slow(*GROWING[1::2])])
def test_what_grows_in_steps_meets_the_bound_on_memory(text: str, tmp_path: Path) -> None:
    text = f"{{% if messages[0].content == '{USER['content']}' %}}{text}{{% endif %}}"  # not where it is tried at start
    in_a_new_process(MEETS_THE_BOUND, text, str(tmp_path))


MEETS_THE_BOUND = f"""
import resource, sys
from pathlib import Path
import pytest
from actorserve.actors.renderer.templates import chat_template as template
from actorserve.actors.renderer.templates.problem import OutOfMemory
from tests.renderer.templates.conversations import USER
from tests.renderer.made import make

template.MAX_MEMORY = {MUCH}
ours = make(sys.argv[1], Path(sys.argv[2]))
before = resource.getrlimit(resource.RLIMIT_AS)
with pytest.raises(OutOfMemory, match="too much memory"):
    ours.render([USER])
assert resource.getrlimit(resource.RLIMIT_AS) == before
"""


@pytest.mark.parametrize("text", [GROWING[4], *slow(*GROWING[:4], GROWING[5])])
def test_a_models_template_that_meets_it_when_it_is_tried_is_refused_at_start(text: str, tmp_path: Path) -> None:
    in_a_new_process(IS_REFUSED, text, str(tmp_path))


IS_REFUSED = f"""
import sys
from pathlib import Path
import pytest
from actorserve.actors.options.config import ConfigError
from actorserve.actors.renderer.templates import chat_template as template
from tests.renderer.made import make

template.MAX_MEMORY = {MUCH}
with pytest.raises(ConfigError, match="the chat template needs too much memory"):
    make(sys.argv[1], Path(sys.argv[2]))
"""


def test_memory_is_bounded_only_within() -> None:
    in_a_new_process(IS_BOUNDED)


IS_BOUNDED = f"""
import resource
import pytest
from actorserve.actors.renderer.templates.memory_limit import bounded_memory

MUCH = {MUCH}
before = resource.getrlimit(resource.RLIMIT_AS)
with bounded_memory(MUCH):
    assert len(bytearray(MUCH // 2)) == MUCH // 2
    with pytest.raises(MemoryError):
        bytearray(2 * MUCH)
assert resource.getrlimit(resource.RLIMIT_AS) == before
with pytest.raises(ZeroDivisionError), bounded_memory(MUCH):
    raise ZeroDivisionError
assert resource.getrlimit(resource.RLIMIT_AS) == before
assert len(bytearray(2 * MUCH)) == 2 * MUCH
"""


def in_a_new_process(code: str, *words: str) -> None:
    """A process of other tests may have freed any amount, which it can take again within every bound.

    Whoever met a bound is not to be trusted any more, either.
    """
    subprocess.run([sys.executable, "-c", code, *words], check=True)


def test_a_large_conversation_has_room(tmp_path: Path) -> None:
    """A request of 4 MiB and more, with characters that take four bytes each."""
    messages = [USER, {"role": "assistant", "content": "🙂 so it is. " * 50}] * 4000
    text = "{% for m in messages %}{{ '<' + m.role + '>' ~ m.content | trim ~ '\\n' }}{% endfor %}"
    assert make(text, tmp_path).render(messages) == by_transformers(text, messages, {})
