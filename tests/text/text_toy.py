"""A small byte-level BPE vocabulary and models made of it, so that no test needs a download."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from tandem.core.requests import FinishReason, TokenOutput
from tandem.text.bundle import OutputOptions, OutputProcessor, TextBundle
from tandem.text.tokenizer import Tokenizer

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|system|>",
    "[gMASK]",
    "<sop>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
TAGS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
)
_CORPUS = (
    "The quick brown fox jumps over the lazy dog. It was, and will be, a story of numbers: 1 2 3 10 100 202.",
    'def f(x):\n    return {"name": "get_weather", "arguments": {"city": "Oslo", "n": 12, "ok": true}}\n',
    "for (let i = 0; i < 10; i++) { console.log(`<div class='a'>${i}</div>`); }\n\n\treturn null;\n",
    '{"type": "object", "properties": {"a": [1, 2, 3], "b": null, "c": false}, "required": ["a"]}',
    "Ünïcödé, 世界, こんにちは, 한글, Привет; emoji 🧑\u200d🚀 👩🏽\u200d💻 🇺🇦.",
)

CHATML = """\
{%- if tools %}<|im_start|>system
You may call:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<tool_call>{"name": …, "arguments": …}</tool_call><|im_end|>
{% endif -%}
{%- for message in messages %}
<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}

<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{%- endfor %}
{%- if add_generation_prompt %}

<|im_start|>assistant
{% endif %}"""

LLAMA3 = """\
{{- bos_token }}
{%- set ns = namespace(first=true) %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) and not message.tool_calls %}
        {{- raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim }}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

GLM = """\
[gMASK]<sop>
{%- if tools %}<|system|>
# Tools
<tools>
{% for tool in tools %}{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}</tools>
{%- endif %}
{%- set effort = reasoning_effort if reasoning_effort in ['low', 'high'] else 'max' %}
<|system|>Reasoning Effort: {{ effort }}
{%- for m in messages %}
{%- if m.role == 'user' %}<|user|>{{ m.content }}
{%- elif m.role == 'assistant' %}<|assistant|>
{%- if m.reasoning_content %}<think>{{ m.reasoning_content.strip() }}</think>
{%- elif '</think>' in m.content %}<think>{{ m.content.split('</think>')[0].split('<think>')[-1] }}</think>
{%- else %}<think></think>{% endif %}
{{- m.content.split('</think>')[-1].strip() }}
{%- for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}
{%- for k, v in call.function.arguments.items() %}
<arg_key>{{ k }}</arg_key><arg_value>
{{- v if v is string else v | tojson(ensure_ascii=False) }}</arg_value>{% endfor %}</tool_call>{% endfor %}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif -%}
<tool_response>{{ m.content }}</tool_response>
{%- elif m.role == 'system' %}<|system|>{{ m.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|><think>{% endif %}"""


@cache
def definition() -> str:
    """The vocabulary as a tokenizer.json."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=520,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_CORPUS * 3, trainer)
    backend.add_tokens([tokenizers.AddedToken(tag, normalized=False) for tag in TAGS])
    return backend.to_str()


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(definition())


def write_folder(folder: Path, template: str | None, **config: Any) -> Path:
    """A Hugging Face folder's text files; ``config`` goes into config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(definition(), encoding="utf-8")
    settings = {
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|im_end|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def feed(
    processor: OutputProcessor, ids: list[int], reason: FinishReason = FinishReason.STOP
) -> dict[str, Any]:
    """Push all tokens, finish, and join the deltas to a message."""
    deltas = []
    for index in ids:
        deltas.append(processor.push(TokenOutput(index, None, False)))
        if processor.stopped:
            reason = FinishReason.STOP
            break
    deltas.append(processor.finish(reason))
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        for piece in delta.tool_calls:
            if piece.name is not None:
                calls[piece.index] = {"id": piece.id, "name": piece.name, "arguments": ""}
            calls[piece.index]["arguments"] += piece.arguments
    return {
        "content": "".join(delta.content for delta in deltas),
        "reasoning": "".join(delta.reasoning for delta in deltas),
        "calls": list(calls.values()),
        "finish": processor.finish_reason(reason),
        "deltas": deltas,
    }


def run(bundle: TextBundle, text: str, options: OutputOptions, **how: Any) -> dict[str, Any]:
    """What a model that writes ``text`` (tags as tags) delivers."""
    return feed(bundle.output_processor(options), bundle.tokenizer.encode(text, special=True), **how)
