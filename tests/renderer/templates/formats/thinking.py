"""Chat templates of models that think, or not, as a variable says; and of those that read documents and controls."""

# ruff: noqa: E501  # a line of a template is as long as it is

from __future__ import annotations

GLM_45 = r"""[gMASK]<sop>
{%- if tools -%}
<|system|>
# Tools
<tools>
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
</tools>{%- endif -%}
{%- macro visible_text(content) -%}
    {%- if content is string -%}{{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if item is mapping and item.type == 'text' -%}{{- item.text }}
            {%- elif item is string -%}{{- item }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{- content }}{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last_user_index=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last_user_index = loop.index0 %}{% endif %}{% endfor %}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible_text(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not visible_text(m.content).endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}
<|assistant|>
{%- set reasoning_content = '' %}
{%- set content = visible_text(m.content) %}
{%- if m.reasoning_content is string %}
    {%- set reasoning_content = m.reasoning_content %}
{%- elif '</think>' in content %}
    {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
    {%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{%- if loop.index0 > ns.last_user_index and reasoning_content -%}
{{ '\n<think>' + reasoning_content.strip() + '</think>' }}
{%- else -%}
{{ '\n<think></think>' }}
{%- endif -%}
{%- if content.strip() -%}{{ '\n' + content.strip() }}{%- endif -%}
{% if m.tool_calls %}
{% for tc in m.tool_calls %}
{%- if tc.function %}{% set tc = tc.function %}{% endif %}
{{ '\n<tool_call>' + tc.name }}
{% set _args = tc.arguments %}
{% for k, v in _args.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}
</tool_call>{% endfor %}
{% endif %}
{%- elif m.role == 'tool' -%}
{%- if m.content is string -%}
{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|observation|>' }}{%- endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- else -%}
<|observation|>{% for tr in m.content %}

<tool_response>
{{ tr.output if tr.output is defined else tr }}
</tool_response>{% endfor -%}
{% endif -%}
{%- elif m.role == 'system' -%}
<|system|>
{{ visible_text(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|assistant|>{{- '\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}
{%- endif -%}
"""

DEEPSEEK_V3_1 = r"""
{%- set thinking = thinking | default(enable_thinking | default(false)) %}
{%- set ns = namespace(system='', last_user=false, prefix=false) %}
{%- for message in messages if message.role == 'system' %}
    {%- set ns.system = ns.system ~ ('\n\n' if ns.system) ~ message.content %}
{%- endfor %}
{{- bos_token ~ ns.system }}
{%- if tools %}{{ '\n\n## Tools\n' }}
    {%- for tool in tools %}{% set f = tool.function %}
        {{- '\n### ' ~ f.name ~ '\nDescription: ' ~ f.description ~ '\n\nParameters: ' ~ f.parameters | tojson ~ '\n' }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set ns.last_user = true %}{{- '<｜User｜>' ~ message.content }}
    {%- elif message.role == 'assistant' %}
        {%- if ns.last_user %}{{ '<｜Assistant｜>' }}{{ '<think>' if thinking and (message.prefix or false) else '</think>' }}{% endif %}
        {%- set content = message.content | default('', true) %}
        {%- if '</think>' in content %}{% set content = content.split('</think>', 1)[1] %}{% endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {{- '<｜tool▁calls▁begin｜>' if loop.first }}<｜tool▁call▁begin｜>{{ call.function.name }}<｜tool▁sep｜>
            {%- if call.function.arguments is string %}{{ call.function.arguments }}{% else %}{{ call.function.arguments | tojson }}{% endif %}
            {{- '<｜tool▁call▁end｜>' }}{{ '<｜tool▁calls▁end｜>' if loop.last }}
        {%- endfor %}
        {{- '<｜end▁of▁sentence｜>' }}{% set ns.last_user = false %}
    {%- elif message.role == 'tool' %}
        {{- '<｜tool▁output▁begin｜>' ~ message.content ~ '<｜tool▁output▁end｜>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt and ns.last_user %}{{ '<｜Assistant｜>' ~ ('<think>' if thinking else '</think>') }}{% endif %}
"""

GRANITE_33 = r"""
{%- macro control(name, value) %}{{ '<|' ~ name ~ '|>' ~ value ~ '\n' }}{% endmacro %}
{%- set controls = dict(length=length | default('medium'), originality='extractive') %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message -%}
Knowledge Cutoff Date: April 2024.
Today's Date: {{ strftime_now('%B %d, %Y') }}.
You are Granite{{ ', with tools' if tools and not documents else ', with documents' if documents else '' }}.
    {%- endset %}
    {%- if thinking is defined and thinking or enable_thinking is defined and not enable_thinking is false %}
        {%- set system_message = system_message + ' Think, between <think> and </think>.' %}
    {%- endif %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\n' }}
{%- if tools %}
    {{- '<|start_of_role|>available_tools<|end_of_role|>' }}
    {{- tools | map(attribute='function') | list | tojson(indent=4) }}
    {{- '<|end_of_text|>\n' }}
{%- endif %}
{%- if documents %}
    {%- for document in documents %}
        {{- '<|start_of_role|>document {"document_id": "' + document['doc_id'] | default(loop.index) | string + '"}<|end_of_role|>\n' }}
        {{- document['text'] + '<|end_of_text|>\n' }}
    {%- endfor %}
{%- endif %}
{%- for message in loop_messages %}
    {%- if message['role'] == 'assistant' and message['tool_calls'] is defined %}
        {{- '<|start_of_role|>assistant<|end_of_role|><|tool_call|>' + message['tool_calls'] | map(attribute='function') | list | tojson + '<|end_of_text|>\n' }}
        {%- continue %}
    {%- endif %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant ' + controls | tojson(sort_keys=True) + '<|end_of_role|>' }}
        {%- for key, value in controls | dictsort %}{{ control(key, value) }}{% endfor %}
    {%- endif %}
{%- endfor %}
"""

GEMMA_3 = r"""{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
"""

SMOLLM_3 = r"""
{# ───── defaults ───── #}
{%- if enable_thinking is not defined -%}{%- set enable_thinking = true -%}{%- endif -%}
{%- set mode = "/think" if enable_thinking else "/no_think" -%}
{%- if messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}{%- set mode = "/no_think" -%}{%- endif -%}
  {%- set custom = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
  {%- set messages = messages[1:] -%}
{%- endif -%}
{{- "<|im_start|>system\n## Metadata\n\nToday Date: " ~ strftime_now("%d %B %Y") ~ "\nReasoning Mode: " ~ mode ~ "\n\n" -}}
{%- if custom is defined %}{{ "## Custom Instructions\n\n" ~ custom ~ "\n\n" }}{% endif -%}
{%- set ns = namespace(xml="") -%}
{%- for tool in xml_tools | default(tools, true) or [] -%}
  {%- set ns.xml = ns.xml ~ (tool | string) ~ "\n" -%}
{%- endfor -%}
{%- if ns.xml %}{{ "### Tools\n\n<tools>\n" ~ ns.xml ~ "</tools>\n\n" }}{% endif -%}
<|im_end|>
{% for message in messages -%}
  {%- set content = message.content if message.content is string else "" -%}
  {%- if message.role == "user" -%}
    {{ "<|im_start|>user\n" + content + "<|im_end|>\n" }}
  {%- elif message.role == "assistant" -%}
    {% generation %}
    {%- if mode == "/think" -%}
      {{ "<|im_start|>assistant\n" + content.lstrip("\n") + "<|im_end|>\n" }}
    {%- else -%}
      {{ "<|im_start|>assistant\n<think>\n\n</think>\n" + content.lstrip("\n") + "<|im_end|>\n" }}
    {%- endif -%}
    {% endgeneration %}
  {%- elif message.role == "tool" -%}
    {{ "<|im_start|>user\n" + content + "<|im_end|>\n" }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ "<|im_start|>assistant\n" if mode == "/think" else "<|im_start|>assistant\n<think>\n\n</think>\n" }}
{%- endif -%}
"""

NEMOTRON = r"""
{%- macro section(title) -%}<|{{ title | upper }}|>
{{ caller() }}<|END|>
{% endmacro -%}
{%- set thinking = 'on' if enable_thinking is not defined or enable_thinking else 'off' -%}
{%- set systems = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | map('trim') | list -%}
{%- call section('system') -%}
detailed thinking {{ thinking }}
{% for text in systems + (['no system'] if not systems else []) %}{{ text }}
{% endfor %}
{%- if tools %}{% filter indent(2, first=true) %}{{ tools | tojson(indent=2) }}{% endfilter %}
{% endif %}
{%- endcall -%}
{%- for message in messages | rejectattr('role', 'in', ['system', 'developer']) -%}
    {%- call section(message.role) -%}
    {%- if message.reasoning_content and thinking == 'on' -%}<think>{{ message.reasoning_content }}</think>{% endif -%}
    {%- if message.tool_calls -%}<TOOLCALL>[{% for call in message.tool_calls %}
        {{- {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}{{ ', ' if not loop.last }}
    {%- endfor %}]</TOOLCALL>
    {%- else %}{{ message.content }}{% endif %}
    {%- endcall -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|ASSISTANT|>
{{ '<think>\n' if thinking == 'on' else '<think></think>' }}{%- endif -%}
"""

PHI_4 = r"""
{%- for message in messages -%}
    {%- if message['role'] == 'system' and tools is defined and tools is not none -%}
        {{- '<|system|>' + message['content'] + '<|tool|>' + tools | tojson(separators=(',', ': '), indent=none) + '<|/tool|><|end|>' -}}
    {%- elif message['role'] in ('user', 'assistant', 'system') -%}
        {{- '<|' + message['role'] + '|>' + ('' if message['content'] is undefined else message['content']) + '<|end|>' -}}
    {%- endif -%}
{%- endfor -%}
{{- '<|assistant|>' if add_generation_prompt else eos_token -}}
"""

ALL = {name.lower(): value for name, value in globals().items() if name.isupper() and isinstance(value, str)}
