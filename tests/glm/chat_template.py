"""A chat template in the manner of GLM's: effort line, tools in a system turn, an always open reasoning
block.
"""

GLM_TEMPLATE = """\
[gMASK]<sop>
{%- if reasoning_effort is defined %}<|system|>Reasoning Effort: {{ reasoning_effort }}{% endif -%}
{%- if tools %}<|system|># Tools
<tools>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>
Call as <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>{% endif -%}
{%- for message in messages -%}
{%- if message.role == "tool" %}<|observation|><tool_response>{{ message.content }}</tool_response>
{%- elif message.role == "assistant" %}<|assistant|><think>{{ message.reasoning_content or "" }}</think>
{{- message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function.name }}
{%- for key, value in call.function.arguments.items() %}<arg_key>{{ key }}</arg_key><arg_value>
{{- value if value is string else value | tojson }}</arg_value>{% endfor %}</tool_call>
{%- endfor -%}
{%- else %}<|{{ message.role }}|>{{ message.content }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|><think>{% endif -%}"""
