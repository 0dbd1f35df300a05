"""Chat templates that write tools and calls in a language of their own: TypeScript, XML, Python, arguments as a text."""

# ruff: noqa: E501  # a line of a template is as long as it is

from __future__ import annotations

HARMONY = r"""
{#- OpenAI's harmony: JSON schemas become TypeScript, messages go through channels. -#}
{%- macro typescript(spec, depth=0) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] -%}
            {{- typescript(spec['items'], depth) ~ "[]" -}}
        {%- else -%}
            {{- "any[]" -}}
        {%- endif -%}
        {%- if spec.nullable -%}{{- " | null" -}}{%- endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type is not mapping -%}
        {{- spec.type | join(" | ") -}}
    {%- elif spec.oneOf -%}
        {%- for option in spec.oneOf -%}
            {{- typescript(option, depth) -}}
            {%- if not loop.last %}{{ " | " }}{% endif -%}
        {%- endfor -%}
    {%- elif spec.type == "string" and spec.enum -%}
        {{- '"' + spec.enum | join('" | "') + '"' -}}
    {%- elif spec.type in ["number", "integer"] -%}
        {{- "number" -}}
    {%- elif spec.type == "object" and spec.properties -%}
        {{- "{\n" -}}
        {%- for name, inner in spec.properties.items() -%}
            {%- if inner.description -%}
                {{- "  " * depth ~ "// " ~ inner.description ~ "\n" -}}
            {%- endif -%}
            {{- "  " * depth ~ name -}}
            {%- if name not in (spec.required or []) -%}{{- "?" -}}{%- endif -%}
            {{- ": " ~ typescript(inner, depth + 1) -}}
            {%- if inner.default is defined -%}
                {%- if inner.default is string %}, // default: {{ inner.default | tojson }}
                {%- else %}, // default: {{ inner.default }}{% endif -%}
            {%- endif -%}
            {{- ",\n" -}}
        {%- endfor -%}
        {{- "  " * (depth - 1) ~ "}" -}}
    {%- elif spec.type is defined -%}
        {{- spec.type -}}
    {%- else -%}
        {{- "any" -}}
    {%- endif -%}
{%- endmacro -%}
{%- macro namespace_of(name, tools) -%}
    {{- "## " + name + "\n\nnamespace " + name + " {\n\n" -}}
    {%- for tool in tools -%}
        {%- set tool = tool.function -%}
        {{- "// " + (tool.description or "no description") | replace("\n", "\n// ") + "\ntype " + tool.name + " = (" -}}
        {%- if tool.parameters and tool.parameters.properties -%}
            {{- "_: " + typescript(tool.parameters, 1) -}}
        {%- endif -%}
        {{- ") => any;\n\n" -}}
    {%- endfor -%}
    {{- "} // namespace " + name -}}
{%- endmacro -%}
{{- "<|start|>system<|message|>You are " ~ (model_identity | default("ChatGPT, a large language model.")) ~ "\n" -}}
{{- "Current date: " + strftime_now("%Y-%m-%d") + "\n\nReasoning: " + (reasoning_effort if reasoning_effort is defined else "medium") -}}
{{- "\n\n# Valid channels: analysis, commentary, final.<|end|>" -}}
{%- set developer = messages[0].content if messages[0].role in ("developer", "system") else "" -%}
{%- set loop_messages = messages[1:] if messages[0].role in ("developer", "system") else messages -%}
{%- if developer or tools -%}
    {{- "<|start|>developer<|message|>" -}}
    {%- if developer %}{{ "# Instructions\n\n" + developer + "\n\n" }}{% endif -%}
    {%- if tools %}{{ "# Tools\n\n" + namespace_of("functions", tools) }}{% endif -%}
    {{- "<|end|>" -}}
{%- endif -%}
{%- set last = namespace(tool=none) -%}
{%- for message in loop_messages -%}
    {%- if message.role == "assistant" and message.tool_calls -%}
        {%- if message.content and message.thinking -%}
            {{- raise_exception("Cannot pass both content and thinking in an assistant message with tool calls!") -}}
        {%- elif message.content -%}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.content + "<|end|>" -}}
        {%- elif message.thinking -%}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" -}}
        {%- endif -%}
        {%- for call in message.tool_calls -%}
            {%- set last.tool = call.function.name -%}
            {{- "<|start|>assistant to=functions." + call.function.name + "<|channel|>commentary json<|message|>" -}}
            {{- call.function.arguments | tojson + "<|call|>" -}}
        {%- endfor -%}
    {%- elif message.role == "assistant" -%}
        {%- if message.thinking and loop.last -%}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" -}}
        {%- endif -%}
        {%- set last.tool = none -%}
        {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + ("<|return|>" if loop.last and not add_generation_prompt else "<|end|>") -}}
    {%- elif message.role == "tool" -%}
        {%- if last.tool is none -%}
            {{- raise_exception("Message has tool role, but there was no previous assistant message with a tool call!") -}}
        {%- endif -%}
        {{- "<|start|>functions." + last.tool + " to=assistant<|channel|>commentary<|message|>" + message.content | tojson + "<|end|>" -}}
    {%- else -%}
        {{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ "<|start|>assistant" }}{% endif -%}
"""

QWEN_3_CODER = r"""
{%- macro extra_keys(spec, handled) %}
    {%- if spec is mapping %}
        {%- for key in spec if key not in handled %}
            {%- if spec[key] is mapping or (spec[key] is sequence and spec[key] is not string) %}
                {{- '\n<' ~ key ~ '>' ~ (spec[key] | tojson | safe) ~ '</' ~ key ~ '>' }}
            {%- else %}
                {{- '\n<' ~ key ~ '>' ~ (spec[key] | string) ~ '</' ~ key ~ '>' }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- if messages[0].role == 'system' %}{% set system, rest = messages[0].content, messages[1:] %}
{%- else %}{% set system, rest = none, messages %}{% endif %}
{%- if system is not none or tools is iterable and tools | length > 0 %}
    {{- '<|im_start|>system\n' + (system if system is not none else 'You are Qwen.') }}
    {%- if tools is iterable and tools | length > 0 %}
        {{- '\n\n# Tools\n\n<tools>' }}
        {%- for tool in tools %}
            {%- set tool = tool.function if tool.function is defined else tool %}
            {{- '\n<function>\n<name>' ~ tool.name ~ '</name>' }}
            {%- if tool.description is defined %}{{ '\n<description>' ~ (tool.description | trim) ~ '</description>' }}{% endif %}
            {{- '\n<parameters>' }}
            {%- for name, fields in (tool.parameters.properties | default({})) | items %}
                {{- '\n<parameter>\n<name>' ~ name ~ '</name>' }}
                {%- if fields.type is defined %}{{ '\n<type>' ~ fields.type | string ~ '</type>' }}{% endif %}
                {{- extra_keys(fields, ['name', 'type']) }}
                {{- '\n</parameter>' }}
            {%- endfor %}
            {{- extra_keys(tool.parameters, ['type', 'properties']) }}
            {{- '\n</parameters>' }}
            {{- extra_keys(tool, ['type', 'name', 'description', 'parameters']) }}
            {{- '\n</function>' }}
        {%- endfor %}
        {{- '\n</tools>' }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in rest %}
    {%- if message.role == 'assistant' and message.tool_calls is defined and message.tool_calls is iterable and message.tool_calls | length > 0 %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content is defined and message.content is string and message.content | trim | length > 0 %}
            {{- '\n' + message.content | trim + '\n' }}
        {%- endif %}
        {%- for call in message.tool_calls %}
            {%- if call.function is defined %}{% set call = call.function %}{% endif %}
            {{- '\n<tool_call>\n<function=' + call.name + '>\n' }}
            {%- if call.arguments is defined %}
                {%- for name, value in call.arguments | items %}
                    {{- '<parameter=' + name + '>\n' }}
                    {%- set value = value | tojson | safe if value is mapping or (value is sequence and value is not string) else value | string %}
                    {{- value }}
                    {{- '\n</parameter>\n' }}
                {%- endfor %}
            {%- endif %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if not loop.last and loop.nextitem.role != 'tool' or loop.last %}{{ '<|im_end|>\n' }}{% endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""

LLAMA_4 = r"""
{{- bos_token }}
{%- if custom_tools is defined and custom_tools %}{% set tools = custom_tools %}{% endif %}
{%- set tools = tools if tools else none %}
{%- macro text_of(content) %}
    {%- if content is string %}{{ content | trim }}
    {%- else %}
        {%- for part in content %}
            {%- if part['type'] == 'image' %}{{ '<|image|>' }}
            {%- elif part['type'] == 'text' %}{{ part['text'] | trim }}{% endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = text_of(messages[0]['content']) %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = 'You are a helpful assistant.' if tools is not none else '' %}
{%- endif %}
{%- if system_message or tools is not none %}
    {{- '<|header_start|>system<|header_end|>\n\n' }}
    {%- if tools is not none %}
        {{- 'You have access to these functions; answer with [name(param=value)].\n\n' }}
        {%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\n\n' }}{% endfor %}
    {%- endif %}
    {{- system_message + '<|eot|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if 'tool_calls' in message and message.tool_calls | length > 0 %}
        {{- '<|header_start|>assistant<|header_end|>\n\n<|python_start|>' }}
        {%- if message.content %}{{- text_of(message.content) }}{% endif %}
        {{- '[' }}
        {%- for call in message.tool_calls %}
            {{- call.function.name ~ '(' }}
            {%- for name, value in call.function.arguments.items() %}
                {{- '%s=%s' % (name, value | tojson) }}{{ ', ' if not loop.last }}
            {%- endfor %}
            {{- ')' ~ (', ' if loop.revindex0 else '') }}
        {%- endfor %}
        {{- ']<|python_end|><|eom|>' }}
    {%- elif message.role == 'tool' or message.role == 'ipython' %}
        {{- '<|header_start|>ipython<|header_end|>\n\n' }}
        {%- if message.content is string %}{{ {'output': message.content} | tojson }}
        {%- else %}{% for part in message.content %}{{ {'output': part['text']} | tojson }}{% endfor %}{% endif %}
        {{- '<|eot|>' }}
    {%- else %}
        {{- '<|header_start|>' + message['role'] + '<|header_end|>\n\n' + text_of(message['content']) + '<|eot|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header_start|>assistant<|header_end|>\n\n' }}{% endif %}
"""

DEEPSEEK_V3 = r"""
{%- if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{%- set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {%- set ns.system_prompt = ns.system_prompt + ('' if ns.is_first_sp else '\n\n') + message['content'] %}
        {%- set ns.is_first_sp = false %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}{{ ns.system_prompt }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {%- set ns.is_tool = false -%}
        {{- '<｜User｜>' + message['content'] }}
    {%- elif message['role'] == 'assistant' and message['tool_calls'] %}
        {%- set ns.is_tool = false %}
        {%- for tool in message['tool_calls'] %}
            {%- if not ns.is_first %}
                {{- '<｜Assistant｜>' + (message['content'] or '') + '<｜tool▁calls▁begin｜>' }}
                {%- set ns.is_first = true %}
            {%- else %}
                {{- '\n' }}
            {%- endif %}
            {{- '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\n```json\n' + tool['function']['arguments'] + '\n```<｜tool▁call▁end｜>' }}
        {%- endfor %}
        {{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}
    {%- elif message['role'] == 'assistant' %}
        {%- if ns.is_tool %}{{ '<｜tool▁outputs▁end｜>' }}{% else %}{{ '<｜Assistant｜>' }}{% endif %}
        {%- set ns.is_tool = false %}
        {{- message['content'] + '<｜end▁of▁sentence｜>' }}
    {%- elif message['role'] == 'tool' %}
        {%- set ns.is_tool = true %}
        {{- '<｜tool▁outputs▁begin｜>' if ns.is_output_first else '\n' }}
        {%- set ns.is_output_first = false %}
        {{- '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}
    {%- endif %}
{%- endfor %}
{%- if ns.is_tool %}{{ '<｜tool▁outputs▁end｜>' }}{% endif %}
{%- if add_generation_prompt and not ns.is_tool %}{{ '<｜Assistant｜>' }}{% endif %}
"""

ALL = {name.lower(): value for name, value in globals().items() if name.isupper() and isinstance(value, str)}
