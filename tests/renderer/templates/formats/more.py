"""More chat templates: calls with numbers of their own, documents, and one with all that Jinja has besides."""

# ruff: noqa: E501  # a line of a template is as long as it is

from __future__ import annotations

KIMI_K2 = r"""
{%- macro render(content) -%}
    {%- if content is string -%}{{ content }}
    {%- else -%}
        {%- for part in content -%}
            {%- if part['type'] == 'image' or 'image' in part or 'image_url' in part -%}<|media_start|>image<|media_end|>
            {%- else -%}{{ part['text'] }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- macro roles(message) -%}
    {%- set name = message.get('name', message['role']) -%}
    {%- if message['role'] in ['user', 'assistant'] -%}<|im_{{ message['role'] }}|>{{ name }}<|im_middle|>
    {%- else -%}<|im_system|>{{ name }}<|im_middle|>{%- endif -%}
{%- endmacro -%}
{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson(separators=(',', ':')) }}<|im_end|>{%- endif -%}
{%- for message in messages -%}
    {%- if loop.first and message['role'] != 'system' -%}<|im_system|>system<|im_middle|>You are Kimi.<|im_end|>{%- endif -%}
    {{ roles(message) }}
    {%- if message['role'] == 'assistant' and message.get('tool_calls') -%}
        {%- if message['content'] -%}{{ render(message['content']) }}{%- endif -%}
        <|tool_calls_section_begin|>
        {%- for call in message['tool_calls'] -%}
            {%- set id = call['id'] | default('functions.%s:%d' | format(call['function']['name'], loop.index0)) -%}
            {%- set arguments = call['function']['arguments'] -%}
            <|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>
            {%- if arguments is string -%}{{ arguments }}{%- else -%}{{ arguments | tojson }}{%- endif -%}
            <|tool_call_end|>
        {%- endfor -%}
        <|tool_calls_section_end|>
    {%- elif message['role'] == 'tool' -%}
## Return of {{ message.tool_call_id | default('?') }}
{{ render(message['content']) }}
    {%- elif message['content'] is not none -%}{{ render(message['content']) }}
    {%- endif -%}
    <|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}
"""

MISTRAL_V3 = r"""
{%- if messages[0]["role"] == "system" %}{% set system_message, loop_messages = messages[0]["content"], messages[1:] %}
{%- else %}{% set loop_messages = messages %}{% endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools and message == user_messages[-1] %}{{ "[AVAILABLE_TOOLS] " + tools | tojson + "[/AVAILABLE_TOOLS]" }}{% endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "tool_calls" or message.tool_calls is defined %}
        {%- if message.tool_calls is defined %}
            {%- set tool_calls = message.tool_calls %}
        {%- else %}
            {%- set tool_calls = message.content %}
        {%- endif %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in tool_calls %}
            {%- set out = tool_call.function | tojson %}
            {{- out[:-1] + ', "id": "' + tool_call.id + '"}' }}{{ ", " if not loop.last else "]" + eos_token }}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] + eos_token }}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content | string + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""

MISTRAL_V7 = r"""
{%- if messages[0]['role'] == 'system' %}{% set system, turns = messages[0]['content'], messages[1:] %}
{%- else %}{% set system, turns = '', messages %}{% endif %}
{%- set users = turns | selectattr('role', 'equalto', 'user') | list %}
{%- set ns = namespace(index=0) %}
{%- for message in turns if message.role in ('user', 'assistant') and not message.tool_calls %}
    {%- if (message.role == 'user') != (ns.index % 2 == 0) %}
        {{- raise_exception('After the optional system message, conversation roles must alternate user/assistant') }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- if system %}{{ '[SYSTEM_PROMPT]' ~ system ~ '[/SYSTEM_PROMPT]' }}{% endif %}
{%- for message in turns %}
    {%- if message.role == 'user' %}
        {%- if tools and message == users[-1] %}
            {{- '[AVAILABLE_TOOLS][' }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, value in tool.items() if key != 'return' %}
                    {%- if value is string %}{{ '"' + key + '": "' + value + '"' }}
                    {%- else %}{{ '"' + key + '": ' + value | tojson }}{% endif %}
                    {%- if not loop.last %}{{ ', ' }}{% endif %}
                {%- endfor %}
                {{- '}}' }}{{ ', ' if not loop.last else ']' }}
            {%- endfor %}
            {{- '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined and message.tool_calls %}
        {{- '[TOOL_CALLS][' }}
        {%- for call in message.tool_calls %}
            {%- set out = call.function | tojson %}
            {{- out[:-1] }}
            {%- if call.id is not defined or call.id | length < 9 %}
                {{- raise_exception('Tool call IDs should be alphanumeric strings with length 9 or more!') }}
            {%- endif %}
            {{- ', "id": "' + call.id[-9:] + '"}' }}{{ ', ' if not loop.last else ']' + eos_token }}
        {%- endfor %}
    {%- elif message.role == 'assistant' %}
        {{- message.content + eos_token }}
    {%- elif message.role in ['tool', 'tool_results'] %}
        {{- '[TOOL_RESULTS]{"content": ' + message.content | string + ', "call_id": "' + (message.tool_call_id | default('call_0000'))[-9:] + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported, not ' ~ message.role) }}
    {%- endif %}
{%- endfor %}
"""

COMMAND_A = r"""
{%- macro outline(value, depth=1) -%}
    {%- for key, inner in value | dictsort -%}
        {{- '\n' ~ '  ' * depth ~ key ~ ':' -}}
        {%- if inner is mapping -%}{{ outline(inner, depth + 1) }}
        {%- elif inner is sequence and inner is not string -%}{{ ' ' ~ inner | map('string') | unique | join('/') }}
        {%- else -%}{{ ' ' ~ inner }}{%- endif -%}
    {%- endfor -%}
{%- endmacro -%}
{{ bos_token }}<|START_OF_TURN|><|SYSTEM|># Preamble
{% for role, group in messages | groupby('role') %}{{ role | title }}: {{ group | length }}{{ '; ' if not loop.last else '\n' }}{% endfor %}
{%- if documents %}{% for document in documents recursive %}{{ loop.depth0 }}.{{ loop.index }} {{ document.title | default('untitled') | truncate(20) }}{% for key, text in document.items() if key not in ['title', 'parts'] %} [{{ key }}={{ text | replace('\n', ' ') }}]{% endfor %}

{% if document.parts %}{{ loop(document.parts) }}{% endif %}{% endfor %}{% endif %}
{%- if tools %}{% for tool in tools[::-1] %}{{ tool.function.name.center(20, '-') }}{{ outline(tool.function) }}
{% endfor %}{% endif -%}
<|END_OF_TURN|>
{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}{% break %}{% endif %}
{%- if message.content is undefined and not message.tool_calls %}{% continue %}{% endif -%}
<|START_OF_TURN|><|{{ 'CHATBOT' if message.role == 'assistant' else message.role.upper() }}|>
{%- if message.tool_calls %}Action: ```json
[
{%- for call in message.tool_calls %}
{%- filter indent(4) %}
{"tool_call_id": {{ loop.index0 }}, "tool_name": {{ call.function.name | tojson }}, "parameters": {{ call.function.arguments | tojson(indent=1, ensure_ascii=True) }}}
{%- endfilter %}{{ ',' if not loop.last }}
{%- endfor %}
]```
{%- else %}{{ message.content }}{% endif -%}
<|END_OF_TURN|>
{%- endfor %}
{%- if add_generation_prompt %}<|START_OF_TURN|><|CHATBOT|>{% endif %}"""

TOOLBOX = r"""
{%- set colours = cycler('odd', 'even') -%}{%- set comma = joiner(', ') -%}
{%- set roles -%}{% for m in messages %}{{ comma() }}{{ m.role }}{% endfor %}{%- endset -%}
{%- with total = messages | length, half = (messages | length + 1) // 2 -%}
[{{ roles }}] {{ total }} {{ half }} {{ '%05.1f|%-6s|' % (total / 3, 'ab') }} {{ '{:>6}|{!r}|{x}'.format(total, 'q', x=half) }}
{%- endwith %}
{% for m in messages[-1::-2] -%}
{{ colours.next() }} {{ loop.revindex }}/{{ loop.length }} {{ m.role.capitalize() ~ ':' -}}
{%- set text = m.content | default('', true) | string -%}
{{ text[:5] }}|{{ text[-3:] }}|{{ text[::2] }}|{{ text.split()[1:3] | join('+') }}|{{ text | wordcount }}|{{ text | e }}
{%- if loop.changed(m.role) %} new{% endif %}
{% else -%}
nobody
{%- endfor -%}
{{ messages | map(attribute='name', default='-') | join('/') }} {{ messages | selectattr('content', 'defined') | list | length }}
{{- (messages | first).role ~ (messages | last).role }} {{ [3, 1, 2] | sort(reverse=true) | list }} {{ range(3) | sum }}
{{- {'a': [1, 2.5, none, true], 'é': '<&>"\''} | tojson(separators=(',', ':'), ensure_ascii=true) }} {{ [1, 2, 3, 4, 5] | batch(2, 0) | list }}
{{- ('a' in 'abc') and not ('z' in 'abc') }} {{ 7 // 2 }} {{ -7 % 3 }} {{ 2 ** 3 }} {{ 1.0 }} {{ none }} {{ [] or 'empty' }}
{%- if tools %}{{ tools | map(attribute='function.name') | sort | join('|') }}{% endif %}
{%- raw %}{{ not rendered }}{% endraw %}{# a remark #}
  {% if true %}
  indented
  {% endif %}
{{ add_generation_prompt }}{% if x is defined %}{{ x }}{% endif %}
"""

ALL = {name.lower(): value for name, value in globals().items() if name.isupper() and isinstance(value, str)}
