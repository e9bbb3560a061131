"""A text side for tests: a byte vocabulary plus whatever multi-byte tokens the scripts need.

Written as a Hugging Face folder and read back by the real TextBundle, so that templates, parsers, stops and
grammars are the real ones.
"""

from __future__ import annotations

import json
from pathlib import Path

from tandem.text.bundle import TextBundle
from tandem.text.tokenizer import byte_alphabet

END = "<|im_end|>"
SPECIALS = (
    "<|endoftext|>", "<|im_start|>", END, "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|user|>", "<|assistant|>", "<|observation|>",
)  # fmt: skip

PLAIN_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""
"""Neither reasoning nor tools in what it offers the model; calls in the history are rendered."""

HERMES_TEMPLATE = """\
{%- if tools -%}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Reply with <tool_call>
{"name": <name>, "arguments": <object>}
</tool_call><|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""

GLM_TEMPLATE = """\
[gMASK]<sop>
{%- if reasoning_effort %}<|user|>effort {{ reasoning_effort }}{% endif -%}
{%- if tools %}<|user|># Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif -%}
{%- for message in messages -%}
{%- if message.role == "tool" %}<|observation|>{{ message.content }}
{%- else %}<|{{ message.role }}|>
{%- if message.role == "assistant" %}
<think>{{ message.reasoning_content or "" }}</think>
{%- endif -%}
{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function.name }}
{%- for key, value in call.function.arguments.items() %}<arg_key>{{ key }}</arg_key><arg_value>
{{- value if value is string else value | tojson }}</arg_value>{% endfor %}</tool_call>
{%- endfor -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|><think>{% endif -%}"""
"""In the manner of GLM: the prompt ends inside an open reasoning block."""


def write_model_folder(folder: Path, template: str, pieces: list[bytes]) -> None:
    """A tokenizer whose ids are the 256 bytes, then ``pieces`` (encoding never gives them), then SPECIALS."""
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    vocabulary = {letters[byte]: byte for byte in range(256)}
    for piece in pieces:
        vocabulary.setdefault("".join(letters[byte] for byte in piece), len(vocabulary))
    first_special = len(vocabulary)
    added = [
        {
            "id": first_special + index, "content": text, "special": not text.startswith(("<arg", "</arg")),
            "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
        }
        for index, text in enumerate(SPECIALS)
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    definition = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocabulary, "merges": [],
        },
    }  # fmt: skip
    ends = [first_special + SPECIALS.index(text) for text in ("<|endoftext|>", END, "<|user|>")]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": END, "chat_template": template}), encoding="utf-8"
    )
    (folder / "config.json").write_text(json.dumps({"eos_token_id": ends}), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}), encoding="utf-8")


def make_bundle(folder: Path, template: str, pieces: list[bytes]) -> TextBundle:
    write_model_folder(folder, template, pieces)
    return TextBundle.from_folder(folder)


def token_ids(bundle: TextBundle, piece: bytes | str) -> list[int]:
    """One id for a special token (str) or a known piece; else one id a byte."""
    tokenizer = bundle.tokenizer
    if isinstance(piece, str):
        return tokenizer.encode(piece, special=True)
    if len(piece) == 1:
        return list(piece)
    for token in range(256, tokenizer.vocab_size):
        if tokenizer.token_bytes(token) == piece and token not in tokenizer.special_token_ids:
            return [token]
    return list(piece)
